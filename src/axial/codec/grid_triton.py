"""From logits to the shares of their values in one CUDA kernel: a program takes one element.

b tiles, v values.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.codec import grid
from axial.system.devices import launching_on


def shares(logits: Tensor, notes: Tensor, biases: Tensor) -> Tensor:
    """What `device_reader.shares_plainly` does."""
    rows, values = logits.shape
    table, out = grid.exp_table(logits.device), notes.new_empty(rows, values + 1, dtype=torch.long)
    with launching_on(logits.device):
        _shares[(rows,)](
            logits.contiguous(),
            notes.contiguous(),
            biases.contiguous(),
            table,
            out,
            VALUES=values,
            ROOM=triton.next_power_of_2(values),
            GRID=grid.GRID,
            PRECISION=grid.PRECISION,
            BIAS_STEP=grid.BIAS_STEP,
            ABSENT=grid.ABSENT,
            NO_POINT=grid.NO_POINT,
            SCALE_BITS=grid.SCALE_BITS,
            LAST=len(table) - 1,
            num_warps=2,
        )
    return out


@triton.jit
def _shares(
    logits,
    notes,
    biases,
    table,
    out,
    VALUES: tl.constexpr,
    ROOM: tl.constexpr,
    GRID: tl.constexpr,
    PRECISION: tl.constexpr,
    BIAS_STEP: tl.constexpr,
    ABSENT: tl.constexpr,
    NO_POINT: tl.constexpr,
    SCALE_BITS: tl.constexpr,
    LAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    value = tl.arange(0, ROOM)
    real = value < VALUES
    at = row * VALUES + value
    raised = tl.load(logits + at, real, 0.0) * GRID + 0.5
    below = tl.floor(raised)
    point = below.to(tl.int64)
    border = point + (raised - below > 0.5).to(tl.int64)  # where there is a note, it is near
    note = tl.load(notes + at, real, -1).to(tl.int64)
    point = tl.where(note < 0, point, border - 1 + note)
    bias = tl.load(biases + at, real, ABSENT).to(tl.int64)
    point = tl.where(bias == ABSENT, NO_POINT, point + BIAS_STEP * bias)
    occurs = real & (point != NO_POINT)
    most = tl.max(tl.where(real, point, NO_POINT), 0)
    depth = tl.minimum(tl.maximum(most - point, 0), LAST)  # whatever they are: NaN is told later
    weight = tl.where(occurs, tl.load(table + depth), 0)
    total = tl.maximum(tl.sum(weight, 0), 1)
    scale = (tl.full((), (1 << PRECISION) - VALUES, tl.int64) << SCALE_BITS) // total
    share = tl.where(occurs, ((weight * scale) >> SCALE_BITS) + 1, 0)
    end = tl.cumsum(share, 0)
    end = tl.where(end == tl.sum(share, 0), 1 << PRECISION, end)
    begin = row * (VALUES + 1)
    tl.store(out + begin, 0)
    tl.store(out + begin + 1 + value, end, real)
