"""Tiles -> groups of bytes, in parallel passes; group_reader.py has the way back.

A group is one stream of the entropy coder: the labels of its parts, then its elements in the order
of their places (groups.py). Before the stream stand the logits that lay too near to a border of the
grid, with the way they were rounded, and what the model is given.

b tiles, *axes the data axes (slowest first), c channels, n elements of a tile, g groups, v values.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from axial.codec import grid, rans
from axial.codec.groups import Part, palettes_of, runs, tile_of
from axial.codec.numbers import varint
from axial.codec.tiles import Plan
from axial.data.packed import Array, dtype_for
from axial.errors import InputError
from axial.models.family_config import FamilyConfig
from axial.models.likelihood import planes_at_once, slices_of_logits
from axial.models.protocol import Model

_GROUP_ELEMENTS = 3 << 15
"""Elements of tiles side by side, roughly: a group's few bytes beside are then below 0.1 %."""
_LANE_BYTES = 2 << 30
"""What the decoder's caches of a group may take."""


def default_lanes(config: FamilyConfig, cache_bytes: int) -> int:
    """How many tiles are decoded side by side."""
    most = most_lanes(math.prod(config.axes) * config.channels)
    return max(1, min(most, _LANE_BYTES // max(1, cache_bytes)))


def most_lanes(elements: int) -> int:
    """How many tiles of so many elements may be."""
    return -(-_GROUP_ELEMENTS // elements)


def checksum(x: Array, values: int, before: int = 0) -> int:
    """The CRC-32 of some tiles, after that of those before."""
    return zlib.crc32(x.astype(dtype_for(values).newbyteorder("<")).tobytes(), before)


def seal(tiles: int, labels: Sequence[int]) -> int:
    """What seals a group: of the checksum of its tiles, and of its labels."""
    found = zlib.crc32(np.array(labels, "<u4").tobytes(), tiles)
    return found & ((1 << rans.SEAL_BITS) - 1)


class _Stands(NamedTuple):
    """Where the elements of tiles stand: for each tile, on the model's device."""

    group: Tensor
    first: Tensor
    """The place of its first element in its group."""
    width: Tensor
    """From the place of one element to that of the next."""

    def places(self, tile: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
        """The places of elements in their groups, and these."""
        return self.first[tile] + rank * self.width[tile], self.group[tile]


class _Tiles:
    """The tiles (b, *axes, c) of some groups, and where their elements stand in them."""

    def __init__(self, config: FamilyConfig, groups: Sequence[Sequence[Part]], lanes: int) -> None:
        self.x: list[Array] = []
        self.plans: list[Plan] = []
        self.parts: list[Part] = []
        where = []
        for g, parts in enumerate(groups):
            done = 0
            for run in runs(config, parts, lanes):
                for lane, slot in enumerate(run):
                    tile = tile_of(parts[slot.part], slot.tile, config.axes)
                    self.x.append(slot.plan.fill(tile.reshape(-1)).reshape(tile.shape))
                    self.parts.append(parts[slot.part])
                    self.plans.append(slot.plan)
                    where.append((g, done + lane, len(run)))
                done += len(run) * self.x[0].size
        self.where = np.array(where)
        self.group = self.where[:, 0]

    def of(self, group: int) -> slice:
        """Which ones are a group's."""
        begin, end = np.searchsorted(self.group, (group, group + 1))
        return slice(int(begin), int(end))

    def stands(self, device: torch.device) -> _Stands:
        """Where the elements of each stand."""
        return _Stands(*torch.from_numpy(self.where).to(device).unbind(1))


def score(
    model: Model,
    groups: Sequence[Sequence[Part]],
    classes: int,
    lanes: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Callable[[], list[bytes]]:
    """Score some groups by parallel passes of a float64 model; the result writes their bytes.

    `classes` is how many labels there are to store, whether the model is conditioned on them or
    not. `progress` is called with how many tiles are done.
    """
    config = model.config
    tiles = _Tiles(config, groups, lanes)
    elements, done = tiles.x[0].size, 0
    labels = [[part.label for part in parts if part.label is not None] for parts in groups]
    ahead = np.array([len(found) for found in labels])
    length = int((ahead + np.bincount(tiles.group) * elements).max())
    device = next(model.parameters()).device
    begins = np.zeros((length, len(groups)), np.int64)
    ends = np.full_like(begins, rans.WHOLE)
    for g, own in enumerate(labels):
        for bound, i in ((begins, 0), (ends, 1)):
            bound[: len(own), g] = label_bound(np.array(own, np.int64) + i, classes)
    start, end = (torch.from_numpy(bound).to(device) for bound in (begins, ends))
    stands, before, near = tiles.stands(device), torch.from_numpy(ahead).to(device), _Near()
    coded = torch.from_numpy(np.stack([plan.coded for plan in tiles.plans])).to(device)
    order = torch.from_numpy(config.order())
    rank, order = order.argsort().to(device), order.to(device)
    x = torch.from_numpy(np.stack(tiles.x))
    label = torch.tensor([part.label for part in tiles.parts]) if config.classes else None
    found_palettes = palettes_of(tiles.parts, config.channels, config.values)
    palettes = None if found_palettes is None else torch.from_numpy(found_palettes).to(device)
    model.check(x, label)
    at_once = max(1, planes_at_once(config, device) // 2)
    for rows, number, part, logits in slices_of_logits(model, x, label, at_once=at_once):
        number, tile = number.to(device), rows.to(device).unsqueeze(1)
        step = model.slice_of(rank.view(x.shape[1:]).expand_as(part), number).flatten(1)
        value = model.slice_of(part, number).flatten(1).unsqueeze(-1)
        element = order[step]
        wanted = coded[tile, element]
        logits = logits.double().flatten(1, -2)
        check_logits(logits)
        found = grid.to_grid(logits)
        points = found.points
        if palettes is not None:
            points = grid.biased(points, palettes[tile, element % config.channels])
        share = grid.bounds(points)
        place, group = stands.places(tile, step)
        at = before[group] + place, group.expand_as(place)
        start[at] = torch.where(wanted, share.gather(-1, value).squeeze(-1), 0)
        end[at] = torch.where(wanted, share.gather(-1, value + 1).squeeze(-1), rans.WHOLE)
        near.note(found, points, wanted, stands, tile, step)
        done += step.numel()
        progress(done // elements)
    begin = start.cpu().numpy().astype(np.uint64)
    frequency = (end - start).cpu().numpy().astype(np.uint64)

    def written() -> list[bytes]:
        seals = [
            seal(checksum(np.stack(tiles.x[tiles.of(g)]), config.values), own)
            for g, own in enumerate(labels)
        ]
        streams = rans.encode(begin, frequency, seals)
        return [
            near.bytes_of(g) + _write_stored(tiles, tiles.of(g), config.values) + stream
            for g, stream in enumerate(streams)
        ]

    return written


def check_logits(logits: Tensor) -> None:
    """Refuse logits that no grid can hold."""
    most = float(logits.abs().max())
    if not most <= grid.LARGEST:
        raise InputError(
            f"the model's logits reach {most}: only finite ones up to {grid.LARGEST:,} can be "
            f"coded; use another model"
        )


def label_bound(label: NDArray[np.int64], classes: int) -> NDArray[np.uint64]:
    """Where the share of a label begins: all have equal ones."""
    return ((label << grid.PRECISION) // classes).astype(np.uint64)


class _Near:
    """The logits that lie near a border, by group and place, with the way they went."""

    def __init__(self) -> None:
        self.found: dict[int, list[tuple[int, int, int]]] = {}

    def note(
        self,
        found: grid.Points,
        biased: Tensor,
        wanted: Tensor,
        stands: _Stands,
        tile: Tensor,
        step: Tensor,
    ) -> None:
        """Keep those of a pass whose way makes a difference."""
        row, place, value = found.near.nonzero(as_tuple=True)
        if not len(row):
            return
        at = row, place
        own = torch.arange(len(value), device=value.device), value
        counts = grid.matters(biased[at])[own] & wanted[at]
        up = found.points[at][own] == found.border[at][own]
        where, group = stands.places(tile[row, 0], step[at])
        columns = torch.stack((group, where, value, up.long()), 1)
        for number, *note in columns[counts].tolist():
            self.found.setdefault(number, []).append(tuple(note))

    def bytes_of(self, group: int) -> bytes:
        """Their number, then of each how far it lies after the one before, its value and way."""
        notes = sorted(self.found.get(group, []))
        out, last = varint(len(notes)), 0
        for place, value, up in notes:
            out += varint(place - last) + varint(2 * value + up)
            last = place
        return out


def _write_stored(tiles: _Tiles, part: slice, values: int) -> bytes:
    """What the model is given of the tiles of a group: differences along a line, deflated."""
    flat = [
        x.reshape(-1)[plan.stored]
        for x, plan in zip(tiles.x[part], tiles.plans[part], strict=True)
        if plan.stored.any()
    ]
    if not flat:
        return b""
    whole = np.concatenate(flat)
    step = tiles.x[0].shape[-1]
    before = np.concatenate([np.zeros(step, np.int64), whole])[: len(whole)]
    change = (whole - before) % values
    data = zlib.compress(change.astype(dtype_for(values).newbyteorder("<")).tobytes(), 9)
    return varint(len(data)) + data
