"""TensorFlow's tensor bundle, the format of its checkpoints, read with numpy alone.

`NAME.index` is a sorted table of variables in checksummed blocks (the LevelDB table format);
`NAME.data-0000i-of-0000n` holds their bytes, with a checksum for each in the index.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from axial.errors import CheckpointError
from axial.system.crc32c import masked_crc32c
from axial.system.protobuf import read_fields, read_varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_MOST_DIMENSIONS = 8
_MOST_STATE = 1 << 16
_MOST_INDEX = 64 << 20
"""Bytes of an index: enough for half a million variables."""
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}


@dataclass(frozen=True)
class Entry:
    """Where a tensor's bytes are, and what they should be."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    shards: int
    offset: int
    size: int
    checksum: int
    sliced: bool


def find_bundle(path: Path) -> Path:
    """The common path of a checkpoint's files, from its folder or from that path itself."""
    try:
        if path.name and path.with_name(path.name + ".index").is_file():
            return path
        is_folder = path.is_dir()
    except (OSError, ValueError):  # a name too long, or not one at all
        is_folder = False
    if not is_folder:
        raise CheckpointError(
            f"{path}: no such TensorFlow checkpoint; name the folder that holds it"
        )
    names = sorted(index.stem for index in path.glob("*.index") if index.is_file())
    state = path / "checkpoint"
    if state.is_file():
        with state.open(encoding="utf-8", errors="replace") as file:
            told = re.search(r'(?m)^model_checkpoint_path: "(.*)"', file.read(_MOST_STATE))
        # The path inside is that of the machine it was trained on; only its last part counts.
        if told and Path(told[1]).name in names:
            return path / Path(told[1]).name
    if len(names) != 1:
        raise CheckpointError(
            f"{path}: expected one TensorFlow checkpoint (a file .index), found "
            f"{', '.join(names) or 'none'}; name it as {path}/NAME"
        )
    return path / names[0]


def read_index(path: Path) -> dict[str, Entry]:
    """Every tensor the bundle lists, by name."""
    try:
        if path.stat().st_size > _MOST_INDEX:
            raise CheckpointError(f"{path}: not a TensorFlow checkpoint index, for it is too large")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise CheckpointError(f"{path}: not a TensorFlow checkpoint index, or cut short")
    try:
        rows = dict(_read_table(data))
        header = dict(read_fields(rows.pop(b"")))
        if header.get(2, 0) != 0:
            raise ValueError("its data is big-endian, which is not supported")
        shards = int(header.get(1, 1))
        return {name.decode(): _read_entry(row, shards) for name, row in rows.items()}
    except (ValueError, KeyError, IndexError, struct.error) as error:
        raise CheckpointError(f"{path}: damaged index: {error}; copy it again") from error


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table, in order."""
    footer = data[-_FOOTER:-8]
    meta, at = _read_handle(footer, 0)
    if list(_read_block(data, *meta)):
        raise ValueError("a meta index where none was expected")
    index, _ = _read_handle(footer, at)
    for _, handle in _read_block(data, *index):
        block, _ = _read_handle(handle, 0)
        yield from _read_block(data, *block)


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where in `data` that ends."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """One block: keys that share a prefix with the one before, then restart points we skip."""
    end = offset + size + 1
    if end + 4 > len(data):
        raise ValueError(f"a block at byte {offset} reaches beyond the file")
    if masked_crc32c(data[offset:end]) != struct.unpack("<I", data[end : end + 4])[0]:
        raise ValueError(f"the checksum of the block at byte {offset} is wrong")
    block, compression = data[offset : end - 1], data[end - 1]
    if compression == 1:
        block = _uncompress_snappy(block)
    elif compression != 0:
        raise ValueError(f"the block at byte {offset} has unknown compression {compression}")
    restarts = struct.unpack("<I", block[-4:])[0]
    stop = len(block) - 4 - 4 * restarts
    at, key = 0, b""
    while at < stop:
        shared, at = read_varint(block, at)
        fresh, at = read_varint(block, at)
        length, at = read_varint(block, at)
        key = key[:shared] + block[at : at + fresh]
        yield key, block[at + fresh : at + fresh + length]
        at += fresh + length


def _uncompress_snappy(data: bytes) -> bytes:
    """Undo Snappy: literals, and copies of what was already written."""
    length, at = read_varint(data, 0)
    if length > _MOST_INDEX:
        raise ValueError(f"a Snappy block of {length} bytes")
    out = bytearray()
    while at < len(data):
        tag, kind = data[at] >> 2, data[at] & 3
        at += 1
        if kind == 0:
            wide = max(0, tag - 59)  # 60 to 63: the length is in the next 1 to 4 bytes
            size = 1 + (int.from_bytes(data[at : at + wide], "little") if wide else tag)
            out += data[at + wide : at + wide + size]
            at += wide + size
            continue
        wide = (0, 1, 2, 4)[kind]
        back = int.from_bytes(data[at : at + wide], "little") + (
            (tag >> 3 << 8) if kind == 1 else 0
        )
        size = (tag & 7) + 4 if kind == 1 else tag + 1
        at += wide
        if not 0 < back <= len(out):
            raise ValueError("a Snappy copy points outside the block")
        piece = out[-back:]  # source and target may overlap
        out += (piece * (size // back + 1))[:size]
        if len(out) > length:
            break
    if len(out) != length:
        raise ValueError(f"a Snappy block holds {len(out)} bytes instead of {length}")
    return bytes(out)


def _read_entry(row: bytes, shards: int) -> Entry:
    numbers: dict[int, int] = {}
    shape: list[int] = []
    for field, value in read_fields(row):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 2:
            dims = [dim for number, dim in read_fields(value) if number == 2]
            shape = [_read_dimension(dim) for dim in dims]
        elif field == 7:
            numbers[field] = 1
    return Entry(
        dtype=numbers.get(1, 0),
        shape=tuple(shape),
        shard=numbers.get(3, 0),
        shards=shards,
        offset=numbers.get(4, 0),
        size=numbers.get(5, 0),
        checksum=numbers.get(6, 0),
        sliced=7 in numbers,
    )


def _read_dimension(dim: bytes | int) -> int:
    if isinstance(dim, int):
        raise ValueError("a dimension that is no message")
    return int(dict(read_fields(dim)).get(1, 0))


def read_tensor(prefix: Path, name: str, entry: Entry) -> NDArray[np.generic]:
    """The values of one variable, after their checksum."""
    path = prefix.with_name(f"{prefix.name}.data-{entry.shard:05d}-of-{entry.shards:05d}")
    shown = printable(name)
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None or entry.sliced:
        what = "in slices" if entry.sliced else f"of TensorFlow type {entry.dtype}"
        raise CheckpointError(f"{path}: variable {shown} is stored {what}, which is not supported")
    stored = np.dtype("<u2" if dtype == "bfloat16" else dtype)
    if len(entry.shape) > _MOST_DIMENSIONS:
        raise CheckpointError(f"{path}: variable {shown} has {len(entry.shape)} dimensions")
    if math.prod(entry.shape) * stored.itemsize != entry.size:
        raise CheckpointError(f"{path}: variable {shown} has {entry.size} bytes for {entry.shape}")
    try:
        if path.stat().st_size < entry.offset + entry.size:
            raise CheckpointError(f"{path}: cut short in variable {shown}; copy it again")
        with path.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); copy it again"
        ) from error
    if masked_crc32c(data) != entry.checksum:
        raise CheckpointError(f"{path}: the checksum of variable {shown} is wrong; copy it again")
    try:
        values = np.frombuffer(data, stored).reshape(entry.shape)
    except ValueError as error:
        raise CheckpointError(f"{path}: variable {shown} has an absurd shape ({error})") from error
    if dtype == "bfloat16":
        return (values.astype("<u4") << 16).view("<f4")
    return values


def printable(name: str) -> str:
    """A name out of a file, fit for one line."""
    return name if name.isprintable() and len(name) < 200 else f"{name[:100]!r}..."
