"""Reading tar, zip and what packs them without trusting any: strictly, in order, never onto disk.

The tar reader is our own because Python's takes an archive cut short at a header for whole.
"""

import bz2
import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast

from axial.errors import DataError

_BLOCK = 512
_PIECE = 1 << 20
_LARGEST_HEADER = 1 << 20
_LARGEST_TAKEN = 1 << 27
_LARGEST_ENTRY = 1 << 30
_LONGEST_NAME = 4096
DAMAGE = (
    EOFError,
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
_UNPACKERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
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
        except DAMAGE as error:
            yield DataError(
                f"{path}: damaged or cut short in entry {reader.number}, near byte "
                f"{reader.offset} of its contents ({shown(str(error))}); fetch it again"
            )
        except _TarError as error:
            yield DataError(str(error))


class _TarError(Exception):
    pass


class _About(NamedTuple):
    """What the headers before an entry say of it."""

    name: str = ""
    size: int | None = None
    sparse: bool = False


_FILES = (b"0", b"\0", b"7")
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
        about = _About()
        while header := self._header():
            start = self.offset
            self.number += 1
            kind = header[156:157]
            length = self._length(_octal(header[124:136]), start)
            if kind == b"L":
                name = self._extra(length).rstrip(b"\0").decode(errors="replace")
                about = about._replace(name=name)
            elif kind == b"x":
                about = _pax(self._extra(length), about)
            elif kind in (b"K", b"g"):  # the target of a link; what holds for all entries
                self._skip(length)
            else:
                if about.size is not None:
                    length = self._length(about.size, start)
                name = about.name or _name(header)
                bad_name = "" if kind in _FOLDERS else _bad_name(name)
                reason = bad_name or _unreadable(name, kind, length, sparse=about.sparse)
                about = _About()
                if kind in _FOLDERS or not (bad_name or wanted(name)):
                    self._skip(length)
                elif reason:
                    self._skip(length)
                    yield DataError(f"{self.path}: entry {self.number} {reason}")
                else:
                    where = f"{self.path}: entry {self.number}, {shown(name)}, at byte {start}"
                    yield Entry(name, where, self._take(length))

    def _header(self) -> bytes:
        """The next header block, or nothing at the end of the archive."""
        block = self.file.read(_BLOCK)
        if len(block) < _BLOCK:
            raise self._cut(len(block))
        if not any(block):
            self._only_zeros()
            return b""
        total = sum(block[:148]) + 8 * 32 + sum(block[156:])
        if _octal(block[148:156]) != total:
            raise _TarError(
                f"{self.path}: damaged at byte {self.offset}: no header of entry "
                f"{self.number + 1}; fetch it again"
            )
        self.offset += _BLOCK
        return block

    def _only_zeros(self) -> None:
        """After the block that ends a tar, anything else is entries that would be lost."""
        self.offset += _BLOCK
        while piece := self.file.read(_PIECE):
            if kept := piece.lstrip(b"\0"):
                raise _TarError(
                    f"{self.path}: damaged at byte {self.offset + len(piece) - len(kept)}: there "
                    f"is more after the end of the archive; fetch it again"
                )
            self.offset += len(piece)

    def _length(self, length: int | None, start: int) -> int:
        if length is None or not 0 <= length <= _LARGEST_ENTRY:
            raise _TarError(
                f"{self.path}: entry {self.number} at byte {start} claims {_count(length)} bytes, "
                f"as no picture has; fetch it again"
            )
        return length

    def _extra(self, length: int) -> bytes:
        if length > _LARGEST_HEADER:
            raise _TarError(
                f"{self.path}: entry {self.number} has a name of {length:,} bytes; fetch it again"
            )
        return self._take(length)

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

    def _cut(self, got: int) -> _TarError:
        return _TarError(
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


def _unreadable(name: str, kind: bytes, length: int, *, sparse: bool) -> str:
    """Why the contents of an entry are not here to read, or nothing."""
    if kind not in _FILES or sparse:
        what = "a sparse file" if sparse else _KINDS.get(kind, "no regular file")
        return f"({shown(name)}) is {what}, which is not read; unpack it and give the folder"
    if length > _LARGEST_TAKEN:
        return f"({shown(name)}) has {length:,} bytes, more than any picture; remove it"
    return ""


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


def _count(length: int | None) -> str:
    """A number from a damaged file, which may have any number of digits."""
    return "an unreadable number of" if length is None else f"{length:.6g}"


def _pax(data: bytes, about: _About) -> _About:
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 12)
        length = int(data[at:space]) if space > at else 0
        if at + length <= space or at + length > len(data):
            raise ValueError("a line of no length in a pax header")
        key, _, value = data[space + 1 : at + length].rstrip(b"\n").partition(b"=")
        if key == b"path":
            about = about._replace(name=value.decode(errors="replace"))
        elif key == b"size":
            about = about._replace(size=int(value[:30]))
        elif key.startswith(b"GNU.sparse."):
            about = about._replace(sparse=True)
        at += length
    return about


class _Zip(zipfile.ZipFile):
    """A zip that says of each member it cannot open that it is bad."""

    def open(self, *args: Any, **kwargs: Any) -> IO[bytes]:
        try:
            return super().open(*args, **kwargs)
        except zipfile.BadZipFile:
            raise
        except DAMAGE as error:
            raise zipfile.BadZipFile(shown(" ".join(str(error).split()))) from error


def open_zip(file: Path | BinaryIO, where: str) -> zipfile.ZipFile:
    """A zip or npz; where its list of contents is missing, say in which member it was cut."""
    try:
        return _Zip(file)
    except DAMAGE as error:
        if not isinstance(file, Path):
            raise DataError(f"{where}: damaged or cut short ({error}); fetch it again") from error
        size, place = file.stat().st_size, CutZip(file).place
        raise DataError(f"{where}: cut short at byte {size}, {place}; fetch it again") from error


class CutZip:
    """A zip that was cut short: its members as their own headers describe them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = "before its first member"
        self.members: dict[str, tuple[int, int]] = {}
        with path.open("rb") as file:
            self._walk(file, path.stat().st_size)

    def open(self, name: str) -> BinaryIO:
        """What a member holds, up to the cut if that is where it ends."""
        begin, method = self.members[name]
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"a member packed by method {method}")
        file = self.path.open("rb")
        file.seek(begin)
        return file if method == zipfile.ZIP_STORED else io.BufferedReader(_Inflated(file))

    def _walk(self, file: BinaryIO, size: int) -> None:
        """Follow the headers between the members up to the one that is not whole."""
        while len(header := file.read(30)) == 30 and header[:4] == b"PK\x03\x04":
            (method,) = struct.unpack("<H", header[8:10])
            packed, _, name_length, extra_length = struct.unpack("<IIHH", header[18:30])
            name = file.read(name_length).decode(errors="replace")
            extra = file.read(extra_length)
            if packed == 0xFFFFFFFF and len(extra) >= 20:
                _, packed = struct.unpack("<QQ", extra[4:20])
            begin = file.tell()
            self.members[name] = begin, method
            number = len(self.members)
            self.place = f"in or after member {number}, {shown(name)}, which begins at byte {begin}"
            if packed > size - begin:
                break
            file.seek(begin + packed)


class _Inflated(io.RawIOBase):
    """A deflated stream, given out as far as it goes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self.waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.inflate.eof:
            packed = self.waiting or self.file.read(1 << 16)
            data = self.inflate.decompress(packed, len(buffer))
            self.waiting = self.inflate.unconsumed_tail
            if data or not packed:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def close(self) -> None:
        self.file.close()
        super().close()
