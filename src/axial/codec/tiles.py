"""Arrays of any size as tiles of a model's size, and what of a tile needs no bits.

Where the last tiles hang over, what lies outside repeats an element that is known by then. A grey
picture in a model of colours repeats its one plane. What is repeated is certain, so costs nothing.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from axial.data.packed import Array
from axial.models.family_config import FamilyConfig

Extent = tuple[int, ...]
"""How many steps of each axis of a tile lie within the picture."""


@dataclass(frozen=True)
class Plan:
    """What a decoder learns of a tile (n elements, flat), and from where the rest follows."""

    coded: NDArray[np.bool_]
    """Elements that are predicted, and cost bits."""
    stored: NDArray[np.bool_]
    """Elements that the model is given: they are written as they are."""
    source: NDArray[np.int64]
    """Which element each one is equal to: itself, if coded or stored; -1 where it is 0."""

    def fill(self, flat: Array) -> Array:
        """Tiles (k, n) with what follows put in its place."""
        return np.where(self.source < 0, 0, flat[..., np.maximum(self.source, 0)])


def tile_counts(grid: Extent, axes: Extent) -> Extent:
    """How many tiles lie along each axis."""
    return tuple(-(-length // step) for length, step in zip(grid, axes, strict=True))


def tile_count(grid: Extent, axes: Extent) -> int:
    """How many tiles one array takes."""
    return math.prod(tile_counts(grid, axes))


def boxes(grid: Extent, axes: Extent) -> Iterator[tuple[slice, ...]]:
    """Where the tiles lie in the array, in raster order; the last ones are cut."""
    along = (
        [slice(i, min(i + step, length)) for i in range(0, length, step)]
        for length, step in zip(grid, axes, strict=True)
    )
    return itertools.product(*along)


def extent(box: tuple[slice, ...]) -> Extent:
    """The size of a box."""
    return tuple(part.stop - part.start for part in box)


def inside_of(number: int, grid: Extent, axes: Extent) -> Extent:
    """How much of a tile, by its number in raster order, lies within."""
    found = []
    for length, step in zip(reversed(grid), reversed(axes), strict=True):
        number, place = divmod(number, -(-length // step))
        found.append(min(step, length - place * step))
    return tuple(reversed(found))


@functools.lru_cache(maxsize=64)
def plan(config: FamilyConfig, inside: Extent, *, one_plane: bool = False) -> Plan:
    """What is coded of a tile of which so much lies within, and what follows from what.

    With `one_plane` all channels are equal to the first.
    """
    shape = (*config.axes, config.channels)
    place = np.indices(shape).reshape(len(shape), -1)
    within = (place[:-1] < np.array(inside)[:, None]).all(0) & ~(one_plane & (place[-1] > 0))
    nearest = np.minimum(place[:-1], np.array(inside)[:, None] - 1)
    channel = np.zeros_like(place[-1]) if one_plane else place[-1]
    source = np.ravel_multi_index((*nearest, channel), shape)
    known = (place[-1] < config.given_channels) | (place[0] < config.given_steps)
    rank = np.argsort(config.order())
    late = ~within & ~known[source] & (rank[source] > rank)
    source[late] = _before(rank, within & ~known, late, channel)
    return Plan(within & ~known, within & known, source)


def _before(rank: Array, coded: Array, late: Array, channel: Array) -> Array:
    """For each late element, the coded one of its channel that comes last before it; or -1."""
    found = []
    for place in np.flatnonzero(late):
        same = np.flatnonzero(coded & (channel == channel[place]) & (rank < rank[place]))
        found.append(same[rank[same].argmax()] if len(same) else -1)
    return np.array(found, np.int64)


def cut(x: Array, axes: Extent) -> Iterator[tuple[Array, Extent]]:
    """The tiles (*axes, c) of an array (*grid, c), zero outside, and how much of each is inside."""
    for box in boxes(x.shape[:-1], axes):
        inside = extent(box)
        tile = np.zeros((*axes, x.shape[-1]), np.int64)
        tile[tuple(map(slice, inside))] = x[box]
        yield tile, inside
