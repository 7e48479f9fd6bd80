"""The kernels of attention along short lines: what plain products give, forward and back."""

import copy
import functools
import subprocess
import sys

import pytest
import torch
from kernel_device import KERNEL_DEVICE

from axial import AxialAttention
from axial.models import attention
from axial.models.line_attention import _usable_on


def plain(qkv, causal, scale=None):
    """The same of (r, l, f, n, 3, e) by products, in float64."""
    q, k, v = qkv.unbind(-2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("rlfne,rmfne->rfnlm", q, k) * scale
    if causal:
        later = torch.ones(scores.shape[-2:], device=qkv.device).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
    return torch.einsum("rfnlm,rmfne->rlfne", scores.softmax(-1), v)


@pytest.mark.kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 3, 2, 3, 8), (1, 20, 1, 2, 3, 33), (3, 1, 2, 1, 3, 16)])
def test_output_and_gradient_are_those_of_plain_products(shape, causal):
    from axial.models import line_attention_triton as kernels

    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(shape, generator=generator).to(KERNEL_DEVICE, torch.float16)
    exact = qkv.double().requires_grad_()
    wanted = plain(exact, causal)
    towards = torch.randn(wanted.shape, generator=generator).to(KERNEL_DEVICE, torch.float16)
    (slope,) = torch.autograd.grad(wanted, exact, towards.double())
    found = kernels.attend(qkv, causal)
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=2e-3, atol=2e-3)
    scaled = kernels.attend(qkv, causal, scale=1.0)
    torch.testing.assert_close(
        scaled.double(), plain(qkv.double(), causal, 1.0), rtol=2e-3, atol=2e-3
    )
    gradient, total = kernels.attend_gradient(towards, qkv, causal)
    torch.testing.assert_close(gradient.double(), slope, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(total.double(), slope.sum((0, 1, 2)).flatten(), rtol=5e-3, atol=2e-2)


@pytest.mark.kernel
@pytest.mark.parametrize("axis", [0, 1])
def test_where_nobody_differentiates_the_kernel_is_called_as_it_is(axis, monkeypatch):
    """Not as an operator, whose first call imports torch's compiler."""
    layer = AxialAttention(16, 2, axis, causal=True).to(KERNEL_DEVICE, torch.float16)
    x = torch.randn(2, 5, 3, 16, generator=torch.Generator().manual_seed(0))
    x = x.to(KERNEL_DEVICE, torch.float16)
    wanted = copy.deepcopy(layer).double()(x.double()).detach()
    monkeypatch.setattr(attention, "is_supported", lambda *x: True)
    monkeypatch.setattr(attention, "may_launch", lambda x: not torch.is_grad_enabled())
    monkeypatch.setattr(attention, "attend_lines", None)
    with torch.no_grad():
        found = layer(x)
    torch.testing.assert_close(found.double(), wanted, rtol=5e-3, atol=5e-3)
    with pytest.raises(TypeError, match="not callable"):
        layer(x)


def test_drawing_with_a_torch_for_cuda_does_not_import_the_compiler():
    script = (
        "import sys, torch; torch.version.cuda = '13.0'\n"
        "import axial; known = torch.zeros(1, 32, 32, 3).long()\n"
        "axial.draw(axial.load('cifar10'), 1, given=known)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_compiled_takes_over_whether_the_kernel_is_there():
    @functools.wraps(_usable_on)
    def marked(index):
        asked.append(index)
        return True

    asked: list[int] = []
    compiled = torch.compile(lambda x: x + marked(0), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2)) and len(asked) == 1
