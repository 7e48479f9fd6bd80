"""The packed array: one .npy file of unsigned integers (n, *axes, c), and its description.

`FILE.npy` is an ordinary numpy file. `FILE.json` beside it says what it holds and carries its
hash; `FILE.labels.npy` holds the labels where there are any. Pictures of different sizes lie one
after another, (pixels, c), and `FILE.sizes.npy` holds their heights and widths. A file without a
description that fits it is never taken for data. Layout: docs/data.md.
"""

import hashlib
import os
import shlex
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from axial.data.description import Description, description_path, labels_path, sizes_path
from axial.errors import DataError
from axial.shape import DataShape
from axial.system.files import open_file, pending

Array = NDArray[Any]
LONGEST = 1 << 20
"""Pixels a side of a picture may have."""
_READ_BYTES = 8 << 20


class Examples(Protocol):
    """Examples of one shape: a packed array, or the parts of equal size of larger pictures."""

    path: Path
    description: Description
    labels: NDArray[np.int64] | None
    shape: DataShape
    stack_frames: bool

    def __len__(self) -> int: ...

    @property
    def array(self) -> Array:
        """Where the elements lie, whatever they are part of."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one example: (*axes, c)."""

    def rows(self, indices: Sequence[int] | NDArray[np.int64], out: Array | None = None) -> Array:
        """Examples by index, in `out` (k, *axes, c) or a new array."""

    def example(self, index: int) -> Array:
        """One example (*axes, c)."""

    def check(self) -> None:
        """Refuse elements that are not those of the description."""


class Packed:
    """An opened packed array.

    `array` is memory-mapped. `rows` reads examples into memory of the caller's without a
    mapping: nothing stays resident, and a file cut short under our feet is an error instead
    of a crash. With `stack_frames` the first axis, time, is folded into the channels the
    paper's way, frame-major: (n, t, h, w, c) is read as (n, h, w, t * c).

    Pictures of different sizes (`sizes` is not None) have no axes in common: they are read one by
    one (`example`), or as parts of equal size (`data/crops.py`).
    """

    def __init__(self, path: Path | str, *, stack_frames: bool = False) -> None:
        self.path = Path(path)
        about = described_by(self.path)
        for needed in (self.path, about):
            if not needed.is_file():
                raise _no_packed(self.path, needed)
        self.description = Description.from_json(about)
        self.array = _open_array(self.path)
        wanted = self.description
        shape = wanted.array_shape
        if self.array.shape != shape or str(self.array.dtype) != wanted.dtype:
            raise DataError(
                f"{self.path}: holds {self.array.dtype} {self.array.shape}, but its description "
                f"says {wanted.dtype} {shape}; pack it again"
            )
        labels, sizes = labels_path(self.path), sizes_path(self.path)
        if about != description_path(self.path):
            labels, sizes = (
                pending(file) if pending(file).is_file() else file for file in (labels, sizes)
            )
        self.labels = None if wanted.labels is None else _read_labels(labels, self.path, wanted)
        self.sizes = None if wanted.sizes is None else _read_sizes(sizes, self.path, wanted)
        """Height and width of each picture (n, 2), where they differ."""
        self.stack_frames = stack_frames
        self.shape = wanted.shape
        if stack_frames:
            self.shape = stacked_shape(self.path, self.shape)
        if self.sizes is not None:
            self._starts = np.cumsum(self.sizes.prod(1)) - self.sizes.prod(1)
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self.description.count

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one example as `rows` gives it: (*axes, c)."""
        return (*self.shape.axes, self.shape.channels)

    def rows(self, indices: Sequence[int] | NDArray[np.int64], out: Array | None = None) -> Array:
        """Examples by index, one copy from the file into `out` (k, *axes, c), or a new array."""
        if self.sizes is not None:
            raise DataError(
                f"{self.path}: holds pictures of different sizes, which are read one by one, "
                f"`example(i)`"
            )
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"examples {wanted.min()} to {wanted.max()} of {len(self)}")
        shape = (len(wanted), *self.row_shape)
        if out is None:
            out = np.empty(shape, self.array.dtype)
        assert out.shape == shape and out.dtype == self.array.dtype
        if not self.stack_frames:
            return self._read(wanted, out)
        clips = self._read(wanted)
        out[:] = np.moveaxis(clips, 1, -2).reshape(out.shape)
        return out

    def example(self, index: int) -> Array:
        """One example (*axes, c); a picture in its own size."""
        if self.sizes is None:
            return self.rows([index])[0]
        height, width = self.sizes[index].tolist()
        return self.part(index, 0, 0, (height, width))

    def part(
        self, index: int, top: int, left: int, size: tuple[int, int], out: Array | None = None
    ) -> Array:
        """The part (h, w, c) of a picture that begins at a row and a column, line by line."""
        if self.sizes is None:
            height, width = self.array.shape[1:-1]
            start = index * height * width
        else:
            (height, width), start = self.sizes[index].tolist(), int(self._starts[index])
        assert 0 <= top <= height - size[0] and 0 <= left <= width - size[1]
        if out is None:
            out = np.empty((*size, self.description.channels), self.array.dtype)
        pixel, view = self.description.channels * self.array.itemsize, out.data.cast("B")
        if size[1] == width:  # the lines lie one after another
            self._fill(view, (start + top * width) * pixel, index)
            return out
        line = size[1] * pixel
        for i in range(size[0]):
            place = (start + (top + i) * width + left) * pixel
            self._fill(view[i * line : (i + 1) * line], place, index)
        return out

    def checked(self) -> Iterator[Array]:
        """All examples as they are stored, some megabytes at a time.

        Where the last of them ends, the array is refused if it is not the one described.
        """
        digest = hashlib.sha256()
        size = int(np.prod(self.array.shape[1:])) * self.array.itemsize
        step = max(1, _READ_BYTES // size)
        for start in range(0, len(self.array), step):
            index = np.arange(start, min(start + step, len(self.array)))
            rows = self._read(index)
            digest.update(rows.data.cast("B"))
            if (most := int(rows.max())) >= self.description.values:
                raise DataError(
                    f"{self.path}: holds {most}, but its description says "
                    f"{self.description.values} values; pack it again"
                )
            yield rows
        if (found := digest.hexdigest()) != self.description.sha256:
            raise DataError(
                f"{self.path}: is not the array its description names (sha256 {found[:8]}..., "
                f"not {self.description.sha256[:8]}...); pack it again"
            )

    def check(self) -> None:
        """Read all of it, a second or so per gigabyte, and refuse another array's elements."""
        for _ in self.checked():
            pass

    def _read(self, indices: NDArray[np.int64], out: Array | None = None) -> Array:
        """Examples as they are stored, in `out` or a new array; neighbours are read in one go."""
        if out is None:
            out = np.empty((len(indices), *self.array.shape[1:]), self.array.dtype)
        if not len(indices):
            return out
        size = out[:1].nbytes
        view = out.data.cast("B")
        breaks = (np.flatnonzero(np.diff(indices) != 1) + 1).tolist()
        for first, last in pairwise([0, *breaks, len(indices)]):
            start, part = int(indices[first]), view[first * size : last * size]
            self._fill(part, start * size, start, size)
        return out

    def _fill(self, part: memoryview, start: int, example: int, size: int | None = None) -> None:
        """Read bytes of the elements; they begin in an `example`, and `size` is that of each."""
        done = 0
        while done < len(part):
            count = os.preadv(self._file, [part[done:]], self.array.offset + start + done)
            if not count:
                cut = example + done // size if size else example
                raise DataError(
                    f"{self.path}: ends inside example {cut}, though it was whole when opened; "
                    f"pack it again"
                )
            done += count


def _no_packed(path: Path, missing: Path) -> DataError:
    """What to say of an array that is not there, or has no description."""
    for what in ("labels", "sizes"):
        owner = path.with_name(path.name.removesuffix(f".{what}.npy") + ".npy")
        if missing != path and path.name.endswith(f".{what}.npy") and is_packed(owner):
            return DataError(f"{path}: holds the {what} of {owner}; give that")
    if missing == path or missing.exists() or missing.is_symlink():
        what = "is no file" if missing.exists() else "no such file"
        return DataError(f"{missing}: {what}; `axial data` makes a packed array")
    return DataError(
        f"{path}: is no packed array, without a description beside it; `axial data "
        f"{shlex.quote(str(path))} --out NEW.npy` packs it"
    )


def _open_array(path: Path) -> "np.memmap[Any, Any]":
    try:
        array = npy.open_memmap(path, mode="r")
        if not array.flags.c_contiguous:
            raise ValueError("the last axis is not the fastest")
        return array
    except Exception as error:  # numpy's reader raises anything at all on damage
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: cannot be opened as an array ({reason}); pack it again"
        ) from error


def _read_labels(path: Path, array: Path, about: Description) -> NDArray[np.int64]:
    """The labels of an array, which its description knows."""
    assert about.labels is not None
    labels, classes = _read_beside(path, "labels"), about.labels.classes
    fits = labels.shape == (about.count,) and 0 <= labels.min() <= labels.max() < classes
    if not fits or hash_integers(labels) != about.labels.sha256:
        raise DataError(f"{path}: does not belong to {array.name}; pack again")
    return labels


def _read_sizes(path: Path, array: Path, about: Description) -> NDArray[np.int64]:
    """The sizes of pictures, which their description knows."""
    assert about.sizes is not None
    sizes = _read_beside(path, "sizes")
    fits = sizes.shape == (about.count, 2) and 1 <= sizes.min() <= sizes.max() <= LONGEST
    # In float64, which is exact up to any file there is: a sum of integers can come round to it.
    fits = fits and sizes.prod(1).sum(dtype=np.float64) == about.sizes.pixels
    if not fits or hash_integers(sizes) != about.sizes.sha256:
        raise DataError(f"{path}: does not belong to {array.name}; pack again")
    return sizes


def _read_beside(path: Path, what: str) -> NDArray[np.int64]:
    """The integers of a small file."""
    try:
        with open_file(path) as file:
            return npy.read_array(file, allow_pickle=False).astype(np.int64)
    except Exception as error:  # numpy's reader raises anything at all on damage
        said = error.strerror if isinstance(error, OSError) else None  # without the path again
        reason = said or " ".join(str(error).split())
        raise DataError(f"{path}: {what} cannot be read ({reason}); pack again") from error


def open_packed(path: Path | str, *, stack_frames: bool = False) -> Packed:
    """Open what `axial data` wrote; time folded into the channels with `stack_frames`.

    Sizes, types and labels are checked here, the hash of the elements by `Packed.check`.
    """
    if not isinstance(path, str | Path):
        raise DataError(f"path is a {type(path).__name__}: give that of a packed array")
    try:
        return Packed(path, stack_frames=stack_frames)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def is_packed(path: Path | str) -> bool:
    """Whether a packed array lies there: a file with a description beside it, if a damaged one."""
    path = Path(path)
    try:
        if path.suffix != ".npy" or not path.is_file():
            return False
        about = described_by(path)
        return about.exists() or about.is_symlink()
    except OSError:  # a name too long, a folder without rights: whoever opens it says so
        return False


def described_by(path: Path) -> Path:
    """The file that describes an array: beside it, or pending where its writer died too early."""
    waiting = pending(description_path(path))
    with suppress(DataError, OSError):  # there is none, or its writer is moving it
        about = Description.from_json(waiting)
        if hash_elements(path) == about.sha256:
            return waiting
    return description_path(path)


def hash_elements(path: Path) -> str:
    """Hash of the elements of an array in their order in the file."""
    array, digest = _open_array(path), hashlib.sha256()
    with open_file(path) as file:
        file.seek(array.offset)
        for start in range(0, array.nbytes, _READ_BYTES):
            digest.update(file.read(min(_READ_BYTES, array.nbytes - start)))
    return digest.hexdigest()


def spread(available: int, count: int) -> NDArray[np.int64]:
    """The indices of `count` examples evenly spread over those that are available."""
    return (2 * np.arange(count, dtype=np.int64) + 1) * available // max(1, 2 * count)


def size_range(sizes: NDArray[np.int64]) -> str:
    """Heights and widths in words: by area the smallest, the median and the largest picture."""
    by_area = sizes[np.argsort(sizes.prod(1), kind="stable")]
    small, middle, large = (
        " x ".join(map(str, by_area[i])) for i in (0, len(sizes) // 2, len(sizes) - 1)
    )
    return small if small == large else f"{small} to {large} (median {middle})"


def dtype_for(values: int) -> np.dtype[Any]:
    """The smallest unsigned integers that hold `values` values."""
    return np.dtype(np.uint8 if values <= 256 else np.uint16)


def hash_integers(found: Array) -> str:
    """Hash of labels or sizes, whatever integers they are stored as."""
    return hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()


def stacked_shape(source: Path | str, shape: DataShape) -> DataShape:
    """Time folded into the channels; data without time is refused by the name it is known by."""
    if len(shape.axes) < 3:
        raise DataError(
            f"{source}: examples have axes {shape.axes}, so there is no time to stack as channels; "
            f"use a video"
        )
    frames, *axes = shape.axes
    return DataShape(
        axes=tuple(axes),
        channels=frames * shape.channels,
        values=shape.values,
        classes=shape.classes,
        frames=frames,
    )
