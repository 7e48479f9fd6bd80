"""The .axl file: groups of tiles one after another, then what they are; docs/format.md.

    mark, version | group | group | ... | contents | length of the contents, checksum of them

The contents name the model, the entries and the groups, so that one entry can be read without the
others, and nothing is promised that the file is too short for.
"""

import math
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

import numpy as np

from axial.codec.coding import most_lanes
from axial.codec.grid import ABSENT
from axial.codec.numbers import Cursor, text, varint
from axial.codec.tiles import Tiling
from axial.data.description import MOST_CLASSES
from axial.errors import InputError, StreamError
from axial.shape import MOST_ELEMENTS, MOST_VALUES
from axial.validation import MOST_AXES

MARK = b"\x89AXL"
VERSION = 3
FINGERPRINT = 16
"""Bytes of the model's fingerprint."""
_TAIL = 8
_MOST_CONTENTS = 1 << 26
"""Bytes of the contents, before they are deflated: enough for a million pictures."""
_LEAST_GROUP = 9
"""Bytes of a group: the number of its notes, and the first state of its stream."""
_MOST_ELEMENTS = 1 << 40
_ARRAY, _ONE_PLANE, _ALONE, _PALETTE = 1, 2, 4, 8
PALETTE_VALUES = 256
"""A palette takes a byte for each value of each channel: larger ones are not worth it."""
_MOST_SPAN = 8
_REGION_ELEMENTS = 1 << 21
"""Elements of a region's tiles, roughly: what one group may take in memory."""


def most_span(axes: tuple[int, ...], channels: int) -> int:
    """How many tiles a region may have along each axis."""
    elements = math.prod(axes) * channels
    fits = [n for n in range(1, _MOST_SPAN + 1) if n ** len(axes) * elements <= _REGION_ELEMENTS]
    return max(fits, default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A picture, or an array of examples, as it was before it was cut into tiles."""

    name: str
    """The path of a picture in the folder it came from, or that of an array; empty for neither."""
    grid: tuple[int, ...]
    """Lengths of the grid of each example."""
    count: int = 1
    """How many examples it has."""
    array: bool = False
    """Whether it is an array: of any number of examples, with labels perhaps."""
    one_plane: bool = False
    """Whether only the first channel is there: the others were made equal to it."""
    alone: bool = False
    """Whether it is one example without an axis of examples."""
    about: str = ""
    """What the description of a packed array says, in JSON."""
    palette: bytes = b""
    """Biases of the values of each channel that is there, a signed byte each; empty for none."""


class Group(NamedTuple):
    """What the contents say of a group."""

    length: int
    """Bytes."""
    regions: int
    checksum: int
    """CRC-32 of the bytes."""


@dataclass(kw_only=True)
class Contents:
    """What a file holds, but for the groups themselves."""

    model: str
    """What the model was called."""
    fingerprint: bytes
    axes: tuple[int, ...]
    channels: int
    values: int
    classes: int
    """How many labels are stored; 0 for none."""
    lanes: int
    """How many tiles of a group are decoded side by side at most."""
    overlap: int = 0
    """By how many steps tiles overlap."""
    span: int = 1
    """Tiles of a region along each axis: those of one region overlap."""
    entries: list[Entry] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def tiling(self, entry: Entry) -> Tiling:
        """How the examples of an entry are cut."""
        return Tiling(axes=self.axes, overlap=self.overlap, span=self.span).fit(entry.grid)

    @property
    def elements(self) -> int:
        """How many numbers the file holds: channels that were not there do not count."""
        return sum(
            entry.count * math.prod(entry.grid) * (1 if entry.one_plane else self.channels)
            for entry in self.entries
        )

    def tiles_of(self, entry: Entry) -> int:
        """How many tiles an entry takes."""
        return entry.count * self.tiling(entry).tiles(entry.grid)

    def regions_of(self, entry: Entry) -> int:
        """How many regions an entry is cut into."""
        return entry.count * self.tiling(entry).regions(entry.grid)

    def spans(self) -> list[range]:
        """The regions of each entry, counted through the file."""
        found, first = [], 0
        for entry in self.entries:
            found.append(range(first, first + self.regions_of(entry)))
            first = found[-1].stop
        return found

    def to_bytes(self) -> bytes:
        """The contents, deflated where that is shorter, with their length and checksum."""
        parts = [text(self.model), self.fingerprint, varint(len(self.axes))]
        parts += map(varint, (*self.axes, self.channels, self.values, self.classes))
        parts += map(varint, (self.lanes, self.overlap, self.span))
        parts.append(varint(len(self.entries)))
        for entry in self.entries:
            kind = _ARRAY * entry.array | _ONE_PLANE * entry.one_plane | _ALONE * entry.alone
            kind |= _PALETTE * bool(entry.palette)
            parts += [varint(kind), text(entry.name), *map(varint, (entry.count, *entry.grid))]
            parts += [text(entry.about), entry.palette]
        parts.append(varint(len(self.groups)))
        for group in self.groups:
            parts += [varint(group.length), varint(group.regions)]
            parts.append(group.checksum.to_bytes(4, "little"))
        plain = b"".join(parts)
        if len(plain) > _MOST_CONTENTS:
            raise InputError(
                f"{len(self.entries):,} entries and their names take {len(plain):,} bytes, and one "
                f"file has room for {_MOST_CONTENTS:,}; write several files"
            )
        deflated = zlib.compress(plain, 9)
        data = b"\x01" + deflated if len(deflated) < len(plain) else b"\x00" + plain
        tail = len(data).to_bytes(4, "little") + zlib.crc32(data).to_bytes(4, "little")
        return data + tail


def read_contents(file: BinaryIO) -> Contents:
    """The contents of a file; refused if it is damaged, or promises what it cannot hold."""
    size = file.seek(0, 2)
    file.seek(0)
    head = file.read(len(MARK) + 1)
    if head[: len(MARK)] != MARK:
        raise StreamError("is no .axl file; `axial compress` writes one")
    if len(head) > len(MARK) and head[-1] != VERSION:
        raise StreamError(
            f"has version {head[-1]}, and this version of axial reads {VERSION}; use the "
            f"version that wrote it"
        )
    if size < len(head) + _TAIL:
        raise _damaged("it is cut short")
    file.seek(size - _TAIL)
    tail = file.read(_TAIL)
    length, checksum = (int.from_bytes(part, "little") for part in (tail[:4], tail[4:]))
    if length > size - len(head) - _TAIL:
        raise _damaged("it is cut short, or something was added to it")
    file.seek(size - _TAIL - length)
    data = file.read(length)
    if zlib.crc32(data) != checksum:
        raise _damaged("the checksum of its contents is wrong")
    room = size - len(head) - _TAIL - length
    try:
        found = _parse(Cursor(_inflated(data)), room)
        _check(found, room)
    except StreamError as error:
        raise _damaged(str(error)) from error
    return found


def read_group(file: BinaryIO, contents: Contents, place: int, number: int) -> bytes:
    """The bytes of a group that begins at a place; refused if they are not those written."""
    group = contents.groups[number]
    file.seek(place)
    data = file.read(group.length)
    if len(data) != group.length or zlib.crc32(data) != group.checksum:
        raise _damaged(f"the checksum of group {number} is wrong")
    return data


def _damaged(reason: str) -> StreamError:
    return StreamError(f"is damaged ({reason}); fetch it again")


def _inflated(data: bytes) -> bytes:
    if data[:1] == b"\x00":
        return data[1:]
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data[1:], _MOST_CONTENTS)
    except zlib.error as error:
        raise StreamError(f"its contents do not inflate: {error}") from error
    if data[:1] != b"\x01" or not inflate.eof or inflate.unused_data:
        raise StreamError("its contents do not inflate")
    return found


def _parse(cursor: Cursor, room: int) -> Contents:
    """What stands there; refused as soon as it cannot be, for little may inflate to much."""
    model, fingerprint = cursor.text(), cursor.take(FINGERPRINT)
    rank = cursor.varint()
    if not 1 <= rank <= MOST_AXES:
        raise StreamError(f"a model of {rank} axes")
    axes = tuple(cursor.varint() for _ in range(rank))
    channels, values, classes, lanes, overlap, span = (cursor.varint() for _ in range(6))
    entries, seen = [], set[str]()
    for _ in range(cursor.count("entries")):
        kind, name = cursor.varint(), cursor.text()
        count, *grid = (cursor.varint() for _ in range(1 + rank))
        entry = Entry(
            name=name,
            grid=tuple(grid),
            count=count,
            array=bool(kind & _ARRAY),
            one_plane=bool(kind & _ONE_PLANE),
            alone=bool(kind & _ALONE),
            about=cursor.text(),
            palette=_palette(cursor, 1 if kind & _ONE_PLANE else channels, values)
            if kind & _PALETTE
            else b"",
        )
        one = entry.alone or not entry.array
        if kind > (_ARRAY | _ONE_PLANE | _ALONE | _PALETTE) or (count != 1 and one):
            raise StreamError(f"an entry of kind {kind} with {count:,} examples")
        _add_name(name, seen)
        entries.append(entry)
    _check_folders(seen)
    count = cursor.count("groups")
    if count * _LEAST_GROUP > room:
        raise StreamError(f"{count:,} groups are promised in {room:,} bytes")
    groups = [
        Group(cursor.varint(), cursor.varint(), int.from_bytes(cursor.take(4), "little"))
        for _ in range(count)
    ]
    if cursor.left:
        raise StreamError(f"{cursor.left} bytes too many in its contents")
    return Contents(
        model=model,
        fingerprint=fingerprint,
        axes=axes,
        channels=channels,
        values=values,
        classes=classes,
        lanes=lanes,
        overlap=overlap,
        span=span,
        entries=entries,
        groups=groups,
    )


def _palette(cursor: Cursor, channels: int, values: int) -> bytes:
    if not 2 <= values <= PALETTE_VALUES:
        raise StreamError(f"a palette of {values:,} values")
    data = cursor.take(channels * values)
    if (np.frombuffer(data, np.int8).reshape(-1, values) == ABSENT).all(1).any():
        raise StreamError("a palette of which no value occurs")
    return data


def _check(contents: Contents, room: int) -> None:
    """Refuse sizes that no file of ours has, before anything of such a size is made."""
    shape = (*contents.axes, contents.channels)
    elements = math.prod(shape)
    if min(shape) < 1 or elements > MOST_ELEMENTS:
        raise StreamError(f"tiles of {' x '.join(map(str, shape))}")
    if not 2 <= contents.values <= MOST_VALUES or contents.classes > MOST_CLASSES:
        raise StreamError(f"{contents.values:,} values, {contents.classes:,} classes")
    lanes = contents.lanes
    if not 1 <= lanes <= most_lanes(elements):
        raise StreamError(f"groups of {lanes:,} tiles of {elements:,} elements")
    span, overlap = contents.span, contents.overlap
    fits = 1 <= span <= most_span(contents.axes, contents.channels)
    if not fits or overlap > max(contents.axes) // 2 or (span > 1) != (overlap > 0):
        raise StreamError(f"regions of {span:,} tiles that overlap by {overlap:,}")
    if not contents.entries:
        raise StreamError("no entries")
    for entry in contents.entries:
        if (
            min(entry.count, *entry.grid) < 1
            or math.prod(entry.grid) * entry.count > _MOST_ELEMENTS
        ):
            raise StreamError(f"{entry.count:,} examples of {' x '.join(map(str, entry.grid))}")
    regions = sum(map(contents.regions_of, contents.entries))
    held = [group.regions for group in contents.groups]
    if sum(held) != regions or min(held, default=0) < 1 or max(held) > lanes:
        raise StreamError(f"{regions:,} regions in {len(held):,} groups of other sizes")
    tiles = sum(map(contents.tiles_of, contents.entries))
    if tiles > len(held) * max(lanes, span ** len(contents.axes)):
        raise StreamError(f"{tiles:,} tiles in {len(held):,} groups")
    if sum(group.length for group in contents.groups) != room:
        raise StreamError("its groups do not fill it")


def check_names(names: Sequence[str]) -> None:
    """Refuse names that would lead out of a folder, or that two entries share."""
    seen: set[str] = set()
    for name in names:
        _add_name(name, seen)
    _check_folders(seen)


def _add_name(name: str, seen: set[str]) -> None:
    path = PurePosixPath(name)
    # Control characters and halves of others; which letters there are depends on the Python.
    odd = any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name) or "\\" in name
    outside = path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name
    if odd or (name and outside):
        raise StreamError(f"an entry is called {name!r}, which is no path inside a folder")
    if name in seen:
        raise StreamError(f"two entries are called {name!r}")
    seen.add(name)


def _check_folders(names: set[str]) -> None:
    for name in names:
        if any(str(parent) in names for parent in PurePosixPath(name).parents[:-1]):
            raise StreamError(f"an entry {name!r} lies in another that is no folder")
