"""The kernels of attention along short lines: what plain products give, forward and back."""

import pytest
import torch
from kernel_device import KERNEL_DEVICE


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
