"""Drawing: argmax of logits over temperature plus noise, element by element.

b batch, *axes the data axes, c channels, v values.
"""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from axial.causal import given as always_given
from axial.causal import order
from axial.config import as_integer
from axial.errors import ConfigError, InputError
from axial.incremental import Answer, Choose, walk
from axial.likelihood import planes_at_once
from axial.model import AxialTransformer, check_integers, check_tensors, evaluating
from axial.noise import gumbel

Noise = Callable[[Int[Tensor, " l"]], Float[Tensor, "b l v"]]
"""Gumbel noise for each value of the elements of a line, by their flat indices."""


def draw(
    model: AxialTransformer,
    count: int,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    method: str = "cached",
    given: Shaped[Tensor, "..."] | None = None,
    noise: Shaped[Tensor, "..."] | None = None,
    label: Shaped[Tensor, "..."] | None = None,
    context: Shaped[Tensor, "..."] | None = None,
    first: int = 0,
) -> Int[Tensor, "count *axes c"]:
    """Draw `count` examples; image i of a request is image `first + i` of its seed.

    `given` (count or 1, *axes, c) holds the values to keep, and -1 where one is to be drawn. That
    is the exact conditional only if the kept elements are a prefix of `causal.order`, or the
    model's own given parts, which must be there. `label` and `context` may be one for all.
    `noise` (count, *axes, c, v) replaces the seed's own Gumbel noise; temperature 0 is argmax.
    """
    count = as_integer("count", count, at_least=1)
    first = as_integer("first", first, at_least=0, below=(1 << 63) - count)
    seed = as_integer("seed", seed, at_least=0, below=1 << 64)
    if not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
        raise ConfigError(f"temperature is {temperature}: use 0 (argmax) or a positive number")
    if method not in list(_METHODS):
        raise ConfigError(f"method is {method!r}: use one of {', '.join(_METHODS)}")
    config, device = model.config, next(model.parameters()).device
    x = _start(model, count, given).to(device)
    label, context = _for_all(label, count), _for_all(context, count)
    model.check(x.clamp(min=0), label, context)
    wide = (count, *config.axes, config.channels, config.values)
    check_tensors(noise=noise)
    if noise is not None and (noise.shape != wide or not noise.is_floating_point()):
        raise InputError(
            f"noise has shape {tuple(noise.shape)} and type {noise.dtype}: give floating point "
            f"numbers of shape {wide}"
        )

    step = planes_at_once(config)
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        if noise is None:
            images = torch.arange(first + part.start, first + part.stop, device=device)
            noise_of = _seeded_noise(seed, images, config.values)
        else:
            noise_of = _recorded_noise(noise[part].to(device))
        conditions = (
            None if label is None else label[part].to(device).long(),
            None if context is None else context[part].to(device),
        )
        choose = _GumbelMax(temperature, noise_of, device)
        with evaluating(model):
            _METHODS[method](model, x[part], choose, *conditions)
        if not choose.finite:
            raise InputError(
                "the model's logits are not finite numbers: its weights or the context are damaged"
            )
    return x


def _for_all(condition: Tensor | None, count: int) -> Tensor | None:
    """Repeat the one label or context that serves every image."""
    if isinstance(condition, Tensor) and condition.ndim and len(condition) == 1:
        return condition.expand(count, *condition.shape[1:])
    return condition


def _seeded_noise(seed: int, images: Tensor, values: int) -> Noise:
    return lambda line: gumbel(seed, images, line.to(images.device), values)


def _recorded_noise(noise: Float[Tensor, "b *axes c v"]) -> Noise:
    return lambda line: noise.flatten(1, -2)[:, line.to(noise.device)]


class _GumbelMax:
    """Chooses argmax(logits / temperature + noise), without dividing; notes what is not finite."""

    def __init__(self, temperature: float, noise_of: Noise, device: torch.device) -> None:
        self.temperature = temperature
        self.noise_of = noise_of
        self.finite = torch.ones((), dtype=torch.bool, device=device)

    def __call__(self, line: Int[Tensor, " l"]) -> Answer:
        noise = self.temperature * self.noise_of(line) if self.temperature else None

        def answer(j: int, logits: Tensor) -> Tensor:
            self.finite &= logits.sum().isfinite()
            if noise is None:
                return logits.argmax(-1)
            return (logits.double() + noise[:, j]).argmax(-1)

        return answer


def _start(model: AxialTransformer, count: int, given: Tensor | None) -> Tensor:
    """What is known before the first draw: -1 wherever a value is still missing."""
    config = model.config
    shape = (*config.axes, config.channels)
    check_tensors(given=given)
    if given is None:
        x = torch.full((count, *shape), -1)
    else:
        if given.shape[1:] != shape or len(given) not in (1, count):
            raise InputError(
                f"given has shape {tuple(given.shape)}: use ({count} or 1, "
                f"{', '.join(map(str, shape))}), with -1 where a value is to be drawn"
            )
        check_integers("given", given, at_least=-1, below=config.values)
        x = given.long().expand(count, *shape).clone(memory_format=torch.contiguous_format)
    if (x[:, always_given(config, x.device)] < 0).any():
        parts = f"the first {config.given_channels} channels and {config.given_steps} steps"
        raise InputError(f"this model continues {parts} of what it is given: put them into given=")
    return x


def _draw_naive(
    model: AxialTransformer,
    x: Int[Tensor, "b *axes c"],
    choose: Choose,
    label: Tensor | None,
    context: Tensor | None,
) -> None:
    """Score everything anew for each element: slow, and what every faster way must equal.

    Fills `x` in place.
    """
    channels = model.config.channels
    flat = x.view(len(x), -1)
    for element in order(model.config).tolist():
        missing = flat[:, element] < 0
        if not missing.any():
            continue
        channel = torch.full((len(x),), element % channels, device=x.device)
        logits = model.channel_logits(x.clamp(min=0), channel, label, context)
        answer = choose(torch.tensor([element]))
        value = answer(0, logits.flatten(1, -2)[:, element // channels])
        flat[:, element] = torch.where(missing, value, flat[:, element])


_METHODS: dict[str, Callable[..., None]] = {
    "cached": walk,
    "semi-parallel": functools.partial(walk, cached=False),
    "naive": _draw_naive,
}
