"""Attention along short lines on a GPU: what the plain path gives, forward and back."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils import prune

from axial import AxialAttention
from axial.models import attention
from axial.models.line_attention import attend_lines, is_supported

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
    torch.nn.init.normal_(layer.to_qkv.bias)
    x, towards = torch.randn(2, 3, *axes, width, device="cuda", dtype=torch.bfloat16)
    exact = outcome(copy.deepcopy(layer).double(), x.double(), towards)
    taken = []
    monkeypatch.setattr(
        attention, "is_supported", lambda *x: taken.append(is_supported(*x)) or taken[-1]
    )
    ours = outcome(layer, x, towards)
    assert taken == [True]
    monkeypatch.setattr(attention, "is_supported", lambda *x: False)
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
    bias = torch.randn(96, device="cuda")
    before, after = (attend_lines(t, bias, True) for t in (qkv, other))
    assert torch.equal(before[:, :cut], after[:, :cut])
    assert not torch.equal(before[:, cut:], after[:, cut:])


def test_a_compiled_layer_gives_the_same():
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
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


def test_a_projection_that_was_changed_is_called_as_it_is():
    layer = AxialAttention(32, 2, 0, causal=False).cuda().bfloat16()
    x = torch.randn(2, 4, 32, device="cuda", dtype=torch.bfloat16)
    layer.to_qkv.register_forward_hook(lambda module, inputs, out: out * 0)
    torch.testing.assert_close(layer(x), layer.to_out.bias.expand_as(x), rtol=0, atol=0)


def test_a_pruned_projection_learns():
    layer = AxialAttention(32, 2, 0, causal=False).cuda().bfloat16()
    prune.random_unstructured(layer.to_qkv, "weight", amount=0.5)
    for _ in range(2):  # its weight is computed anew by each call
        layer(torch.randn(2, 4, 32, device="cuda", dtype=torch.bfloat16)).sum().backward()


def test_no_places_at_all_have_no_gradient():
    qkv = torch.empty(2, 0, 3, 2, 3, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.ones(48, device="cuda", requires_grad=True)
    attend_lines(qkv, bias, True).sum().backward()
    assert qkv.grad.shape == qkv.shape and torch.equal(bias.grad, torch.zeros_like(bias))


def test_a_projection_that_is_no_plain_array_is_taken_too():
    """As where another layer made queries, keys and values in an order of its own."""
    torch.manual_seed(0)
    strided = torch.randn(3, 2, 9, 4, 2, 16, device="cuda").bfloat16().permute(1, 2, 3, 4, 0, 5)
    strided.requires_grad_()
    bias = torch.randn(96, device="cuda")
    plain = strided.detach().contiguous().requires_grad_()
    for t in (strided, plain):
        attend_lines(t, bias, False).transpose(1, 2).square().sum().backward()
    assert torch.equal(strided.grad, plain.grad)


def test_what_it_cannot_hold_it_does_not_take():
    x = torch.empty(1, dtype=torch.bfloat16, device="cuda")
    assert is_supported(x, 64, 128) and is_supported(x.half(), 1, 1)
    assert not is_supported(x, 65, 128) and not is_supported(x, 64, 129)
    assert not is_supported(x.float(), 64, 128) and not is_supported(x.cpu(), 64, 128)
    with torch.autocast("cuda", torch.bfloat16):
        assert is_supported(x.float(), 64, 128)
