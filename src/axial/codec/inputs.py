"""What `axial compress` does: pictures, folders of them and arrays into one file."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from axial.checkpoints.model_folder import load
from axial.checkpoints.trained_on import class_numbers
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.codec.entries import FACTS, SUFFIX, Compressed, check_restored, summary
from axial.data.compatibility import conform, conform_pictures, no_pictures, picture_size
from axial.data.packed import Array, Packed, is_packed
from axial.data.packing import open_data
from axial.data.refusals import Refusals
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder as PictureDecoder
from axial.data.sources.pictures import files_below, is_picture_name
from axial.data.sources.recognise import is_video
from axial.data.sources.record import Record
from axial.errors import AxialError, DataError, InputError
from axial.shape import DataShape
from axial.system.files import check_apart, check_place, errors_of, replacing, temporary_folder
from axial.system.progress import counting
from axial.system.ranks import usable
from axial.system.terminal import printable

Item = tuple[Entry, Iterable[Example]]


def compress_files(
    checkpoint: Path | str,
    inputs: Iterable[Path | str],
    out: Path,
    *,
    label: str | int | None = None,
    convert: Any = None,
    device: str | None = None,
    overwrite: bool = False,
    verify: bool = False,
    overlap: int | None = None,
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
    model = load(checkpoint, device=usable(device))
    codec, names = Codec(model, name=str(checkpoint), overlap=overlap), model.class_names
    number = None
    if label is not None:
        (number,) = class_numbers(checkpoint, [label], codec.config.classes, names)
    with temporary_folder() as scratch, ExitStack() as stack:
        reading = _Inputs(codec.config.data, scratch, number, convert, names)
        items = reading.open(inputs)
        check_restored([entry for entry, _ in items])
        stack.enter_context(errors_of(out))
        new = stack.enter_context(replacing(out))
        contents = codec.contents(classes=reading.classes)
        total = sum(contents.tiles_of(entry) for entry, _ in items)
        with new.open("w+b") as file:
            with counting("tiles coded", total) as progress:
                codec.write(file, contents, items, progress)
            if verify:
                with counting("tiles decoded", total) as progress:
                    for _ in codec.read(file, read_contents(file), progress=progress):
                        pass  # each group is compared with the seal of what went in
        size = new.stat().st_size
    return summary(contents, size)


class _MixedLabelsError(InputError):
    """Inputs that cannot be in one file; it is no fault of one of them."""


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
        self.refused = Refusals()
        self.labelled: dict[int, str] = {}
        """Of an unconditional model: which input was the first with so many classes."""

    def open(self, sources: list[Path | str]) -> list[Item]:
        """The entries of all inputs; those that are refused are named together, in one error.

        Each picture is decoded for that, and forgotten until its turn comes.
        """
        items: list[Item] = []
        with counting("inputs checked", None) as progress:
            for source in sources:
                try:
                    for item in self._opened(Path(source), source):
                        items.append(item)
                        progress(len(items))
                except _MixedLabelsError:
                    raise
                except AxialError as error:
                    self.refused.add(error, str(source))
        if self.refused.count == 1:
            raise DataError(self.refused.first)
        if self.refused.count:
            told = f"{self.refused.count:,} inputs cannot be compressed"
            raise DataError(f"{told}: {self.refused.in_one_line()}")
        return items

    def _opened(self, path: Path, source: Path | str) -> Iterator[Item]:
        """The entries of an input; pictures that are refused are counted, and left out."""
        names: list[str] = []
        if len(self.shape.axes) == 2 and self.shape.channels in (1, 3):
            if path.is_dir():
                names = files_below(path, is_picture_name)[0]
            elif path.is_file() and is_picture_name(path.name) and not is_video(path, clips=False):
                names = [path.name]
        if not names:
            yield from self._packed(source)
            return
        self._check_label(path)
        for name in names:
            picture = path / name if path.is_dir() else path
            try:
                shape = self._read(picture).shape
            except AxialError as error:
                self.refused.add(error, str(picture))
            else:
                yield self._entry(name, shape), self._read_when_due(picture, shape)

    def _check_label(self, path: Path) -> None:
        if not self.shape.classes:
            self._label_all(path, 0)
        elif self.label is None:
            raise InputError(
                f"{path}: has no label, and the model is conditioned on one; give --label"
            )

    def _entry(self, name: str, shape: tuple[int, ...]) -> Entry:
        *grid, channels = shape
        return Entry(name=name, grid=tuple(grid), one_plane=channels < self.shape.channels)

    def _read_when_due(self, path: Path, shape: tuple[int, ...]) -> Iterator[Example]:
        x = self._read(path)
        if x.shape != shape:
            raise DataError(f"{path}: changed while it was compressed; compress it again")
        yield Example(x, self.label)

    def _read(self, path: Path) -> Array:
        """A picture that the model can code."""
        (x,) = self.decode(Record(str(path), str(path)))
        if x.shape[-1] > self.shape.channels:
            raise InputError(
                f"{path}: is in colour, and the model is one of grey; --convert grey loses colour"
            )
        if int(x.max()) >= self.shape.values:
            raise InputError(
                f"{path}: holds {x.max()}, and the model has {self.shape.values} values"
            )
        return x

    def _packed(self, source: Path | str) -> Iterator[Item]:
        """An array as one entry, or every picture of a packed file of different sizes."""
        window, frames = self.shape.window, None
        if is_video(source, clips=window is not None):
            if window is None:
                raise no_pictures(source)
            frames = window
        options = ReadOptions(frames=frames, convert=None if is_packed(source) else self.convert)
        folder = self.scratch / str(len(list(self.scratch.iterdir())))
        folder.mkdir()
        packed = open_data(source, folder, options, skippable=False)
        if packed.description.notes and frames:
            for note in packed.description.notes:
                print(printable(f"{source}: {note}"), file=sys.stderr)
        if self.shape.classes and self.label is None and packed.labels is None:
            raise InputError(
                f"{source}: has no labels, and the model is conditioned on them; give --label"
            )
        if packed.sizes is None:
            yield self._array(source, packed)
        else:
            yield from self._pictures(source, packed)

    def _pictures(self, source: Path | str, packed: Packed) -> Iterator[Item]:
        """The pictures of a packed file, each an entry of its own."""
        grey = packed.shape.channels == 1
        kind = replace(self.shape, channels=1) if grey else self.shape
        picture_size(packed, kind)
        wanted = kind if self.label is None else replace(kind, classes=0)
        packed = conform_pictures(packed, wanted, self.names)
        packed.check()
        assert packed.sizes is not None  # or they would be one entry
        if not self.shape.classes:
            self._label_all(source, 0)
        folder = Path(source).stem
        for i in range(len(packed)):
            label = packed.labels[i] if self.shape.classes and packed.labels is not None else None
            number = self.label if self.label is not None or label is None else int(label)
            shape = (*packed.sizes[i].tolist(), packed.shape.channels)
            yield self._entry(f"{folder}/{i:06d}.png", shape), _read_example(packed, i, number)

    def _array(self, source: Path | str, packed: Packed) -> Item:
        """An array entry: examples of the model's shape, or of other sizes along its axes."""
        packed = self._fitting(packed)
        packed.check()
        labels = self._labels(source, packed)
        about = {name: getattr(packed.description, name) for name in FACTS}
        about |= {"stacked": packed.shape.frames if packed.stack_frames else None}
        if packed.description.labels is not None and labels is not None:
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
        if alike and (found.axes, found.channels) != (wanted.axes, wanted.channels):
            wanted = replace(wanted, axes=found.axes, channels=found.channels, frames=None)
        if packed.labels is None:  # every example has the one that was given
            wanted = replace(wanted, classes=0)
        return conform(packed, wanted, self.names)

    def _labels(self, source: Path | str, packed: Packed) -> Array | None:
        if self.shape.classes:
            if self.label is not None:
                return np.full(len(packed), self.label)
            return packed.labels
        self._label_all(source, packed.shape.classes if packed.labels is not None else 0)
        return packed.labels

    def _label_all(self, source: Path | str, classes: int) -> None:
        """Refuse an input that has other labels than those before it, or none where they have."""
        self.labelled.setdefault(classes, str(source))
        if len(self.labelled) == 1:
            self.classes = classes
        elif 0 in self.labelled:
            other = self.labelled[max(self.labelled)]
            raise _MixedLabelsError(
                f"{self.labelled[0]}: has no label, and {other} has; compress them one by one"
            )
        else:
            raise _MixedLabelsError(
                f"{source}: has {classes} classes where another input has {self.classes}; "
                f"compress them one by one"
            )


def _read_example(packed: Packed, index: int, label: int | None) -> Iterator[Example]:
    yield Example(packed.example(index), label)


def _rows(packed: Packed, labels: Array | None) -> Iterator[Example]:
    for i in range(len(packed)):
        yield Example(packed.rows([i])[0], None if labels is None else int(labels[i]))
