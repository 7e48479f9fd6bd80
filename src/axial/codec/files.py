"""What `axial compress` and `axial decompress` do: pictures and arrays to one file, and back."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from axial.checkpoints.model_folder import load
from axial.checkpoints.trained_on import class_names
from axial.codec.codec import Codec, Example
from axial.codec.container import Contents, Entry, check_names, read_contents
from axial.data.compatibility import conform
from axial.data.packed import Array, Packed, dtype_for, is_packed
from axial.data.packed_writer import PackedWriter
from axial.data.packing import open_data
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder as PictureDecoder
from axial.data.sources.pictures import files_below, is_picture_name
from axial.data.sources.recognise import is_video
from axial.data.sources.record import Record
from axial.errors import CheckpointError, DataError, InputError, StreamError
from axial.shape import MOST_VALUES, DataShape
from axial.system.files import (
    check_apart,
    check_place,
    check_writable,
    errors_of,
    open_file,
    replacing,
    temporary_folder,
)
from axial.system.progress import counting
from axial.system.ranks import usable
from axial.system.terminal import printable

SUFFIX = ".axl"
_LOSSLESS: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    ".webp": {"format": "WEBP", "lossless": True, "exact": True},
    ".bmp": {"format": "BMP"},
    ".tif": {"format": "TIFF"},
    ".tiff": {"format": "TIFF"},
    ".ppm": {"format": "PPM"},
    ".pgm": {"format": "PPM"},
}
"""Formats that keep every pixel, by the endings of names; others get .png added."""
_FACTS = ("source", "version", "split", "values", "skipped", "notes", "command")
Item = tuple[Entry, Iterable[Example]]


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """What came of it."""

    pictures: int
    arrays: int
    examples: int
    bytes: int
    elements: int

    @property
    def bits_per_dim(self) -> float:
        """All bytes of the file counted."""
        return 8 * self.bytes / self.elements

    def __str__(self) -> str:
        kinds = [(self.pictures, "picture"), (self.arrays, "array")]
        what = " and ".join(f"{n:,} {kind}{'s' * (n > 1)}" for n, kind in kinds if n)
        if self.arrays:
            what += f" ({self.examples:,} examples)"
        return f"{what}, {self.bytes:,} bytes, {self.bits_per_dim:.4f} bits/dim"


def compress_files(
    checkpoint: Path | str,
    inputs: Iterable[Path | str],
    out: Path,
    *,
    label: int | None = None,
    convert: Any = None,
    device: str | None = None,
    overwrite: bool = False,
    verify: bool = False,
) -> Compressed:
    """Write pictures, folders of them, packed arrays and other sources into one .axl file."""
    inputs = list(inputs)
    if not inputs:
        raise DataError("nothing to compress: name pictures, folders or packed arrays")
    if out.suffix.lower() != SUFFIX:
        raise DataError(f"{out}: not a {SUFFIX} path; call it {out.with_suffix(SUFFIX)}")
    check_place(out, overwrite=overwrite)
    for source in inputs:
        check_apart(out, str(source))
    codec = Codec(load(checkpoint, device=usable(device)), name=str(checkpoint))
    with temporary_folder() as scratch, ExitStack() as stack:
        reading = _Inputs(codec.config.data, scratch, label, convert, class_names(checkpoint))
        items = [item for source in inputs for item in reading.open(source)]
        check_restored([entry.name for entry, _ in items])
        stack.enter_context(errors_of(out))
        new = stack.enter_context(replacing(out))
        contents = codec.contents(classes=reading.classes)
        with new.open("w+b") as file, counting("tiles coded", None) as progress:
            codec.write(file, contents, (reading.sized(item) for item in items), progress)
            if verify:
                for _ in codec.read(file, read_contents(file), progress=progress):
                    pass  # each group is compared with the seal of what went in
        size = new.stat().st_size
    return summary(contents, size)


def summary(contents: Contents, size: int) -> Compressed:
    """What a file of some bytes holds, in figures."""
    arrays = [entry for entry in contents.entries if entry.array]
    return Compressed(
        pictures=len(contents.entries) - len(arrays),
        arrays=len(arrays),
        examples=sum(entry.count for entry in contents.entries),
        bytes=size,
        elements=contents.elements,
    )


class _Inputs:
    """Opens what is to be compressed; pictures are read when their turn comes."""

    def __init__(
        self,
        shape: DataShape,
        scratch: Path,
        label: int | None,
        convert: Any,
        names: tuple[str, ...] | None,
    ) -> None:
        self.shape, self.scratch, self.label, self.names = shape, scratch, label, names
        self.decode = PictureDecoder(ReadOptions(convert=convert), only=True)
        self.convert = convert
        self.classes = shape.classes
        if label is not None and not 0 <= label < shape.classes:
            raise InputError(
                f"--label is {label}: the model has {shape.classes} classes"
                if shape.classes
                else "--label is given, but the model is unconditional: leave it out"
            )

    def open(self, source: Path | str) -> Iterator[Item]:
        """The entries of an input, their sizes not yet known."""
        path = Path(source)
        pictures = len(self.shape.axes) == 2 and self.shape.channels in (1, 3)
        if pictures and path.is_dir() and (found := files_below(path, is_picture_name)[0]):
            for name in found:
                yield self._picture(path / name, name)
        elif pictures and path.is_file() and is_picture_name(path.name) and not self._moves(path):
            yield self._picture(path, path.name)
        else:
            yield self._array(source)

    def _moves(self, path: Path) -> bool:
        return is_video(path, clips=False)

    def _picture(self, path: Path, name: str) -> Item:
        if self.classes and self.label is None:
            raise InputError(
                f"{path}: has no label, and the model is conditioned on one; --label N"
            )
        return Entry(name=name, grid=(1, 1)), self._read_picture(path)

    def _read_picture(self, path: Path) -> Iterator[Example]:
        (x,) = self.decode(Record(str(path), str(path)))
        if x.shape[-1] > self.shape.channels:
            raise InputError(
                f"{path}: is in colour, and the model is one of grey; --convert grey loses colour"
            )
        if int(x.max()) >= self.shape.values:
            raise InputError(
                f"{path}: holds {x.max()}, and the model has {self.shape.values} values"
            )
        yield Example(x, self.label)

    def sized(self, item: Item) -> Item:
        """The same entry with the size of its picture, which is read for that."""
        entry, examples = item
        if entry.array:
            return item
        (example,) = examples
        height, width, channels = example.x.shape
        return (
            Entry(
                name=entry.name,
                grid=(height, width),
                one_plane=channels < self.shape.channels,
            ),
            [example],
        )

    def _array(self, source: Path | str) -> Item:
        """An array entry: examples of the model's shape, or of other sizes along its axes."""
        frames = (
            self.shape.window if is_video(source, clips=self.shape.window is not None) else None
        )
        options = ReadOptions(frames=frames, convert=None if is_packed(source) else self.convert)
        folder = self.scratch / str(len(list(self.scratch.iterdir())))
        folder.mkdir()
        packed = open_data(source, folder, options)
        if packed.description.notes and frames:
            for note in packed.description.notes:
                print(printable(f"{source}: {note}"), file=sys.stderr)
        packed = self._fitting(packed)
        packed.check()
        labels = self._labels(packed)
        about = {name: getattr(packed.description, name) for name in _FACTS}
        about |= {"stacked": packed.shape.frames if packed.stack_frames else None}
        if packed.description.labels is not None and labels is not None:
            about |= {"classes": packed.description.labels.classes}
            about |= {"names": packed.description.labels.names}
        entry = Entry(
            name=PurePosixPath(Path(source).name).with_suffix(".npy").name,
            grid=packed.shape.axes,
            count=len(packed),
            array=True,
            one_plane=packed.shape.channels < self.shape.channels,
            about=json.dumps(about, separators=(",", ":")),
        )
        return entry, _rows(packed, labels)

    def _fitting(self, packed: Packed) -> Packed:
        """Arrays of other lengths along the same axes are cut; all else must be the model's."""
        found, wanted = packed.shape, self.shape
        alike = len(found.axes) == len(wanted.axes) and found.channels in (1, wanted.channels)
        if alike and found.values <= wanted.values and found.axes != wanted.axes:
            whole = DataShape(
                axes=found.axes,
                channels=found.channels,
                values=wanted.values,
                classes=wanted.classes,
            )
            return conform(packed, whole, self.names)
        if alike and found.channels == 1 != wanted.channels:
            return packed
        return conform(packed, wanted, self.names)

    def _labels(self, packed: Packed) -> Array | None:
        if self.shape.classes:
            if self.label is not None:
                return np.full(len(packed), self.label)
            return packed.labels
        if packed.labels is not None:
            own = packed.shape.classes
            if self.classes not in (0, own):
                raise InputError(
                    f"{packed.path}: has {own} classes where another input has {self.classes}; "
                    f"compress them one by one"
                )
            self.classes = own
        return packed.labels


def _rows(packed: Packed, labels: Array | None) -> Iterator[Example]:
    for i in range(len(packed)):
        yield Example(packed.rows([i])[0], None if labels is None else int(labels[i]))


def restored_name(name: str) -> str:
    """What the file of a picture is called: its own name, if its format keeps every pixel."""
    return name if PurePosixPath(name).suffix.lower() in _LOSSLESS else f"{name}.png"


def check_restored(names: list[str]) -> None:
    """Refuse names that could not all be restored in one folder."""
    try:
        check_names(names)
        check_names([name if name.endswith(".npy") else restored_name(name) for name in names])
    except StreamError as error:
        raise DataError(f"{error}; rename one, or compress the folder that holds both") from error


def decompress_file(
    path: Path,
    out: Path,
    *,
    model: Path | str | None = None,
    only: Iterable[str] = (),
    device: str | None = None,
    overwrite: bool = False,
) -> tuple[Contents, int]:
    """Restore the entries of a file, or some by name, into a folder; one alone also into a file."""
    with errors_reading(path), open_file(path) as file:
        contents = read_contents(file)
        chosen = _chosen(contents, list(only))
        entries = [contents.entries[i] for i in chosen]
        to_file = _check_out(out, entries, overwrite=overwrite)
        codec = _codec(contents, model, device)
        codec.check(contents)
        with (
            errors_of(out),
            replacing(out) as new,
            counting("tiles decoded", None) as progress,
        ):
            examples = codec.read(file, contents, chosen, progress)
            if not to_file:
                new.mkdir()
            for entry in entries:
                target = new if to_file else new / _entry_file(entry)
                target.parent.mkdir(parents=True, exist_ok=True)
                found = (next(examples)[1] for _ in range(entry.count))
                _restore(entry, contents, found, target, out if to_file else target)
    return contents, len(entries)


@contextmanager
def errors_reading(path: Path) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except StreamError as error:
        raise StreamError(f"{path}: {error}") from error
    except OSError as error:
        raise StreamError(f"{path}: cannot be read ({error.strerror or error})") from error


def _chosen(contents: Contents, only: list[str]) -> list[int]:
    """The numbers of the entries that are wanted, in the order of the file."""
    names = [entry.name for entry in contents.entries]
    for name in only:
        if name not in names:
            raise StreamError(f"has no entry {name!r}; `axial info` lists them")
    return [i for i, name in enumerate(names) if not only or name in only]


def _codec(contents: Contents, model: Path | str | None, device: str | None) -> Codec:
    """The model that was named, or the one that the file names."""
    name = model if model is not None else contents.model
    try:
        return Codec(load(name, device=usable(device)), name=str(name))
    except CheckpointError as error:
        if model is not None:
            raise
        raise StreamError(
            f"was written with the model {contents.model!r}, which is not here; give --model"
        ) from error


def _entry_file(entry: Entry) -> str:
    """Where an entry goes in a folder."""
    if entry.array:
        return entry.name or "array.npy"
    return restored_name(entry.name)


def _check_out(out: Path, entries: list[Entry], *, overwrite: bool) -> bool:
    """Whether `out` is a file, for one entry alone; refused where it cannot be written."""
    with errors_of(out):
        if not out.parent.is_dir():
            raise DataError(f"{out}: {out.parent} is no folder; name one that is there")
        suffix = out.suffix.lower()
        wanted = {".npy"} if entries[0].array else set(_LOSSLESS)
        if len(entries) == 1 and suffix in wanted:
            check_place(out, overwrite=overwrite)
            return True
        if suffix in {".npy", *_LOSSLESS}:
            what = f"{len(entries)} entries" if len(entries) > 1 else "an array"
            raise DataError(f"{out}: cannot hold {what}; name a folder, or pick one by --only")
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise DataError(f"{out}: is there, and no empty folder; name a new one")
        check_writable(out)
    return False


def _restore(
    entry: Entry, contents: Contents, examples: Iterator[Example], target: Path, final: Path
) -> None:
    """Write an entry to `target`, which is to become `final`."""
    if entry.array:
        _restore_array(entry, contents, examples, target)
        return
    x = next(examples).x.astype(np.uint8)
    picture = Image.fromarray(x[..., 0] if x.shape[-1] == 1 else x)
    picture.save(target, **_LOSSLESS[final.suffix.lower()])


def _restore_array(
    entry: Entry, contents: Contents, examples: Iterator[Example], target: Path
) -> None:
    """A packed array with its labels and description, as `axial data` writes it."""
    about: dict[str, Any] = {"source": "array", "version": None, "split": None, "skipped": 0}
    about |= {"values": contents.values, "notes": (), "command": "axial decompress"}
    about |= _about(entry)
    frames, names = about.pop("stacked", None), about.pop("names", None)
    classes = about.pop("classes", contents.classes)
    labels = []
    with PackedWriter(target) as writer:
        for x, label in examples:
            if frames:
                x = np.moveaxis(x.reshape(*x.shape[:-1], frames, -1), -2, 0)
            writer.append(x[None].astype(dtype_for(about["values"])))
            labels.append(label)
        writer.finish(np.array(labels) if contents.classes else None, classes, names, **about)


def _about(entry: Entry) -> dict[str, Any]:
    """What the description of an array said; refused if it is none that we write."""
    if not entry.about:
        return {}
    try:
        found = json.loads(entry.about)
        found["notes"] = tuple(map(str, found["notes"]))
        if not 2 <= found["values"] <= MOST_VALUES:
            raise ValueError(found["values"])
        return {
            name: found[name] for name in (*_FACTS, "stacked", "classes", "names") if name in found
        }
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StreamError(
            f"describes its array {entry.name!r} in words that are not ours"
        ) from error
