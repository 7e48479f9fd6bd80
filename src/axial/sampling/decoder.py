"""A model one element at a time: which element comes next, and who is asked for its value.

The encoder runs once per channel. Outer level k runs once per finished step of axis k: its masked
axis is in a KV cache, its faster axes are computed for the finished slab. The inner level runs
once per element, its line in a KV cache. So a drawing costs the arithmetic of scoring it once.
To choose each value yourself, see the example in docs/python.md.

b batch, *plane the grid of the decoder, d width, v values, l length of a line. A slab is one step
of axis k: the slower axes are fixed, the faster ones are all there.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from axial.errors import InputError
from axial.models.causal import lines, shift, stack, unstack
from axial.models.protocol import Context, Examples, Label, Model, SteppedModel, evaluating
from axial.sampling.kv_cache import (
    DecoderState,
    check_plain,
    has_steps,
    level_model,
    outer_decoders,
)
from axial.sampling.levels import InnerLevel, all_finite, sensible_threads
from axial.sampling.noise import Noise
from axial.system.devices import launching_on

Answer = Callable[[int, Float[Tensor, "b v"]], Int[Tensor, " b"]]
"""Which value has place j of a line, given its logits?"""
Choose = Callable[[Int[Tensor, " l"]], Answer]
"""Prepares the answers for a line, named by its flat indices into (*axes, c)."""


@runtime_checkable
class DeviceChoose(Protocol):
    """A client that works values out where the model is: no element of a line waits for the host.

    It can be asked as any `Choose`, too.
    """

    work_out: Callable[..., Int[Tensor, " b"]]
    """`(j, logits, line, *inputs)` -> the values of place j; a function of these alone."""

    def __call__(self, numbers: Int[Tensor, " l"]) -> Answer:
        """The answers for a line, as of any client."""

    def line_inputs(self, numbers: Int[Tensor, " l"]) -> tuple[Tensor, ...]:
        """What `work_out` needs for a line and may change: of the same shapes for every line."""

    def settled(
        self, numbers: Int[Tensor, " l"], line: Int[Tensor, "b l"], inputs: tuple[Tensor, ...]
    ) -> None:
        """Take the filled line, and what has become of the inputs."""


class GumbelMax:
    """Chooses argmax(logits + noise). The device itself can: the host need not answer in a line."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    def __call__(self, line: Int[Tensor, " l"]) -> Answer:
        noise = self.noise(line)
        return lambda j, logits: (logits.double() + noise[:, j]).argmax(-1)


@contextmanager
def decoding(model: Model) -> Iterator[None]:
    """The settings under which a model is decoded; those of the process come back afterwards.

    No dropout, gradients, TF32 or autocast, and the model's own device is the current one: CUDA
    graphs and kernels go there.
    """
    device = next(model.parameters()).device
    with (
        torch.inference_mode(False),  # a cache made in that mode could not be written outside it
        evaluating(model),
        torch.autocast(device.type, enabled=False),
        launching_on(device),
    ):
        yield


class Decoder:
    """Visits the elements of a batch in prediction order, and asks a client for each value.

    "cached" keeps every level's keys and values; "semi-parallel" is the paper's algorithm: the
    same visits, but each level is computed anew over all its steps whenever one of them is
    finished; "naive" scores everything anew for each element. One decoder fills one batch after
    another, until an error: what is no finite number stays in its KV caches.
    """

    def __init__(self, model: Model, batch: int, method: str = "cached") -> None:
        self.model, self.method = model, method
        self.state: DecoderState | None = None
        if method == "cached" and not has_steps(model):
            self.state = DecoderState(check_plain(model), batch)
        device = next(model.parameters()).device
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def fill(
        self, x: Examples, choose: Choose, label: Label = None, context: Context = None
    ) -> None:
        """Fill `x` in place where it is -1, asking `choose` for each value."""
        with decoding(self.model):
            for _ in self.lines(x, choose, label, context):
                pass
        self.check_finite()

    def lines(
        self, x: Examples, choose: Choose, label: Label = None, context: Context = None
    ) -> Iterator[Int[Tensor, "b *axes c"]]:
        """As `fill`, but pause after every line that was not wholly known; show what there is.

        What is shown is one tensor that goes on being filled. Advance it inside `decoding`, and
        end with `check_finite`: whether logits are numbers is noted, not asked for line by line.
        """
        if self.method == "naive":
            yield from self._score_anew(x, choose, label, context)
            return
        if not (x < 0).any():
            return
        if has_steps(self.model):
            yield from self._step_through(self.model, x, choose, label, context)
            return
        config = level_model(self.model).config
        numbers = torch.arange(x[0].numel()).view(x.shape[1:])
        if config.channel_mode != "encode":
            plane = stack(x, config).clone()
            view = unstack(plane.unsqueeze(-1), config).squeeze(-1)
            places = stack(numbers.unsqueeze(0), config).squeeze(0)
            walk = _PlaneWalk(self, choose)
            ctx = walk.model.condition(x, None, label, context)
            for _ in walk.lines(plane, places, ctx):
                yield view
            x.copy_(view)
            return
        for channel in range(config.channels):
            plane = x[..., channel]
            if (plane < 0).any():
                number = torch.full((len(x),), channel, device=x.device)
                walk = _PlaneWalk(self, choose)
                # Where one example stands for all of them.
                some = slice(1 if walk.model.starts_alike(channel, label, context) else None)
                ctx = walk.model.condition(x[some].clamp(min=0), number[some], label, context)
                for _ in walk.lines(plane, numbers[..., channel], ctx):
                    yield x

    def _step_through(
        self,
        model: SteppedModel,
        x: Tensor,
        choose: Choose,
        label: Tensor | None,
        context: Tensor | None,
    ) -> Iterator[Tensor]:
        """Element after element, by what the model's own layers remember."""
        steps, flat, rank = model.steps(x, label, context), x.view(len(x), -1), 0
        missing = (flat < 0).cpu()
        every = lines(model.config)
        last = int(missing[:, every].any(0).any(1).nonzero().max())
        for line in every[: last + 1]:
            answer = self.heed(choose(line))
            for j, place in enumerate(line.tolist()):
                logits = steps.logits(rank)
                rank += 1
                if missing[:, place].any():
                    value = answer(j, logits)
                    flat[:, place] = torch.where(flat[:, place] < 0, value, flat[:, place])
            if missing[:, line].any():
                yield x

    def check_finite(self) -> None:
        """Refuse logits that were no finite numbers; on a GPU it waits for what is under way."""
        if not self.finite:
            raise InputError(
                "the model's logits are not finite numbers: its weights, the context or the "
                "precision is at fault"
            )

    def heed(self, answer: Answer) -> Answer:
        """The same answers, with a note whether all logits were finite numbers."""
        finite = self.finite

        def noted(j: int, logits: Tensor) -> Tensor:
            finite.logical_and_(all_finite(logits))
            return answer(j, logits)

        return noted

    def _score_anew(
        self, x: Examples, choose: Choose, label: Label, context: Context
    ) -> Iterator[Tensor]:
        """Score everything for each element: slow, and what every faster way must equal."""
        config, flat = self.model.config, x.view(len(x), -1)
        for line in lines(config):
            known = bool((flat[:, line] >= 0).all())
            for element in line.tolist():
                missing = flat[:, element] < 0
                if missing.any():
                    channel = torch.full((len(x),), element % config.channels, device=x.device)
                    logits = self.model.channel_logits(x.clamp(min=0), channel, label, context)
                    answer = self.heed(choose(torch.tensor([element])))
                    value = answer(0, logits.flatten(1, -2)[:, element // config.channels])
                    flat[:, element] = torch.where(missing, value, flat[:, element])
            if not known:
                yield x


class _PlaneWalk:
    """The walk over one grid: a level per axis, each inside one step of the level before it.

    A level is given `base`, everything but the elements themselves: positions, ctx, and what the
    levels before it saw. All its tensors begin with its own axis; the slower ones are fixed.
    """

    def __init__(self, decoder: Decoder, choose: Choose) -> None:
        self.decoder, self.model, self.state = decoder, level_model(decoder.model), decoder.state
        self.choose = choose
        self.last = len(self.model.outer_decoders)

    def lines(
        self, plane: Int[Tensor, " b *plane"], numbers: Int[Tensor, "*plane"], ctx: Tensor | None
    ) -> Iterator[None]:
        """Fill `plane` in place; `numbers` are the flat indices of its elements."""
        known = (plane >= 0).all(0).cpu()
        leading = int(known.flatten().long().cumprod(0).sum())
        base = self.model.positions() if ctx is None else self.model.positions() + ctx
        return self._walk_level(0, plane, base.expand(*plane.shape, -1), numbers, known, leading)

    def _walk_level(
        self,
        level: int,
        plane: Tensor,
        base: Tensor,
        numbers: Tensor,
        known: Bool[Tensor, "*slab"],
        leading: int,
    ) -> Iterator[None]:
        """Step along the level's own axis; the first `leading` elements are taken in at once."""
        if level == self.last:
            self._walk_line(plane, base, numbers, max(0, leading))
            yield
            return
        unknown = (~known).flatten(1).any(1).tolist()
        size, stop = math.prod(plane.shape[2:]), len(unknown) - unknown[::-1].index(True)
        done = max(0, leading // size)
        above: Tensor | float = self._take(level, plane, base, 0, done) if done else 0.0
        for i in range(done, stop):
            if unknown[i]:
                inside = leading - i * size
                yield from self._walk_level(
                    level + 1, plane[:, i], base[:, i] + above, numbers[i], known[i], inside
                )
            if i + 1 < stop:
                above = self._take(level, plane, base, i, i + 1)

    def _walk_line(self, line: Tensor, base: Tensor, numbers: Tensor, start: int) -> None:
        if self.state is None:
            self._recompute_line(line, base, start, self.decoder.heed(self.choose(numbers)))
        elif isinstance(self.choose, GumbelMax):
            noise = self.choose.noise(numbers)
            self.decoder.finite &= self.state.inner.draw(line, base, start, noise)
        elif isinstance(self.choose, DeviceChoose) and isinstance(self.state.inner, InnerLevel):
            inner, inputs = self.state.inner, self.choose.line_inputs(numbers)
            finite, inputs = inner.settle(line, base, start, self.choose.work_out, inputs)
            self.decoder.finite &= finite
            self.choose.settled(numbers, line, inputs)
        else:
            answer = self.decoder.heed(self.choose(numbers))
            self.state.inner.ask(line, base, start, answer)

    def _recompute_line(self, line: Tensor, base: Tensor, start: int, answer: Answer) -> None:
        for j in range(start, line.shape[1]):
            inputs = shift(self.model.embedding(line.clamp(min=0)), 0) + base
            out = self._decode(self.last, self.model.inner_decoder, inputs)[:, j]
            value = answer(j, self.model.to_logits(self.model.norm(out)))
            line[:, j] = torch.where(line[:, j] < 0, value, line[:, j])

    def _take(self, level: int, plane: Tensor, base: Tensor, start: int, stop: int) -> Tensor:
        """Let an outer level read steps `start` to `stop`; return its output at the last."""
        if self.state is None:
            inputs = self.model.embedding(plane.clamp(min=0)) + base
            return self._decode(level, outer_decoders(self.model)[level], inputs)[:, stop - 1]
        new = slice(start, stop)
        inputs = self.model.embedding(plane[:, new].clamp(min=0)) + base[:, new]
        advance = functools.partial(self.state.advance, level, start=start)
        with sensible_threads(inputs.numel() * inputs.shape[-1]):
            return self._decode(level, advance, inputs)[:, -1]

    def _decode(self, level: int, decoder: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Run a level on a grid whose slower axes are left out: they have length 1."""
        return decoder(x.view(len(x), *(1,) * level, *x.shape[1:])).view(x.shape)
