"""Arrays in the .npy and the IDX format, read front to back in pieces, at most one in memory."""

import io
import math
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from axial.data.packed import Array
from axial.data.sources.archives import DAMAGE, told
from axial.data.sources.record import CHUNK, rows_per_chunk
from axial.errors import DataError

_LARGEST_EXAMPLE = 1 << 28
_LARGEST_WHOLE = 1 << 29
"""Bytes of what has to be unpacked in one piece: labels, and arrays stored by columns."""


class ArrayStream:
    """An array whose header has been read; its elements come next in the file."""

    def __init__(
        self,
        file: IO[bytes],
        where: Path | str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        fortran: bool = False,
        held: int | None = None,
    ) -> None:
        """`held` is how many bytes follow in a file of the array's own; None in an archive."""
        self.where = str(where)
        self.shape = shape
        self.dtype = dtype
        self._file = file
        self._fortran = fortran
        self._own = held is not None
        self._count = math.prod(shape)
        self._total = self._count * dtype.itemsize
        self._row = math.prod(shape[1:]) * dtype.itemsize
        self._held = self._total if held is None else held
        if self._row > _LARGEST_EXAMPLE:
            raise DataError(
                f"{where}: claims the shape {shape} of {dtype}, {self._row:,} bytes an example, "
                f"but {_LARGEST_EXAMPLE:,} are the most; cut it into smaller ones"
            )
        if self._held > self._total:
            raise DataError(
                f"{where}: holds {self._held:,} bytes, but its header tells of {self._total:,}; "
                f"write it again"
            )
        if self._held < min(self._row, self._total):
            raise self._cut(self._held)

    def all(self) -> Array:
        """The whole array; that of a file of its own stays there, and memory is but lent to it."""
        if self._held < self._total:
            raise self._cut(self._held)
        flat: Array
        if self._own and self._total:
            flat = np.memmap(self._file, self.dtype, "r", self._file.tell(), self._count)
        elif self._total > _LARGEST_WHOLE:
            raise DataError(
                f"{self.where}: has {self._total:,} bytes that can only be unpacked at once, but "
                f"{_LARGEST_WHOLE:,} are the most; save it by rows, in a .npy file"
            )
        else:
            data = self._take(self._total, 0)
            if len(data) < self._total:
                raise self._cut(len(data))
            self._check_end()
            flat = np.frombuffer(data, self.dtype)
        return flat.reshape(self.shape[::-1]).T if self._fortran else flat.reshape(self.shape)

    def chunks(self) -> Iterator[Array]:
        """Pieces along the first axis; those before a cut are given before the error is raised."""
        step = rows_per_chunk(self._row)
        if self._fortran:
            every = self.all()
            yield from (every[start : start + step] for start in range(0, len(every), step))
            return
        for start in range(0, self.shape[0] if self._total else 0, step):
            count = min(step, self.shape[0] - start)
            data = self._take(count * self._row, start * self._row)
            if whole := len(data) // self._row:
                rows = np.frombuffer(data, self.dtype, whole * math.prod(self.shape[1:]))
                yield rows.reshape(whole, *self.shape[1:])
            if whole < count:
                raise self._cut(start * self._row + len(data))
        self._check_end()

    def _take(self, size: int, start: int) -> bytearray:
        """The next bytes, fewer where the file ends; takes memory only for what is there."""
        found = bytearray()
        try:
            while len(found) < size:
                part = cast(io.BufferedIOBase, self._file).read1(min(size - len(found), CHUNK))
                if not part:
                    break
                found += part
        except EOFError:  # a packed file that was cut: what came before it is whole
            pass
        except DAMAGE as error:
            raise self._cut(start, f" ({told(error)})") from error
        return found

    def _check_end(self) -> None:
        """Refuse what goes on after the last element; checksums are compared only there."""
        try:
            more = self._file.read(1)
        except DAMAGE as error:
            raise DataError(
                f"{self.where}: damaged somewhere ({told(error)}); fetch it again"
            ) from error
        if more:
            raise DataError(
                f"{self.where}: holds more than the {self._total:,} bytes its header tells of; "
                f"write it again"
            )

    def _cut(self, byte: int, reason: str = "") -> DataError:
        return DataError(
            f"{self.where}: damaged or cut short{reason} at byte {byte} of its {self._total:,}, in "
            f"or after example {byte // max(1, self._row)} of "
            f"{self.shape[0] if self.shape else 1}; fetch it again"
        )


def npy_stream(file: IO[bytes], where: Path | str, size: int | None = None) -> ArrayStream:
    """An array in the .npy format; `size` is that of its file, where it has one of its own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, about what is odd in a header
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise ValueError(f"of version {version[0]}.{version[1]}")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
    except Exception as error:  # a damaged header is parsed as Python, which can raise anything
        raise DataError(f"{where}: is no array ({told(error)}); write it again") from error
    if dtype.hasobject:
        raise DataError(f"{where}: holds Python objects, which can run code; save integers")
    if not dtype.itemsize or any(type(n) is not int or n < 0 for n in shape):
        raise DataError(f"{where}: claims the shape {shape} of {dtype}; write it again")
    held = None if size is None else size - file.tell()
    return ArrayStream(file, where, shape, dtype, fortran=fortran, held=held)


def is_idx(head: bytes) -> bool:
    """Whether a file begins as IDX files of bytes do."""
    return len(head) >= 4 and head[:3] == b"\0\0\x08" and 1 <= head[3] <= 8


def idx_stream(file: IO[bytes], where: Path | str) -> ArrayStream:
    """An array in the IDX format."""
    try:
        head = file.read(4)
        if not is_idx(head):
            raise DataError(f"{where}: is no IDX file of bytes; fetch it again")
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
    except DAMAGE as error:
        raise DataError(f"{where}: cut short in its header; fetch it again") from error
    if not all(shape):
        raise DataError(f"{where}: claims the shape {shape}, which holds nothing; fetch it again")
    return ArrayStream(file, where, shape, np.dtype(np.uint8))
