"""How fuzz.py damages bytes: a few changes at random, of the kinds that break readers."""

import random
import re
from collections.abc import Callable

_SIZES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1)
_WORDS: tuple[bytes, ...]
_WORDS = (b"null", b"true", b"[]", b"{}", b"-1", b"0", b"1e999", b"NaN", b'""', b'"\\ud800"')
_WORDS += (
    b"9" * 400,
    b"[" * 5000,
    b'"../../etc/hostname"',
    b'"\\u001b[31m"',
    b"1.5",
    b"2000000000",
)
_TOKEN = re.compile(rb'"[^"\\\n]*"|-?\d+(\.\d+)?|true|false|null')


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one to four changes; a text also with changes to its words."""
    ways = _BINARY + _TEXT if _is_text(data) else _BINARY
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(ways)(data, rng)
    return data


def _is_text(data: bytes) -> bool:
    return bool(data) and not data.translate(None, bytes(range(32, 127)) + b"\n\t")


def _flip(data: bytes, rng: random.Random) -> bytes:
    at, bit = rng.randrange(len(data) or 1), 1 << rng.randrange(8)
    return data[:at] + bytes(byte ^ bit for byte in data[at : at + 1]) + data[at + 1 :]


def _byte(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def _in_the_head(data: bytes, rng: random.Random) -> bytes:
    return _byte(data[:128], rng) + data[128:]


def _number(data: bytes, rng: random.Random) -> bytes:
    """An integer of 1 to 8 bytes, often near the beginning, becomes another."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(min(len(data), rng.choice((64, len(data)))) or 1)
    number = rng.choice(_SIZES) & ((1 << 8 * size) - 1)
    new = number.to_bytes(size, "little")
    return data[:at] + rng.choice((new, new[::-1])) + data[at + size :]


def _part(data: bytes, rng: random.Random) -> slice:
    start = rng.randrange(len(data) or 1)
    return slice(start, start + rng.choice((1, 4, 16, 100, 1000, len(data))))


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[
        : rng.choice((rng.randrange(len(data) or 1), max(0, len(data) - rng.randint(1, 16))))
    ]


def _remove(data: bytes, rng: random.Random) -> bytes:
    part = _part(data, rng)
    return data[: part.start] + data[part.stop :]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    part = _part(data, rng)
    size = len(data[part])
    new = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size), data[:size]))
    return data[: part.start] + new + data[part.stop :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.choice((rng.randrange(len(data) or 1), len(data)))
    new = rng.choice((rng.randbytes(rng.choice((1, 7, 500))), data[_part(data, rng)]))
    return data[:at] + new + data[at:]


def _swap(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted(rng.randrange(len(data) or 1) for _ in range(2))
    size = min(second - first, len(data) - second, rng.choice((4, 64)))
    a, b = slice(first, first + size), slice(second, second + size)
    return data[:first] + data[b] + data[a.stop : second] + data[a] + data[b.stop :]


def _token(data: bytes, rng: random.Random) -> bytes:
    """A word or a number of a text becomes another one, or one of the text's own."""
    found = list(_TOKEN.finditer(data))
    if not found:
        return data
    old, other = rng.choice(found), rng.choice(found)[0]
    return data[: old.start()] + rng.choice((*_WORDS, other)) + data[old.end() :]


def _line(data: bytes, rng: random.Random) -> bytes:
    """A line goes, or comes twice."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines) or 1)
    return b"".join(lines[:at] + rng.choice(([], lines[at : at + 1] * 2)) + lines[at + 1 :])


_BINARY: tuple[Callable[[bytes, random.Random], bytes], ...]
_BINARY = (_flip, _flip, _byte, _in_the_head, _number, _number, _cut, _remove, _overwrite, _insert)
_BINARY += (_swap,)
_TEXT = (_token, _token, _token, _token, _line)
