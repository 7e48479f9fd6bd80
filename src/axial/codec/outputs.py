"""What `axial decompress` does: entries of a file into a folder, or one alone into a file."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from axial.checkpoints.model_folder import load
from axial.codec.codec import Codec, Example
from axial.codec.container import (
    MARK,
    Contents,
    Entry,
    check_names,
    read_contents,
    read_group,
)
from axial.codec.entries import FACTS, LOSSLESS, restored_name, summary
from axial.data.description import Description
from axial.data.packed import dtype_for
from axial.data.packed_writer import PackedWriter
from axial.errors import CheckpointError, DataError, StreamError
from axial.system.files import check_place, check_writable, errors_of, open_file, replacing
from axial.system.progress import counting
from axial.system.ranks import usable

_LISTED = 20


def decompress_file(
    path: Path,
    out: Path,
    *,
    model: Path | str | None = None,
    only: Iterable[str] = (),
    device: str | None = None,
    overwrite: bool = False,
) -> int:
    """Restore the entries of a file, or some by name, into a folder; one alone also into a file.

    Returns how many there were.
    """
    with errors_reading(path), open_file(path) as file:
        contents = read_contents(file)
        chosen = _chosen(contents, set(only))
        entries = [contents.entries[i] for i in chosen]
        _check_entries(contents, entries)
        to_file = _check_out(out, entries, overwrite=overwrite)
        codec = _codec(contents, model, device)
        codec.check(contents)
        everything = len(entries) == len(contents.entries)
        total = sum(map(contents.tiles_of, entries)) if everything else None  # groups hold others
        with errors_of(out), counting("tiles decoded", total) as progress:
            examples = (found for _, found in codec.read(file, contents, chosen, progress))
            if to_file and entries[0].array:  # which comes with files beside it
                _restore_array(entries[0], contents, examples, out, overwrite=overwrite)
            elif to_file:
                with replacing(out) as new:
                    _restore_picture(next(examples), new, out.suffix)
            else:
                with replacing(out) as new:
                    _restore_all(entries, contents, examples, new)
    return len(entries)


def _restore_all(
    entries: list[Entry], contents: Contents, examples: Iterator[Example], folder: Path
) -> None:
    """Write every entry into a new folder."""
    folder.mkdir()
    for entry in entries:
        target = folder / restored_name(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        own = islice(examples, entry.count)
        if entry.array:
            _restore_array(entry, contents, own, target)
        else:
            _restore_picture(next(own), target, target.suffix)


def _restore_picture(example: Example, path: Path, suffix: str) -> None:
    if example.x.max() > 255:
        raise StreamError(f"{path.name} has values above 255, which no picture holds; use Python")
    x = example.x.astype(np.uint8)
    picture = Image.fromarray(x[..., 0] if x.shape[-1] == 1 else x)
    with path.open("xb") as file:  # where case does not count, two names may be one
        picture.save(file, **LOSSLESS[suffix.lower()])


@contextmanager
def errors_reading(path: Path) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    except OSError as error:
        raise StreamError(f"{path}: cannot be read ({error.strerror or error})") from error


def _chosen(contents: Contents, only: set[str]) -> list[int]:
    """The numbers of the entries that are wanted, in the order of the file."""
    names = [entry.name for entry in contents.entries]
    for name in sorted(only.difference(names)):
        raise StreamError(f"has no entry {name!r}; `axial info` lists them")
    return [i for i, name in enumerate(names) if not only or name in only]


def _check_entries(contents: Contents, entries: list[Entry]) -> None:
    """Refuse what has no place in a folder, or is no picture, before anything is decoded."""
    pictures = len(contents.axes) == 2 and contents.channels in (1, 3)
    for entry in entries:
        name = restored_name(entry)
        if entry.array and (not name.endswith(".npy") or name.endswith(".labels.npy")):
            raise StreamError(f"has an array {entry.name!r}, which is no .npy name")
        if not entry.array and not entry.name:
            raise StreamError("has a picture that has no name")
        if not entry.array and not pictures:
            raise StreamError(f"has an entry {entry.name!r}, which is no picture; use Python")
        if entry.array:
            _facts(entry, contents)
    check_names([restored_name(entry) for entry in entries])


def _codec(contents: Contents, model: Path | str | None, device: str | None) -> Codec:
    """The model that was named, or the one that the file names."""
    name = model if model is not None else contents.model
    try:
        return Codec(load(name, device=usable(device)), name=str(name))
    except CheckpointError as error:
        if model is not None:
            raise
        called = f"the model {contents.model!r}, which is not here" if contents.model else "a model"
        raise StreamError(f"was written with {called}; give --model") from error


def _check_out(out: Path, entries: list[Entry], *, overwrite: bool) -> bool:
    """Whether `out` is a file, for one entry alone; refused where it cannot be written."""
    with errors_of(out):
        if not out.parent.is_dir():
            raise DataError(f"{out}: {out.parent} is no folder; name an existing one")
        suffix = out.suffix.lower()
        wanted = {".npy"} if entries[0].array else set(LOSSLESS)
        if len(entries) == 1 and suffix in wanted:
            check_place(out, overwrite=overwrite)
            return True
        if suffix in {".npy", *LOSSLESS}:
            what = f"{len(entries)} entries" if len(entries) > 1 else "an array"
            raise DataError(f"{out}: cannot hold {what}; name a folder, or pick one by --only")
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise DataError(f"{out}: exists and is not an empty folder; name a new one")
        check_writable(out)
    return False


def _restore_array(
    entry: Entry,
    contents: Contents,
    examples: Iterator[Example],
    path: Path,
    *,
    overwrite: bool = False,
) -> None:
    """A packed array with its labels and description, as `axial data` writes it."""
    about, frames = _facts(entry, contents)
    names = about.labels.names if about.labels else None
    facts = {name: getattr(about, name) for name in FACTS}
    labels = []
    with PackedWriter(path, overwrite=overwrite) as writer:
        for x, label in examples:
            if x.max() >= about.values:
                raise _other_words(entry)
            if frames:
                x = np.moveaxis(x.reshape(*x.shape[:-1], frames, -1), -2, 0)
            writer.append(x[None].astype(dtype_for(about.values)))
            labels.append(label)
        known = np.array(labels) if contents.classes else None
        writer.finish(known, contents.classes, names, **facts)


def _facts(entry: Entry, contents: Contents) -> tuple[Description, int | None]:
    """What the description of an array said, and how many frames were stacked in its channels."""
    said: dict[str, Any] = {"source": "array", "version": None, "split": None, "skipped": 0}
    said |= {"values": contents.values, "notes": (), "command": "axial decompress"}
    try:
        said = said | (json.loads(entry.about) if entry.about else {})
        frames, names = said.get("stacked"), said.get("names")
        channels = 1 if entry.one_plane else contents.channels
        if frames is not None and (type(frames) is not int or frames < 1 or channels % frames):
            raise ValueError(frames)
        labels = {"classes": contents.classes, "names": names, "sha256": ""}
        shape = {"axes": entry.grid, "channels": channels, "count": entry.count}
        shape |= {"dtype": "", "sha256": "", "labels": labels if contents.classes else None}
        about = Description.of_facts({name: said[name] for name in FACTS} | shape)
        if about.values > contents.values:
            raise ValueError(about.values)
        return about, frames
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _other_words(entry) from error


def _other_words(entry: Entry) -> StreamError:
    return StreamError(f"describes its array {entry.name!r} in words that are not ours")


def describe_file(path: Path) -> str:
    """What `axial info` says of a file; needs no model, and holds every group to its checksum."""
    with errors_reading(path), open_file(path) as file:
        contents = read_contents(file)
        place = len(MARK) + 1
        for number, group in enumerate(contents.groups):
            read_group(file, contents, place, number)
            place += group.length
        size = file.seek(0, 2)
    labels = f", {contents.classes} classes stored" if contents.classes else ""
    lines = [
        f"{'holds':<12}{summary(contents, size)}",
        f"{'model':<12}{contents.model or 'not named'}, id {contents.fingerprint.hex()}",
        f"{'tiles':<12}{_tiles(contents)}, {contents.values} values{labels}",
        f"{'groups':<12}{len(contents.groups):,}, all whole",
        "",
    ]
    for entry in contents.entries[:_LISTED]:
        shape = " x ".join(map(str, entry.grid))
        kind = " grey" if entry.one_plane else ""
        examples = f"{entry.count:,} examples of " if entry.array else ""
        lines.append(f"  {entry.name or '(an array)'}: {examples}{shape}{kind}")
    if (more := len(contents.entries) - _LISTED) > 0:
        lines.append(f"  and {more:,} more")
    return "\n".join(lines)


def _tiles(contents: Contents) -> str:
    count = sum(map(contents.tiles_of, contents.entries))
    overlap = f", overlapping by {contents.overlap}" if contents.overlap else ""
    size = " x ".join(map(str, (*contents.axes, contents.channels)))
    return f"{count:,} of {size}{overlap}"
