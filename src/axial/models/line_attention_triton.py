"""Attention along short lines as one CUDA kernel, and one for its gradient.

A program holds one line of one head whole, so nothing is kept from the forward pass but the
projection itself, and the gradient is written in the projection's own order. On short lines the
time is that of reading and writing, which the usual kernels, made for long ones, do several times.
The gradient is also summed over each line, for the projection's bias, while it is at hand.

r lines, l length of a line, f faster axes folded, n heads, e width of a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.system.devices import launching_on


@triton.jit
def _places(
    faster, heads, LENGTH: tl.constexpr, E: tl.constexpr, L: tl.constexpr, BLOCK: tl.constexpr
):
    """Of this program's line: where each step begins (L, 1), the features, what is real."""
    number = tl.program_id(0).to(tl.int64)
    head, place = number % heads, number // heads
    step = tl.arange(0, L)[:, None]
    feature = tl.arange(0, BLOCK)[None, :]
    row = ((place // faster) * LENGTH + step) * faster + place % faster
    return row * heads + head, feature, (step < LENGTH) & (feature < E)


@triton.jit
def _store(
    found, out, sums, row, feature, real, DTYPE: tl.constexpr, E: tl.constexpr, PART: tl.constexpr
):
    """A part of the gradient, and its sum over the line."""
    tl.store(out + row * (3 * E) + PART * E + feature, found.to(DTYPE), real)
    total = tl.sum(found, 0)[None, :]
    at = tl.program_id(0).to(tl.int64) * (3 * E) + PART * E
    tl.store(sums + at + feature, total, feature < E)


@triton.jit
def _exponents(q, k, scale, LENGTH: tl.constexpr, L: tl.constexpr, CAUSAL: tl.constexpr):
    """The weights (L, L) but for their sums."""
    query = tl.arange(0, L)[:, None]
    key = tl.arange(0, L)[None, :]
    seen = key < LENGTH
    if CAUSAL:
        seen = seen & (key <= query)
    scores = tl.where(seen, tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634), -float("inf"))
    return tl.exp2(scores - tl.max(scores, 1)[:, None])


@triton.jit
def _attend(
    qkv,
    out,
    scale,
    faster,
    heads,
    LENGTH: tl.constexpr,
    E: tl.constexpr,
    L: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    row, feature, real = _places(faster, heads, LENGTH, E, L, BLOCK)
    at = qkv + row * (3 * E) + feature
    q = tl.load(at, real, 0.0)
    k = tl.load(at + E, real, 0.0)
    v = tl.load(at + 2 * E, real, 0.0)
    weights = _exponents(q, k, scale, LENGTH, L, CAUSAL)
    seen = tl.dot(weights.to(v.dtype), v) / tl.sum(weights, 1)[:, None]
    tl.store(out + row * E + feature, seen.to(v.dtype), real)


@triton.jit
def _attend_gradient(
    qkv,
    given,
    out,
    sums,
    scale,
    faster,
    heads,
    LENGTH: tl.constexpr,
    E: tl.constexpr,
    L: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The gradient of `qkv`, and its sums over each line, from that of what `_attend` wrote."""
    row, feature, real = _places(faster, heads, LENGTH, E, L, BLOCK)
    at = qkv + row * (3 * E) + feature
    q = tl.load(at, real, 0.0)
    k = tl.load(at + E, real, 0.0)
    v = tl.load(at + 2 * E, real, 0.0)
    d = tl.load(given + row * E + feature, real, 0.0)
    weights = _exponents(q, k, scale, LENGTH, L, CAUSAL)
    weights = weights / tl.sum(weights, 1)[:, None]
    values = tl.dot(tl.trans(weights.to(v.dtype)), d)
    _store(values, out, sums, row, feature, real, v.dtype, E, 2)
    slope = tl.dot(d, tl.trans(v))
    slope = weights * (slope - tl.sum(weights * slope, 1)[:, None]) * scale
    slope = slope.to(v.dtype)
    _store(tl.dot(slope, k), out, sums, row, feature, real, v.dtype, E, 0)
    _store(tl.dot(tl.trans(slope), q), out, sums, row, feature, real, v.dtype, E, 1)


def attend(qkv: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """What queries, keys and values (r, l, f, n, 3, e) give: (r, l, f, n, e).

    1 / sqrt(e) is the usual scale.
    """
    qkv = qkv.contiguous()
    out = qkv.new_empty(*qkv.shape[:4], qkv.shape[5])
    _launch(_attend, qkv, out, causal=causal, scale=scale)
    return out


def attend_gradient(given: Tensor, qkv: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """The gradient of `qkv`, `given` that of the output; and its sum over all places, float32."""
    qkv = qkv.contiguous()
    lines, _, faster, heads, _, size = qkv.shape
    out = torch.empty_like(qkv)
    sums = qkv.new_empty(lines * faster, 3 * heads * size, dtype=torch.float32)
    if not qkv.numel():
        return out, sums.zero_().sum(0)
    _launch(_attend_gradient, qkv, given.contiguous(), out, sums, causal=causal)
    return out, sums.sum(0)


def _launch(
    kernel: Any, qkv: Tensor, *others: Tensor, causal: bool, scale: float | None = None
) -> None:
    lines, length, faster, heads, _, size = qkv.shape
    steps, block = _tile(length), _tile(size)
    if not qkv.numel():
        return
    with launching_on(qkv.device):
        kernel[(lines * faster * heads,)](
            qkv,
            *others,
            size**-0.5 if scale is None else scale,
            faster,
            heads,
            LENGTH=length,
            E=size,
            L=steps,
            BLOCK=block,
            CAUSAL=causal,
            num_warps=_warps(steps, block),
            num_stages=1,
        )


def _tile(size: int) -> int:
    """What a tensor core takes, and a power of two."""
    return max(16, triton.next_power_of_2(size))


def _warps(steps: int, block: int) -> int:
    """The fastest on an H200."""
    return 4 if steps == 64 else max(1, steps * block // 2048)
