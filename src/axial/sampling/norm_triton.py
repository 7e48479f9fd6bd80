"""The norm of rows as a kernel, with the sum before it if asked.

b rows, i inputs, d width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.models.layers import NORM_EPS
from axial.sampling import overlap_triton as overlap
from axial.sampling.overlap_triton import let_next_begin, wait_for_previous

_MANY, _NUMBERS = 4096, 4096
"""From more rows on, a program takes several: as many as have so many numbers."""


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
    together = max(1, _NUMBERS // block) if rows > _MANY else 1
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
        OVERLAPPING=overlap.overlapping(),
        launch_pdl=overlap.overlapping(),
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
    let_next_begin(OVERLAPPING)
    d = tl.arange(0, D)[None, :]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (row < rows) & (d < WIDTH)
    place = row * WIDTH + d
    wait_for_previous(OVERLAPPING)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + place, value, mask=inside)
    value = tl.where(d < WIDTH, value - tl.sum(value, 1)[:, None] / WIDTH, 0.0)
    variance = tl.sum(value * value, 1)[:, None] / WIDTH
    tl.store(out + place, value * tl.rsqrt(variance + EPS), mask=inside)
