"""Attention along short lines on a GPU: what the plain path gives, forward and back."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from axial import AxialAttention, attention
from axial.line_attention import attend_lines, serves

pytestmark = pytest.mark.gpu

GRIDS = [  # axis, axes, heads, width of a head
    (0, (5, 3), 2, 8),
    (1, (2, 20, 3), 1, 64),
    (0, (1, 4), 2, 16),
    (2, (2, 3, 33), 3, 24),
    (0, (32, 32), 8, 64),
    (1, (32, 32), 8, 64),
    (1, (4, 32), 2, 96),
    (0, (64, 3), 2, 128),
    (1, (7, 64), 2, 64),
]


def outcome(layer, x, towards):
    """The output, and the gradients of input and weights, in float64."""
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    whole = (out * towards.to(out.dtype)).sum()
    gradients = torch.autograd.grad(whole, [x, *layer.parameters()])
    return [t.double() for t in (out.detach(), *gradients)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("axis", "axes", "heads", "size"), GRIDS, ids=str)
def test_it_is_as_exact_as_the_plain_path(axis, axes, heads, size, causal, monkeypatch):
    torch.manual_seed(0)
    width = heads * size
    layer = AxialAttention(width, heads, axis, causal=causal).cuda().bfloat16()
    x, towards = torch.randn(2, 3, *axes, width, device="cuda", dtype=torch.bfloat16)
    exact = outcome(copy.deepcopy(layer).double(), x.double(), towards)
    taken = []
    monkeypatch.setattr(attention, "serves", lambda qkv: taken.append(serves(qkv)) or taken[-1])
    ours = outcome(layer, x, towards)
    assert taken == [True]
    monkeypatch.setattr(attention, "serves", lambda qkv: False)
    plain = outcome(layer, x, towards)
    for mine, theirs, wanted in zip(ours, plain, exact, strict=True):
        # A key's bias moves all scores of a query alike: its gradient is rounding and no more.
        off, usual = ((t - wanted).norm() / wanted.norm().clamp(min=1.0) for t in (mine, theirs))
        assert off <= 1.2 * usual + 1e-4


@pytest.mark.parametrize("length", [3, 32, 50])
def test_what_comes_later_changes_nothing_before_it(length):
    torch.manual_seed(0)
    qkv = torch.randn(2, length, 5, 2, 3, 16, device="cuda", dtype=torch.bfloat16)
    other = qkv.clone()
    cut = length // 2
    other[:, cut:] = torch.randn_like(other[:, cut:]) * 100
    before, after = (attend_lines(t, True) for t in (qkv, other))
    assert torch.equal(before[:, :cut], after[:, :cut])
    assert not torch.equal(before[:, cut:], after[:, cut:])


def test_a_compiled_layer_gives_the_same():
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_line_attention import compare_with_compiled
compare_with_compiled()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def compare_with_compiled():
    torch.manual_seed(0)
    layer = AxialAttention(64, 4, 0, causal=True).cuda()
    x = torch.randn(3, 20, 6, 64, device="cuda")
    towards = torch.randn_like(x)
    with torch.autocast("cuda", torch.bfloat16):
        eager = outcome(layer, x, towards)
        layer.compile(fullgraph=True)
        compiled = outcome(layer, x, towards)
    for one, other in zip(eager, compiled, strict=True):
        assert (one - other).norm() <= 1e-2 * one.norm().clamp(min=1.0)


def test_a_projection_that_is_no_plain_array_is_taken_too():
    """As where another layer made queries, keys and values in an order of its own."""
    torch.manual_seed(0)
    strided = torch.randn(3, 2, 9, 4, 2, 16, device="cuda").bfloat16().permute(1, 2, 3, 4, 0, 5)
    strided.requires_grad_()
    plain = strided.detach().contiguous().requires_grad_()
    for t in (strided, plain):
        attend_lines(t, False).transpose(1, 2).square().sum().backward()
    assert torch.equal(strided.grad, plain.grad)


def test_what_it_cannot_hold_it_does_not_take():
    def projection(length, size, dtype=torch.bfloat16, device="cuda"):
        return torch.empty(1, length, 1, 1, 3, size, dtype=dtype, device=device)

    assert serves(projection(64, 128))
    for wrong in (
        projection(65, 128),
        projection(64, 129),
        projection(64, 128, torch.float32),
        projection(64, 128, device="cpu"),
    ):
        assert not serves(wrong)
