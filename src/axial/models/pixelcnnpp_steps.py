"""PixelCNN++ pixel by pixel: what each layer keeps of the rows so far.

The stream u sees rows above alone, so a row of it is computed at once, and with it what ul is told
from above. The rest of ul is computed by pixels, at coarse resolutions for every second or fourth
of every second or fourth row. So a drawing costs the arithmetic of scoring it once.

b batch, w width, i inputs, o outputs and f features of a convolution, t taps; features are last.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from axial.models.logistic_mixture import LogisticMixture
from axial.models.pixelcnnpp_layers import (
    GatedResidual,
    NormedConv,
    Pair,
    Resample,
    concat_elu,
)
from axial.models.stepping import Place, Stepper, put, span, take

if TYPE_CHECKING:
    from axial.models.pixelcnnpp import PixelCnnPp

Row = Float[Tensor, "b _ f"]
Pixel = Float[Tensor, "b f"]


class PixelCnnPpSteps:
    """Element after element of a batch; the channels of a pixel share what the net says of it."""

    def __init__(self, model: "PixelCnnPp", x: Tensor, added: Tensor | None) -> None:
        self.model, self.x = model, x
        config, (height, width) = model.config, model.config.axes
        self.added = None if added is None else added.expand(len(x), height, width, -1)
        self.stem = _StemStep(model, x, self.added)
        self.layers: list[_Layer] = []
        for (kind, level), layer in zip(config.plan, model.layers, strict=True):
            how = (len(x), width >> level, level)
            if isinstance(layer, Pair):
                self.layers.append(_PairStep(layer, *how, joined=kind == "joined"))
            else:
                steps = _DoubleStep if kind == "double" else _HalveStep
                self.layers.append(steps(cast(Resample, layer), *how))
        self.caches = [*self.stem.caches, *(c for layer in self.layers for c in layer.caches)]
        self.to_mixture = model.to_mixture.weight().flatten(1)
        self.numbers = self.to_mixture.new_zeros(len(x), config.mixture_numbers)
        self.coarsest = 1 << max(level for _, level in config.plan)
        self.call = Stepper(x.device, max(height, width))

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        pixel, channel = divmod(rank, self.model.config.channels)
        row, column = divmod(pixel, self.model.config.axes[1])
        if not channel:
            if not column:
                self._open(row)
            parities = row % self.coarsest, column % self.coarsest
            self.call(self._mix, row, column, fixed=(*parities, column > 0))
        return self.call(self._read, row, column, fixed=(channel,))

    def _mix(
        self, row: Place, column: Place, odd_row: int, odd_column: int, left: bool
    ) -> Float[Tensor, "b m"]:
        """The net at one pixel: its mixture."""
        ul = self._look(self.stem.look(row, column, left=left), _Spot(odd_row, odd_column, column))
        return self.numbers.copy_(F.linear(F.elu(ul), self.to_mixture, self.model.to_mixture.b))

    def _read(self, row: Place, column: Place, channel: int) -> Float[Tensor, "b v"]:
        """A channel of it, the channels before it known."""
        exact = self.numbers.to(torch.promote_types(self.numbers.dtype, torch.float32))
        values = take(take(self.x, 1, row), 1, column).clamp(min=0)
        return LogisticMixture(exact, values).channel_logits(channel)

    def _open(self, row: int) -> None:
        """The stream u in this row, at all resolutions that have one that starts here."""
        u, kept = self.stem.open(row), []
        for layer in self.layers:
            if row % (1 << layer.level) == 0:
                if layer.keeps:
                    kept.append(u)
                u = layer.open(u, row >> layer.level, kept.pop() if layer.joined else None)

    def _look(self, ul: Pixel, spot: "_Spot") -> Pixel:
        """The stream ul at one pixel, from what the stem says of it."""
        kept: list[Pixel] = []
        for layer in self.layers:
            if not (spot.row | spot.column) % (1 << layer.level):
                if layer.keeps:
                    kept.append(ul)
                ul = layer.look(ul, spot.at(layer.level), kept.pop() if layer.joined else None)
        return ul


class _Spot(NamedTuple):
    """A pixel: its place in its row; row and column modulo the side of the coarsest pixels."""

    row: int
    column: int
    place: Place

    def at(self, level: int) -> "_Spot":
        """The coarse pixel that it belongs to."""
        return _Spot(self.row >> level, self.column >> level, self.place >> level)


class _Layer:
    """A layer on its way; `level` is how often the picture is halved at its finer end."""

    keeps, joined = False, False

    def __init__(self, level: int, caches: list[Tensor]) -> None:
        self.level, self.caches = level, caches

    def open(self, u: Row, row: int, kept: Row | None) -> Row:
        """The stream u of a row; what ul needs of it is noted."""
        raise NotImplementedError

    def look(self, ul: Pixel, spot: _Spot, kept: Pixel | None) -> Pixel:
        """The stream ul at a pixel of the row that was opened last."""
        raise NotImplementedError


class _Rows:
    """A convolution of u, row by row: `upper` is what the row before says to this one."""

    def __init__(self, conv: NormedConv, batch: int, width: int) -> None:
        weight = conv.weight()
        self.both, self.bias = rearrange(weight, "o i y t -> (y o) (t i)"), conv.b
        self.upper = weight.new_zeros(batch, width, len(weight))

    def __call__(self, x: Float[Tensor, "b w i"]) -> Float[Tensor, "b w o"]:
        upper, lower = F.linear(_three(x), self.both).chunk(2, -1)
        out = lower + self.upper + self.bias
        self.upper.copy_(upper)
        return out


class _Line:
    """A convolution of ul, pixel by pixel: `above` is what it has of the row above."""

    def __init__(self, conv: NormedConv, batch: int, width: int) -> None:
        weight, self.stride, self.bias = conv.weight(), conv.stride, conv.b
        upper, lower = rearrange(weight, "o i y t -> y o (t i)")
        self.upper, self.lower = upper, lower.T.contiguous()
        self.line = weight.new_zeros(batch, width + 1, weight.shape[1])
        self.above = weight.new_zeros(batch, width // conv.stride, len(weight))

    def open(self, told: Row | None = None) -> None:
        """Take in the row before, whose inputs are still here, and what is told of u."""
        taps = torch.cat([self.line[:, :-1], self.line[:, 1:]], -1)[:, :: self.stride]
        self.above.copy_(F.linear(taps, self.upper, self.bias))
        if told is not None:
            self.above.add_(told)

    def put(self, x: Pixel, place: Place) -> None:
        put(self.line, 1, place + 1, x)

    def look(self, place: Place) -> Pixel:
        taps = span(self.line, 1, place, 2).flatten(1)
        return torch.addmm(take(self.above, 1, place // self.stride), taps, self.lower)


class _PairStep(_Layer):
    """A residual block of each stream."""

    def __init__(self, pair: Pair, batch: int, width: int, level: int, *, joined: bool) -> None:
        self.joined, self.keeps = joined, not joined
        self.rows = [_Rows(conv, batch, width) for conv in (pair.u.first, pair.u.second)]
        self.lines = [_Line(conv, batch, width) for conv in (pair.ul.first, pair.ul.second)]
        self.u_aside, self.ul_aside = (_aside(block) for block in (pair.u, pair.ul))
        caches = [one.upper for one in self.rows]
        super().__init__(level, caches + [t for one in self.lines for t in (one.line, one.above)])
        if joined:  # u comes first, then what was kept; and so for their opposites
            weight, self.bias = cast(tuple[Tensor, Tensor], self.ul_aside)
            of_u, of_kept, of_less_u, of_less_kept = weight.chunk(4, 1)
            self.ul_aside = torch.cat([of_u, of_less_u], 1), self.bias
            self.from_kept = torch.cat([of_kept, of_less_kept], 1).T.contiguous()

    def open(self, u: Row, row: int, kept: Row | None) -> Row:
        c = self.rows[0](concat_elu(u, -1))
        if kept is not None and self.u_aside is not None:
            c = c + F.linear(concat_elu(kept, -1), *self.u_aside)
        u = u + F.glu(self.rows[1](concat_elu(c, -1)), -1)
        first, second = self.lines
        assert self.ul_aside is not None
        first.open(F.linear(concat_elu(u, -1), *self.ul_aside))
        second.open()
        return u

    def look(self, ul: Pixel, spot: _Spot, kept: Pixel | None) -> Pixel:
        first, second = self.lines
        first.put(concat_elu(ul), spot.place)
        c = first.look(spot.place)
        if kept is not None:
            c = torch.addmm(c, concat_elu(kept), self.from_kept)
        second.put(concat_elu(c), spot.place)
        return ul + F.glu(second.look(spot.place), -1)


class _HalveStep(_Layer):
    """Every second row and pixel of what comes out is kept."""

    keeps = True

    def __init__(self, layer: Resample, batch: int, width: int, level: int) -> None:
        weight, self.bias = layer.u.weight(), layer.u.b
        self.upper, self.lower = rearrange(weight, "o i y t -> y o (t i)")
        self.above = weight.new_zeros(batch, width // 2, len(weight))
        self.line = _Line(layer.ul, batch, width)
        super().__init__(level, [self.above, self.line.line, self.line.above])

    def open(self, u: Row, row: int, kept: Row | None) -> Row:
        taps = _three(u)[:, ::2]
        if row % 2:
            self.above.copy_(F.linear(taps, self.upper))
            return u
        self.line.open()
        return F.linear(taps, self.lower, self.bias) + self.above

    def look(self, ul: Pixel, spot: _Spot, kept: Pixel | None) -> Pixel:
        self.line.put(ul, spot.place)
        return ul if spot.row % 2 or spot.column % 2 else self.line.look(spot.place)


class _DoubleStep(_Layer):
    """What a coarse pixel says to four, or six, fine ones."""

    def __init__(self, layer: Resample, batch: int, width: int, level: int) -> None:
        weight = layer.u.weight()
        self.u_rows, self.u_bias = rearrange(weight, "o i y t -> y i o t"), layer.u.b
        self.taps = rearrange(layer.ul.weight(), "o i y t -> y t o i").contiguous()
        self.bias = layer.ul.b
        coarse = (batch, width // 2, weight.shape[1])
        self.u, self.ul = (weight.new_zeros(coarse) for _ in range(2))
        super().__init__(level, [self.u, self.ul])

    def open(self, u: Row, row: int, kept: Row | None) -> Row:
        if row % 2 == 0:
            self.u.copy_(u)
        out = F.conv_transpose1d(self.u.mT, self.u_rows[row % 2], self.u_bias, stride=2)
        return out[..., 1:].mT

    def look(self, ul: Pixel, spot: _Spot, kept: Pixel | None) -> Pixel:
        coarse = spot.place // 2
        if not (spot.row % 2 or spot.column % 2):
            put(self.ul, 1, coarse, ul)
        taps = self.taps[spot.row % 2, spot.column % 2]
        return F.linear(take(self.ul, 1, coarse), taps, self.bias)


class _StemStep:
    """Both streams from the picture: its values are read where they stand."""

    def __init__(self, model: "PixelCnnPp", x: Tensor, added: Tensor | None) -> None:
        self.x, self.added, self.scaled = x, added, model.scaled
        stem, width = model.stem, model.config.axes[1]
        self.u, self.above, self.left = (
            (rearrange(conv.weight(), "o i y t -> y o (t i)"), conv.b)
            for conv in (stem.u, stem.above, stem.left)
        )
        self.told = stem.u.b.new_zeros(len(x), width, model.config.width)
        self.caches = [self.told]

    def open(self, row: int) -> Row:
        u = torch.zeros_like(self.told)
        self.told.zero_()
        left, bias = self.left
        self.told[:, 1:] = bias
        if row:
            before = self.scaled(self.x[:, row - 1].clamp(min=0))
            taps = _three(before)
            u = F.linear(taps, self.u[0][1], self.u[1])
            if row > 1:
                earlier = self.scaled(self.x[:, row - 2].clamp(min=0))
                u = u + F.linear(_three(earlier), self.u[0][0])
            self.told.add_(F.linear(taps, self.above[0][0], self.above[1]))
            self.told[:, 1:] += F.linear(before[:, :-1], left[0])
        if self.added is not None:
            u = u + self.added[:, row]
            self.told.add_(self.added[:, row])
        return u

    def look(self, row: Place, column: Place, *, left: bool) -> Pixel:
        """What it says of one pixel; `left` if there is one to its left."""
        told = take(self.told, 1, column)
        if not left:
            return told
        pixel = take(take(self.x, 1, row), 1, column - 1)
        return told + F.linear(self.scaled(pixel.clamp(min=0)), self.left[0][1])


def _three(x: Float[Tensor, "b w i"]) -> Float[Tensor, "b w t"]:
    """Each place with its neighbours to the left and right."""
    x = F.pad(x, (0, 0, 1, 1))
    return torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], -1)


def _aside(block: GatedResidual) -> tuple[Tensor, Tensor] | None:
    if block.aside is None:
        return None
    return block.aside.weight().flatten(1), block.aside.b
