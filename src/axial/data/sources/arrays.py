"""Arrays of integers with any number of axes: .npy, .npz, IDX files, and the built-in digits."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from axial.data.packed import Array, dtype_for
from axial.data.sources.archives import DAMAGE, damaged, open_unpacked
from axial.data.sources.array_stream import ArrayStream, idx_stream, npy_stream
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import Record, Source, choose_split
from axial.data.sources.zips import open_zip
from axial.errors import DataError
from axial.shape import MOST_VALUES

_LABEL_KEYS = ("labels", "label", "y", "targets")


def open_array(path: Path, options: ReadOptions) -> Source:
    """A .npy or .npz of integers (n, *axes) or (n, *axes, c)."""
    keys = _keys(path, options)
    name, label_key = _choose(path, keys, options) if keys else ("", None)

    def chunks() -> Iterator[Array]:
        with _opened(path, name, options) as stream:
            yield from stream.chunks()

    stream = _header(path, name, options)
    channels = _channels(stream, options)
    values = options.values
    if stream.dtype.kind not in "bu" or stream.dtype.itemsize > 1:
        largest = _largest(chunks, stream.where, values)
        values = values or values_for(largest)
    notes: list[str] = []
    labels = None
    if label_key:
        with _opened(path, label_key, options) as told:
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
        reader=f"array {name!r} of an .npz" if name else "array",
        split=options.split if name in _named_after(options.split) else None,
        values=values,
        classes=0 if labels is None else max(0, int(labels.max()) + 1),
        count=stream.shape[0],
        records=_records(chunks, stream.where, labels, dtype_for(values or 256), channels=channels),
        notes=notes,
        takes=frozenset(
            {"channels_last", "channels_none", "values"} | ({"key"} if keys else set())
        ),
    )


def beyond_values(where: str, largest: int, values: int) -> DataError:
    """What to say of more values than were asked for."""
    return DataError(
        f"{where}: holds the value {largest}, beyond --values {values}; use at least {largest + 1}"
    )


def values_for(largest: int) -> int:
    """How many values elements can take, by the largest found: 256 for anything like bytes."""
    return 256 if 128 <= largest <= 255 else max(2, largest + 1)


def _keys(path: Path, options: ReadOptions) -> list[str]:
    """What the arrays of an .npz are called; that of a .npy has no name."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return []
    with open_zip(path, str(path), skip_bad=options.skip_bad) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
    if not names:
        raise DataError(f"{path}: holds no arrays; give an .npz that numpy wrote")
    return [name.removesuffix(".npy") for name in names]


def _choose(path: Path, keys: list[str], options: ReadOptions) -> tuple[str, str | None]:
    """The array of an .npz that is meant, and the one with its labels."""
    if options.key:
        if options.key not in keys:
            raise DataError(f"{path}: has no array {options.key!r}; there are {', '.join(keys)}")
        return options.key, None
    streams = {key: _header(path, key, options) for key in keys}
    whole = [k for k, s in streams.items() if s.dtype.kind in "biuf" and len(s.shape) > 1]
    split = options.split
    found = [key for key in whole if key in _named_after(split)] if len(whole) > 1 else whole
    if len(found) != 1:
        lacking = f"has no split {split!r}; it " if split and whole else ""
        raise DataError(f"{path}: {lacking}holds {', '.join(keys)}; choose one by --key")
    count = streams[found[0]].shape[0]
    told = [k for k in (*_LABEL_KEYS, f"y_{split}") if k in streams and len(streams[k].shape) == 1]
    fitting = [k for k in told if streams[k].shape[0] == count]
    if told and not fitting:
        raise DataError(
            f"{path}: {told[0]!r} has {streams[told[0]].shape[0]:,} labels for {count:,} examples; "
            f"mend it, or leave labels out by --key {found[0]}"
        )
    integers = [k for k in fitting if streams[k].dtype.kind in "biu"]
    return found[0], next(iter([*integers, *fitting]), None)


def _named_after(split: str | None) -> tuple[str, ...]:
    """What an array of an .npz is called that is a part of the data."""
    return (split, f"x_{split}") if split else ()


@contextmanager
def _opened(path: Path, name: str, options: ReadOptions) -> Iterator[ArrayStream]:
    """An array of an .npz, or that of a .npy, which has no name."""
    if not name:
        with path.open("rb") as file:
            yield npy_stream(file, path, path.stat().st_size)
        return
    where = f"{path}: {name}"
    with open_zip(path, str(path), skip_bad=options.skip_bad) as archive:
        try:
            member = archive.open(f"{name}.npy")
        except DAMAGE as error:
            raise damaged(where, error) from error
        with member:
            yield npy_stream(member, where)


def _header(path: Path, name: str, options: ReadOptions) -> ArrayStream:
    """An array of which only shape and type are asked."""
    with _opened(path, name, options) as stream:
        return stream


def _channels(stream: ArrayStream, options: ReadOptions) -> bool:
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


def find_idx(path: Path) -> dict[str, Path]:
    """The files of pictures at a path by split, which their official names tell."""
    files = sorted(path.glob("*-images*idx*"), reverse=True) if path.is_dir() else [path]
    parts = {"train": "train", "test": "t10k"}
    return {s: f for s, part in parts.items() for f in files if part in f.name and f.is_file()}


def open_idx(path: Path, options: ReadOptions) -> Source:
    """IDX, gzipped or not: one file, or the MNIST pair of pictures and labels in a folder."""
    files = find_idx(path)
    split = choose_split(options.split, list(files), path) if files else None
    file = files[split] if split else path

    def chunks() -> Iterator[Array]:
        with open_unpacked(file) as unpacked:
            yield from idx_stream(unpacked, file).chunks()

    with open_unpacked(file) as unpacked:
        shape = idx_stream(unpacked, file).shape
    if len(shape) < 2:
        raise DataError(f"{file}: claims the shape {shape}: examples without axes; use another")
    beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _idx_labels(beside, shape[0]) if beside != file and beside.is_file() else None
    return Source(
        name=path.resolve().name if path.is_dir() else path.name.split(".")[0],
        reader="IDX" + (" with labels" if labels is not None else ""),
        split=split,
        values=options.values or 256,
        classes=0 if labels is None else int(labels.max()) + 1,
        count=shape[0],
        records=_records(chunks, str(file), labels, np.dtype(np.uint8), channels=False),
        takes=frozenset({"values"}),
    )


def _idx_labels(path: Path, count: int) -> Array:
    with open_unpacked(path) as unpacked:
        stream = idx_stream(unpacked, path)
        if stream.shape != (count,):
            raise DataError(
                f"{path}: claims the shape {stream.shape}, but {count} labels are needed; "
                f"fetch it again, or remove it"
            )
        return stream.all()


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
