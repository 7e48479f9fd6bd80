"""Reading the lanes of rANS streams in one CUDA kernel: a program takes its stream's lanes in turn.

b tiles, g groups, w words that a line may take, v values.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.codec import grid, rans
from axial.system.devices import launching_on


def read_lanes(
    state: Tensor, taken: Tensor, words: Tensor, bounds: Tensor, wanted: Tensor
) -> Tensor:
    """What `device_reader.read_lanes_plainly` does."""
    values, out = bounds.shape[1] - 1, torch.empty_like(bounds[:, 0])
    with launching_on(bounds.device):
        _read_lanes[(len(state),)](
            state,
            taken,
            words,
            bounds.contiguous(),
            wanted.contiguous(),
            out,
            words.shape[1],
            LANES=len(bounds) // len(state),
            VALUES=values,
            ROOM=triton.next_power_of_2(values),
            PRECISION=grid.PRECISION,
            SEAL_BITS=rans.SEAL_BITS,
            WORD_BITS=rans.WORD_BITS,
            num_warps=1,
        )
    return out


@triton.jit(do_not_specialize=["most_words"])
def _read_lanes(
    state,
    taken,
    words,
    bounds,
    wanted,
    out,
    most_words,
    LANES: tl.constexpr,
    VALUES: tl.constexpr,
    ROOM: tl.constexpr,
    PRECISION: tl.constexpr,
    SEAL_BITS: tl.constexpr,
    WORD_BITS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    now = tl.load(state + group)
    used = tl.load(taken + group)
    value = tl.arange(0, ROOM)
    for lane in range(LANES):
        row = group * LANES + lane
        # The end of a value's share; beyond the last one nothing begins.
        end = tl.load(
            bounds + row * (VALUES + 1) + 1 + value, mask=value < VALUES, other=1 << PRECISION
        )
        slot = now & ((1 << PRECISION) - 1)
        passed = end <= slot
        found = tl.sum(passed.to(tl.int64), 0)
        first = tl.max(tl.where(passed, end, 0), 0)
        last = tl.min(tl.where(passed, 1 << PRECISION, end), 0)
        after = (last - first) * (now >> PRECISION) + slot - first
        now = tl.where(tl.load(wanted + row) != 0, after, now)
        low = now < (1 << SEAL_BITS)
        word = tl.load(words + group * most_words + tl.minimum(used, most_words - 1))
        now = tl.where(low, (now << WORD_BITS) | word, now)
        used += low.to(tl.int64)
        tl.store(out + row, found)
    tl.store(state + group, now)
    tl.store(taken + group, used)
