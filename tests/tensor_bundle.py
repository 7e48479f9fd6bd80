"""A writer of TensorFlow's tensor bundle, to make files that the reader must take or refuse."""

import struct

import numpy as np

from axial.system.crc32c import masked_crc32c

TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def block(rows):
    """Keys in order, each sharing what it can with the one before; one restart point."""
    out, last = b"", b""
    for key, value in rows:
        shared = 0
        while shared < min(len(key), len(last)) and key[shared] == last[shared]:
            shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value))
        out += key[shared:] + value
        last = key
    return out + struct.pack("<II", 0, 1)


def snappy_literal(data):
    """Snappy that compresses nothing: literals of at most 60 bytes."""
    out = varint(len(data))
    for start in range(0, len(data), 60):
        part = data[start : start + 60]
        out += bytes([len(part) - 1 << 2]) + part
    return out


def entry(array, shard, offset, kind=None):
    data = array.tobytes()
    dims = b"".join(field(2, field(1, size)) for size in array.shape)
    return (
        field(1, kind or TYPES[str(array.dtype)])
        + field(2, dims)
        + field(3, shard)
        + field(4, offset)
        + field(5, len(data))
        + varint(6 << 3 | 5)
        + struct.pack("<I", masked_crc32c(data))
    )


def write_bundle(
    prefix, variables, *, shards=1, compression=0, endianness=0, kinds=None, extra=b""
):
    """Write `variables` to `prefix`.index and its data files; two rows to a block."""
    datas = [b""] * shards
    rows = [(b"", field(1, shards) + field(2, endianness) + field(3, field(1, 1)))]
    for i, name in enumerate(sorted(variables)):
        array, shard = np.array(variables[name], order="C"), i % shards
        kind = (kinds or {}).get(name)
        rows.append((name.encode(), entry(array, shard, len(datas[shard]), kind) + extra))
        datas[shard] += array.tobytes()
    parts = [rows[start : start + 2] for start in range(0, len(rows), 2)]
    write_index(prefix.with_name(prefix.name + ".index"), parts, compression=compression)
    for shard, data in enumerate(datas):
        name = f"{prefix.name}.data-{shard:05d}-of-{shards:05d}"
        prefix.with_name(name).write_bytes(data)


def write_index(path, parts, *, compression=0):
    """Write rows of names and entries as a table, one block for each part."""
    index, handles = b"", []

    def append(body):
        nonlocal index
        body = snappy_literal(body) if compression == 1 else body
        handle = varint(len(index)) + varint(len(body))
        body += bytes([compression])
        index += body + struct.pack("<I", masked_crc32c(body))
        return handle

    for part in parts:
        handles.append((part[-1][0], append(block(part))))
    footer = append(block([])) + append(block(handles))
    path.write_bytes(index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
