"""A step that is recorded is the step: places as tensors, one CUDA graph for each kind of step."""

import pytest
import torch
from pretend_cuda import pretend_cuda
from test_families import ALL, name, speaking

from axial.models.families import new_model
from axial.models.protocol import evaluating
from axial.models.stepping import Stepper
from axial.presets import preset_named

PRESETS = (
    "full-cifar10-7m",
    "strided-cifar10-15m",
    "local-1d-cifar10-12m",
    "local-2d-cifar10-12m",
    "gated-pixelcnn-cifar10-41m",
    "pixelcnnpp-cifar10-98m",
    "blocks-cifar10-45m",
)


def stepped(model, x, ranks, *, recorded=True):
    """Logits of the first elements, and how many graphs they took."""
    steps = model.steps(x)
    if not recorded:
        steps.call = Stepper(torch.device("cpu"), 0)  # as there: each step is launched
    with evaluating(model):
        logits = torch.stack([steps.logits(rank).clone() for rank in range(ranks)], 1)
    return logits, len(steps.call.graphs)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_recorded_steps_give_the_logits_of_the_whole_pass(config, monkeypatch):
    model = speaking(config)
    x = torch.randint(config.values, (2, *config.axes, config.channels))
    with torch.no_grad():
        whole = model(x).flatten(1, -2)[:, model.order()]
    with pretend_cuda(monkeypatch):
        far = model.cuda(), x.cuda(), whole.shape[1]
        (recorded, graphs), (launched, none) = stepped(*far), stepped(*far, recorded=False)
    for logits in (recorded, launched):
        torch.testing.assert_close(logits.cpu(), whole, atol=1e-12, rtol=0)
    assert graphs and not none


def test_a_part_is_recorded_once_for_all_places(monkeypatch):
    calls = []

    def add(place, more):
        calls.append(more)
        return numbers[place] + more

    near = Stepper(torch.device("cpu"), 5)
    numbers = torch.arange(5) * 10
    assert [near(add, place, fixed=(1,)).item() for place in range(5)] == [1, 11, 21, 31, 41]
    assert calls == 5 * [1] and not near.graphs
    calls.clear()
    with pretend_cuda(monkeypatch):
        numbers, far = numbers.cuda(), Stepper(torch.device("cuda"), 5)
        found = [far(add, place, fixed=(1,)).item() for place in (3, 0, 4)]
        assert found == [31, 1, 41] and far(add, 2, fixed=(5,)).item() == 25
    assert len(far.graphs) == 2 and len(calls) == 4  # each called once before it is recorded


@pytest.mark.gpu
@pytest.mark.parametrize("preset", PRESETS)
def test_recorded_steps_are_the_steps_at_the_size_of_a_preset(preset):
    config = preset_named(preset)().model
    torch.manual_seed(0)
    model = new_model(config).cuda().eval()
    for parameter in model.parameters():  # new models know nothing: all logits would be equal
        parameter.data += 0.02 * torch.randn_like(parameter)
    x = torch.randint(config.values, (4, *config.axes, config.channels), device="cuda")
    recorded, graphs = stepped(model, x, 700)
    launched, none = stepped(model, x, 700, recorded=False)
    assert graphs <= 64 and not none
    torch.testing.assert_close(recorded, launched, atol=1e-4, rtol=1e-4)
