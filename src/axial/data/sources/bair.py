"""BAIR robot pushing: TFRecords of raw frames, every checksum checked.

A TFRecord file is length (8 bytes), its checksum (4), data, its checksum (4), again and again.
The data is a protocol buffer, a tf.train.Example: a map from names to lists of values.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from axial.data.packed import Array
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import Record, Source, choose_split
from axial.errors import DataError
from axial.system.crc32c import masked_crc32c
from axial.system.protobuf import read_fields

SUFFIXES = (".tfrecord", ".tfrecords")
_SIDE = 64
_FRAME = _SIDE * _SIDE * 3
_LARGEST = 1 << 28


def find_records(path: Path) -> dict[str, list[Path]]:
    """TFRecord files by the folder they lie in: softmotion30_44k/train and test."""
    files = [path] if path.is_file() else sorted(p for s in SUFFIXES for p in path.rglob(f"*{s}"))
    found: dict[str, list[Path]] = {}
    for file in filter(Path.is_file, files):  # a pipe would be waited for
        # Not resolve(): in a store of links all files may lie in one folder.
        found.setdefault(file.absolute().parent.name, []).append(file)
    return found


def open_bair(path: Path, options: ReadOptions) -> Source:
    """The first --frames frames of every trajectory (default: all 30), from one camera."""
    parts = find_records(path)
    split: str | None = None
    if len(parts) > 1 or "train" in parts or "test" in parts:
        split = choose_split(options.split, list(parts), path)
    files = parts[split] if split else next(iter(parts.values()))
    notes = [f"camera {options.camera}"]
    if options.frames:
        notes.append(f"the first {options.frames} frames of each trajectory")
    return Source(
        name="BAIR robot pushing",
        reader="BAIR TFRecords",
        version=None if options.camera == "main" else f"camera {options.camera}",
        split=split,
        values=256,
        records=(record for file in files for record in tfrecords(file)),
        decode=functools.partial(decode, camera=options.camera, frames=options.frames),
        notes=notes,
        takes=frozenset({"frames", "camera"}),
    )


def tfrecords(path: Path) -> Iterator[Record | DataError]:
    """The records of a file; after one whose length is damaged nothing can be found any more."""
    number, start = 0, 0
    with path.open("rb") as file:
        while header := file.read(12):
            where = f"{path}: record {number} at byte {start}"
            length = int.from_bytes(header[:8], "little")
            if len(header) == 12 and (not _is_sound(header) or length > _LARGEST):
                yield DataError(
                    f"{where}: the checksum of its length is wrong, so the rest of the file is "
                    f"lost; fetch it again"
                )
                return
            body = file.read(length + 4) if len(header) == 12 else b""
            if len(header) < 12 or len(body) < length + 4:
                end = start + len(header) + len(body)
                yield DataError(f"{where}: cut short at byte {end} of the file; fetch it again")
                return
            yield Record(where, body)
            number, start = number + 1, start + 16 + length


def _is_sound(data: bytes) -> bool:
    """Whether the last four bytes are the checksum of those before them."""
    return masked_crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")


def decode(record: Record, *, camera: str, frames: int | None) -> Array:
    """The frames (1, t, 64, 64, 3) of a trajectory."""
    if not _is_sound(record.data):
        raise DataError(f"{record.where}: its checksum is wrong, bits have flipped; fetch it again")
    try:
        features = _features(record.data[:-4])
    except (IndexError, ValueError) as error:
        raise DataError(f"{record.where}: is no tf.train.Example ({error})") from error
    found: list[Array] = []
    while (data := features.get(f"{len(found)}/image_{camera}/encoded")) is not None:
        if len(data) != _FRAME:
            raise DataError(
                f"{record.where}: frame {len(found)} has {len(data)} bytes, not the {_FRAME} of a "
                f"raw {_SIDE} x {_SIDE} RGB picture"
            )
        found.append(np.frombuffer(data, np.uint8).reshape(_SIDE, _SIDE, 3))
    if len(found) < (frames or 1):
        raise DataError(
            f"{record.where}: has {len(found)} frames of camera {camera}, fewer than "
            f"{frames or 1}; use --frames {max(1, len(found))} or another --camera"
        )
    return np.stack(found[:frames])[None]


def _features(data: bytes) -> dict[str, bytes]:
    """The byte strings of an Example: its field 1 is the map, each entry key and list."""
    found = {}
    for message in _messages(data, 1):
        for entry in _messages(message, 1):
            names = _messages(entry, 1)
            lists = [one for feature in _messages(entry, 2) for one in _messages(feature, 1)]
            values = [value for one in lists for value in _messages(one, 1)]
            if names and values:
                found[names[0].decode()] = values[0]
    return found


def _messages(data: bytes, number: int) -> list[bytes]:
    """The strings and messages that stand in a field."""
    fields = read_fields(data)
    return [value for field, value in fields if field == number and isinstance(value, bytes)]
