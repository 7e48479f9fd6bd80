"""The inner step as few CUDA kernels: dense with its norm, attention to a cache, the choice.

`pass_block` and `choose` do what their namesakes in levels.py do, in fewer launches: drawing
element by element is bound by the number of kernels and by reading the weights once. Which element
it is, only the device knows.

b batch, d width, l length, v values.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.models.attention import KVCache
from axial.sampling import overlap_triton as overlap
from axial.sampling.attend_next_triton import attend_next
from axial.sampling.dense_triton import SMALLEST_STEP, Rows, added_dense, measures, normed_dense
from axial.sampling.folded import FoldedBlock
from axial.sampling.norm_triton import add_and_normalize, normalize
from axial.sampling.overlap_triton import let_next_begin, wait_for_previous

__all__ = [  # what levels_triton.py asks for, which imports this module where there is a GPU
    "Choice",
    "Rows",
    "add_and_normalize",
    "attend_next",
    "choose",
    "measures",
    "normalize",
    "normed_dense",
    "pass_block",
    "usable",
]


def pass_block(rows: Rows, block: FoldedBlock, cache: KVCache, place: Tensor) -> Rows:
    """Take the element at `place` through a block; the cache takes it in."""
    qkv = normed_dense(rows, block.to_qkv).view(len(rows.x), 1, 1, block.heads, 3, -1)
    q, k, v = qkv.unbind(-2)
    seen = attend_next(q, k, v, cache, place)
    rows = added_dense(rows, seen.view(rows.x.shape), block.to_out)
    hidden = normed_dense(rows, block.mlp_in, activated=True)
    return added_dense(rows, hidden, block.mlp_out)


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
        OVERLAPPING=overlap.overlapping(),
        launch_pdl=overlap.overlapping(),
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
    let_next_begin(OVERLAPPING)
    row = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, V)
    real = v < VALUES
    wait_for_previous(OVERLAPPING)
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
