"""Reading tar, gzip and zip without trusting them: strictly, in order, never onto the disk.

The tar reader is our own because Python's takes an archive cut short at a header for whole.
"""

import gzip
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from axial.errors import DataError

_BLOCK = 512
_LARGEST_ENTRY = 1 << 30
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, struct.error, ValueError)
"""What Python's own readers raise on a damaged file."""


class Entry(NamedTuple):
    """A regular file in a tar."""

    name: str
    where: str
    data: bytes


def open_maybe_gzip(path: Path) -> BinaryIO:
    """The contents of a file, unpacked if they are gzipped."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path) if packed else path.open("rb"))


def tar_entries(path: Path, wanted: Callable[[str], bool]) -> Iterator[Entry | DataError]:
    """The regular files of a tar, gzipped or not, that `wanted` asks for by name."""
    with open_maybe_gzip(path) as file:
        reader = _Tar(path, file)
        try:
            yield from reader.entries(wanted)
        except DAMAGE as error:
            yield DataError(
                f"{path}: damaged or cut short in entry {reader.number}, near byte "
                f"{reader.offset} of its contents ({error}); fetch it again"
            )
        except _TarError as error:
            yield DataError(str(error))


class _TarError(Exception):
    pass


class _Tar:
    """A walk over the blocks of a tar: ustar, GNU long names, pax paths and sizes."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.offset = 0
        self.number = 0

    def entries(self, wanted: Callable[[str], bool]) -> Iterator[Entry | DataError]:
        name, size = "", -1
        while header := self._header():
            start = self.offset
            self.number += 1
            kind = header[156:157]
            length = self._length(header, start)
            if kind == b"L":
                name = self._take(length).rstrip(b"\0").decode(errors="replace")
            elif kind == b"x":
                name, size = _pax(self._take(length), name, size)
            else:
                name, length = name or _name(header), length if size < 0 else size
                if kind not in (b"0", b"\0", b"7"):
                    self._skip(length)
                elif ".." in PurePosixPath(name).parts or name.startswith("/"):
                    self._skip(length)
                    yield DataError(
                        f"{self.path}: entry {self.number} is named {name!r}, which points outside "
                        f"the archive; do not trust it"
                    )
                elif wanted(name):
                    where = f"{self.path}: entry {self.number}, {name}, at byte {start}"
                    yield Entry(name, where, self._take(length))
                else:
                    self._skip(length)
                name, size = "", -1

    def _header(self) -> bytes:
        """The next header block, or nothing at the end of the archive."""
        block = self.file.read(_BLOCK)
        if len(block) < _BLOCK:
            raise self._cut(len(block))
        if not any(block):
            return b""
        total = sum(block[:148]) + 8 * 32 + sum(block[156:])
        if _octal(block[148:156]) != total:
            raise _TarError(
                f"{self.path}: damaged at byte {self.offset}: no header of entry "
                f"{self.number + 1}; fetch it again"
            )
        self.offset += _BLOCK
        return block

    def _length(self, header: bytes, start: int) -> int:
        length = _octal(header[124:136])
        if length is None or length > _LARGEST_ENTRY:
            raise _TarError(
                f"{self.path}: entry {self.number} at byte {start} claims {length} bytes, more "
                f"than any picture; fetch it again"
            )
        return length

    def _take(self, length: int) -> bytes:
        padded = -(-length // _BLOCK) * _BLOCK
        data = self.file.read(padded)
        if len(data) < padded:
            raise self._cut(len(data))
        self.offset += padded
        return data[:length]

    def _skip(self, length: int) -> None:
        for start in range(0, length, 1 << 20):
            self._take(min(1 << 20, length - start))

    def _cut(self, got: int) -> _TarError:
        return _TarError(
            f"{self.path}: cut short at byte {self.offset + got}, in or after entry "
            f"{self.number}; fetch it again"
        )


def _octal(field: bytes) -> int | None:
    """A tar number: octal text, or GNU's binary for large ones."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b"\0 ")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        return None


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0")[0].decode(errors="replace")
    prefix = header[345:500].split(b"\0")[0].decode(errors="replace")
    ustar = header[257:263] == b"ustar\0"  # GNU's own variant keeps other things in that place
    return f"{prefix}/{name}" if ustar and prefix else name


def _pax(data: bytes, name: str, size: int) -> tuple[str, int]:
    while data:
        length = int(data.split(b" ", 1)[0])
        if length < 1:
            raise ValueError("an empty line in a pax header")
        key, _, value = data[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        if key == b"path":
            name = value.decode(errors="replace")
        elif key == b"size":
            size = int(value)
        data = data[length:]
    return name, size


def open_zip(file: Path | BinaryIO, where: str) -> zipfile.ZipFile:
    """A zip or npz; where its list of contents is missing, say in which member it was cut."""
    try:
        return zipfile.ZipFile(file)
    except DAMAGE as error:
        if isinstance(file, Path):
            with file.open("rb") as stream:
                place = _cut_member(stream)
            size = file.stat().st_size
            raise DataError(
                f"{where}: cut short at byte {size}, {place}; fetch it again"
            ) from error
        raise DataError(f"{where}: damaged or cut short ({error}); fetch it again") from error


def _cut_member(file: BinaryIO) -> str:
    """Follow the headers between the members up to the one that is not whole."""
    number, place = 0, "before its first member"
    while len(header := file.read(30)) == 30 and header[:4] == b"PK\x03\x04":
        number += 1
        packed, _, name_length, extra_length = struct.unpack("<IIHH", header[18:30])
        name = file.read(name_length).decode(errors="replace")
        extra = file.read(extra_length)
        if packed == 0xFFFFFFFF and len(extra) >= 20:
            _, packed = struct.unpack("<QQ", extra[4:20])
        begin = file.tell()
        place = f"in or after member {number}, {name}, which begins at byte {begin}"
        file.seek(begin + packed)
    return place
