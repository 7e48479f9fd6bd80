"""What every source gives: facts about a data set, and its records in a fixed order."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from axial.data.packed import Array
from axial.errors import DataError

CHUNK = 4 << 20
"""Bytes that are read, sent to a worker or written at once."""


class Record(NamedTuple):
    """One thing a source holds, before or after decoding."""

    where: str
    """File, and place in it, for messages."""
    data: Any
    """What `Source.decode` takes: bytes, a path; or the examples (k, *axes, c) themselves."""
    label: Any = None
    """A label for all its examples, or an array with one for each."""


class Refused(NamedTuple):
    """A record that cannot be used, or what a source could not read."""

    where: str
    """As of the record; nothing where only the error tells."""
    error: DataError


@dataclass(kw_only=True)
class Source:
    """An opened source: facts, and records that are read while one goes through them."""

    name: str
    """The data set, as people call it."""
    reader: str
    """The format it was recognised as."""
    records: Iterator[Record | DataError]
    """In a fixed order. Gives an error for what can be passed over, raises it otherwise."""
    decode: Callable[[Record], Array] | None = None
    """Record -> (k, *axes, c); runs in a worker. None where records hold examples already."""
    version: str | None = None
    split: str | None = None
    values: int | None = None
    """How many values elements can take; None to go by the largest found."""
    names: Sequence[str] | None = None
    """Names of the labels, where the source tells."""
    classes: int = 0
    """How many labels there are; 0 to go by the largest found."""
    count: int | None = None
    """Examples to expect, for the progress bar."""
    official: int | None = None
    """Examples the official split has."""
    notes: list[str] = field(default_factory=list)
    alone: bool = False
    """Whether it has one record at most, so that none is left without it."""
    takes: frozenset[str] = frozenset()
    """Options that mean something here, besides split and skip_bad."""


def natural(name: str) -> tuple[Any, ...]:
    """Sort key that puts batch_2 before batch_10."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


def rows_per_chunk(row_bytes: int) -> int:
    """How many rows of an array to read at once."""
    return max(1, CHUNK // max(1, row_bytes))


def choose_split(
    wanted: str | None, found: Sequence[str], where: Path | str, alike: Sequence[set[str]] = ()
) -> str:
    """The part a user means, by default train; valid, val and validation are one thing."""
    groups = [*alike, {"valid", "val", "validation", "dev"}]
    for split in found:
        if wanted == split or any({wanted, split} <= group for group in groups):
            return split
    if wanted is None:
        return "train" if "train" in found else found[0]
    raise DataError(f"{where}: has no split {wanted!r}; there are {', '.join(found)}")


def planar(rows: Array, size: int) -> Array:
    """Rows of red, green, blue planes as pictures (k, size, size, 3)."""
    return np.ascontiguousarray(rows.reshape(len(rows), 3, size, size).transpose(0, 2, 3, 1))
