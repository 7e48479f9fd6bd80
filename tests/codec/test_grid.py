"""Integers from the grid on: frequencies that add up, cost next to nothing, and never surprise."""

import decimal
import math
from fractions import Fraction

import pytest
import torch

from axial.codec import grid

CPU = torch.device("cpu")


def exact_exp(d, terms=60):
    """exp(-d / 64) * 2 ** 30 as a fraction, by its series, with an error far below one unit."""
    x, total, term = Fraction(d, 64), Fraction(0), Fraction(1)
    for k in range(1, terms + 4 * d // 64):
        total += term
        term = term * x / k
    return Fraction(1 << 30) / total


def test_the_table_is_exp_rounded_to_whole_numbers():
    table = grid.exp_table(CPU).tolist()
    for d in [0, 1, 2, 63, 64, 65, 500, 1000, len(table) - 2, len(table) - 1]:
        assert abs(table[d] - exact_exp(d)) <= Fraction(1, 2), d
    assert table[-1] == 0 < table[-2] and table == sorted(table, reverse=True)


def test_the_table_is_the_same_however_the_program_rounds_its_decimals():
    wanted = grid.exp_table.__wrapped__(CPU)
    with decimal.localcontext(rounding=decimal.ROUND_UP, prec=5, Emax=9, Emin=-9):
        assert torch.equal(grid.exp_table.__wrapped__(CPU), wanted)


@pytest.mark.parametrize("values", [2, 3, 256, 1 << 16])
@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0, 5000.0])
def test_every_value_has_a_share_and_all_of_them_make_a_whole(values, spread):
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(5, values, generator=generator, dtype=torch.float64)
    bounds = grid.bounds(grid.to_grid(logits).points)
    assert (bounds[:, 0] == 0).all() and (bounds[:, -1] == 1 << grid.PRECISION).all()
    assert (bounds.diff(dim=-1) >= 1).all()


def test_the_grid_costs_less_than_a_ten_thousandth_of_a_bit():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 256, generator=generator, dtype=torch.float64)
    share = grid.bounds(grid.to_grid(logits).points).diff(dim=-1).double() / 2**grid.PRECISION
    p = logits.softmax(-1)
    lost = (p * (p / share).log()).sum(-1).mean() / math.log(2)
    assert 0 <= lost < 1e-4


def test_points_are_the_nearest_and_what_is_near_a_border_is_told():
    on, off = (3.5 / 64, -7.5 / 64), (3.4 / 64, -7.6 / 64, 0.0)
    logits = torch.tensor([*on, *(b + 1e-10 for b in on), *off], dtype=torch.float64)
    points, border, near = grid.to_grid(logits)
    assert near.tolist() == [True] * 4 + [False] * 3
    assert border[:4].tolist() == [4, -7, 4, -7]
    assert points[4:].tolist() == [3, -8, 0]


def test_logits_far_below_the_largest_need_no_note_of_their_rounding():
    points = torch.tensor([[0, -10, -(len(grid.exp_table(CPU)) + 1)]])
    assert grid.matters(points).tolist() == [[True, True, False]]
    moved = points + torch.tensor([[0, 0, 1]])
    assert torch.equal(grid.bounds(points), grid.bounds(moved))


def test_logits_that_are_no_numbers_give_shares_all_the_same():
    logits = torch.tensor([[math.nan, 0.0, 1.0], [math.inf, -math.inf, 0.0]], dtype=torch.float64)
    assert grid.bounds(grid.to_grid(logits).points).shape == (2, 4)
