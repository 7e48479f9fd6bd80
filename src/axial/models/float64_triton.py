"""What torch computes slowly in float64 on a GPU, in one pass over memory each.

Torch's norm of float64 is bound by divisions, the nonlinearity takes three passes, and attention
copies queries, keys and values before it multiplies them.

r slower axes and batch folded, l length of a line, m length of its memory, f faster axes folded,
n heads, e width of a head, d width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.system.devices import launching_on

_LONGEST, _LARGEST = 64, 4096
"""Steps of a line, and numbers of one head's queries or keys, that a program can hold."""
_AT_ONCE = 2048
"""Numbers that a program of the others holds."""


@triton.jit(do_not_specialize=["rows"])
def _normalize(
    x,
    weight,
    bias,
    out,
    rows,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    AFFINE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    feature = tl.arange(0, BLOCK)[None, :]
    real = (row < rows) & (feature < WIDTH)
    value = tl.load(x + row * WIDTH + feature, real, 0.0)
    mean = tl.sum(value, 1)[:, None] / WIDTH
    value = tl.where(feature < WIDTH, value - mean, 0.0)
    variance = tl.sum(value * value, 1)[:, None] / WIDTH
    value = value / tl.sqrt(variance + EPS)
    if AFFINE:
        gain = tl.load(weight + feature, feature < WIDTH, 0.0)
        value = value * gain + tl.load(bias + feature, feature < WIDTH, 0.0)
    tl.store(out + row * WIDTH + feature, value, real)


@triton.jit(do_not_specialize=["count"])
def _gate(x, out, count, STEEPNESS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < count, 0.0)
    less = tl.exp(-STEEPNESS * tl.abs(value))  # at most 1, however large the number
    tl.store(out + at, value * tl.where(value < 0, less, 1.0) / (1 + less), at < count)


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend(
    q,
    k,
    v,
    out,
    queries,
    keys,
    faster,
    heads,
    q_line,
    q_step,
    q_place,
    q_head,
    k_line,
    k_step,
    k_place,
    k_head,
    v_line,
    v_step,
    v_place,
    v_head,
    SCALE: tl.constexpr,
    E: tl.constexpr,
    L: tl.constexpr,
    M: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One line of one head: (L, BLOCK) queries, or one where L is 1."""
    number = tl.program_id(0).to(tl.int64)
    head, place = number % heads, number // heads % faster
    line = number // heads // faster
    feature, key = tl.arange(0, BLOCK)[None, :], tl.arange(0, M)[:, None].to(tl.int64)
    if CAUSAL and L == 1:
        keys = 1
    known = (key < keys) & (feature < E)
    k += line * k_line + place * k_place + head * k_head
    v += line * v_line + place * v_place + head * v_head
    q += line * q_line + place * q_place + head * q_head
    own_keys = tl.load(k + key * k_step + feature, known, 0.0)
    values = tl.load(v + key * v_step + feature, known, 0.0)
    if L == 1:
        query = tl.load(q + feature, feature < E, 0.0)
        scores = tl.sum(own_keys * query, 1) * SCALE
        scores = tl.where(tl.arange(0, M) < keys, scores, -float("inf"))
        weights = tl.exp(scores - tl.max(scores, 0))
        seen = tl.sum(weights[:, None] * values, 0) / tl.sum(weights, 0)
        feature = tl.arange(0, BLOCK)
        at = (line * faster + place) * heads + head
        tl.store(out + at * E + feature, seen, feature < E)
    else:
        step = tl.arange(0, L)[:, None].to(tl.int64)
        real = (step < queries) & (feature < E)
        query = tl.load(q + step * q_step + feature, real, 0.0)
        later = tl.arange(0, M)[None, :]
        scores = tl.dot(query, tl.trans(own_keys)) * SCALE
        visible = later < keys
        if CAUSAL:
            visible = visible & (later <= step)
        scores = tl.where(visible, scores, -float("inf"))
        weights = tl.exp(scores - tl.max(scores, 1)[:, None])
        seen = tl.dot(weights, values) / tl.sum(weights, 1)[:, None]
        at = ((line * queries + step) * faster + place) * heads + head
        tl.store(out + at * E + feature, seen, real)


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
            _gate[(triton.cdiv(count, _AT_ONCE),)](x, out, count, steepness, _AT_ONCE)
    return out


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a program can hold a line of these (r, l or m, f, n, e)."""
    steps, size = max(q.shape[1], k.shape[1]), q.shape[-1]
    alike = all(t.stride(-1) == 1 or size == 1 for t in (q, k, v))
    return alike and steps <= _LONGEST and _tile(steps) * _tile(size) <= _LARGEST


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Tensor:
    """Attention from queries (r, l, f, n, e) to keys and values (r, m, f, n, e).

    With `causal` no query sees a key further along than itself.
    """
    lines, queries, faster, heads, size = q.shape
    out, keys = q.new_empty(q.shape), k.shape[1]
    if out.numel():
        strides = [s for t in (q, k, v) for s in t.stride()[:4]]
        with launching_on(q.device):
            _attend[(lines * faster * heads,)](
                q,
                k,
                v,
                out,
                queries,
                keys,
                faster,
                heads,
                *strides,
                SCALE=scale,
                E=size,
                L=1 if queries == 1 else _tile(queries),
                M=_tile(keys),
                BLOCK=_tile(size),
                CAUSAL=causal,
                num_warps=2 if queries == 1 else 4,
                num_stages=1,
            )
    return out


def _tile(size: int) -> int:
    """What a tensor core takes, and a power of two."""
    return max(16, triton.next_power_of_2(size))
