"""Drawing: argmax of logits over temperature plus noise, element by element.

b batch, *axes the data axes, c channels, v values.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from axial.models.attention import check_tensors
from axial.models.causal import given as always_given
from axial.models.causal import order
from axial.models.config import ModelConfig, as_integer, as_temperature, check_choice
from axial.errors import InputError
from axial.sampling.decoder import Caches, Choose, Finished, GumbelMax, Noise, cache_bytes, walk
from axial.models.likelihood import input_bytes
from axial.sampling.levels import sensible_threads
from axial.models.axial_transformer import AxialTransformer, check_integers, evaluating
from axial.sampling.noise import gumbel

_WORKING_BYTES = 1 << 30
"""What a drawing may take on a CPU; on other devices it is a quarter of their memory."""
_NOISE_AHEAD_CPU, _NOISE_AHEAD = 1 << 17, 1 << 24
"""Numbers of noise computed together: what a CPU's cache holds, what keeps a GPU busy."""
_NOISE_WORK = 100
"""Operations that one of them takes."""


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
    batch: int | None = None,
    finished: Finished | None = None,
) -> Int[Tensor, "count *axes c"]:
    """Draw `count` examples; image i of a request is image `first + i` of its seed.

    `given` (count or 1, *axes, c) holds the values to keep, and -1 where one is to be drawn. That
    is the exact conditional only if the kept elements are a prefix of `causal.order`, or the
    model's own given parts, which must be there. `label` and `context` may be one for all.
    `noise` (count, *axes, c, v) replaces the seed's own Gumbel noise; temperature 0 is argmax.
    They are drawn `batch` at a time, the last batch filled up; without it, as many as fit
    memory. `finished` is told of the whole request after every line, -1 where it is missing.
    """
    count = as_integer("count", count, at_least=1)
    first = as_integer("first", first, at_least=0, below=(1 << 63) - count)
    if batch is not None:
        batch = as_integer("batch", batch, at_least=1)
    seed = as_integer("seed", seed, at_least=0, below=1 << 64)
    temperature = as_temperature(temperature)
    check_choice("method", method, list(_METHODS))
    config, device = model.config, next(model.parameters()).device
    x = begun(model, count, given).to(device)
    label, context = for_all(label, count), for_all(context, count)
    model.check(x.clamp(min=0), label, context)
    label = None if label is None else label.long()
    wide = (count, *config.axes, config.channels, config.values)
    check_tensors(noise=noise)
    if noise is not None and (noise.shape != wide or not noise.is_floating_point()):
        raise InputError(
            f"noise has shape {tuple(noise.shape)} and type {noise.dtype}: give floating point "
            f"numbers of shape {wide}"
        )
    if noise is not None and noise.isnan().any():
        raise InputError("noise holds what is no number: minus infinity forbids a value")
    if noise is not None and (noise.isneginf().all(-1) & (x < 0).to(noise.device)).any():
        raise InputError("noise forbids every value of an element: leave it one")

    batch = batch or min(count, draws_at_once(model))
    caches = Caches(model, batch) if method == "cached" else None
    for start in range(0, count, batch):
        # The last batch repeats the last image: all have one size, and are recorded once.
        rows = torch.arange(start, start + batch, device=device).clamp(max=count - 1)
        told = [None if t is None else t[rows.to(t.device)].to(device) for t in (label, context)]
        if noise is None:
            noise_of: Noise = _SeededNoise(seed, first + rows, config, temperature)
        else:
            noise_of = _recorded_noise(noise[rows.to(noise.device)].to(device), temperature)

        def tell(seen: Tensor, start: int = start) -> None:
            x[start : start + batch] = seen[: count - start]
            if finished is not None:
                finished(x)

        choose = GumbelMax(noise_of, device)
        # Graphs and kernels go to the current device, whichever the model is on.
        with (
            evaluating(model),
            torch.autocast(device.type, enabled=False),  # the precision is the model's own
            torch.cuda.device(device if device.type == "cuda" else -1),
        ):
            _METHODS[method](model, x[rows], choose, *told, caches=caches, finished=tell)
        if not choose.finite:
            raise InputError(
                "the model's logits are not finite numbers: its weights or the context are damaged"
            )
    return x


def draws_at_once(model: AxialTransformer) -> int:
    """How many examples to draw together so that memory stays bounded.

    It follows from the model and the device alone, so that a request is always split alike.
    """
    config, weight = model.config, model.embedding.weight
    room = _WORKING_BYTES
    if weight.device.type == "cuda":
        room = torch.cuda.get_device_properties(weight.device).total_memory // 4
    activations = math.prod(config.plane_axes) * config.width * (8 + 2 * config.mlp_ratio)
    noise = 8 * 8 * config.plane_axes[-1] * config.values
    planes = input_bytes(config)
    kept = cache_bytes(model) + noise + planes
    return max(1, room // (activations * weight.element_size() + kept))


def for_all(condition: Tensor | None, count: int) -> Tensor | None:
    """Repeat the one label or context that serves every image."""
    if isinstance(condition, Tensor) and condition.ndim and len(condition) == 1:
        return condition.expand(count, *condition.shape[1:])
    return condition


class _SeededNoise:
    """The seed's own noise, computed for some lines ahead: many small calls would cost more."""

    def __init__(
        self, seed: int, images: Int[Tensor, " b"], config: ModelConfig, temperature: float
    ) -> None:
        self.seed, self.images, self.values = seed, images, config.values
        self.temperature = temperature
        lines = order(config).view(-1, config.plane_axes[-1])
        self.place = {int(line[0]): place for place, line in enumerate(lines)}
        self.lines = lines.to(images.device)  # now: nothing is to wait for a copy later
        ahead = _NOISE_AHEAD_CPU if images.device.type == "cpu" else _NOISE_AHEAD
        self.at_once = max(1, ahead // (len(images) * self.lines.shape[1] * config.values))
        self.ready: dict[int, Tensor] = {}

    def __call__(self, line: Int[Tensor, " l"]) -> Float64[Tensor, "b l v"]:
        place = self.place.get(int(line[0]))
        if place is None or len(line) != self.lines.shape[1]:
            return self._of(line)
        if place not in self.ready:
            elements = self.lines[place : place + self.at_once].flatten()
            numbers = len(self.images) * len(elements) * self.values
            with sensible_threads(numbers * _NOISE_WORK):
                noise = torch.split(self._of(elements), len(line), 1)
            self.ready = dict(enumerate(noise, place))
        return self.ready.pop(place)

    def _of(self, elements: Tensor) -> Tensor:
        elements = elements.to(self.images.device)
        return gumbel(self.seed, self.images, elements, self.values).mul_(self.temperature)


def _recorded_noise(noise: Float[Tensor, "b *axes c v"], temperature: float) -> Noise:
    scaled = noise.double().flatten(1, -2)
    # What is forbidden or certain is so at temperature 0, too.
    scaled = torch.where(scaled.isinf(), scaled, temperature * scaled)
    return lambda line: scaled[:, line.to(noise.device)]


def begun(model: AxialTransformer, count: int, given: Tensor | None) -> Tensor:
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
    *,
    caches: None,
    finished: Finished,
) -> None:
    """Score everything anew for each element: slow, and what every faster way must equal.

    Fills `x` in place.
    """
    channels, length = model.config.channels, model.config.plane_axes[-1]
    flat = x.view(len(x), -1)
    for place, element in enumerate(order(model.config).tolist(), 1):
        missing = flat[:, element] < 0
        if missing.any():
            channel = torch.full((len(x),), element % channels, device=x.device)
            logits = model.channel_logits(x.clamp(min=0), channel, label, context)
            answer = choose(torch.tensor([element]))
            value = answer(0, logits.flatten(1, -2)[:, element // channels])
            flat[:, element] = torch.where(missing, value, flat[:, element])
        if place % length == 0:
            finished(x)


_METHODS: dict[str, Callable[..., None]] = {
    "cached": walk,
    "semi-parallel": walk,
    "naive": _draw_naive,
}
