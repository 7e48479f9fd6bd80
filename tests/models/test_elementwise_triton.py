"""The norm and the nonlinearity in one pass are those of the layers, in every precision."""

import pytest
import torch
from kernel_device import KERNEL_DEVICE

WITHIN = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}
"""What rounding the result may cost, and rounding inside."""


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(KERNEL_DEVICE)


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("shape", [(3, 5, 40), (1, 1), (9, 600), (0, 8)])
def test_the_norm_is_torchs(shape, dtype):
    from axial.models import elementwise_triton as kernels

    x, (weight, bias) = (
        (3 * numbers(*shape) + 2).to(dtype),
        numbers(shape[-1], 2, seed=1).to(dtype).T,
    )
    for gain, shift in ((weight, bias), (None, None)):
        exact = (None if t is None else t.double() for t in (gain, shift))
        wanted = torch.layer_norm(x.double(), shape[-1:], *exact, 1e-5)
        found = kernels.normalize(x, gain, shift, 1e-5)
        assert found.dtype == dtype
        how = {"rtol": WITHIN[dtype], "atol": WITHIN[dtype]}
        torch.testing.assert_close(found.double(), wanted, **how)


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", WITHIN)
def test_the_nonlinearity_is_that_of_the_layers(dtype):
    from axial.models import elementwise_triton as kernels

    ends = torch.tensor([-1e4, -700.0, 0, 700, 1e4], dtype=torch.float64)
    x = torch.cat([numbers(5995), ends.to(KERNEL_DEVICE)]).view(1000, 6)[:, 1::2].to(dtype)
    exact = x.double()
    found = kernels.gate(x, 1.702)
    assert found.dtype == dtype
    how = {"rtol": WITHIN[dtype], "atol": WITHIN[dtype]}
    torch.testing.assert_close(found.double(), exact * torch.sigmoid(1.702 * exact), **how)
