"""Attention of one step to itself and to the steps before it in a KV cache, as a kernel.

r lines, l length, f faster axes folded, n heads, e width of a head.
"""

import triton
import triton.language as tl
from torch import Tensor

from axial.models.attention import KVCache
from axial.sampling import overlap_triton as overlap
from axial.sampling.overlap_triton import let_next_begin, wait_for_previous

_HEADS, _PROGRAMS, _SMALL = 4, 2048, 64
"""Heads that a program takes at most, as long as there are so many programs; and how large they
may be."""
_KEYS = 1024
"""Numbers of the keys that it attends to at a time: more do not fit into a warp's registers."""


def attend_next(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: KVCache,
    place: Tensor,
    *,
    together: int | None = None,
    steps: int | None = None,
) -> Tensor:
    """Attention of one step (r, 1, f, n, e) to itself and to the first `place` of the cache.

    Its key and value, of equal strides with the query, are put into the cache. The scale is
    in the query already. A program, one warp, takes so many heads one after another, and so many
    steps of the cache at a time.
    """
    keys, values = cache.keys, cache.values
    lines, _, faster, heads, size = keys.shape
    assert q.stride() == k.stride() == v.stride() and keys.stride() == values.stride()
    assert q.stride(-1) == keys.stride(-1) == 1
    out, count = q.new_empty(lines, 1, faster, heads, size), lines * faster * heads
    room = triton.next_power_of_2(size)
    most = _HEADS if room <= _SMALL else 1
    together = together or max(1, min(most, count // _PROGRAMS))
    steps = steps or max(1, min(16, _KEYS // room))
    _attend_next[(triton.cdiv(count, together),)](
        q,
        k,
        v,
        keys,
        values,
        out,
        place,
        count,
        q.stride(0),
        q.stride(2),
        q.stride(3),
        *keys.stride()[:4],
        FASTER=faster,
        HEADS=heads,
        SIZE=size,
        E=room,
        TOGETHER=together,
        STEPS=steps,
        OVERLAPPING=overlap.overlapping(),
        launch_pdl=overlap.overlapping(),
        num_warps=1,
    )
    return out


@triton.jit
def _attend_next(
    q,
    k,
    v,
    keys,
    values,
    out,
    place,
    count,
    q_line,
    q_faster,
    q_head,
    k_line,
    k_step,
    k_faster,
    k_head,
    FASTER: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    E: tl.constexpr,
    TOGETHER: tl.constexpr,
    STEPS: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    let_next_begin(OVERLAPPING)
    e = tl.arange(0, E)
    wait_for_previous(OVERLAPPING)
    before = tl.load(place)
    for turn in range(TOGETHER):
        number = tl.program_id(0) * TOGETHER + turn
        head = number % HEADS
        faster = number // HEADS % FASTER
        line = (number // (HEADS * FASTER)).to(tl.int64)
        inside = (e < SIZE) & (number < count)
        own_at = line * q_line + faster * q_faster + head * q_head + e
        line_at = line * k_line + faster * k_faster + head * k_head + e
        query = tl.load(q + own_at, mask=inside, other=0.0).to(tl.float32)
        key = tl.load(k + own_at, mask=inside, other=0.0)
        value = tl.load(v + own_at, mask=inside, other=0.0)
        # A running softmax: what the steps so far weigh is kept relative to the largest of them.
        top = tl.sum(key.to(tl.float32) * query, 0)
        share = 1.0
        mixed = value.to(tl.float32)
        for start in range(0, before, STEPS):
            step = start + tl.arange(0, STEPS)
            known = step < before
            at = line_at[None, :] + step[:, None].to(tl.int64) * k_step
            mask = known[:, None] & inside[None, :]
            some_keys = tl.load(keys + at, mask=mask, other=0.0)
            some_values = tl.load(values + at, mask=mask, other=0.0)
            scores = tl.sum(some_keys.to(tl.float32) * query[None, :], 1)
            scores = tl.where(known, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 0))
            weights = tl.exp(scores - higher)
            shrink = tl.exp(top - higher)
            mixed = mixed * shrink + tl.sum(weights[:, None] * some_values.to(tl.float32), 0)
            share = share * shrink + tl.sum(weights, 0)
            top = higher
        own_place = line_at + before.to(tl.int64) * k_step
        tl.store(keys + own_place, key, mask=inside)
        tl.store(values + own_place, value, mask=inside)
        at = (line * FASTER + faster) * HEADS + head
        tl.store(out + at * SIZE + e, mixed / share, mask=inside)
