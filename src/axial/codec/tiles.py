"""Arrays of any size as tiles of a model's size, and what of a tile needs no bits.

Tiles overlap: the first steps of one lie in the tiles before it, where they were coded, and show it
what it goes on from. So that many tiles can be decoded side by side, an array is cut into regions
of a few tiles along each axis, and only tiles of one region overlap. Within a region those of one
diagonal, whose numbers along the axes add up to the same, do not need one another.

Where the last tiles hang over, what lies outside repeats an element that is known by then. A grey
picture in a model of colours repeats its one plane. What is repeated is certain, so costs nothing.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from axial.data.packed import Array
from axial.models.family_config import FamilyConfig

Extent = tuple[int, ...]
"""A number of steps along each axis."""
Box = tuple[slice, ...]


class Tile(NamedTuple):
    """Where a tile lies in its region."""

    box: Box
    """What of it lies within."""
    before: Extent
    """How many of its first steps along each axis lie in tiles before it."""
    diagonal: int


class Region(NamedTuple):
    """A part of an array whose tiles see one another, and nothing else."""

    box: Box
    tiles: tuple[Tile, ...]
    """In raster order."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How arrays are cut."""

    axes: Extent
    """The size of a tile."""
    overlap: int = 0
    """By how many steps tiles overlap; along a short axis by half a tile at most."""
    span: int = 1
    """Tiles of a region along each axis."""

    def _along(self, axis: int) -> tuple[int, int]:
        """Steps from one tile to the next, and of a whole region."""
        step = self.axes[axis] - min(self.overlap, self.axes[axis] // 2)
        return step, self.axes[axis] + (self.span - 1) * step

    def _tiles_along(self, axis: int, length: int) -> int:
        """How many tiles a region needs along an axis."""
        step, _ = self._along(axis)
        return 1 + max(0, -(-(length - self.axes[axis]) // step))

    def fit(self, grid: Extent) -> "Tiling":
        """The same; without overlap where that would make more than half as many tiles again."""
        plain = Tiling(axes=self.axes)
        return plain if 2 * self.tiles(grid) > 3 * plain.tiles(grid) else self

    def region_counts(self, grid: Extent) -> Extent:
        """How many regions lie along each axis of an array."""
        return tuple(-(-length // self._along(i)[1]) for i, length in enumerate(grid))

    def regions(self, grid: Extent) -> int:
        """How many regions an array has."""
        return math.prod(self.region_counts(grid))

    def tiles(self, grid: Extent) -> int:
        """How many tiles an array takes."""
        found = 1
        for i, length in enumerate(grid):
            whole, rest = divmod(length, self._along(i)[1])
            found *= whole * self.span + (self._tiles_along(i, rest) if rest else 0)
        return found

    def region(self, grid: Extent, number: int) -> Region:
        """One region of an array, by its number in raster order."""
        place = np.unravel_index(number, self.region_counts(grid))
        starts = [int(p) * self._along(i)[1] for i, p in enumerate(place)]
        stops = [min(s + self._along(i)[1], grid[i]) for i, s in enumerate(starts)]
        size = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        return Region(tuple(map(slice, starts, stops)), _tiles(self, size))


@functools.lru_cache(maxsize=64)
def _tiles(tiling: Tiling, size: Extent) -> tuple[Tile, ...]:
    """The tiles of a region of some size."""
    along = []
    for axis, (length, longest) in enumerate(zip(size, tiling.axes, strict=True)):
        step, _ = tiling._along(axis)
        starts = [i * step for i in range(tiling._tiles_along(axis, length))]
        along.append([slice(start, min(start + longest, length)) for start in starts])
    overlaps = [longest - tiling._along(axis)[0] for axis, longest in enumerate(tiling.axes)]
    found = []
    for place in itertools.product(*(range(len(parts)) for parts in along)):
        box = tuple(parts[i] for i, parts in zip(place, along, strict=True))
        before = tuple(n if i else 0 for i, n in zip(place, overlaps, strict=True))
        found.append(Tile(box, before, sum(place)))
    return tuple(found)


def extent(box: Box) -> Extent:
    """The size of a box."""
    return tuple(part.stop - part.start for part in box)


@dataclass(frozen=True)
class Plan:
    """What a decoder learns of a tile (n elements, flat), and from where the rest follows."""

    coded: NDArray[np.bool_]
    """Elements that are predicted, and cost bits."""
    stored: NDArray[np.bool_]
    """Elements that the model is given: they are written as they are."""
    source: NDArray[np.int64]
    """Which element each one is equal to: itself, if it lies within; -1 where it is 0."""

    def fill(self, flat: Array) -> Array:
        """Tiles (k, n) with what follows put in its place."""
        return np.where(self.source < 0, 0, flat[..., np.maximum(self.source, 0)])


@functools.lru_cache(maxsize=64)
def plan(config: FamilyConfig, inside: Extent, before: Extent, *, one_plane: bool = False) -> Plan:
    """What is coded of a tile of which so much lies within, and what follows from what.

    The first steps of it lie in tiles `before`. With `one_plane` all channels are equal to the
    first.
    """
    shape = (*config.axes, config.channels)
    place = np.indices(shape).reshape(len(shape), -1)
    within = (place[:-1] < np.array(inside)[:, None]).all(0) & ~(one_plane & (place[-1] > 0))
    seen = (place[:-1] < np.array(before)[:, None]).any(0)
    nearest = np.minimum(place[:-1], np.array(inside)[:, None] - 1)
    channel = np.zeros_like(place[-1]) if one_plane else place[-1]
    source = np.ravel_multi_index((*nearest, channel), shape)
    given = (place[-1] < config.given_channels) | (place[0] < config.given_steps)
    known, rank = given | seen, np.argsort(config.order())
    late = ~within & ~known[source] & (rank[source] > rank)
    source[late] = _before(rank, within & ~known, late, channel)
    return Plan(within & ~known, within & given & ~seen, source)


def _before(rank: Array, coded: Array, late: Array, channel: Array) -> Array:
    """For each late element, the coded one of its channel that comes last before it; or -1."""
    found = []
    for place in np.flatnonzero(late):
        same = np.flatnonzero(coded & (channel == channel[place]) & (rank < rank[place]))
        found.append(same[rank[same].argmax()] if len(same) else -1)
    return np.array(found, np.int64)
