"""Protocol buffer messages, field by field: as much of the format as TensorFlow's files need."""

from collections.abc import Iterator


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field; strings and messages are bytes, all else is an int."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 2:
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise ValueError(f"a field of unknown kind {kind}")
        if at > len(data):
            raise ValueError("a field runs over the end")
        yield key >> 3, value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A little-endian base-128 number, and where it ends."""
    value = shift = 0
    while True:
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def write_field(number: int, value: int | bytes, *, kind: int = 2) -> bytes:
    """A field: a whole number, or bytes; kinds 1 and 5 are bytes of a fixed size, 8 and 4."""
    if isinstance(value, int):
        return write_varint(number << 3) + write_varint(value)
    size = write_varint(len(value)) if kind == 2 else b""
    return write_varint(number << 3 | kind) + size + value


def write_varint(value: int) -> bytes:
    """What `read_varint` reads."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
