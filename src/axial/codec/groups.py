"""Which tiles share a stream, and in which order they stand in it.

A group holds some regions. Its tiles are sorted by diagonal; those of one diagonal are coded side
by side, in runs of at most as many as the file has lanes. An element's place in the group counts
all elements before it: those of the runs before, then element after element of its own run in the
order of prediction, each for all tiles of the run in turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from axial.codec.tiles import Extent, Plan, Region, Tile, extent, plan
from axial.data.packed import Array
from axial.models.family_config import FamilyConfig


class Part(NamedTuple):
    """A region of an example, as a group holds it."""

    region: Region
    x: Array
    """What is known of it (*size, c); -1 where nothing is."""
    one_plane: bool = False
    """Whether all channels are equal to the first."""
    label: int | None = None
    palette: NDArray[np.int8] | None = None
    """The biases (c, v) of its values."""


class Slot(NamedTuple):
    """A tile of a group."""

    part: int
    """Which of the group's parts it belongs to."""
    tile: Tile
    plan: Plan


Run = Sequence[Slot]
"""Tiles that are coded side by side."""


def runs(config: FamilyConfig, parts: Sequence[Part], lanes: int) -> list[Run]:
    """The tiles of a group in the order of its stream."""
    slots = [
        Slot(i, tile, plan(config, extent(tile.box), tile.before, one_plane=part.one_plane))
        for i, part in enumerate(parts)
        for tile in part.region.tiles
    ]
    slots.sort(key=lambda slot: slot.tile.diagonal)
    found: list[Run] = []
    for _, alike in groupby(slots, lambda slot: slot.tile.diagonal):
        every = list(alike)
        found += [every[i : i + lanes] for i in range(0, len(every), lanes)]
    return found


def widest(parts: Sequence[Part], lanes: int) -> int:
    """How many tiles of a group are coded side by side at most."""
    counts = np.bincount([tile.diagonal for part in parts for tile in part.region.tiles])
    return min(lanes, int(counts.max()))


def grouped(parts: Iterable[Part], lanes: int) -> Iterator[list[Part]]:
    """Parts in groups: as many as have no more tiles than there are lanes, at least one."""
    group: list[Part] = []
    count = 0
    for part in parts:
        if group and count + len(part.region.tiles) > lanes:
            yield group
            group, count = [], 0
        group.append(part)
        count += len(part.region.tiles)
    if group:
        yield group


def palettes_of(
    parts: Sequence[Part | None], channels: int, values: int
) -> NDArray[np.int8] | None:
    """The palettes (b, c, v) of the tiles of some parts; None if all have none."""
    own = [None if part is None else part.palette for part in parts]
    if all(palette is None for palette in own):
        return None
    found = np.zeros((len(own), channels, values), np.int8)
    for row, palette in zip(found, own, strict=True):
        row[:] = 0 if palette is None else palette
    return found


def tile_of(part: Part, tile: Tile, axes: Extent) -> Array:
    """A tile (*axes, c) with what is known of it; -1 elsewhere."""
    found = np.full((*axes, part.x.shape[-1]), -1, np.int64)
    found[tuple(map(slice, extent(tile.box)))] = part.x[tile.box]
    return found
