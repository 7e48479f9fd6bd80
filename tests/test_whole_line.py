"""The prototype of benchmarks/whole_line.py draws what the inner level draws."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from kernel_device import KERNEL_DEVICE

from axial import AxialTransformer, ModelConfig
from axial.sampling.levels import InnerLevel

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))


@pytest.mark.kernel
@pytest.mark.parametrize("members", [1, 3])
def test_a_line_in_one_kernel_is_the_line(members):
    whole_line = importlib.import_module("whole_line")
    torch.manual_seed(members)
    config = ModelConfig(
        axes=(4,),
        width=32,
        heads=2,
        encoder_layers=0,
        decoder_layers=(2,),
        mlp_ratio=2,
        values=20,
    )
    model = AxialTransformer(config).to(KERNEL_DEVICE).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    batch = 18
    line = torch.full((batch, 4), -1, device=KERNEL_DEVICE)
    line[3, 2], line[17, 0] = 7, 19
    base = torch.randn(batch, 4, config.width, device=KERNEL_DEVICE)
    noise = torch.randn(batch, 4, config.values, dtype=torch.float64, device=KERNEL_DEVICE)
    level, wanted = InnerLevel(model, batch), line.clone()
    assert level.draw(wanted, base, 0, noise)
    sharing = whole_line.Sharing(members=members, columns=16, depth=16, steps=2)
    found = whole_line.WholeLine(model, batch, sharing)
    ways = [found.fill_by_parts]  # an interpreter runs one program after the other
    ways += [found.fill] if members == 1 or KERNEL_DEVICE == "cuda" else []
    for fill in ways:
        drawn = line.clone()
        fill(drawn, base, noise)
        assert torch.equal(drawn, wanted) and not found.broken
        torch.testing.assert_close(found.logits, level.logits[-1], rtol=1e-4, atol=1e-4)
    found.weights[-1][0, 3] = torch.inf
    found.fill_by_parts(line.clone(), base, noise)
    assert found.broken
