"""Tars, and what packs them, read without trust: strictly, in order, never onto disk.

The tar reader is our own because Python's takes an archive cut short at a header for whole.
"""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from axial.errors import DataError

_BLOCK = 512
_PIECE = 1 << 20
_LARGEST_HEADER = 1 << 20
_LARGEST_TAKEN = 1 << 27
_LARGEST_ENTRY = 1 << 30
_LONGEST_NAME = 4096
DAMAGE = (
    EOFError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,  # zipfile's word for what is encrypted, or packed in a way it does not know
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What Python's own readers raise on a damaged file."""
_XZ_MEMORY = 1 << 28
"""Four times what `xz -9` asks for; a hostile file may ask for 4 GB."""


class _Xz(io.RawIOBase):
    """What xz packed, unpacked in bounded memory."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        self.unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        packed = b""
        while True:
            if self.unpacker.eof:  # another part may follow, after zeros
                packed = (self.unpacker.unused_data or self.file.read(_PIECE)).lstrip(b"\0")
                if not packed:
                    return 0
                self.unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
            elif self.unpacker.needs_input and not (packed := self.file.read(_PIECE)):
                raise EOFError("it ends within what xz packed")
            if data := self.unpacker.decompress(packed, len(buffer)):
                buffer[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


_UNPACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lambda path: io.BufferedReader(_Xz(path)),
}
"""By the first bytes of a file."""


class Entry(NamedTuple):
    """A regular file in a tar."""

    name: str
    where: str
    data: bytes


def shown(text: str) -> str:
    """A name from inside a file, fit to stand in a message of one line."""
    return text if text.isprintable() else ascii(text)


def told(error: BaseException) -> str:
    """What an error says, in one line that is not endless."""
    return shown(" ".join(str(error).split())[:200]) or type(error).__name__


def damaged(where: Path | str, error: BaseException) -> DataError:
    """What to say of a file that a reader of Python gave up on."""
    return DataError(f"{where}: damaged or cut short ({told(error)}); fetch it again")


def is_compressed(head: bytes) -> bool:
    """Whether a file begins as one does that `open_unpacked` unpacks."""
    return head.startswith(tuple(_UNPACKERS))


def open_unpacked(path: Path) -> BinaryIO:
    """The contents of a file, unpacked if it was packed by gzip, bzip2 or xz."""
    with path.open("rb") as file:
        head = file.read(6)
    for start, unpack in _UNPACKERS.items():
        if head.startswith(start):
            return cast(BinaryIO, unpack(path))
    return path.open("rb")


def tar_entries(path: Path, wanted: Callable[[str], bool]) -> Iterator[Entry | DataError]:
    """The regular files of a tar, compressed or not, that `wanted` asks for by name."""
    with open_unpacked(path) as file:
        reader = _Tar(path, file)
        try:
            yield from reader.entries(wanted)
        except DataError as error:
            yield error
        except DAMAGE as error:
            yield DataError(
                f"{path}: damaged or cut short in entry {reader.number}, near byte "
                f"{reader.offset} of its contents ({told(error)}); fetch it again"
            )


_FOLDERS = (b"5", b"D", b"V")
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"S": "a sparse file"}


class _Tar:
    """A walk over the blocks of a tar: ustar, GNU long names, pax paths and sizes."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.offset = 0
        self.number = 0

    def entries(self, wanted: Callable[[str], bool]) -> Iterator[Entry | DataError]:
        about: dict[str, str] = {}  # what the headers before an entry say of it
        while header := self._header():
            start = self.offset
            self.number += 1
            length = self._checked(header.size, _LARGEST_ENTRY)
            if header.type in (b"L", b"x"):
                text = self._take(self._checked(length, _LARGEST_HEADER))
                about |= _pax(text) if header.type == b"x" else {"path": _text(text.rstrip(b"\0"))}
            elif header.type in (b"K", b"g"):  # the target of a link; what holds for all entries
                self._skip(length)
            else:
                length = self._checked(int(about.get("size", length)), _LARGEST_ENTRY)
                name = about.get("path") or header.name
                folder = header.type in _FOLDERS
                odd = "" if folder else _bad_name(name)
                if folder or not (odd or wanted(name)):
                    self._skip(length)
                elif odd := odd or _unreadable(name, header.type, length, about):
                    self._skip(length)
                    yield DataError(f"{self.path}: entry {self.number} {odd}")
                else:
                    where = f"{self.path}: entry {self.number}, {shown(name)}, at byte {start}"
                    yield Entry(name, where, self._take(length))
                about = {}

    def _header(self) -> tarfile.TarInfo | None:
        """The next header block, or nothing at the end of the archive."""
        block = self.file.read(_BLOCK)
        if len(block) < _BLOCK:
            raise self._cut(len(block))
        if not any(block):
            self._only_zeros()
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except tarfile.HeaderError as error:
            raise DataError(
                f"{self.path}: damaged at byte {self.offset}: no header of entry "
                f"{self.number + 1} ({error}); fetch it again"
            ) from error
        self.offset += _BLOCK
        return header

    def _only_zeros(self) -> None:
        """After the block that ends a tar, anything else is entries that would be lost."""
        self.offset += _BLOCK
        while piece := self.file.read(_PIECE):
            if kept := piece.lstrip(b"\0"):
                raise DataError(
                    f"{self.path}: damaged at byte {self.offset + len(piece) - len(kept)}: there "
                    f"is more after the end of the archive; fetch it again"
                )
            self.offset += len(piece)

    def _checked(self, length: int, most: int) -> int:
        if not 0 <= length <= most:
            raise DataError(
                f"{self.path}: entry {self.number} before byte {self.offset} claims {length:.6g} "
                f"bytes, not 0 to {most:,}; fetch it again"
            )
        return length

    def _take(self, length: int) -> bytes:
        return b"".join(self._read_pieces(length))[:length]

    def _skip(self, length: int) -> None:
        for _ in self._read_pieces(length):
            pass

    def _read_pieces(self, length: int) -> Iterator[bytes]:
        """In pieces, as what a damaged file claims must not be asked of memory at once."""
        left = -(-length // _BLOCK) * _BLOCK
        while left:
            piece = self.file.read(min(_PIECE, left))
            if not piece:
                raise self._cut(0)
            self.offset += len(piece)
            left -= len(piece)
            yield piece

    def _cut(self, got: int) -> DataError:
        return DataError(
            f"{self.path}: cut short at byte {self.offset + got}, in or after entry "
            f"{self.number}; fetch it again"
        )


def _bad_name(name: str) -> str:
    """Why no honest archive has an entry of this name, or nothing."""
    if len(name) > _LONGEST_NAME:
        return f"is named by {len(name):,} characters; do not trust it"
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return f"is named {name!r}, which points outside the archive; do not trust it"
    return ""


def _unreadable(name: str, kind: bytes, length: int, about: dict[str, str]) -> str:
    """Why the contents of an entry are not here to read, or nothing."""
    sparse = any(key.startswith("GNU.sparse.") for key in about)
    if kind not in (b"0", b"\0", b"7") or sparse:
        what = "a sparse file" if sparse else _KINDS.get(kind, "no regular file")
        return f"({shown(name)}) is {what}, which is not read; unpack it and give the folder"
    if length > _LARGEST_TAKEN:
        return f"({shown(name)}) has {length:,} bytes, more than any picture; remove it"
    return ""


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _pax(data: bytes) -> dict[str, str]:
    found, at = {}, 0
    while at < len(data):
        space = data.find(b" ", at, at + 12)
        length = int(data[at:space]) if space > at else 0
        if at + length <= space or at + length > len(data):
            raise ValueError("a line of no length in a pax header")
        key, _, value = _text(data[space + 1 : at + length]).rstrip("\n").partition("=")
        found[key] = value[:30] if key == "size" else value
        at += length
    return found
