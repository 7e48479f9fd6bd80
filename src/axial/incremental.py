"""The model one element at a time: a walk in prediction order, with caches at their own rate.

The encoder runs once per channel. Outer level k runs once per finished step of axis k: its masked
axis is cached, its faster axes are computed for the finished slab. The inner level runs once
per element, its line cached. So a drawing costs the arithmetic of scoring it once.

b batch, *plane the grid of the decoder, d width, v values, l length of a line. A slab is one step
of axis k: the slower axes are fixed, the faster ones are all there.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from axial.causal import shift, stack, unstack
from axial.layers import LSTM, Blocks
from axial.model import AxialTransformer

Answer = Callable[[int, Float[Tensor, "b v"]], Int[Tensor, " b"]]
"""Which value has place j of a line, given its logits?"""
Choose = Callable[[Int[Tensor, " l"]], Answer]
"""Prepares the answers for a line, named by its flat indices into (*axes, c)."""
Finished = Callable[[Int[Tensor, "b *axes c"]], None]
"""Told of the whole array after every finished line; -1 is what is still missing."""


def walk(
    model: AxialTransformer,
    x: Int[Tensor, "b *axes c"],
    choose: Choose,
    label: Int[Tensor, " b"] | None = None,
    context: Float[Tensor, "b *axes d"] | None = None,
    *,
    cached: bool = True,
    finished: Finished | None = None,
) -> None:
    """Fill `x` in place where it is -1, in prediction order, asking `choose` for each value.

    Leading elements that are known in every example are not stepped through but taken in at
    once. `cached=False` is the paper's semi-parallel algorithm: the same walk, but each level is
    computed anew over all its steps whenever one of them is finished.
    """
    config = model.config
    caches = Caches(model, len(x)) if cached else None
    numbers = torch.arange(x[0].numel()).view(x.shape[1:])
    if config.channel_mode != "encode":
        plane = stack(x, config).clone()
        view = unstack(plane.unsqueeze(-1), config).squeeze(-1)
        order = stack(numbers.unsqueeze(0), config).squeeze(0)
        ctx = model.condition(x, None, label, context)
        plane_walk = _PlaneWalk(model, caches, choose, lambda: finished and finished(view))
        plane_walk.run(plane, order, ctx)
        x.copy_(view)
        return
    for channel in range(config.channels):
        plane = x[..., channel]
        if (plane < 0).any():
            number = torch.full((len(x),), channel, device=x.device)
            ctx = model.condition(x.clamp(min=0), number, label, context)
            plane_walk = _PlaneWalk(model, caches, choose, lambda: finished and finished(x))
            plane_walk.run(plane, numbers[..., channel], ctx)


class Caches:
    """What every level remembers of the axis it is masked along."""

    def __init__(self, model: AxialTransformer, batch: int) -> None:
        axes = model.config.plane_axes
        self.levels = [level.caches(batch, axes) for level in _levels(model)]


def _levels(model: AxialTransformer) -> list[Blocks | LSTM]:
    return [*model.outer_decoders, model.inner_decoder]


class _PlaneWalk:
    """The walk over one grid: a level per axis, each inside one step of the level before it.

    A level is given `base`, everything but the elements themselves: positions, ctx, and what the
    levels before it saw. All its tensors begin with its own axis; the slower ones are fixed.
    """

    def __init__(
        self,
        model: AxialTransformer,
        caches: Caches | None,
        choose: Choose,
        tell: Callable[[], object],
    ) -> None:
        self.model = model
        self.levels = _levels(model)
        self.caches = caches
        self.choose = choose
        self.tell = tell

    def run(self, plane: Int[Tensor, " b *plane"], numbers: Tensor, ctx: Tensor | None) -> None:
        """Fill `plane` in place; `numbers` are the flat indices of its elements."""
        known = (plane >= 0).flatten(1)
        leading = int(known.all(0).long().cumprod(0).sum())
        self.forced = bool(known[:, leading:].any())
        base = self.model.positions() if ctx is None else self.model.positions() + ctx
        self._walk_level(0, plane, base.expand(*plane.shape, -1), numbers, leading)

    def _walk_level(
        self, level: int, plane: Tensor, base: Tensor, numbers: Tensor, leading: int
    ) -> None:
        """Step along the level's own axis; `leading` elements are known already."""
        length, size = plane.shape[1], math.prod(plane.shape[2:])
        done = max(0, min(leading // size, length - 1))
        if level == len(self.levels) - 1:
            self._walk_line(plane, base, numbers, done if leading < length else length)
            return
        above: Tensor | float = self._take(level, plane, base, 0, done) if done else 0.0
        for i in range(done, length):
            inside = leading - i * size
            self._walk_level(level + 1, plane[:, i], base[:, i] + above, numbers[i], inside)
            if i + 1 < length:
                above = self._take(level, plane, base, i, i + 1)

    def _walk_line(self, line: Tensor, base: Tensor, numbers: Tensor, leading: int) -> None:
        last, length = len(self.levels) - 1, line.shape[1]
        if 0 < leading < length:
            self._take(last, line, base, 0, leading)
        answer = self.choose(numbers)
        for j in range(leading, length):
            out = self._take(last, line, base, j, j + 1)
            value = answer(j, self.model.to_logits(self.model.norm(out)))
            line[:, j] = torch.where(line[:, j] < 0, value, line[:, j]) if self.forced else value
        self.tell()

    def _take(self, level: int, plane: Tensor, base: Tensor, start: int, stop: int) -> Tensor:
        """Let a level read steps `start` to `stop` of its axis; return its output at the last."""
        if self.caches is None:
            inputs = self._inputs(level, plane, base, 0, plane.shape[1])
            padded = inputs.view(len(inputs), *(1,) * level, *inputs.shape[1:])
            return self.levels[level](padded).view(inputs.shape)[:, stop - 1]
        inputs = self._inputs(level, plane, base, start, stop)
        padded = inputs.view(len(inputs), *(1,) * level, *inputs.shape[1:])
        out = self.levels[level].advance(padded, self.caches.levels[level], start)
        return out.view(inputs.shape)[:, -1]

    def _inputs(self, level: int, plane: Tensor, base: Tensor, start: int, stop: int) -> Tensor:
        """Embedded elements on top of `base`; the last level is given the one before each."""
        if level < len(self.levels) - 1:
            return self.model.embedding(plane[:, start:stop].clamp(min=0)) + base[:, start:stop]
        if start:
            before = plane[:, start - 1 : stop - 1].clamp(min=0)
            return self.model.embedding(before) + base[:, start:stop]
        return shift(self.model.embedding(plane[:, :stop].clamp(min=0)), 0) + base[:, :stop]
