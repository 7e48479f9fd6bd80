"""Attention in float64 on a GPU, in one pass over memory.

Torch copies queries, keys and values before it multiplies them.

r slower axes and batch folded, l length of a line, m length of its memory, f faster axes folded,
n heads, e width of a head.
"""

import triton
import triton.language as tl
from torch import Tensor

from axial.system.devices import launching_on

_LONGEST, _LARGEST = 64, 4096
"""Steps of a line, and numbers of one head's queries or keys, that a program can hold."""


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
