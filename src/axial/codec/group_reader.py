"""Groups of bytes -> the values of their elements, one after another; coding.py wrote them.

b tiles, n elements of a tile, l length of a line.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from axial.codec import grid, rans
from axial.codec.coding import checksum, label_bound, seal
from axial.codec.groups import Part, Slot, palettes_of, runs, tile_of
from axial.codec.numbers import Cursor
from axial.codec.tiles import Plan, extent
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
    place, last = 0, -1
    for _ in range(cursor.count("logits near a border")):
        after = cursor.varint()
        value, up = divmod(cursor.varint(), 2)
        if after == 0 and value <= last:
            raise StreamError("logits near a border are out of order")
        place, last = place + after, value
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
    """Groups that are decoded together: what stands before their streams, and how far these are.

    Their parts are filled run by run: each is one batch of tiles.
    """

    def __init__(
        self,
        config: FamilyConfig,
        data: Sequence[bytes],
        groups: Sequence[Sequence[Part]],
        lanes: int,
        classes: int,
    ) -> None:
        self.config, self.groups = config, groups
        self.rank = np.argsort(config.order())
        self.runs = [runs(config, parts, lanes) for parts in groups]
        self._stored: list[Iterator[Array]] = []
        self._near: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        streams = []
        for g, (found, own) in enumerate(zip(data, self.runs, strict=True)):
            cursor = Cursor(found)
            self._place(g, _read_near(cursor, sum(map(len, own)) * len(self.rank), config.values))
            plans = [slot.plan for run in own for slot in run]
            self._stored.append(iter(_read_stored(cursor, plans, config.values, config.channels)))
            streams.append(cursor.rest())
        self.streams = rans.Reader(streams)
        self.labels = self._read_labels(classes)
        self._checksums = [0] * len(groups)

    def _place(self, group: int, near: dict[int, list[tuple[int, int]]]) -> None:
        """Sort the logits near a border by the run and the rank of their elements."""
        ends = np.cumsum([len(run) * len(self.rank) for run in self.runs[group]])
        for place, ways in near.items():
            number = int(np.searchsorted(ends, place, "right"))
            width = len(self.runs[group][number])
            rank, lane = divmod(place - int(ends[number]) + width * len(self.rank), width)
            found = self._near.setdefault((number, rank), [])
            found.extend((group, lane, *way) for way in ways)

    def _read_labels(self, classes: int) -> list[list[int]]:
        """The labels of all parts, group by group."""
        found: list[list[int]] = [[] for _ in self.groups]
        if classes:
            share = label_bound(np.arange(classes + 1), classes)
            bounds = np.broadcast_to(share, (len(found), classes + 1))
            counts = np.array([len(parts) for parts in self.groups])
            for i in range(counts.max()):
                value = self.streams.read(bounds, there := counts > i)
                for g in np.flatnonzero(there):
                    found[g].append(int(value[g]))
        return found

    def width(self, number: int) -> int:
        """How many tiles a run has, in the group that has most of them."""
        return max(len(run) for own in self.runs for run in own[number : number + 1])

    def slots(self, number: int, width: int) -> Iterator[tuple[int, int, Slot]]:
        """The group and the row of each tile of a run."""
        for g, own in enumerate(self.runs):
            for run in own[number : number + 1]:
                yield from ((g, g * width + lane, slot) for lane, slot in enumerate(run))

    def near(self, number: int, width: int) -> dict[int, list[tuple[int, int, int]]]:
        """The logits near a border of a run, by rank: row, value and way."""
        return {
            rank: [(g * width + lane, value, up) for g, lane, value, up in found]
            for (run, rank), found in self._near.items()
            if run == number
        }

    def stored(self, group: int) -> Array:
        """What the model is given of the next tile of a group."""
        return next(self._stored[group])

    def settle(self, run: "RunReader") -> None:
        """Put the tiles of a run into their parts."""
        for g, row, slot in self.slots(run.number, run.width):
            tile = run.x[row].reshape(*self.config.axes, -1)
            inside = tuple(map(slice, extent(slot.tile.box)))
            self.groups[g][slot.part].x[slot.tile.box] = tile[inside]
            self._checksums[g] = checksum(tile, self.config.values, self._checksums[g])

    def check_seals(self) -> None:
        """Refuse tiles that are not those that were compressed."""
        found = map(seal, self._checksums, self.labels)
        if list(found) != self.streams.seals():
            raise StreamError(_OTHER_PIXELS)


class RunReader:
    """Answers the sampler's decoder for each element of a run of all groups.

    There are rows for `width` tiles of each group, whether it has as many or not.
    """

    def __init__(self, groups: GroupReader, number: int, width: int) -> None:
        self.config, self.streams, self.rank = groups.config, groups.streams, groups.rank
        self.number, self.width = number, width
        elements, total = len(self.rank), len(groups.groups) * width
        self.x = np.full((total, elements), -1, np.int64)
        self.coded = np.zeros((total, elements), bool)
        self.source = np.full((total, elements), -1, np.int64)
        self.label = np.zeros(total, np.int64)
        parts: list[Part | None] = [None] * total
        for g, row, (part, tile, plan) in groups.slots(number, width):
            self.x[row] = tile_of(groups.groups[g][part], tile, self.config.axes).reshape(-1)
            self.x[row, plan.stored] = groups.stored(g)
            self.coded[row], self.source[row] = plan.coded, plan.source
            parts[row] = groups.groups[g][part]
            if groups.labels[g]:
                self.label[row] = groups.labels[g][part]
        self.near = groups.near(number, width)
        channels = self.config.channels
        found = palettes_of(parts, channels, self.config.values)
        self.palettes = None if found is None else torch.from_numpy(found)
        """(b, c, v)."""
        other = self.source % channels != np.arange(elements) % channels
        self.planes_follow = bool((other & (self.source >= 0)).any())
        """Whether a plane is known from another one before it is walked."""
        self.follow()

    def _read(self, bounds: NDArray[np.uint64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """A value of every row that wants one; those of a group take turns at its stream."""
        bounds = bounds.reshape(-1, self.width, bounds.shape[-1])
        rows = wanted.reshape(-1, self.width)
        value = np.zeros(rows.shape, np.int64)
        for lane in np.flatnonzero(rows.any(0)):
            value[:, lane] = self.streams.read(bounds[:, lane], rows[:, lane])
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
            if self.palettes is not None:
                bias = self.palettes[:, place % self.config.channels]
                points = grid.biased(points, bias.to(points.device))
            share = grid.bounds(points).cpu().numpy().astype(np.uint64)
            value = np.where(wanted, self._read(share, wanted), value)
        self.x[:, place] = value
        return value
