"""Groups of bytes -> the values of their elements, one after another; coding.py wrote them.

b tiles, n elements of a tile, l length of a line.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from axial.codec import grid, rans
from axial.codec.coding import label_bound, seal, slices
from axial.codec.numbers import Cursor
from axial.codec.tiles import Plan
from axial.data.packed import Array, dtype_for
from axial.errors import StreamError
from axial.models.family_config import FamilyConfig
from axial.sampling.decoder import Answer

_OTHER_PIXELS = (
    "its bytes are whole, but decode to other pixels than were compressed: this device computes "
    "other logits; try another one by --device"
)


def _read_near(cursor: Cursor, places: int, values: int) -> dict[int, list[tuple[int, int]]]:
    """By the place of the element: values, and the way their logits went."""
    found: dict[int, list[tuple[int, int]]] = {}
    place = 0
    for _ in range(cursor.count("logits near a border")):
        place += cursor.varint()
        value, up = divmod(cursor.varint(), 2)
        if place >= places or value >= values:
            raise StreamError("a logit near a border is none of these tiles'")
        found.setdefault(place, []).append((value, up))
    return found


def _read_stored(cursor: Cursor, plans: Sequence[Plan], values: int, channels: int) -> list[Array]:
    """The same elements, tile by tile."""
    sizes = [int(plan.stored.sum()) for plan in plans]
    if not sum(sizes):
        return [np.zeros(0, np.int64) for _ in plans]
    dtype = dtype_for(values).newbyteorder("<")
    wanted = sum(sizes) * dtype.itemsize
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(cursor.take(cursor.count("bytes of what is given")), wanted + 1)
    except zlib.error as error:
        raise StreamError(f"what the model is given does not inflate ({error})") from error
    if len(data) != wanted or inflate.unused_data:
        raise StreamError("what the model is given has another size")
    change = np.frombuffer(data, dtype).astype(np.int64)
    change = np.concatenate([change, np.zeros(-len(change) % channels, np.int64)])
    whole = change.reshape(-1, channels).cumsum(0).reshape(-1)[: sum(sizes)] % values
    return np.split(whole, np.cumsum(sizes)[:-1])


class GroupReader:
    """Reads the groups of one batch: answers the sampler's decoder for each element."""

    def __init__(
        self,
        config: FamilyConfig,
        groups: Sequence[bytes],
        plans: Sequence[Plan],
        lanes: int,
        classes: int,
    ) -> None:
        self.config, self.count = config, len(plans)
        self.lanes = lanes if len(groups) > 1 else len(plans)  # one alone may have fewer
        self.rank = np.argsort(config.order())
        elements, total = len(self.rank), len(groups) * self.lanes
        self.x = np.full((total, elements), -1, np.int64)
        self.coded = np.zeros((total, elements), bool)
        self.source = np.full((total, elements), -1, np.int64)
        self.near: dict[int, list[tuple[int, int, int]]] = {}
        streams = []
        for g, (data, part) in enumerate(zip(groups, slices(len(plans), lanes), strict=True)):
            cursor = Cursor(data)
            near = _read_near(cursor, elements * lanes, config.values)
            for place, ways in near.items():
                step, lane = divmod(place, lanes)
                row = g * lanes + lane
                if row >= self.count:
                    raise StreamError("a logit near a border is none of these tiles'")
                self.near.setdefault(step, []).extend((row, *way) for way in ways)
            stored = _read_stored(cursor, plans[part], config.values, config.channels)
            for lane, (plan, values) in enumerate(zip(plans[part], stored, strict=True)):
                row = part.start + lane
                self.coded[row], self.source[row] = plan.coded, plan.source
                self.x[row, plan.stored] = values
            streams.append(cursor.rest())
        self.streams, self._groups = rans.Reader(streams), len(groups)
        self.label = self._read_labels(classes) if classes else None
        other = self.source % config.channels != np.arange(elements) % config.channels
        self.planes_follow = bool((other & (self.source >= 0)).any())
        """Whether a plane is known from another one before it is walked."""
        self.follow()

    def _read_labels(self, classes: int) -> NDArray[np.int64]:
        share = label_bound(np.arange(classes + 1), classes)
        bounds = np.broadcast_to(share, (len(self.x), classes + 1))
        there = np.arange(len(self.x)) < self.count
        return np.where(there, self._read(bounds, there), 0)

    def _read(self, bounds: NDArray[np.uint64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """A value of every lane that wants one."""
        bounds = bounds.reshape(self._groups, self.lanes, -1)
        lanes = wanted.reshape(self._groups, self.lanes)
        value = np.zeros(lanes.shape, np.int64)
        for lane in np.flatnonzero(lanes.any(0)):
            value[:, lane] = self.streams.read(bounds[:, lane], lanes[:, lane])
        return value.reshape(-1)

    def follow(self) -> None:
        """Put what follows from known elements in its place; what is 0 everywhere is known."""
        missing = (self.x < 0) & ~self.coded
        found = np.take_along_axis(self.x, np.maximum(self.source, 0), 1)
        found[self.source < 0] = 0
        self.x = np.where(missing, found, self.x)

    def __call__(self, line: Int[Tensor, " l"]) -> Answer:
        places = line.tolist()

        def answer(j: int, logits: Tensor) -> Tensor:
            return torch.from_numpy(self.value(places[j], logits)).to(logits.device)

        return answer

    def value(self, place: int, logits: Tensor) -> NDArray[np.int64]:
        """The values of one element of all tiles: read, or what they follow from."""
        wanted, source = self.coded[:, place], self.source[:, place]
        value = np.where(source < 0, 0, self.x[np.arange(len(source)), np.maximum(source, 0)])
        if wanted.any():
            points, border, _ = grid.to_grid(logits.double())
            for tile, index, up in self.near.get(int(self.rank[place]), ()):
                points[tile, index] = border[tile, index] - 1 + up
            share = grid.bounds(points).cpu().numpy().astype(np.uint64)
            value = np.where(wanted, self._read(share, wanted), value)
        self.x[:, place] = value
        return value

    def check_seals(self) -> None:
        """Refuse tiles that are not those that were compressed."""
        shape = (*self.config.axes, self.config.channels)
        x = self.x[: self.count].reshape(-1, *shape)
        for part, wanted in zip(slices(self.count, self.lanes), self.streams.seals(), strict=True):
            label = None if self.label is None else self.label[part]
            if seal(x[part], label, self.config.values) != wanted:
                raise StreamError(_OTHER_PIXELS)
