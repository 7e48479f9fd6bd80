"""Which values a picture has, and how much more often than its model expects.

Whoever has edited a picture (levels, gamma, a reduction to few colours) has left values of its
channels that occur nowhere, and others twice as often as their neighbours. A model that sees one
tile at a time cannot know that. A palette tells it: of each value of each channel a bias that is
added to its logit, or that it does not occur. Biases are fitted to some tiles of the picture, and
kept only where they save more than they take.

c channels, v values, n elements.
"""

import math
import zlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from axial.codec.grid import ABSENT, BIAS_STEP, GRID
from axial.codec.groups import Part, runs, tile_of
from axial.codec.tiles import Tiling
from axial.data.packed import Array, spread
from axial.models.likelihood import slices_of_logits
from axial.models.protocol import Model

Palette = NDArray[np.int8]
"""(c, v), in sixteenths of a nat; ABSENT for a value that does not occur."""
_SAMPLE_ELEMENTS = 3 << 15
"""Elements that biases are fitted to at most: their logits take 100 MB."""
_SAMPLE_SHARE = 8
"""A picture of more tiles than that has one of so many looked at."""
_LEAST_ELEMENTS = 20
"""Of a picture that has fewer elements for each value of a palette, the palette takes more than it
saves (some hundredths of a bit an element), unless most values are absent."""
_MOST_ABSENT = 3 / 4
_ROUNDS = 3
"""Biases of different values depend on one another a little: they are fitted so often."""
_DOUBT = 20
"""As many elements as expected and as found are added to both counts of a value."""
_LARGEST_BIAS = 127
_BLOCK = 1 << 20
"""Pixels whose values are counted at a time."""


class _Sample(NamedTuple):
    """One channel of some tiles of a picture: what the model expects, and what there is.

    Where the model is: on a CPU the fit would take as long as a GPU takes for the whole picture.
    """

    logits: Tensor
    """(n, v)."""
    value: Tensor
    tile: Tensor
    """(n): which of the tiles it lies in."""

    def bits(self, bias: Tensor) -> Tensor:
        """What the elements of each of the two halves take: that of even tiles, that of odd."""
        nats = torch.nn.functional.cross_entropy(self.logits + bias, self.value, reduction="none")
        odd = nats[self.tile % 2 == 1].double().sum()
        return torch.stack([nats.double().sum() - odd, odd]) / math.log(2)

    def half(self, number: int) -> "_Sample":
        """The elements of even tiles, or of odd ones."""
        return _Sample(*(part[self.tile % 2 == number] for part in self))

    def fit(self, absent: Tensor) -> Tensor:
        """Biases (v) as whole numbers: how often values occur, over how often it was expected."""
        bias = torch.where(absent, ABSENT, 0)
        found = torch.bincount(self.value, minlength=len(absent)).double()
        fitted = torch.zeros_like(absent, dtype=torch.float64)
        unexpected = torch.zeros_like(absent)
        for i in range(_ROUNDS):
            expected = (self.logits + in_nats(bias)).softmax(-1).sum(0, dtype=torch.float64)
            if i == 0:  # by more than twice what chance makes of it
                unexpected = (found - expected) ** 2 > 4 * (expected + 1)
            fitted += ((found + _DOUBT) / (expected + _DOUBT)).log()
            whole = (fitted * GRID / BIAS_STEP).round().clamp(-_LARGEST_BIAS, _LARGEST_BIAS)
            bias = torch.where(unexpected & ~absent, whole.long(), bias)
        return bias


def in_nats(bias: Tensor) -> Tensor:
    """What biases add to logits."""
    nats = bias.float() * (BIAS_STEP / GRID)
    return nats.masked_fill(bias == ABSENT, -math.inf)


def palette_bytes(palette: Palette) -> int:
    """What a palette takes in a file, roughly: the contents are deflated as a whole."""
    return len(zlib.compress(palette.tobytes(), 9))


def choose_palette(model: Model, x: Array, label: int | None = None) -> Palette | None:
    """The palette (c, v) with which a picture (*grid, c) takes the fewest bytes; None for none.

    It may have biases, or say only which values occur. Where x has one channel and the model
    several, all of the model's are equal to it.
    """
    absent = torch.from_numpy(_counts(x, model.config.values) == 0)
    small = x.size < _LEAST_ELEMENTS * absent.numel()
    if small and absent.double().mean() < _MOST_ABSENT:
        return None
    samples, share = _look(model, x, label)
    absent = absent.to(samples[0].logits.device)
    none = torch.zeros_like(absent, dtype=torch.long)
    only = torch.where(absent, ABSENT, none)
    fitted = torch.stack([s.fit(a) for s, a in zip(samples, absent, strict=True)])
    needed = {
        b"": _needed(samples, none),
        _bytes(only): _needed(samples, only),
        # Biases that were fitted to one half of the tiles are tried on the other.
        _bytes(fitted): sum(
            float(sample.bits(in_nats(sample.half(1 - half).fit(gone)))[half])
            for sample, gone in zip(samples, absent, strict=True)
            for half in (0, 1)
        ),
    }
    best = min(needed, key=lambda data: needed[data] / share + 8 * len(zlib.compress(data, 9)))
    return np.frombuffer(bytearray(best), np.int8).reshape(len(absent), -1) if best else None


def _counts(x: Array, values: int) -> NDArray[np.int64]:
    """How often each value of each channel occurs (c, v), a block of the picture at a time."""
    flat = x.reshape(-1, x.shape[-1])
    found = np.zeros((x.shape[-1], values), np.int64)
    for start in range(0, len(flat), _BLOCK):
        for row, channel in zip(found, flat[start : start + _BLOCK].T, strict=True):
            row += np.bincount(channel.astype(np.int64), minlength=values)
    return found


def _needed(samples: list[_Sample], bias: Tensor) -> float:
    """Bits of all samples."""
    found = zip(samples, bias, strict=True)
    return sum(float(sample.bits(in_nats(own)).sum()) for sample, own in found)


def _bytes(bias: Tensor) -> bytes:
    return bias.to(torch.int8).cpu().numpy().tobytes()


def _look(model: Model, x: Array, label: int | None) -> tuple[list[_Sample], float]:
    """What the model expects of some tiles, by channel; and what share of the picture they are."""
    config, grid = model.config, x.shape[:-1]
    tiling = Tiling(axes=config.axes)
    count = tiling.tiles(grid)
    most = max(1, _SAMPLE_ELEMENTS // (math.prod(config.axes) * config.channels))
    chosen = spread(count, max(1, min(-(-count // _SAMPLE_SHARE), most)))
    slots, tiles = [], []
    for i in chosen:
        region = tiling.region(grid, int(i))
        whole = Part(region, x[region.box].repeat(config.channels // x.shape[-1], -1))
        ((slot,),) = runs(config, [whole], 1)
        slots.append(slot)
        tiles.append(slot.plan.fill(tile_of(whole, slot.tile, config.axes).reshape(-1)))
    device = next(model.parameters()).device
    coded = torch.from_numpy(np.stack([slot.plan.coded for slot in slots])).to(device)
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in range(x.shape[-1])]
    batch = torch.from_numpy(np.stack(tiles)).view(-1, *config.axes, config.channels)
    labels = None if label is None or not config.classes else torch.full((len(batch),), label)
    model.check(batch, labels)
    places = torch.arange(coded.shape[1], device=device).view(batch.shape[1:])
    for each, number, part, logits in slices_of_logits(model, batch, labels):
        rows, slices = each.to(device), number.to(device)
        own = model.slice_of(places.expand(len(rows), *places.shape), slices).flatten(1)
        value = model.slice_of(part, slices).flatten(1)
        wanted, tile = coded[rows.unsqueeze(1), own], rows.unsqueeze(1).expand(own.shape)
        expected = logits.flatten(1, -2).float()
        for c, kept in enumerate(found):
            at = wanted & (own % config.channels == c)
            kept.append((expected[at], value[at], tile[at]))
    samples = [_Sample(*map(torch.cat, zip(*kept, strict=True))) for kept in found]
    return samples, len(chosen) / count
