"""The choice of a value on the device is the choice."""

from types import SimpleNamespace

import pytest
import torch
from kernel_device import KERNEL_DEVICE, moments_of, on_a_gpu

from axial.sampling import levels as lines


@pytest.mark.kernel
@pytest.mark.parametrize("batch", [5, *on_a_gpu([1500])])
def test_the_choice_kernel_is_the_choice(batch):
    from axial.sampling import inner_step_triton as kernels

    torch.manual_seed(0)
    length, values, width = 4, 300, 1100
    at = SimpleNamespace(
        noise=torch.randn(batch, length, values, device=KERNEL_DEVICE, dtype=torch.float64),
        table=torch.randn(values, width, device=KERNEL_DEVICE),
        base=torch.randn(batch, length, width, device=KERNEL_DEVICE),
        line=torch.full((batch, length), -1, device=KERNEL_DEVICE),
        x=torch.full((batch, width), torch.nan, device=KERNEL_DEVICE),
        moments=torch.full((batch, 1, 2), torch.nan, device=KERNEL_DEVICE),
        place=torch.zeros((), dtype=torch.int32, device=KERNEL_DEVICE),
        chosen=torch.zeros((), dtype=torch.int32, device=KERNEL_DEVICE),
        broken=torch.zeros((), dtype=torch.int32, device=KERNEL_DEVICE),
    )
    at.line[1, 2], at.line[3, 0] = 7, 299
    theirs = at.line.clone()
    for j in range(length):
        at.logits = torch.randn(batch, values, device=KERNEL_DEVICE)
        wanted = lines.choose(at.logits, at.noise, theirs, at.table, at.base, j)
        kernels.choose(at)
        torch.testing.assert_close(at.x, wanted)
        torch.testing.assert_close(at.moments, moments_of(wanted), rtol=1e-4, atol=1e-3)
        assert torch.equal(at.line, theirs)
        assert (at.place, at.chosen, at.broken) == (j + 1, 0, 0)
    assert at.line[1, 2] == 7 and at.line[3, 0] == 299
    for strange in (torch.nan, torch.inf, -torch.inf):
        at.place.zero_()
        at.broken.zero_()
        at.logits[3, 299] = strange
        kernels.choose(at)
        assert at.broken == 1
