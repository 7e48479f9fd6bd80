"""Drawing: argmax of logits over temperature plus noise, element by element.

b batch, *axes the data axes, c channels, v values.
"""

from collections.abc import Callable, Generator

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from axial.errors import InputError
from axial.models.attention import check_tensors
from axial.models.causal import given as always_given
from axial.models.protocol import Model, check_integers, check_model
from axial.sampling.decoder import Decoder, GumbelMax, decoding
from axial.sampling.kv_cache import cache_bytes, has_levels, level_model
from axial.sampling.noise import SeededNoise, given_noise
from axial.validation import as_integer, as_temperature, check_choice

_WORKING_BYTES = 1 << 30
"""What a drawing may take on a CPU; on other devices it is a quarter of their memory."""

Finished = Callable[[Int[Tensor, "count *axes c"]], None]
"""Called with the pictures so far after each line; -1 is what is still missing."""


def draw(
    model: Model,
    count: int,
    *,
    seed: int | Shaped[Tensor, "..."] = 0,
    temperature: float = 1.0,
    method: str = "cached",
    given: Shaped[Tensor, "..."] | None = None,
    noise: Shaped[Tensor, "..."] | None = None,
    label: Shaped[Tensor, "..."] | None = None,
    context: Shaped[Tensor, "..."] | None = None,
    first: int | Shaped[Tensor, "..."] = 0,
    batch: int | None = None,
    finished: Finished | None = None,
) -> Int[Tensor, "count *axes c"]:
    """Draw `count` examples; image i of a request is image `first + i` of its seed.

    Several requests can be drawn as one: `seed` and `first` may be tensors (count,), which name
    the seed and the index of each image.
    `given` (count or 1, *axes, c) holds the values to keep, and -1 where one is to be drawn. That
    is the exact conditional only if the kept elements are a prefix of `causal.order`, or the
    model's own given parts, which must be there. `label` and `context` may be one for all.
    `noise` (count, *axes, c, v) replaces the seed's own Gumbel noise; temperature 0 is argmax.
    They are drawn `batch` at a time, the last batch filled up; default: as many as fit memory.
    `finished` is called after each line, as `stream` yields; what it is given goes on changing.
    """
    request = Request(
        model, count, seed, temperature, method, given, noise, label, context, first, batch
    )
    with decoding(model):
        for x in request.lines():
            if finished is not None:
                finished(x)
    return x


class Request:
    """What is to be drawn: the arguments of `draw`, checked. `lines` draws it, each time anew."""

    def __init__(
        self,
        model: Model,
        count: int,
        seed: int | Tensor,
        temperature: float,
        method: str,
        given: Tensor | None,
        noise: Tensor | None,
        label: Tensor | None,
        context: Tensor | None,
        first: int | Tensor,
        batch: int | None,
    ) -> None:
        check_model(model)
        self.model = model
        self.count = as_integer("count", count, at_least=1)
        self.images = self._images(first)
        if batch is not None:
            batch = as_integer("batch", batch, at_least=1)
        if isinstance(seed, Tensor):
            self.seed: int | Tensor = self._one_each("seed", seed)
        else:
            self.seed = as_integer("seed", seed, at_least=0, below=1 << 64)
        self.temperature = as_temperature(temperature)
        check_choice("method", method, ["cached", "semi-parallel", "naive"])
        self.method = method
        self.initial = initial(model, self.count, given)
        label, self.context = (for_all(t, self.count) for t in (label, context))
        model.check(self.initial.clamp(min=0), label, self.context)
        self.label = None if label is None else label.long()
        self.noise = noise
        self._check_noise()
        self.batch = batch or min(self.count, draws_at_once(model))

    def _images(self, first: int | Tensor) -> Tensor:
        """The index of each image among those of its seed."""
        if isinstance(first, Tensor):
            return self._one_each("first", first)
        first = as_integer("first", first, at_least=0, below=(1 << 63) - self.count)
        return torch.arange(first, first + self.count)

    def _one_each(self, name: str, values: Tensor) -> Tensor:
        check_integers(name, values, at_least=0, below=1 << 63)
        if values.shape != (self.count,):
            raise InputError(
                f"{name} has shape {tuple(values.shape)}: give one number, or ({self.count},)"
            )
        return values.long()

    def _check_noise(self) -> None:
        check_tensors(noise=self.noise)
        if (noise := self.noise) is None:
            return
        wide = (*self.initial.shape, self.model.config.values)
        if noise.shape != wide or not noise.is_floating_point():
            raise InputError(
                f"noise has shape {tuple(noise.shape)} and type {noise.dtype}: give floating "
                f"point numbers of shape {wide}"
            )
        if noise.isnan().any():
            raise InputError("noise holds what is no number: minus infinity forbids a value")
        if (noise.isneginf().all(-1) & (self.initial < 0).to(noise.device)).any():
            raise InputError("noise forbids every value of an element: leave it one")

    def lines(self, *, careful: bool = False) -> Generator[Tensor, None, None]:
        """Pause after each line that was not wholly given; show all pictures so far.

        What is shown is one tensor that goes on being filled, at last what was asked for; where
        nothing is missing it is shown once. Advance it inside `decoding`. Whether the logits are
        finite numbers is asked after each batch, and if `careful` after each line.
        """
        device = next(self.model.parameters()).device
        x = self.initial.to(device, copy=True)
        decoder = Decoder(self.model, self.batch, self.method)
        shown = False
        for start in range(0, self.count, self.batch):
            # The last batch repeats the last image: all have one size, and one CUDA graph.
            rows = torch.arange(start, start + self.batch, device=device).clamp(max=self.count - 1)
            label, context, noise = (
                None if t is None else t[rows.to(t.device)].to(device)
                for t in (self.label, self.context, self.noise)
            )
            if noise is None:
                seed, config = self.seed, self.model.config
                if isinstance(seed, Tensor):
                    seed = seed[rows.to(seed.device)].to(device)
                images = self.images[rows.to(self.images.device)].to(device)
                choose = GumbelMax(SeededNoise(seed, images, config, self.temperature))
            else:
                choose = GumbelMax(given_noise(noise, self.temperature))
            for seen in decoder.lines(x[rows], choose, label, context):
                x[start : start + self.batch] = seen[: self.count - start]
                if careful:
                    decoder.check_finite()
                shown = True
                yield x
            decoder.check_finite()
        if not shown:
            yield x


def draws_at_once(model: Model) -> int:
    """How many examples to draw together so that memory stays bounded.

    It follows from the model and the device alone, so that a request is always split alike.
    """
    device = next(model.parameters()).device
    room = _WORKING_BYTES
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory // 4
    return max(1, room // decoding_bytes(model))


def decoding_bytes(model: Model) -> int:
    """What drawing one example takes, roughly: its KV caches, and what is computed at a time."""
    config, weight = model.config, next(model.parameters())
    activations = config.positions * (config.position_floats - 4 * config.width)
    noise = 8 * 8 * config.line * config.values
    caches = config.cache_floats * weight.element_size()
    if has_levels(model):
        caches = cache_bytes(level_model(model))
    return activations * weight.element_size() + noise + config.input_bytes + caches


def for_all(condition: Tensor | None, count: int) -> Tensor | None:
    """Repeat the one label or context that stands for every image."""
    if isinstance(condition, Tensor) and condition.ndim and len(condition) == 1:
        return condition.expand(count, *condition.shape[1:])
    return condition


def initial(model: Model, count: int, given: Tensor | None) -> Tensor:
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
        if not given.dtype.is_signed:
            raise InputError(
                f"given is {given.dtype}, which has no -1 for what to draw: use a signed type"
            )
        check_integers("given", given, at_least=-1, below=config.values)
        x = given.long().expand(count, *shape).clone(memory_format=torch.contiguous_format)
    if (x[:, always_given(config, x.device)] < 0).any():
        parts = f"the first {config.given_channels} channels and {config.given_steps} steps"
        raise InputError(f"this model continues {parts} of what it is given: put them into given=")
    return x
