"""The norm and the nonlinearity on a GPU, in one pass over memory each.

Torch takes three for the nonlinearity, reaches a third of the memory's rate in its norm, and in
float64 is bound by divisions there. What is shorter than float32 is computed in float32.

d width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.system.devices import launching_on

_AT_ONCE = 2048
"""Numbers that a program holds."""


@triton.jit(do_not_specialize=["rows"])
def _normalize(
    x,
    weight,
    bias,
    out,
    rows,
    EXACT: tl.constexpr,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    AFFINE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    feature = tl.arange(0, BLOCK)[None, :]
    real = (row < rows) & (feature < WIDTH)
    value = tl.load(x + row * WIDTH + feature, real, 0.0).to(EXACT)
    mean = tl.sum(value, 1)[:, None] / WIDTH
    value = tl.where(feature < WIDTH, value - mean, 0.0)
    variance = tl.sum(value * value, 1)[:, None] / WIDTH
    value = value / tl.sqrt(variance + EPS)
    if AFFINE:
        gain = tl.load(weight + feature, feature < WIDTH, 0.0).to(EXACT)
        value = value * gain + tl.load(bias + feature, feature < WIDTH, 0.0).to(EXACT)
    tl.store(out + row * WIDTH + feature, value, real)


@triton.jit
def _gate(x, out, count, EXACT: tl.constexpr, STEEPNESS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < count, 0.0).to(EXACT)
    less = tl.exp(-STEEPNESS * tl.abs(value))  # at most 1, however large the number
    tl.store(out + at, value * tl.where(value < 0, less, 1.0) / (1 + less), at < count)


def normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last axis, with a gain and a bias (d) or with neither."""
    x, width = x.contiguous(), x.shape[-1]
    block, out = triton.next_power_of_2(width), torch.empty_like(x)
    count, rows = x.numel() // max(1, width), max(1, _AT_ONCE // block)
    if out.numel():
        with launching_on(x.device):
            _normalize[(triton.cdiv(count, rows),)](
                x,
                x if weight is None else weight.contiguous(),
                x if bias is None else bias.contiguous(),
                out,
                count,
                EXACT=_exact(x),
                EPS=eps,
                WIDTH=width,
                BLOCK=block,
                ROWS=rows,
                AFFINE=weight is not None and bias is not None,
            )
    return out


def gate(x: Tensor, steepness: float) -> Tensor:
    """The nonlinearity, x sigmoid(steepness x)."""
    x = x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    if count:
        with launching_on(x.device):
            _gate[(triton.cdiv(count, _AT_ONCE),)](
                x, out, count, EXACT=_exact(x), STEEPNESS=steepness, BLOCK=_AT_ONCE
            )
    return out


def _exact(x: Tensor) -> tl.dtype:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
