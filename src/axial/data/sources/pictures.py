"""Pictures in folders and tars, or one alone: which files are meant, their splits and labels."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from PIL import Image

from axial.data.sources.archives import Entry, tar_entries
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder
from axial.data.sources.record import Record, Source, choose_split
from axial.errors import DataError
from axial.validation import counted

OPTIONS = frozenset({"size", "patches", "convert", "any_size"})
_SPLITS = {"train", "test", "valid", "val", "validation"}


class Files(NamedTuple):
    """The files of one kind below a folder, of the split that is meant."""

    split: str | None
    """None where no folder is named after a split."""
    folder: Path
    """Where they lie: the folder that was given, or that of the split."""
    names: list[str]
    """Their paths in it, with / between the parts, sorted."""
    elsewhere: list[list[str]]
    """Those of each other split."""
    notes: list[str]
    """What is said of other files."""


def open_folder(path: Path, options: ReadOptions) -> Source:
    """A folder of pictures, in subfolders or not; one named after a split is that split."""
    files = find_files(path, is_picture_name, options)
    if not files.names:
        raise DataError(f"{path}: holds no pictures; give a folder with some in it")
    classes = _class_names(files)
    return Source(
        name=path.resolve().name,
        reader="folder of pictures" + (", labels from subfolders" if classes else ""),
        split=files.split,
        values=256,
        names=classes or None,
        classes=len(classes),
        count=None if options.patches else len(files.names),
        records=_file_records(files, classes),
        decode=Decoder(options),
        alone=len(files.names) == 1,
        takes=OPTIONS,
        notes=files.notes + changes(options),
    )


def open_picture(path: Path, options: ReadOptions) -> Source:
    """A single picture; of use with --patches."""
    return Source(
        name=path.stem,
        reader="picture",
        values=256,
        records=iter([Record(str(path), str(path))]),
        decode=Decoder(options, only=True),
        alone=True,
        takes=OPTIONS,
        notes=changes(options),
    )


def open_tar(path: Path, options: ReadOptions) -> Source:
    """A tar of pictures, read in the order of its entries; a folder named after a split is it."""
    found: Counter[str] = Counter()

    def count(name: str) -> bool:
        if is_picture_name(name):
            found[_top(str(PurePosixPath(name)))] += 1
        return False

    for _ in tar_entries(path, count):
        pass  # what is wrong with an entry is told when it is read
    splits = sorted(found.keys() & _SPLITS)
    split = choose_split(options.split, splits, path) if splits else None
    beside = found.total() - sum(found[s] for s in splits) if splits else 0
    return Source(
        name=path.name.split(".")[0],
        reader="tar of pictures",
        split=split,
        values=256,
        records=tar_records(path, split),
        decode=Decoder(options),
        takes=OPTIONS,
        notes=_ignored(beside) + changes(options),
    )


def tar_records(path: Path, top: str | None = None) -> Iterator[Record | DataError]:
    """The pictures of a tar, or those in one of its first folders, in its order."""

    def wanted(name: str) -> bool:
        return is_picture_name(name) and top in (None, _top(str(PurePosixPath(name))))

    for entry in tar_entries(path, wanted):
        yield Record(entry.where, entry.data) if isinstance(entry, Entry) else entry


def changes(options: ReadOptions) -> list[str]:
    """What the options do to every picture, for the description."""
    notes = [f"converted to {options.convert}"] if options.convert else []
    if options.size:
        notes.append(f"{'patches of' if options.patches else 'shrunk to'} {options.size}")
    return notes


def is_picture_name(name: str) -> bool:
    """Whether a name ends as pictures do, and neither it nor a folder of it is hidden."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return path.suffix.lower() in _suffixes() and not hidden


@functools.cache
def _suffixes() -> frozenset[str]:
    others = {".mpg", ".mpeg", ".pdf", ".h5", ".hdf", ".ps", ".eps"}  # which Pillow cannot read
    return frozenset(Image.registered_extensions()) - others


def _top(name: str) -> str:
    """The first folder of a path; nothing for what lies in none."""
    folder, slash, _ = name.partition("/")
    return folder if slash else ""


def find_files(path: Path, wanted: Callable[[str], bool], options: ReadOptions) -> Files:
    """The files below a folder that are wanted by their names."""
    found, others = files_below(path, wanted)
    splits = sorted({_top(name) for name in found} & _SPLITS)
    if not splits:
        return Files(None, path, found, [], _ignored(len(others)))
    split = choose_split(options.split, splits, path)
    parts = {s: [n.removeprefix(f"{s}/") for n in found if _top(n) == s] for s in splits}
    beside = len(found) - sum(map(len, parts.values()))
    beside += sum(_top(name) == split for name in others)
    mine = parts.pop(split)
    return Files(split, path / split, mine, list(parts.values()), _ignored(beside))


def _ignored(count: int) -> list[str]:
    return [f"{counted(count, 'other file')} ignored"] if count else []


def files_below(folder: Path, wanted: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Paths below a folder, sorted, with / between their parts; and the others there are.

    A link to nothing is listed, so that it is noticed; pipes and devices are not, for they hang,
    and a linked folder, which may lead round in circles, counts as one of the others.
    """
    found, others, below = [], [], [""]
    while below:
        within = below.pop()
        with os.scandir(folder / within) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(f"{within}{entry.name}/")
                elif wanted(entry.name) and _is_readable(entry):
                    found.append(within + entry.name)
                else:
                    others.append(within + entry.name)
    return sorted(found), others


def _is_readable(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a file, or a link to nothing or in circles, which shows on reading it."""
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry).exists())
    except OSError:
        return entry.is_symlink()


def _class_names(files: Files) -> list[str]:
    """The first folders, if every picture lies in one and there are several.

    Those of the other splits count too, so that a label has the same number in all of them.
    """
    mine, *others = ({_top(name) for name in part} for part in (files.names, *files.elsewhere))
    if "" in mine or all(len(part - {""}) < 2 for part in (mine, *others)):
        return []
    return sorted(mine.union(*others) - {""})


def _file_records(files: Files, classes: list[str]) -> Iterator[Record]:
    number = {name: i for i, name in enumerate(classes)}
    for name in files.names:
        path = f"{files.folder}/{name}"
        yield Record(path, path, number[_top(name)] if classes else None)
