"""The noise of `noise.gumbel` in one CUDA kernel: of the same bits, in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.system.devices import launching_on

_TOGETHER = 1024
"""Numbers that a program makes."""


def gumbel(key0: int, key1: int, image: Tensor, element: Tensor, values: int) -> Tensor:
    """(b, e, v) for images (b) and elements (e), under two words of the seed as int32."""
    return _numbers(key0, key1, image, element, values, gumbel=True)


def uniform(key0: int, key1: int, image: Tensor, element: Tensor, values: int) -> Tensor:
    """The uniform numbers behind them."""
    return _numbers(key0, key1, image, element, values, gumbel=False)


def _numbers(
    key0: int, key1: int, image: Tensor, element: Tensor, values: int, *, gumbel: bool
) -> Tensor:
    shape = len(image), len(element), values
    out = torch.empty(shape, dtype=torch.float64, device=image.device)
    programs = triton.cdiv(len(element) * values, _TOGETHER)
    with launching_on(image.device):
        _fill[(len(image) * programs,)](
            key0,
            key1,
            image.contiguous(),
            element.contiguous(),
            out,
            len(element),
            programs,
            VALUES=values,
            TOGETHER=_TOGETHER,
            GUMBEL=gumbel,
            num_warps=4,
        )
    return out


@triton.jit(do_not_specialize=["key0", "key1", "elements", "programs"])
def _fill(
    key0,
    key1,
    image,
    element,
    out,
    elements,
    programs,
    VALUES: tl.constexpr,
    TOGETHER: tl.constexpr,
    GUMBEL: tl.constexpr,
):
    row = (tl.program_id(0) // programs).to(tl.int64)
    number = tl.load(image + row)
    key0, key1 = _threefry(
        key0.to(tl.uint32),
        key1.to(tl.uint32),
        number.to(tl.uint32),
        (number >> 32).to(tl.uint32),
    )
    place = (tl.program_id(0) % programs).to(tl.int64) * TOGETHER + tl.arange(0, TOGETHER)
    inside = place < elements.to(tl.int64) * VALUES
    where = tl.load(element + place // VALUES, mask=inside, other=0)
    high, low = _threefry(key0, key1, where.to(tl.uint32), (place % VALUES).to(tl.uint32))
    bits = (high.to(tl.int64) << 20) | (low >> 12).to(tl.int64)
    result = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2 ** -52: every bit is kept
    if GUMBEL:
        result = -tl.log(-tl.log(result))
    tl.store(out + row * elements * VALUES + place, result, mask=inside)


@triton.jit
def _threefry(key0, key1, x0, x1):
    """What `noise.threefry` does, with words that know no sign."""
    key2 = key0 ^ key1 ^ 0x1BD11BDA
    x0, x1 = _four_turns(x0 + key0, x1 + key1, 13, 15, 26, 6)
    x0, x1 = _four_turns(x0 + key1, x1 + key2 + 1, 17, 29, 16, 24)
    x0, x1 = _four_turns(x0 + key2, x1 + key0 + 2, 13, 15, 26, 6)
    x0, x1 = _four_turns(x0 + key0, x1 + key1 + 3, 17, 29, 16, 24)
    x0, x1 = _four_turns(x0 + key1, x1 + key2 + 4, 13, 15, 26, 6)
    return x0 + key2, x1 + key0 + 5


@triton.jit
def _four_turns(x0, x1, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    x0, x1 = _turn(x0, x1, A)
    x0, x1 = _turn(x0, x1, B)
    x0, x1 = _turn(x0, x1, C)
    return _turn(x0, x1, D)


@triton.jit
def _turn(x0, x1, BY: tl.constexpr):
    x0 += x1
    return x0, ((x1 << BY) | (x1 >> (32 - BY))) ^ x0
