"""What an entry of a file becomes on disk: names, formats that keep every pixel, figures."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from axial.codec.container import Contents, Entry, check_names
from axial.errors import DataError, StreamError
from axial.validation import counted

SUFFIX = ".axl"
LOSSLESS: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    ".webp": {"format": "WEBP", "lossless": True, "exact": True},
    ".bmp": {"format": "BMP"},
    ".tif": {"format": "TIFF"},
    ".tiff": {"format": "TIFF"},
    ".ppm": {"format": "PPM"},
    ".pgm": {"format": "PPM"},
}
"""Formats that keep every pixel, by the endings of names; others get .png added."""
FACTS = ("source", "version", "split", "values", "skipped", "notes", "command")
"""What is kept of the description of a packed array."""


def restored_name(entry: Entry) -> str:
    """What the file of an entry is called: its own name, if its format keeps every pixel."""
    if entry.array:
        return entry.name or "array.npy"
    suffix = PurePosixPath(entry.name).suffix.lower()
    return entry.name if suffix in LOSSLESS else f"{entry.name}.png"


def check_restored(entries: list[Entry]) -> None:
    """Refuse names that could not all be restored in one folder."""
    try:
        check_names([entry.name for entry in entries])
        check_names([restored_name(entry) for entry in entries])
    except StreamError as error:
        raise DataError(f"{error}; rename one, or compress the folder that holds both") from error


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
        what = " and ".join(counted(n, kind) for n, kind in kinds if n)
        if self.arrays:
            what += f" ({self.examples:,} examples)"
        return f"{what}, {self.bytes:,} bytes, {self.bits_per_dim:.4f} bits/dim"


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
