"""Tiles -> groups of bytes, in parallel passes; group_reader.py has the way back.

A group is one stream of the entropy coder for some tiles, its lanes: label by label, then element
after element in the order of prediction, each for all lanes in turn. Before the stream stand the
logits that lay too near to a border of the grid, with the way they were rounded, and what the model
is given.

b tiles, *axes the data axes (slowest first), c channels, n elements of a tile, g groups, v values.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from axial.codec import grid, rans
from axial.codec.numbers import varint
from axial.codec.tiles import Plan
from axial.data.packed import Array, dtype_for
from axial.errors import InputError
from axial.models.family_config import FamilyConfig
from axial.models.likelihood import planes_at_once, slices_of_logits
from axial.models.protocol import Model

GROUP_ELEMENTS = 3 << 15
"""Elements of a group, roughly: its few bytes beside the stream are then well below 0.1 %."""
_LANE_BYTES = 2 << 30
"""What the decoder's caches of a group may take."""


def default_lanes(config: FamilyConfig, cache_bytes: int) -> int:
    """How many tiles make a group: all of them are decoded side by side."""
    return max(1, min(most_lanes(config), _LANE_BYTES // max(1, cache_bytes)))


def most_lanes(config: FamilyConfig) -> int:
    """How many tiles a group may have."""
    return -(-GROUP_ELEMENTS // (math.prod(config.axes) * config.channels))


@dataclass
class Tiles:
    """Tiles on their way into a file, or out of it."""

    x: Array
    """(b, *axes, c)."""
    plans: Sequence[Plan]
    """What of each is coded, and what follows."""
    label: NDArray[np.int64] | None = None
    """One of each."""

    @property
    def coded(self) -> NDArray[np.bool_]:
        """Which elements (b, n) are."""
        return np.stack([plan.coded for plan in self.plans])


def seal(x: Array, label: Array | None, values: int) -> int:
    """A checksum of the tiles of a group."""
    found = zlib.crc32(x.astype(dtype_for(values).newbyteorder("<")).tobytes())
    if label is not None:
        found = zlib.crc32(label.astype("<u4").tobytes(), found)
    return found & ((1 << rans.SEAL_BITS) - 1)


def encode(model: Model, tiles: Tiles, classes: int, lanes: int) -> list[bytes]:
    """The groups of some tiles, by parallel passes of a float64 model.

    `classes` is how many labels there are to store, whether the model is conditioned on them or
    not.
    """
    config, count = model.config, len(tiles.x)
    groups, elements = -(-count // lanes), tiles.x[0].size
    start = np.zeros((groups * lanes, 1 + elements), np.uint64)
    frequency = np.full_like(start, rans.WHOLE)
    if tiles.label is not None:
        begin, end = (label_bound(tiles.label + i, classes) for i in (0, 1))
        start[:count, 0], frequency[:count, 0] = begin, end - begin
    near = _Near()
    coded, rank = tiles.coded, torch.from_numpy(config.order()).argsort()
    x = torch.from_numpy(tiles.x.astype(np.int64))
    label = torch.from_numpy(tiles.label) if config.classes and tiles.label is not None else None
    model.check(x, label)
    at_once = max(1, planes_at_once(config, next(model.parameters()).device) // 2)
    for rows, number, part, logits in slices_of_logits(model, x, label, at_once=at_once):
        number = number.to(part.device)
        ranks = model.slice_of(rank.view(x.shape[1:]).to(part.device).expand_as(part), number)
        value = model.slice_of(part, number).flatten(1)
        lane, step = rows.unsqueeze(1).numpy(), ranks.flatten(1).cpu().numpy()
        wanted = coded[lane, config.order()[step]]
        logits = logits.double().flatten(1, -2)
        check_logits(logits)
        found = grid.to_grid(logits)
        share = grid.bounds(found.points)
        begin = share.gather(-1, value.unsqueeze(-1)).squeeze(-1).cpu().numpy()
        end = share.gather(-1, value.unsqueeze(-1) + 1).squeeze(-1).cpu().numpy()
        start[lane, 1 + step] = np.where(wanted, begin, 0)
        frequency[lane, 1 + step] = np.where(wanted, end - begin, rans.WHOLE)
        near.note(found, wanted, rows.numpy(), step)
    streams = rans.encode(
        _in_turn(start, groups, lanes),
        _in_turn(frequency, groups, lanes),
        [
            seal(tiles.x[s], None if tiles.label is None else tiles.label[s], config.values)
            for s in slices(count, lanes)
        ],
    )
    stored = _write_stored(tiles, lanes, config.values)
    return [
        near.bytes_of(group, lanes) + kept + stream
        for group, (kept, stream) in enumerate(zip(stored, streams, strict=True))
    ]


def check_logits(logits: Tensor) -> None:
    """Refuse logits that no grid can hold."""
    most = float(logits.abs().max())
    if not most <= grid.LARGEST:
        raise InputError(
            f"the model's logits reach {most}: only finite ones up to {grid.LARGEST:,} can be "
            f"coded; use another model"
        )


def _in_turn(x: NDArray[np.uint64], groups: int, lanes: int) -> NDArray[np.uint64]:
    """Lanes (g * lanes, steps) as steps (steps * lanes, g) of the groups."""
    return np.ascontiguousarray(x.reshape(groups, lanes, -1).transpose(2, 1, 0)).reshape(-1, groups)


def slices(count: int, lanes: int) -> list[slice]:
    """Which tiles stand in each group."""
    return [slice(i, min(i + lanes, count)) for i in range(0, count, lanes)]


def label_bound(label: NDArray[np.int64], classes: int) -> NDArray[np.uint64]:
    """Where the share of a label begins: all have equal ones."""
    return ((label << grid.PRECISION) // classes).astype(np.uint64)


class _Near:
    """The logits that lie near a border, by tile and rank, with the way they went."""

    def __init__(self) -> None:
        self.found: list[NDArray[np.int64]] = []

    def note(
        self,
        found: grid.Points,
        wanted: NDArray[np.bool_],
        rows: NDArray[np.int64],
        step: NDArray[np.int64],
    ) -> None:
        """Keep those of a pass whose way makes a difference."""
        row, place, value = (i.cpu().numpy() for i in found.near.nonzero(as_tuple=True))
        if not len(row):
            return
        near = torch.from_numpy(row), torch.from_numpy(place)
        at = tuple(i.to(found.points.device) for i in near)
        points, border = found.points[at], found.border[at]
        own = torch.arange(len(value)), torch.from_numpy(value)
        counts = grid.matters(points)[own].cpu().numpy() & wanted[row, place]
        up = (points[own] == border[own]).cpu().numpy()
        columns = rows[row], step[row, place], value, up.astype(np.int64)
        self.found.append(np.stack(columns, 1)[counts])

    def bytes_of(self, group: int, lanes: int) -> bytes:
        """Their number, then of each how far it lies after the one before, its value and way."""
        every = np.concatenate([*self.found, np.zeros((0, 4), np.int64)])
        tile, step, value, up = every[every[:, 0] // lanes == group].T
        place = step * lanes + tile % lanes
        order = np.lexsort((value, place))
        out, last = varint(len(order)), 0
        for i in order:
            out += varint(int(place[i]) - last) + varint(int(value[i]) * 2 + int(up[i]))
            last = int(place[i])
        return out


def _write_stored(tiles: Tiles, lanes: int, values: int) -> list[bytes]:
    """What the model is given of the tiles of each group: differences along a line, deflated."""
    found = []
    for part in slices(len(tiles.x), lanes):
        if not any(plan.stored.any() for plan in tiles.plans[part]):
            found.append(b"")
            continue
        flat = [
            x.reshape(-1)[plan.stored]
            for x, plan in zip(tiles.x[part], tiles.plans[part], strict=True)
        ]
        whole = np.concatenate(flat)
        step = tiles.x.shape[-1]
        before = np.concatenate([np.zeros(step, np.int64), whole])[: len(whole)]
        change = (whole - before) % values
        data = zlib.compress(change.astype(dtype_for(values).newbyteorder("<")).tobytes(), 9)
        found.append(varint(len(data)) + data)
    return found
