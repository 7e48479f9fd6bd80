"""The inner step as few CUDA kernels: dense with its norm, attention to a cache, the choice.

`pass_block` and `choose` do what their namesakes in levels.py do, in fewer launches: drawing
element by element is bound by the number of kernels and by reading the weights once. So the norm of
a narrow model is no kernel: who makes rows notes their moments, and the next product takes them.
Which element it is, only the device knows.
Everything is accumulated in float32. From Hopper on, a kernel is set up and reads its weights while
the one before it still runs: `_let_next_begin` allows that, and `_wait_for_previous` is where it
needs the results. b batch, d width, i inputs, o outputs, l length, v values, n heads, e width of a
head, r lines, f faster axes folded.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from axial.models.attention import KVCache
from axial.models.layers import NORM_EPS
from axial.sampling.folded import Folded, FoldedBlock

SMALLEST_STEP = 16
"""Inputs of a dense layer must be a multiple of this."""
FEW = 4
"""Up to so many rows a dense layer is a sum over its weights rather than a matrix product."""
SEVERAL, NARROW = 256, 384
"""Up to so many rows of this width their norm costs less where they are made than as a kernel."""
_ROOMY = 160 << 10
"""Bytes of shared memory that the larger tiles fit into."""
MANY, NUMBERS = 4096, 4096
"""From more rows on, a program of the norm takes several: as many as have so many numbers."""
_HEADS, _PROGRAMS, _SMALL = 4, 2048, 64
"""Heads that a program of attention takes at most, as long as there are so many programs; and how
large they may be."""
_KEYS = 1024
"""Numbers of the keys that it attends to at a time: more do not fit into a warp's registers."""


@dataclass(frozen=True)
class Tile:
    """How a matrix product is cut: outputs `rows` x `columns` a program, `depth` inputs a time.

    With `fetching` the weights are brought into the GPU's cache before the inputs are there.
    """

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 4
    fetching: bool = False


def tile(x: Tensor) -> Tile:
    """The fastest for (b, i) of those that benchmarks/kernels.py tries."""
    (rows, inputs), size = x.shape, x.element_size()
    most = (256 if overlapping() and shared_memory() >= _ROOMY else 128) // size
    if rows <= 32:
        return Tile(16 if rows <= 16 else 32, 32, _depth(inputs, 2 * most))
    if rows <= 64:
        return Tile(64, 16, _depth(inputs, most), fetching=True)
    if rows <= 128:
        return Tile(128, 16, _depth(inputs, most), fetching=True)
    return Tile(64, 64, _depth(inputs, most))


def _depth(inputs: int, most: int) -> int:
    """The largest power of two up to `most` that divides the inputs."""
    return min(most, inputs & -inputs)


@functools.cache
def shared_memory() -> int:
    """Bytes that the threads of a program may share: least on GPUs that are made for games."""
    properties: Any = torch.cuda.get_device_properties()
    return int(properties.shared_memory_per_block_optin)


@functools.cache
def overlapping() -> bool:
    """Whether this GPU can set up a kernel while the one before it runs."""
    there = torch.cuda.is_available() and hasattr(cuda, "gdc_wait")
    return there and torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def _let_next_begin(OVERLAPPING: tl.constexpr):
    if OVERLAPPING:
        cuda.gdc_launch_dependents()


@triton.jit
def _wait_for_previous(OVERLAPPING: tl.constexpr):
    if OVERLAPPING:
        cuda.gdc_wait()


@triton.jit
def _fetch(columns, LENGTH: tl.constexpr):
    """Bring 16-bit numbers into the GPU's cache: LENGTH from each of these places (1, n) on."""
    lines: tl.constexpr = triton.cdiv(LENGTH, 64)
    line = tl.minimum(tl.arange(0, triton.next_power_of_2(lines)), lines - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [columns + line[:, None] * 64],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


class Rows(NamedTuple):
    """The elements (b, d) of a step, and what their norm asks for, unless a kernel finds it."""

    x: Tensor
    moments: Tensor | None
    """(b, parts, 2): the sum of each part of a row, and that of its squares."""


def measures(rows: int, width: int) -> bool:
    """Whether whoever makes so many rows notes their moments, so that their norm is no kernel."""
    return FEW < rows <= SEVERAL and width <= NARROW


def pass_block(rows: Rows, block: FoldedBlock, cache: KVCache, place: Tensor) -> Rows:
    """Take the element at `place` through a block; the cache takes it in."""
    qkv = normed_dense(rows, block.to_qkv).view(len(rows.x), 1, 1, block.heads, 3, -1)
    q, k, v = qkv.unbind(-2)
    seen = attend_next(q, k, v, cache, place)
    rows = added_dense(rows, seen.view(rows.x.shape), block.to_out)
    hidden = normed_dense(rows, block.mlp_in, activated=True)
    return added_dense(rows, hidden, block.mlp_out)


def normed_dense(
    rows: Rows, layer: Folded, *, activated: bool = False, out: Tensor | None = None
) -> Tensor:
    """A dense layer (b, o) of normed rows, then silu if asked."""
    x = rows.x
    out = x.new_empty(len(x), len(layer.bias)) if out is None else out
    if len(x) <= FEW:
        return weighted_sums(x, layer, out, normed=True, activated=activated)
    if rows.moments is not None:
        return product(x, layer, out, moments=rows.moments, activated=activated)
    x = normalize(x)
    if activated or out.dtype != x.dtype:
        return product(x, layer, out, activated=activated)
    return torch.addmm(layer.bias, x, layer.weight, out=out)


def added_dense(rows: Rows, branch: Tensor, layer: Folded) -> Rows:
    """The rows and a dense layer of (b, i) on top of them."""
    count, width = rows.x.shape
    out = torch.empty_like(rows.x)
    if count <= FEW:
        return Rows(weighted_sums(branch, layer, out, added=rows.x), None)
    cut, measured = tile(branch), None
    if measures(count, width):
        parts = triton.cdiv(width, cut.columns)
        measured = out.new_empty(count, parts, 2, dtype=torch.float32)
    return Rows(product(branch, layer, out, added=rows.x, measured=measured, cut=cut), measured)


def product(
    x: Tensor,
    layer: Folded,
    out: Tensor,
    *,
    moments: Tensor | None = None,
    activated: bool = False,
    added: Tensor | None = None,
    measured: Tensor | None = None,
    cut: Tile | None = None,
) -> Tensor:
    """A matrix product with what comes before and after it.

    With the `moments` of its inputs their norm comes before it; those of its outputs, a part for
    each tile of them, go to `measured`.
    """
    rows, (inputs, outputs) = len(x), layer.weight.shape
    cut = cut or tile(x)
    parts = 1 if moments is None else moments.shape[1]
    _product[(triton.cdiv(outputs, cut.columns), triton.cdiv(rows, cut.rows))](
        x,
        layer.weight,
        layer.bias,
        layer.sums,
        out if moments is None else moments,
        x if added is None else added,
        out,
        out if measured is None else measured,
        rows,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=parts,
        P=triton.next_power_of_2(parts),
        NORMED=moments is not None,
        ACTIVATED=activated,
        ADDED=added is not None,
        MEASURED=measured is not None,
        EPS=NORM_EPS,
        M=cut.rows,
        N=cut.columns,
        K=cut.depth,
        FETCHING=cut.fetching and overlapping(),
        OVERLAPPING=overlapping(),
        launch_pdl=overlapping(),
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


@triton.jit
def _product(
    x,
    weight,
    bias,
    sums,
    moments,
    added,
    out,
    measured,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    NORMED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ADDED: tl.constexpr,
    MEASURED: tl.constexpr,
    EPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FETCHING: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    _let_next_begin(OVERLAPPING)
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    # What lies beyond the last row or column repeats earlier ones, and is not written.
    column = n % OUTPUTS
    x_at = x + (m % rows)[:, None] * INPUTS + k[None, :]
    weight_at = weight + column[None, :] * INPUTS + k[:, None]
    total = tl.zeros((M, N), tl.float32)
    if FETCHING:
        _fetch(weight + column[None, :] * INPUTS, INPUTS)
    _wait_for_previous(OVERLAPPING)
    if NORMED:
        part = tl.arange(0, P)
        at = moments + ((m % rows)[:, None] * PARTS + part[None, :]) * 2
        first = tl.sum(tl.load(at, mask=(part < PARTS)[None, :], other=0.0), 1)
        second = tl.sum(tl.load(at + 1, mask=(part < PARTS)[None, :], other=0.0), 1)
    for _ in range(0, INPUTS, K):
        total = tl.dot(tl.load(x_at), tl.load(weight_at), total, input_precision="ieee")
        x_at += K
        weight_at += K
    if NORMED:
        # The norm commutes with the sum: w (x - mean) / std = (w x - mean sum(w)) / std.
        mean = first / INPUTS
        variance = tl.maximum(second / INPUTS - mean * mean, 0.0)
        total -= mean[:, None] * tl.load(sums + column)[None, :]
        total *= tl.rsqrt(variance + EPS)[:, None]
    total += tl.load(bias + column).to(tl.float32)[None, :]
    if ACTIVATED:
        total *= tl.sigmoid(total)
    place = m[:, None] * OUTPUTS + n[None, :]
    inside = (m < rows)[:, None] & (n < OUTPUTS)[None, :]
    if ADDED:
        total += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
    found = total.to(out.dtype.element_ty)
    tl.store(out + place, found, mask=inside)
    if MEASURED:
        exact = tl.where(inside, found.to(tl.float32), 0.0)
        at = measured + (m * tl.num_programs(0) + tl.program_id(0)) * 2
        tl.store(at, tl.sum(exact, 1), mask=m < rows)
        tl.store(at + 1, tl.sum(exact * exact, 1), mask=m < rows)


def weighted_sums(
    x: Tensor,
    layer: Folded,
    out: Tensor,
    *,
    normed: bool = False,
    activated: bool = False,
    added: Tensor | None = None,
    columns: int = 4,
    warps: int = 4,
    depth: int = 2048,
) -> Tensor:
    """The same for few rows: each program reads the whole of some columns of the weights."""
    rows, (inputs, outputs) = len(x), layer.weight.shape
    _weighted_sums[(triton.cdiv(outputs, columns), rows)](
        x,
        layer.weight,
        layer.bias,
        layer.sums,
        x if added is None else added,
        out,
        INPUTS=inputs,
        OUTPUTS=outputs,
        NORMED=normed,
        ACTIVATED=activated,
        ADDED=added is not None,
        EPS=NORM_EPS,
        N=columns,
        K=min(depth, triton.next_power_of_2(inputs)),
        OVERLAPPING=overlapping(),
        launch_pdl=overlapping(),
        num_warps=warps,
    )
    return out


@triton.jit
def _weighted_sums(
    x,
    weight,
    bias,
    sums,
    added,
    out,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ADDED: tl.constexpr,
    EPS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    _let_next_begin(OVERLAPPING)
    row = tl.program_id(1)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    column = n % OUTPUTS
    weight_at = weight + column[:, None] * INPUTS + k[None, :]
    weights = tl.load(weight_at, mask=(k < INPUTS)[None, :], other=0.0)
    offset = tl.load(bias + column).to(tl.float32)
    _wait_for_previous(OVERLAPPING)
    total = tl.zeros((N, K), tl.float32)
    first = tl.zeros((K,), tl.float32)
    second = tl.zeros((K,), tl.float32)
    for start in tl.static_range(0, INPUTS, K):
        inside = start + k < INPUTS
        if start > 0:
            weights = tl.load(weight_at + start, mask=inside[None, :], other=0.0)
        part = tl.load(x + row * INPUTS + start + k, mask=inside, other=0.0).to(tl.float32)
        total += weights.to(tl.float32) * part[None, :]
        first += part
        second += part * part
    result = tl.sum(total, 1)
    if NORMED:
        mean = tl.sum(first, 0) / INPUTS  # as in _product
        variance = tl.maximum(tl.sum(second, 0) / INPUTS - mean * mean, 0.0)
        result = (result - mean * tl.load(sums + column)) * tl.rsqrt(variance + EPS)
    result += offset
    if ACTIVATED:
        result *= tl.sigmoid(result)
    place = row * OUTPUTS + n
    if ADDED:
        result += tl.load(added + place, mask=n < OUTPUTS, other=0.0).to(tl.float32)
    tl.store(out + place, result, mask=n < OUTPUTS)


def normalize(x: Tensor) -> Tensor:
    """Each row of (b, i) with mean 0 and variance 1."""
    return _normalized(x, None)[1]


def add_and_normalize(x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """The sum (b, i), and each of its rows with mean 0 and variance 1."""
    return _normalized(x, added)


def _normalized(x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    out, block = torch.empty_like(x), triton.next_power_of_2(width)
    total = x if added is None else torch.empty_like(x)
    together = max(1, NUMBERS // block) if rows > MANY else 1
    _normalize[(triton.cdiv(rows, together),)](
        x,
        x if added is None else added,
        total,
        out,
        rows,
        ADDED=added is not None,
        WIDTH=width,
        D=block,
        ROWS=together,
        EPS=NORM_EPS,
        OVERLAPPING=overlapping(),
        launch_pdl=overlapping(),
        num_warps=4,
    )
    return total, out


@triton.jit
def _normalize(
    x,
    added,
    total,
    out,
    rows,
    ADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    EPS: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    _let_next_begin(OVERLAPPING)
    d = tl.arange(0, D)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (row < rows) & (d < WIDTH)
    place = row * WIDTH + d
    _wait_for_previous(OVERLAPPING)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + place, value, mask=inside)
    value = tl.where(d < WIDTH, value - tl.sum(value, 1)[:, None] / WIDTH, 0.0)
    variance = tl.sum(value * value, 1)[:, None] / WIDTH
    tl.store(out + place, value * tl.rsqrt(variance + EPS), mask=inside)


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
        OVERLAPPING=overlapping(),
        launch_pdl=overlapping(),
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
    _let_next_begin(OVERLAPPING)
    e = tl.arange(0, E)
    _wait_for_previous(OVERLAPPING)
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


class Choice(Protocol):
    """A line whose next element is to be chosen."""

    logits: Tensor
    """(b, v)"""
    noise: Tensor
    """(b, l, v)"""
    line: Tensor
    """(b, l), -1 where a value is missing."""
    table: Tensor
    """(v, d), what a value looks like."""
    base: Tensor
    """(b, l, d), the input of each place but for the element before it."""
    x: Tensor
    """(b, d), the input of the next place."""
    moments: Tensor
    """(b, 1, 2), those of `x`."""
    place: Tensor
    chosen: Tensor
    """How many rows have chosen for this place; 0 between two of them."""
    broken: Tensor
    """Becomes 1 where logits are no finite numbers."""


def choose(at: Choice) -> None:
    """Fill `line` at `place` where it is -1, then go on to the next: its input goes to `x`."""
    batch, length, values = at.noise.shape
    width = at.base.shape[-1]
    _choose[(batch,)](
        at.logits,
        at.noise,
        at.line,
        at.table,
        at.base,
        at.x,
        at.moments,
        at.place,
        at.chosen,
        at.broken,
        batch,
        LENGTH=length,
        VALUES=values,
        WIDTH=width,
        V=triton.next_power_of_2(values),
        D=min(1024, triton.next_power_of_2(width)),
        OVERLAPPING=overlapping(),
        launch_pdl=overlapping(),
        num_warps=4,
    )


@triton.jit
def _choose(
    logits,
    noise,
    line,
    table,
    base,
    out,
    moments,
    place,
    chosen,
    broken,
    rows,
    LENGTH: tl.constexpr,
    VALUES: tl.constexpr,
    WIDTH: tl.constexpr,
    V: tl.constexpr,
    D: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    _let_next_begin(OVERLAPPING)
    row = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, V)
    real = v < VALUES
    _wait_for_previous(OVERLAPPING)
    j = tl.load(place)
    scores = tl.load(logits + row * VALUES + v, mask=real, other=0.0).to(tl.float64)
    strange = tl.max((tl.abs(scores) < float("inf")).to(tl.int32) ^ 1, 0)
    tl.store(broken, 1, mask=strange > 0)
    scores += tl.load(noise + (row * LENGTH + j) * VALUES + v, mask=real, other=0.0)
    drawn = tl.argmax(tl.where(real, scores, float("-inf")), 0)
    drawn = tl.minimum(drawn, VALUES - 1).to(tl.int64)  # where nothing compares with anything
    known = tl.load(line + row * LENGTH + j)
    value = tl.where(known < 0, drawn, known)
    tl.store(line + row * LENGTH + j, value)
    following = tl.minimum(j + 1, LENGTH - 1)
    first = tl.zeros((D,), tl.float32)
    second = tl.zeros((D,), tl.float32)
    for start in range(0, WIDTH, D):
        d = start + tl.arange(0, D)
        inside = d < WIDTH
        seen = tl.load(table + value * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
        seen += tl.load(base + (row * LENGTH + following) * WIDTH + d, mask=inside, other=0.0).to(
            tl.float32
        )
        seen = seen.to(out.dtype.element_ty)
        tl.store(out + row * WIDTH + d, seen, mask=inside)
        exact = seen.to(tl.float32)
        first += exact
        second += exact * exact
    tl.store(moments + 2 * row, tl.sum(first, 0))
    tl.store(moments + 2 * row + 1, tl.sum(second, 0))
    tl.debug_barrier()  # all of the program has read `place`
    if tl.atomic_add(chosen, 1) == rows - 1:  # and all other programs have
        tl.store(chosen, 0)
        tl.store(place, j + 1)


def usable(dtype: torch.dtype, width: int, hidden: int) -> bool:
    """Whether the kernels take a model of this type and these sizes."""
    whole = width % SMALLEST_STEP == 0 and hidden % SMALLEST_STEP == 0
    return whole and dtype in (torch.bfloat16, torch.float16)
