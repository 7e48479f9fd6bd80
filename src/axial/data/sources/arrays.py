"""Arrays of integers with any number of axes: .npy, .npz, IDX files, and the built-in digits."""

import io
import lzma
import math
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from axial.data.packed import Array, dtype_for
from axial.data.sources.archives import DAMAGE, CutZip, open_unpacked, open_zip
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import (
    CHUNK,
    Record,
    Source,
    choose_split,
    rows_per_chunk,
)
from axial.errors import DataError
from axial.shape import MOST_VALUES

BROKEN = (*DAMAGE, lzma.LZMAError, MemoryError, OSError, OverflowError, RuntimeError)
"""What reading a damaged member of an archive can raise."""
_LABEL_KEYS = ("labels", "label", "y", "targets")


class NpyStream:
    """An array in the .npy format, read front to back in pieces; never more than one in memory.

    `size` is how many bytes the file has, header and all, where that is known.
    """

    def __init__(self, file: BinaryIO, where: str, size: int | None = None) -> None:
        self.where = where
        self._file = file
        self._own = isinstance(file, io.BufferedReader) and size is not None
        """Whether it is a file of its own, and no member of an archive."""
        self.shape, self._fortran, self.dtype = _npy_header(file, where)
        self._count = math.prod(self.shape)
        self._total = self._count * self.dtype.itemsize
        self._row = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._held = self._total if size is None else size - file.tell()
        if self._held > self._total:
            raise DataError(
                f"{where}: holds {self._held:,} bytes, but its header tells of {self._total:,}; "
                f"write it again"
            )
        if self._held < min(self._row, self._total):
            raise self._cut(self._held, "")

    def all(self) -> Array:
        """The whole array; that of a file of its own stays there, and memory is but lent to it."""
        if self._held < self._total:
            raise self._cut(self._held, "")
        flat: Array
        if self._own and self._total:
            flat = np.memmap(self._file, self.dtype, "r", self._file.tell(), self._count)
        else:
            data = self._take(self._total, 0)
            if len(data) < self._total:
                raise self._cut(len(data), "")
            flat = np.frombuffer(data, self.dtype)
        return flat.reshape(self.shape[::-1]).T if self._fortran else flat.reshape(self.shape)

    def chunks(self) -> Iterator[Array]:
        """Pieces along the first axis; those before a cut are given before the error is raised."""
        if not self._total:
            return
        if not self.shape:
            yield self.all()
            return
        step = rows_per_chunk(self._row)
        if self._fortran:
            every = self.all()
            yield from (every[start : start + step] for start in range(0, len(every), step))
            return
        for start in range(0, self.shape[0], step):
            count = min(step, self.shape[0] - start)
            data = self._take(count * self._row, start * self._row)
            whole = len(data) // self._row if self._row else count
            if whole:
                rows = np.frombuffer(data, self.dtype, whole * math.prod(self.shape[1:]))
                yield rows.reshape(whole, *self.shape[1:])
            if whole < count:
                raise self._cut(start * self._row + len(data), "")

    def _take(self, size: int, start: int) -> bytearray:
        """The next bytes, fewer where the file ends."""
        try:
            return read_up_to(self._file, size)
        except BROKEN as error:
            raise self._cut(start, f" ({error})") from error

    def _cut(self, byte: int, reason: str) -> DataError:
        return DataError(
            f"{self.where}: damaged or cut short{reason} at byte {byte} of its {self._total:,}, in "
            f"or after example {byte // max(1, self._row)} of "
            f"{self.shape[0] if self.shape else 1}; fetch it again"
        )


def _npy_header(file: BinaryIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis is the fastest, and type."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, about what is odd in a header
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"of version {version[0]}.{version[1]}")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
    except Exception as error:  # a damaged header is parsed as Python, which can raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{where}: is no array ({reason}); write it again") from error
    if dtype.hasobject:
        raise DataError(f"{where}: holds Python objects, which can run code; save integers")
    if not dtype.itemsize or any(type(n) is not int or n < 0 for n in shape):
        raise DataError(f"{where}: claims the shape {shape} of {dtype}; write it again")
    return shape, fortran, dtype


def read_up_to(file: BinaryIO, size: int) -> bytearray:
    """Up to `size` bytes, fewer where a file ends; takes memory only for what is there."""
    found = bytearray()
    while len(found) < size:
        try:
            part = cast(io.BufferedIOBase, file).read1(min(size - len(found), CHUNK))
        except EOFError:  # a gzip file that was cut: what came before it is whole
            break
        if not part:
            break
        found += part
    return found


def open_array(path: Path, options: ReadOptions) -> Source:
    """A .npy or .npz of integers (n, *axes) or (n, *axes, c)."""
    name, keys, label_key = _choose(path, options)
    notes: list[str] = []
    where = f"{path}: {name}" if name else str(path)

    def chunks() -> Iterator[Array]:
        with ExitStack() as stack:
            yield from _stream(path, name, options, stack).chunks()

    with ExitStack() as stack:
        stream = _stream(path, name, options, stack)
    channels = _channels(stream, options)
    values = options.values
    if stream.dtype.kind not in "bu" or stream.dtype.itemsize > 1:
        largest = _largest(chunks, where, values)
        values = values or values_for(largest)
    labels = None
    if label_key:
        with ExitStack() as stack:
            told = _stream(path, label_key, options, stack)
            if told.dtype.kind in "biu":
                labels = told.all()
                labels = labels.astype(np.uint8) if labels.dtype == bool else labels
            else:
                notes.append(f"labels left out: {label_key!r} holds {told.dtype}, no integers")
    if not (options.channels_last or options.channels_none):
        kind = "channels" if channels else "an axis like the others, there are no channels"
        notes.append(f"the last axis was taken to be {kind}")
    if len(keys) > 1:
        notes.append(f"array {name!r} of {', '.join(keys)}")
    if options.key and set(keys) & set(_LABEL_KEYS) - {name}:
        notes.append(f"labels left out: --key takes {name!r} alone")
    return Source(
        name=path.stem,
        reader="array" if not name else f"array {name!r} of an .npz",
        split=options.split if name in _named_after(options.split) else None,
        values=values,
        classes=0 if labels is None else max(0, int(labels.max()) + 1),
        count=stream.shape[0],
        records=_records(chunks, where, labels, dtype_for(values or 256), channels=channels),
        notes=notes,
        takes=frozenset({"channels_last", "channels_none", "values", "key"}),
    )


def beyond_values(where: str, largest: int, values: int) -> DataError:
    """What to say of more values than were asked for."""
    return DataError(
        f"{where}: holds the value {largest}, beyond --values {values}; use at least {largest + 1}"
    )


def values_for(largest: int) -> int:
    """How many values elements can take, by the largest found: 256 for anything like bytes."""
    return 256 if 128 <= largest <= 255 else max(2, largest + 1)


def _choose(path: Path, options: ReadOptions) -> tuple[str, list[str], str | None]:
    """The array of an .npz that is meant, all there are, and the one with labels."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return "", [], None
    cut = _cut_zip(path, options)
    if cut:
        names = list(cut.members)
    else:
        with open_zip(path, str(path)) as archive:
            names = archive.namelist()
    keys = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    if options.key:
        if options.key not in keys:
            raise DataError(f"{path}: has no array {options.key!r}; there are {', '.join(keys)}")
        return options.key, keys, None
    with ExitStack() as stack:
        streams = {key: _stream(path, key, options, stack) for key in keys}
        whole = {k: s for k, s in streams.items() if s.dtype.kind in "biuf" and len(s.shape) > 1}
        found = list(whole)
        split = options.split
        if len(found) > 1:
            found = [key for key in found if key in _named_after(split)]
        if len(found) != 1:
            lacking = f"has no split {split!r}; it " if split and whole else ""
            raise DataError(
                f"{path}: {lacking}holds {', '.join(keys) or 'nothing'}; choose one by --key"
            )
        wanted = (*_LABEL_KEYS, f"y_{split}")
        count = streams[found[0]].shape[0]
        shapes = {k: streams[k].shape for k in wanted if k in streams}
        lists = {k: shape[0] for k, shape in shapes.items() if len(shape) == 1}
        fitting = [k for k, length in lists.items() if length == count]
        if lists and not fitting:
            told, length = next(iter(lists.items()))
            raise DataError(
                f"{path}: {told!r} has {length:,} labels for {count:,} examples; mend it, or leave "
                f"labels out by --key {found[0]}"
            )
        integers = [k for k in fitting if streams[k].dtype.kind in "biu"]
    return found[0], keys, next(iter([*integers, *fitting]), None)


def _named_after(split: str | None) -> tuple[str, ...]:
    """What an array of an .npz is called that is a part of the data."""
    return (split, f"x_{split}") if split else ()


def _stream(path: Path, name: str, options: ReadOptions, stack: ExitStack) -> NpyStream:
    if not name:
        return NpyStream(stack.enter_context(path.open("rb")), str(path), path.stat().st_size)
    where = f"{path}: {name}"
    cut = _cut_zip(path, options)
    try:
        if cut:
            return NpyStream(stack.enter_context(cut.open(f"{name}.npy")), where)
        archive = stack.enter_context(open_zip(path, str(path)))
        member = stack.enter_context(archive.open(f"{name}.npy"))
        size = archive.getinfo(f"{name}.npy").file_size
    except (KeyError, *BROKEN) as error:
        raise DataError(f"{where}: damaged ({error}); fetch it again") from error
    return NpyStream(cast(BinaryIO, member), where, size)


def _cut_zip(path: Path, options: ReadOptions) -> CutZip | None:
    """What is left of an .npz that was cut short, where the bad is to be skipped."""
    if not options.skip_bad:
        return None
    try:
        open_zip(path, str(path)).close()
    except DataError:
        cut = CutZip(path)
        return cut if cut.members else None
    return None


def _channels(stream: NpyStream, options: ReadOptions) -> bool:
    """Whether the last axis is channels; what is not told is guessed, and said."""
    if stream.dtype.kind not in "biu":
        raise DataError(
            f"{stream.where}: holds {stream.dtype}, but a model of exact likelihood needs "
            f"integers; round it to some number of values first"
        )
    count = len(stream.shape)
    least = 3 if options.channels_last else 2
    if count < least or not math.prod(stream.shape):
        raise DataError(
            f"{stream.where}: has shape {stream.shape}; examples, then axes, then perhaps channels "
            f"are needed, none of them empty"
        )
    if options.channels_last or options.channels_none:
        return options.channels_last
    return count >= 4 and stream.shape[-1] <= 4


def _largest(chunks: Callable[[], Iterator[Array]], where: str, values: int | None) -> int:
    """The largest element; refused if it, or the smallest, is none of so many values."""
    smallest, largest = 0, 0
    with suppress(DataError):  # comes again when the records are read, where it can be skipped
        for chunk in chunks():
            smallest, largest = min(smallest, int(chunk.min())), max(largest, int(chunk.max()))
    if smallest < 0:
        raise DataError(f"{where}: holds {smallest}; values are counted from 0, so shift it first")
    if largest >= MOST_VALUES:
        raise DataError(
            f"{where}: holds {largest}, beyond the {MOST_VALUES:,} values a model can tell apart; "
            f"round it to fewer"
        )
    if values is not None and largest >= values:
        raise beyond_values(where, largest, values)
    return largest


def _records(
    chunks: Callable[[], Iterator[Array]],
    where: str,
    labels: Array | None,
    dtype: np.dtype[Any],
    *,
    channels: bool,
) -> Iterator[Record | DataError]:
    start = 0
    try:
        for chunk in chunks():
            rows = (chunk if channels else chunk[..., None]).astype(dtype)
            part = None if labels is None else labels[start : start + len(rows)]
            yield Record(f"{where}: example {start}", rows, part)
            start += len(rows)
    except DataError as error:
        yield error


def is_idx(head: bytes) -> bool:
    """Whether a file begins as IDX files of bytes do."""
    return len(head) >= 4 and head[:3] == b"\0\0\x08" and 1 <= head[3] <= 8


def find_idx(path: Path) -> dict[str, Path]:
    """The files of pictures in a folder by split, under their official names."""
    stems = {"train": "train-images", "test": "t10k-images"}
    found: dict[str, Path] = {}
    for split, stem in stems.items():
        for file in sorted(p for p in path.glob(f"{stem}*idx*") if p.is_file()):
            found.setdefault(split, file)
    return found


def open_idx(path: Path, options: ReadOptions) -> Source:
    """IDX, gzipped or not: one file, or the MNIST pair of pictures and labels in a folder."""
    if path.is_dir():
        files = find_idx(path)
        split: str | None = choose_split(options.split, list(files), path)
        file = files[cast(str, split)]
    else:
        file = path
        split = "test" if "t10k" in path.name else "train" if "train" in path.name else None
        split = choose_split(options.split, [split], path) if split else None
    beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _idx_labels(beside) if beside != file and beside.is_file() else None
    with open_unpacked(file) as stream:
        shape = _idx_shape(stream, file)
    if len(shape) < 2:
        raise DataError(f"{file}: claims the shape {shape}: examples without axes; use another")
    # Gzip packs no more than 1,032 bytes into one.
    if math.prod(shape[1:]) > 1032 * file.stat().st_size:
        raise DataError(f"{file}: is too short for a single example of {shape}; fetch it again")
    return Source(
        name=path.resolve().name if path.is_dir() else path.name.split(".")[0],
        reader="IDX" + (" with labels" if labels is not None else ""),
        split=split,
        values=options.values or 256,
        classes=0 if labels is None else int(labels.max()) + 1,
        count=shape[0],
        records=_idx_records(file, shape, labels),
        takes=frozenset({"values"}),
    )


def _idx_shape(stream: BinaryIO, path: Path) -> tuple[int, ...]:
    try:
        head = stream.read(4)
        if not is_idx(head):
            raise DataError(f"{path}: is no IDX file of bytes; fetch it again")
        shape = struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))
    except BROKEN as error:
        raise DataError(f"{path}: cut short in its header; fetch it again") from error
    if not all(shape):
        raise DataError(f"{path}: claims the shape {shape}, which holds nothing; fetch it again")
    return shape


def _idx_labels(path: Path) -> Array:
    with open_unpacked(path) as stream:
        shape = _idx_shape(stream, path)
        if len(shape) > 1:
            raise DataError(f"{path}: claims the shape {shape}, but labels are one row; remove it")
        try:
            labels = np.frombuffer(read_up_to(stream, shape[0]), np.uint8)
        except BROKEN as error:
            raise DataError(f"{path}: damaged or cut short ({error}); fetch it again") from error
        if len(labels) < shape[0]:
            raise DataError(
                f"{path}: cut short at label {len(labels)} of {shape[0]}; fetch it again"
            )
        _check_idx_end(stream, path, f"{shape[0]} labels")
    return labels


def _idx_records(
    path: Path, shape: tuple[int, ...], labels: Array | None
) -> Iterator[Record | DataError]:
    count, *axes = shape
    row = math.prod(axes)
    if labels is not None and len(labels) != count:
        raise DataError(
            f"{path}: holds {count} examples, but there are {len(labels)} labels; fetch both again"
        )
    with open_unpacked(path) as stream:
        _idx_shape(stream, path)
        for start in range(0, count, step := rows_per_chunk(row)):
            wanted = min(step, count - start)
            data, reason = bytearray(), ""
            try:
                data = read_up_to(stream, wanted * row)
            except BROKEN as error:
                reason = f" ({error})"
            if whole := len(data) // row:
                x = np.frombuffer(data, np.uint8, whole * row).reshape(-1, *axes, 1)
                part = None if labels is None else labels[start : start + whole]
                yield Record(f"{path}: example {start}", x, part)
            if whole < wanted:
                byte = 4 + 4 * len(shape) + start * row + len(data)
                yield DataError(
                    f"{path}: cut short at byte {byte}{reason}, in or after example "
                    f"{start + whole} of {count}; fetch it again"
                )
                return
        try:
            _check_idx_end(stream, path, f"{count} examples")
        except DataError as error:
            yield error


def _check_idx_end(stream: BinaryIO, path: Path, what: str) -> None:
    """Refuse what goes on after the last element; gzip compares its checksum only there."""
    try:
        more = stream.read(1)
    except BROKEN as error:
        raise DataError(f"{path}: damaged somewhere ({error}); fetch it again") from error
    if more:
        raise DataError(f"{path}: holds more than the {what} it tells of; check it")


def open_digits(options: ReadOptions) -> Source:
    """Scikit-learn's 8 x 8 digits; every sixth is held out for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "digits: come with scikit-learn; pip install axial-transformers[demo]"
        ) from error
    split = choose_split(options.split, ["train", "test"], "digits")
    found = load_digits()
    held_out = np.arange(len(found.images)) % 6 == 0
    mine = held_out if split == "test" else ~held_out
    x = found.images[mine].astype(np.uint8)[..., None]
    return Source(
        name="digits",
        reader="built in, scikit-learn",
        split=split,
        values=17,
        classes=10,
        names=[str(digit) for digit in range(10)],
        count=len(x),
        records=iter([Record("digits", x, found.target[mine])]),
    )
