"""The inner step as few CUDA kernels: dense with its norm, attention to a cache, the choice.

Each function does what its namesake in lines.py does, in one Triton kernel where that takes many:
drawing element by element is bound by the number of kernels and by reading the weights once.
Everything is accumulated in float32. b batch, d width, i inputs, o outputs, l length, v values,
n heads, e width of a head.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.layers import NORM_EPS, Folded

SMALLEST_STEP = 16
"""Inputs of a dense layer must be a multiple of this."""


@dataclass(frozen=True)
class Tile:
    """How a matrix product is cut: outputs `rows` x `columns` a program, `depth` inputs a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tile(rows: int, inputs: int, outputs: int) -> Tile:
    """A tile for which every multiprocessor has work and enough bytes are under way."""
    wide = outputs > 2048
    if rows <= 32:
        height = 16 if rows <= 16 else 32
        chosen = Tile(height, 32 if wide else 16, 256, 4, 4)
    elif rows <= 64:
        chosen = Tile(64, 32 if wide else 16, 128, 4, 4)
    else:
        chosen = Tile(64, 128 if wide else 64, 64, 4, 4)
    depth = chosen.depth
    while inputs % depth:
        depth //= 2
    return Tile(chosen.rows, chosen.columns, depth, chosen.warps, chosen.stages)


def dense(
    x: Tensor,
    layer: Folded,
    *,
    normed: bool = False,
    activated: bool = False,
    added: Tensor | None = None,
    dtype: torch.dtype | None = None,
    cut: Tile | None = None,
) -> Tensor:
    """A dense layer of (b, i); the norm before it, the nonlinearity and the sum after it."""
    (rows, inputs), outputs = x.shape, len(layer.weight)
    cut = cut or tile(rows, inputs, outputs)
    out = x.new_empty(rows, outputs, dtype=dtype)
    grid = (triton.cdiv(outputs, cut.columns), triton.cdiv(rows, cut.rows))
    _dense[grid](
        x,
        layer.weight,
        layer.bias,
        layer.sums,
        x if added is None else added,
        out,
        rows,
        INPUTS=inputs,
        OUTPUTS=outputs,
        NORMED=normed,
        ACTIVATED=activated,
        ADDED=added is not None,
        EPS=NORM_EPS,
        M=cut.rows,
        N=cut.columns,
        K=cut.depth,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


@triton.jit
def _dense(
    x,
    weight,
    bias,
    sums,
    added,
    out,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ADDED: tl.constexpr,
    EPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    # What lies beyond the last row or column repeats earlier ones, and is not written.
    column = n % OUTPUTS
    x_at = x + (m % rows)[:, None] * INPUTS + k[None, :]
    weight_at = weight + column[None, :] * INPUTS + k[:, None]
    total = tl.zeros((M, N), tl.float32)
    first = tl.zeros((M,), tl.float32)
    second = tl.zeros((M,), tl.float32)
    for _ in range(0, INPUTS, K):
        part = tl.load(x_at)
        total = tl.dot(part, tl.load(weight_at), total, input_precision="ieee")
        if NORMED:
            wide = part.to(tl.float32)
            first += tl.sum(wide, 1)
            second += tl.sum(wide * wide, 1)
        x_at += K
        weight_at += K
    if NORMED:
        # The norm commutes with the product: w (x - mean) / std = (w x - mean sum(w)) / std.
        mean = first / INPUTS
        variance = tl.maximum(second / INPUTS - mean * mean, 0.0)
        total -= mean[:, None] * tl.load(sums + column)[None, :]
        total *= tl.rsqrt(variance + EPS)[:, None]
    total += tl.load(bias + column).to(tl.float32)[None, :]
    if ACTIVATED:
        total *= tl.sigmoid(1.702 * total)
    place = m[:, None] * OUTPUTS + n[None, :]
    inside = (m < rows)[:, None] & (n < OUTPUTS)[None, :]
    if ADDED:
        total += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total, mask=inside)


def attend(qkv: Tensor, keys: Tensor, values: Tensor, j: int) -> Tensor:
    """Attention of element j to itself and to the cached ones (b, n, l, e) before it.

    `qkv` is (b, n 3 e), the query scaled already; the caches take in the new key and value.
    """
    batch, heads, length, size = keys.shape
    out = qkv.new_empty(batch, heads * size)
    _attend[(batch * heads,)](
        qkv,
        keys,
        values,
        out,
        j,
        LENGTH=length,
        SIZE=size,
        E=triton.next_power_of_2(size),
        L=min(32, triton.next_power_of_2(length)),
        num_warps=2,
    )
    return out


@triton.jit(do_not_specialize=["j"])
def _attend(
    qkv,
    keys,
    values,
    out,
    j,
    LENGTH: tl.constexpr,
    SIZE: tl.constexpr,
    E: tl.constexpr,
    L: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)  # of one example: batch and heads are one index
    e = tl.arange(0, E)
    inside = e < SIZE
    own = qkv + head * 3 * SIZE + e
    q = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(own + SIZE, mask=inside, other=0.0)
    v = tl.load(own + 2 * SIZE, mask=inside, other=0.0)
    line = head * LENGTH * SIZE
    tl.store(keys + line + j * SIZE + e, k, mask=inside)
    tl.store(values + line + j * SIZE + e, v, mask=inside)
    # A running softmax that begins with the element itself, then takes in those before it.
    top = tl.sum(q * k.to(tl.float32), 0)
    share = 1.0
    mixed = v.to(tl.float32)
    for start in range(0, j, L):
        step = start + tl.arange(0, L)
        known = step < j
        place = line + step[:, None] * SIZE + e[None, :]
        mask = known[:, None] & inside[None, :]
        k_le = tl.load(keys + place, mask=mask, other=0.0).to(tl.float32)
        v_le = tl.load(values + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(known, tl.sum(k_le * q[None, :], 1), float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        shrink = tl.exp(top - higher)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v_le, 0)
        share = share * shrink + tl.sum(weights, 0)
        top = higher
    tl.store(out + head * SIZE + e, mixed / share, mask=inside)


def choose(
    logits: Tensor,
    noise: Tensor,
    line: Tensor,
    damage: Tensor,
    table: Tensor,
    base: Tensor,
    j: int,
) -> Tensor:
    """Fill place j of `line` (b, l) where it is -1, and return the input of the next place."""
    batch, length, values = noise.shape
    out = base.new_empty(batch, base.shape[-1])
    _choose[(batch,)](
        logits,
        noise,
        line,
        damage,
        table,
        base,
        out,
        j,
        LENGTH=length,
        VALUES=values,
        WIDTH=base.shape[-1],
        V=triton.next_power_of_2(values),
        D=min(1024, triton.next_power_of_2(base.shape[-1])),
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["j"])
def _choose(
    logits,
    noise,
    line,
    damage,
    table,
    base,
    out,
    j,
    LENGTH: tl.constexpr,
    VALUES: tl.constexpr,
    WIDTH: tl.constexpr,
    V: tl.constexpr,
    D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, V)
    real = v < VALUES
    scores = tl.load(logits + row * VALUES + v, mask=real, other=0.0).to(tl.float32)
    # Nothing is added but what no finite number times zero can be.
    tl.store(damage + row, tl.load(damage + row) + tl.sum(scores * 0.0, 0))
    scores = scores.to(tl.float64)
    scores += tl.load(noise + (row * LENGTH + j) * VALUES + v, mask=real, other=0.0)
    drawn = tl.argmax(tl.where(real, scores, float("-inf")), 0)
    drawn = tl.minimum(drawn, VALUES - 1).to(tl.int64)  # where nothing compares with anything
    known = tl.load(line + row * LENGTH + j)
    value = tl.where(known < 0, drawn, known)
    tl.store(line + row * LENGTH + j, value)
    following = tl.minimum(j + 1, LENGTH - 1)
    for start in range(0, WIDTH, D):
        d = start + tl.arange(0, D)
        inside = d < WIDTH
        seen = tl.load(table + value * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
        seen += tl.load(base + (row * LENGTH + following) * WIDTH + d, mask=inside, other=0.0).to(
            tl.float32
        )
        tl.store(out + row * WIDTH + d, seen, mask=inside)


def usable(dtype: torch.dtype, width: int, hidden: int) -> bool:
    """Whether the kernels take a model of this type and these sizes."""
    whole = width % SMALLEST_STEP == 0 and hidden % SMALLEST_STEP == 0
    return whole and dtype in (torch.bfloat16, torch.float16)
