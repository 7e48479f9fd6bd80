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
from axial.errors import ConfigError, InputError
from axial.incremental import Answer, Choose, walk
from axial.likelihood import planes_at_once
from axial.model import AxialTransformer, check_integers, evaluating
from axial.noise import gumbel


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
    if count < 1 or first < 0:
        raise ConfigError(f"count is {count} and first {first}: draw at least 1, from index 0 on")
    if not 0 <= temperature < math.inf:
        raise ConfigError(f"temperature is {temperature}: use 0 (argmax) or a positive number")
    if method not in _METHODS:
        raise ConfigError(f"method is {method!r}: use one of {', '.join(_METHODS)}")
    config, device = model.config, next(model.parameters()).device
    x = _start(model, count, given).to(device)
    label, context = (
        None if t is None else t.expand(count, *t.shape[1:]) if len(t) == 1 else t
        for t in (label, context)
    )
    model.check(x.clamp(min=0), label, context)
    wide = (count, *config.axes, config.channels, config.values)
    if noise is not None and noise.shape != wide:
        raise InputError(f"noise has shape {tuple(noise.shape)}: give {wide}")

    step = planes_at_once(config)
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        if noise is None:
            images = torch.arange(first + part.start, first + part.stop, device=device)
            noise_of = _seeded_noise(seed, images, config.values)
        else:
            noise_of = _recorded_noise(noise[part].to(device))
        conditions = [None if t is None else t[part].to(device) for t in (label, context)]
        with evaluating(model):
            _METHODS[method](model, x[part], _chooser(temperature, noise_of), *conditions)
    return x


Noise = Callable[[Int[Tensor, " l"]], Float[Tensor, "b l v"]]


def _seeded_noise(seed: int, images: Tensor, values: int) -> Noise:
    return lambda line: gumbel(seed, images, line.to(images.device), values)


def _recorded_noise(noise: Float[Tensor, "b *axes c v"]) -> Noise:
    return lambda line: noise.flatten(1, -2)[:, line.to(noise.device)]


def _chooser(temperature: float, noise_of: Noise) -> Choose:
    """The Gumbel-max rule: the value drawn is argmax(logits / temperature + noise)."""
    if temperature == 0:
        return lambda line: lambda j, logits: logits.argmax(-1)

    def choose(line: Tensor) -> Answer:
        noise = noise_of(line)
        return lambda j, logits: (logits.double() / temperature + noise[:, j]).argmax(-1)

    return choose


def _start(model: AxialTransformer, count: int, given: Tensor | None) -> Tensor:
    """What is known before the first draw: -1 wherever a value is still missing."""
    config = model.config
    shape = (*config.axes, config.channels)
    if given is None:
        x = torch.full((count, *shape), -1)
    else:
        if given.shape[1:] != shape or len(given) not in (1, count):
            raise InputError(
                f"given has shape {tuple(given.shape)}: use ({count} or 1, "
                f"{', '.join(map(str, shape))}), with -1 where a value is to be drawn"
            )
        check_integers("given", given, at_least=-1, below=config.values)
        x = given.long().expand(count, *shape).clone()
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


_METHODS = {
    "cached": walk,
    "semi-parallel": functools.partial(walk, cached=False),
    "naive": _draw_naive,
}
