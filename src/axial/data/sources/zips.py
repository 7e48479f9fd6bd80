"""Zips and .npz files, read without trust: what stands twice is compared, what was cut is named."""

import os
import struct
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, BinaryIO, cast

from axial.data.sources.archives import DAMAGE, damaged, shown
from axial.errors import DataError


class CutZip(AbstractContextManager["CutZip"]):
    """A zip that was cut short: its members as their own headers describe them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = "before its first member"
        self._members: dict[str, tuple[int, zipfile.ZipInfo]] = {}
        with path.open("rb") as file:
            self._walk(file, path.stat().st_size)

    def __exit__(self, *_: object) -> None:
        pass

    def namelist(self) -> list[str]:
        return list(self._members)

    def open(self, name: str) -> IO[bytes]:
        """What a member holds, up to the cut if that is where it ends."""
        begin, info = self._members[name]
        file = self.path.open("rb")
        file.seek(begin)
        return cast(IO[bytes], zipfile.ZipExtFile(file, "r", info, close_fileobj=True))

    def _walk(self, file: BinaryIO, size: int) -> None:
        """Follow the headers between the members up to the one that is not whole."""
        while len(header := file.read(30)) == 30 and header[:4] == b"PK\x03\x04":
            method, crc, packed, plain, name_length, extra_length = struct.unpack(
                "<H4xIIIHH", header[8:]
            )
            name = file.read(name_length).decode(errors="replace")
            extra = file.read(extra_length)
            if packed == 0xFFFFFFFF and len(extra) >= 20:
                plain, packed = struct.unpack("<QQ", extra[4:20])
            begin = file.tell()
            info = zipfile.ZipInfo(name)
            info.compress_type, info.CRC = method, crc
            info.compress_size, info.file_size = packed, plain
            self._members[name] = begin, info
            number = len(self._members)
            self.place = f"in or after member {number}, {shown(name)}, which begins at byte {begin}"
            if packed > size - begin:
                break
            file.seek(begin + packed)


def open_zip(
    file: Path | BinaryIO, where: str, *, skip_bad: bool = False
) -> zipfile.ZipFile | CutZip:
    """A zip or npz; of one whose list of contents is missing, what is left, or where it was cut."""
    try:
        archive = zipfile.ZipFile(file)
    except DAMAGE as error:
        if not isinstance(file, Path):
            raise damaged(where, error) from error
        cut = CutZip(file)
        if skip_bad and cut.namelist():
            return cut
        size = file.stat().st_size
        raise DataError(
            f"{where}: cut short at byte {size}, {cut.place}; fetch it again"
        ) from error
    try:
        _check_list(archive)
    except DAMAGE as error:
        archive.close()
        raise damaged(where, error) from error
    return archive


def _check_list(archive: zipfile.ZipFile) -> None:
    """Compare names and number of the members, which stand twice, as no checksum covers them."""
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"a member packed by method {member.compress_type}")
        archive.open(member).close()
    file = cast(BinaryIO, archive.fp)
    file.seek(-22 - len(archive.comment), os.SEEK_END)
    end = file.read(12)
    if end[:4] != b"PK\x05\x06" or int.from_bytes(end[10:], "little") != min(
        len(archive.infolist()), 0xFFFF
    ):
        raise zipfile.BadZipFile("a member is missing from its list")
