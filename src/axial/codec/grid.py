"""Logits -> whole frequencies that every machine agrees on, and which logits lie near a border.

Two ways to compute the same logits agree to 1e-12 or so, never to the last bit. Rounded to a grid
they are equal, but for those that lie on the border between two of its points; whoever encodes
says which way these went. From the grid on there are only integers. docs/format.md has the proof.

v values.
"""

import functools
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int, Int8
from torch import Tensor

GRID = 64
"""Points of the grid from one logit to the next whole one."""
TOLERANCE = 1e-9
"""How far two computations of a logit may lie apart: a thousand times what was measured."""
LARGEST = 1 << 14
"""Beyond that float64 itself is too coarse for the tolerance."""
PRECISION = 24
"""The frequencies of all values of an element add up to 2 ** PRECISION."""
BIAS_STEP = GRID // 16
"""Points of the grid that a bias of 1 adds: a palette's biases are in sixteenths of a nat."""
ABSENT = -128
"""The bias of a value that does not occur."""
NO_POINT = -(1 << 40)
"""The point of a value that does not occur."""
_WEIGHT_BITS, SCALE_BITS = 30, 38


class Points(NamedTuple):
    """Logits on the grid."""

    points: Int[Tensor, "*grid v"]
    border: Int[Tensor, "*grid v"]
    """The upper of the two points that the nearest border lies between."""
    near: Bool[Tensor, "*grid v"]
    """Whether the logit is so near to that border that another machine may round otherwise."""


def to_grid(logits: Float64[Tensor, "*grid v"]) -> Points:
    """Round logits to the grid."""
    raised = logits * GRID + 0.5  # the first is exact, and so is a border: a whole number
    border = raised.round()
    near = (raised - border).abs() <= TOLERANCE * GRID
    return Points(raised.floor().long(), border.long(), near)


def biased(points: Int[Tensor, "*grid v"], bias: Int8[Tensor, "*grid v"]) -> Int[Tensor, "*grid v"]:
    """Points as a palette moves them; values that do not occur have none from here on."""
    return torch.where(bias == ABSENT, NO_POINT, points + BIAS_STEP * bias.long())


def weights(points: Int[Tensor, "*grid v"]) -> Int[Tensor, "*grid v"]:
    """Exponentials of the logits, relative to the largest, in units of 2 ** -30."""
    table = exp_table(points.device)
    depth = points.amax(-1, keepdim=True) - points
    return table[depth.clamp(0, len(table) - 1)]  # whatever they are: NaN is told later


def matters(points: Int[Tensor, "*grid v"]) -> Bool[Tensor, "*grid v"]:
    """Whether a point further up or down would change a weight."""
    last = len(exp_table(points.device))
    return points.amax(-1, keepdim=True) - points <= last


def bounds(points: Int[Tensor, "*grid v"]) -> Int[Tensor, "*grid v+1"]:
    """Where the share of each value of [0, 2 ** PRECISION) begins, and where the last one ends.

    Every value that occurs has at least one part of it, others have none. What rounding leaves over
    goes to the last that occurs.
    """
    occurs = (points != NO_POINT).long()
    weight = weights(points).mul_(occurs)
    values = weight.shape[-1]
    room = (1 << PRECISION) - values
    total = weight.sum(-1, keepdim=True).clamp_(min=1)  # no point is NaN's: that is told later
    scale = torch.full_like(total, room << SCALE_BITS).div_(total, rounding_mode="floor")
    ends = weight.mul_(scale).bitwise_right_shift_(SCALE_BITS).add_(occurs).cumsum(-1)
    ends = torch.where(ends == ends[..., -1:], 1 << PRECISION, ends)
    return torch.nn.functional.pad(ends, (1, 0))


@functools.cache
def exp_table(device: torch.device) -> Int[Tensor, " n"]:
    """Of d = 0, 1, 2 ... exp(-d / GRID) in units of 2 ** -30, rounded, up to the first 0.

    Made in decimal arithmetic, whose exp is rounded correctly by its standard.
    """
    found = [1 << _WEIGHT_BITS]
    with localcontext(Context(prec=40, rounding=ROUND_HALF_EVEN)):  # whatever the program's is
        while found[-1]:
            exact = (Decimal(-len(found)) / GRID).exp() * (1 << _WEIGHT_BITS)
            found.append(int(exact.to_integral_value()))
    return torch.tensor(found, device=device)
