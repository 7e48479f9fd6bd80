"""The noise of a drawing: it depends on seed, image index and element, and on nothing else.

Threefry-2x32 with 20 rounds, a counter-based generator, keyed twice: the seed turns an image's
index into a key, and that key turns (element, value) into 64 bits, of which 52 become a uniform
number in the open interval. All in 32-bit integers that wrap, so every device agrees to the bit.

b batch, l length of a line, e elements, v values.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int, Int32, Int64
from torch import Tensor, add, arange, bitwise_right_shift, float64, int32

from axial.models.causal import lines
from axial.models.family_config import FamilyConfig
from axial.sampling.levels import sensible_threads
from axial.system.devices import runs_triton

Noise = Callable[[Int[Tensor, " l"]], Float64[Tensor, "b l v"]]
"""Noise for each value of the elements of a line, by their flat indices into (*axes, c)."""

_AHEAD_CPU, _AHEAD = 1 << 17, 1 << 24
"""Numbers of noise computed together: what a CPU's cache holds, what keeps a GPU busy."""
_WORK = 100
"""Operations that one of them takes."""

_WORD = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


class SeededNoise:
    """The seed's own noise, computed for some lines ahead: many small calls would cost more."""

    def __init__(
        self,
        seed: int | Int64[Tensor, " b"],
        images: Int[Tensor, " b"],
        config: FamilyConfig,
        temperature: float,
    ) -> None:
        self.seed, self.images, self.values = seed, images, config.values
        self.temperature = temperature
        every = lines(config)
        self.place = {int(line[0]): place for place, line in enumerate(every)}
        self.lines = every.to(images.device)  # now: nothing is to wait for a copy later
        ahead = _AHEAD_CPU if images.device.type == "cpu" else _AHEAD
        self.at_once = max(1, ahead // (len(images) * self.lines.shape[1] * config.values))
        self.ready: dict[int, Tensor] = {}

    def __call__(self, line: Int[Tensor, " l"]) -> Float64[Tensor, "b l v"]:
        place = self.place.get(int(line[0]))
        if place is None or len(line) != self.lines.shape[1]:
            return self._of(line)
        if place not in self.ready:
            elements = self.lines[place : place + self.at_once].flatten()
            numbers = len(self.images) * len(elements) * self.values
            with sensible_threads(numbers * _WORK):
                noise = torch.split(self._of(elements), len(line), 1)
            self.ready = dict(enumerate(noise, place))
        return self.ready.pop(place)

    def _of(self, elements: Tensor) -> Tensor:
        elements = elements.to(self.images.device)
        noise = gumbel(self.seed, self.images, elements, self.values)
        return noise if self.temperature == 1 else noise.mul_(self.temperature)


def given_noise(noise: Float[Tensor, "b *axes c v"], temperature: float) -> Noise:
    """Noise that a caller made, for the elements in memory order."""
    scaled = noise.double().flatten(1, -2)
    # What is forbidden or certain is so at temperature 0, too.
    scaled = torch.where(scaled.isinf(), scaled, temperature * scaled)
    return lambda line: scaled[:, line.to(noise.device)]


def gumbel(
    seed: int | Int64[Tensor, " b"],
    image: Int64[Tensor, " b"],
    element: Int64[Tensor, " e"],
    values: int,
) -> Float64[Tensor, "b e v"]:
    """Standard Gumbel noise for each value of each element of each image.

    `argmax(logits + noise)` is then a draw from the softmax of the logits. The seed has 64 bits;
    each image may have its own.
    """
    if isinstance(seed, Tensor) and runs_triton(image.device):  # a kernel takes one seed
        out = torch.empty(len(image), len(element), values, dtype=float64, device=image.device)
        for one in set(seed.tolist()):
            out[seed == one] = gumbel(one, image[seed == one], element, values)
        return out
    if isinstance(seed, Tensor):
        low, high = (word.view(-1, 1, 1).to(int32) for word in (seed, seed >> 32))
        return _as_gumbel(_uniform(low, high, image, element, values))
    key = _word(seed), _word(seed >> 32)
    if runs_triton(image.device):
        from axial.sampling import noise_triton as noise_kernels

        return noise_kernels.gumbel(*key, image, element, values)
    return _as_gumbel(_uniform(*key, image, element, values))


def _as_gumbel(uniform: Float64[Tensor, "b e v"]) -> Float64[Tensor, "b e v"]:
    return uniform.log_().neg_().log_().neg_()


def _uniform(
    key0: int | Int32[Tensor, "b 1 1"],
    key1: int | Int32[Tensor, "b 1 1"],
    image: Int64[Tensor, " b"],
    element: Int64[Tensor, " e"],
    values: int,
) -> Float64[Tensor, "b e v"]:
    image = image.view(-1, 1, 1)
    key = threefry(key0, key1, image.to(int32), (image >> 32).to(int32))
    value = arange(values, dtype=int32, device=image.device)
    high, low = threefry(*key, element.view(1, -1, 1).to(int32), value)
    # 52 bits and half a step up: neither 0 nor a number that rounds to 1. Every sum is exact.
    uniform = high.bitwise_xor_(_word(1 << 31)).to(float64).mul_(2.0**-32)
    low = low.bitwise_right_shift_(12).bitwise_and_((1 << 20) - 1)
    return uniform.add_(low.to(float64), alpha=2.0**-52).add_(0.5 + 2.0**-53)


def threefry(
    key0: int | Int32[Tensor, "*grid"],
    key1: int | Int32[Tensor, "*grid"],
    x0: Int32[Tensor, "..."],
    x1: Int32[Tensor, "..."],
) -> tuple[Int32[Tensor, "..."], Int32[Tensor, "..."]]:
    """Two 32-bit words scrambled under a key of two; tensors are broadcast."""
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    whole = x0 + x1
    x0, x1 = x0.expand_as(whole).clone(), x1.expand_as(whole).clone()
    falling_out = whole
    for turn in range(20):
        rotation = _ROTATIONS[turn % 8]
        x0 += x1
        bitwise_right_shift(x1, 32 - rotation, out=falling_out)
        falling_out &= (1 << rotation) - 1
        add(falling_out, x1, alpha=1 << rotation, out=x1)
        x1 ^= x0
        if turn % 4 == 3:
            step = turn // 4 + 1
            x0 += keys[step % 3]
            later = keys[(step + 1) % 3] + step
            x1 += later if isinstance(later, Tensor) else _word(later)
    return x0, x1


def _word(number: int) -> int:
    """The lowest 32 bits of a number, as the int32 with the same bits."""
    return ((number & _WORD) ^ 0x80000000) - 0x80000000
