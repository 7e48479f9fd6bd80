"""The model one element at a time: a walk in prediction order, with caches at their own rate.

The encoder runs once per channel. Outer level k runs once per finished step of axis k: its masked
axis is cached, its faster axes are computed for the finished slab. The inner level runs once
per element, its line cached. So a drawing costs the arithmetic of scoring it once.

b batch, *plane the grid of the decoder, d width, v values, l length of a line. A slab is one step
of axis k: the slower axes are fixed, the faster ones are all there.
"""

import functools
import math
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from axial.models.attention import is_plain
from axial.models.causal import shift, stack, unstack
from axial.models.config import ModelConfig
from axial.errors import InputError
from axial.sampling.levels_triton import KernelLine, KernelStep, fast_kernels
from axial.models.layers import LSTM, Blocks
from axial.sampling.levels import Line, Step, all_finite, sensible_threads
from axial.models.axial_transformer import AxialTransformer, plain_name

_FOLDED = ("embedding", "outer_decoders", "inner_decoder", "norm", "to_logits")
"""Parts of a model whose weights are taken here, past their layers."""
Answer = Callable[[int, Float[Tensor, "b v"]], Int[Tensor, " b"]]
"""Which value has place j of a line, given its logits?"""
Choose = Callable[[Int[Tensor, " l"]], Answer]
"""Prepares the answers for a line, named by its flat indices into (*axes, c)."""
Finished = Callable[[Int[Tensor, "b *axes c"]], None]
"""Told of the whole array after every finished line; -1 is what is still missing."""


Noise = Callable[[Int[Tensor, " l"]], Float64[Tensor, "b l v"]]
"""Noise for each value of the elements of a line, by their flat indices."""


class GumbelMax:
    """Chooses argmax(logits + noise); notes whether all logits were finite numbers.

    A walk that chooses this way needs no answer from the host within a line.
    """

    def __init__(self, noise: Noise, device: torch.device) -> None:
        self.noise = noise
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def __call__(self, line: Int[Tensor, " l"]) -> Answer:
        noise = self.noise(line)

        def answer(j: int, logits: Tensor) -> Tensor:
            self.finite &= all_finite(logits)
            return (logits.double() + noise[:, j]).argmax(-1)

        return answer


class Caches:
    """What every level remembers of the axis it is masked along, for one batch size.

    Made once, it serves any number of walks of the model as it is: weights are folded here.
    """

    def __init__(self, model: AxialTransformer, batch: int) -> None:
        _check_plain(model)
        self.decoders, kernels = _outer(model), fast_kernels(model)
        self.outer = [level.caches(batch, model.config.plane_axes) for level in self.decoders]
        levels = zip(self.decoders, self.outer, strict=True)
        self.steps: list[Step] | list[KernelStep] = []
        if kernels is not None:
            self.steps = [KernelStep(*level, kernels) for level in levels]
        elif model.embedding.weight.device.type == "cpu":
            self.steps = [Step(*level) for level in levels]
        self.line: Line | KernelLine
        if kernels is None or isinstance(model.inner_decoder, LSTM):
            self.line = Line(model, batch)
        else:
            self.line = KernelLine(model, batch, kernels)

    def advance(
        self, level: int, x: Float[Tensor, "b *plane d"], start: int
    ) -> Float[Tensor, "b *plane d"]:
        """Let an outer level read steps of its axis from `start` on."""
        if self.steps and x.shape[1 + level] == 1:
            return self.steps[level].advance(x, start)
        return self.decoders[level].advance(x, self.outer[level], start)


def _check_plain(model: AxialTransformer) -> None:
    """Refuse a model that computes by other layers than its configuration says."""
    found = model.named_modules(remove_duplicate=False)
    # Of what is compiled the wrapper comes first, and what it wraps, which counts, after it.
    layers = {plain_name(name): layer for name, layer in found}
    for name, kind, settings in _plain_layers(model.config):
        layer = layers.get(name)
        plain = layer is not None and is_plain(layer, kind)
        if layer is None or not plain or (settings and layer.extra_repr() != settings):
            raise InputError(
                f"{name} of this model was exchanged or has hooks, which drawing by caches does "
                'not run: use method="semi-parallel"'
            )


@functools.lru_cache(maxsize=8)
def _plain_layers(config: ModelConfig) -> list[tuple[str, type[nn.Module], str]]:
    """Name, kind and settings of every layer that is folded; dropout's are of training alone."""
    return [
        (name, type(layer), "" if isinstance(layer, nn.Dropout) else layer.extra_repr())
        for name, layer in AxialTransformer.of_shapes(config).named_modules()
        if name.partition(".")[0] in _FOLDED
    ]


def _outer(model: AxialTransformer) -> list[Blocks]:
    return cast(list[Blocks], list(model.outer_decoders))


def cache_bytes(model: AxialTransformer) -> int:
    """Memory of the caches for one example.

    A masked block keeps a key and a value for each place of its grid; one of the inner level
    also the query, unless kernels serve it.
    """
    config = model.config
    axes, last = config.plane_axes, len(config.axes) - 1
    kept = sum(
        2 * math.prod(axes[level:]) * config.decoder_axes(level).count(level)
        for level in range(last)
    )
    if config.inner == "attention":
        kinds = 3 if fast_kernels(model) is None else 2
        kept += kinds * axes[last] * config.decoder_layers[last]
    return kept * config.width * model.embedding.weight.element_size()


def walk(
    model: AxialTransformer,
    x: Int[Tensor, "b *axes c"],
    choose: Choose,
    label: Int[Tensor, " b"] | None = None,
    context: Float[Tensor, "b *axes d"] | None = None,
    *,
    caches: Caches | None = None,
    finished: Finished | None = None,
) -> None:
    """Fill `x` in place where it is -1, in prediction order, asking `choose` for each value.

    Leading elements that are known in every example are not stepped through but taken in at
    once. Without `caches` it is the paper's semi-parallel algorithm: the same walk, but each
    level is computed anew over all its steps whenever one of them is finished.
    """
    config = model.config
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
            # Before the first channel nothing is known: one example serves for all of them.
            conditions = label is not None or context is not None
            alike = not (channel or conditions or config.given_channels or config.given_steps)
            some = slice(1) if alike else slice(None)
            ctx = model.condition(x[some].clamp(min=0), number[some], label, context)
            plane_walk = _PlaneWalk(model, caches, choose, lambda: finished and finished(x))
            plane_walk.run(plane, numbers[..., channel], ctx)


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
        self.last = len(model.outer_decoders)
        self.caches = caches
        self.choose = choose
        self.tell = tell

    def run(self, plane: Int[Tensor, " b *plane"], numbers: Tensor, ctx: Tensor | None) -> None:
        """Fill `plane` in place; `numbers` are the flat indices of its elements."""
        known = (plane >= 0).flatten(1)
        leading = int(known.all(0).long().cumprod(0).sum())
        base = self.model.positions() if ctx is None else self.model.positions() + ctx
        self._walk_level(0, plane, base.expand(*plane.shape, -1), numbers, leading)

    def _walk_level(
        self, level: int, plane: Tensor, base: Tensor, numbers: Tensor, leading: int
    ) -> None:
        """Step along the level's own axis; `leading` elements are known already."""
        length, size = plane.shape[1], math.prod(plane.shape[2:])
        if level == self.last:
            if leading < length:
                self._walk_line(plane, base, numbers, max(0, leading))
            self.tell()
            return
        done = max(0, min(leading // size, length - 1))
        above: Tensor | float = self._take(level, plane, base, 0, done) if done else 0.0
        for i in range(done, length):
            inside = leading - i * size
            self._walk_level(level + 1, plane[:, i], base[:, i] + above, numbers[i], inside)
            if i + 1 < length:
                above = self._take(level, plane, base, i, i + 1)

    def _walk_line(self, line: Tensor, base: Tensor, numbers: Tensor, start: int) -> None:
        if self.caches is None:
            self._recompute_line(line, base, start, self.choose(numbers))
        elif isinstance(self.choose, GumbelMax):
            noise = self.choose.noise(numbers)
            self.choose.finite &= self.caches.line.draw(line, base, start, noise)
        else:
            self.caches.line.ask(line, base, start, self.choose(numbers))

    def _recompute_line(self, line: Tensor, base: Tensor, start: int, answer: Answer) -> None:
        for j in range(start, line.shape[1]):
            inputs = shift(self.model.embedding(line.clamp(min=0)), 0) + base
            out = self._decode(self.last, self.model.inner_decoder, inputs)[:, j]
            value = answer(j, self.model.to_logits(self.model.norm(out)))
            line[:, j] = torch.where(line[:, j] < 0, value, line[:, j])

    def _take(self, level: int, plane: Tensor, base: Tensor, start: int, stop: int) -> Tensor:
        """Let an outer level read steps `start` to `stop`; return its output at the last."""
        if self.caches is None:
            inputs = self.model.embedding(plane.clamp(min=0)) + base
            return self._decode(level, _outer(self.model)[level], inputs)[:, stop - 1]
        new = slice(start, stop)
        inputs = self.model.embedding(plane[:, new].clamp(min=0)) + base[:, new]
        advance = functools.partial(self.caches.advance, level, start=start)
        with sensible_threads(inputs.numel() * inputs.shape[-1]):
            return self._decode(level, advance, inputs)[:, -1]

    def _decode(self, level: int, decoder: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Run a level on a grid whose slower axes are left out: they have length 1."""
        return decoder(x.view(len(x), *(1,) * level, *x.shape[1:])).view(x.shape)
