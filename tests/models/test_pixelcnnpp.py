"""PixelCNN++: who sees whom, its start, its bits without all values, its caches."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from test_families import dependence, pixelcnnpp_reach, speaking
from torch.utils.flop_counter import FlopCounterMode

import axial
from axial import ConfigError, bits
from axial.checkpoints.pixelcnnpp import from_pixelcnnpp
from axial.models.families import new_model
from axial.models.pixelcnn_config import PixelCnnPpConfig
from axial.models.pixelcnnpp_layers import NormedConv
from axial.models.protocol import Model
from axial.presets import PRESETS

RECORDED = Path(__file__).parents[1] / "parity" / "rivals" / "pixelcnnpp.npz"
TINY = PixelCnnPpConfig(axes=(4, 8), channels=3, width=4, layers=1, components=2)


def test_pixels_depend_on_those_that_were_recorded():
    found = dict(np.load(RECORDED, allow_pickle=False))
    weights = {name[2:]: value for name, value in found.items() if name.startswith("w/")}
    model = from_pixelcnnpp(weights, axes=(8, 8)).double()
    of_pixels = dependence(model).reshape(64, 3, 64, 3).any((1, 3)) & ~np.eye(64, dtype=bool)
    assert np.array_equal(of_pixels, found["depends"])
    assert np.array_equal(pixelcnnpp_reach((8, 8), 1), found["depends"])


def test_a_pixel_of_the_published_size_sees_all_but_three_in_a_thousand_before_it():
    assert pixelcnnpp_reach((32, 32), 5).sum() == 522_336


def test_what_cannot_be_enumerated_adds_up_element_by_element():
    """256 ** 16 pictures cannot be added up; those that differ in the last elements can.

    That no prediction depends on itself or on what follows is tested beside; with it this is what
    makes the sum over all pictures one.
    """
    model = speaking(dataclasses.replace(TINY, axes=(4, 4), channels=2, classes=2))
    x = torch.randint(256, (1, 4, 4, 2)).expand(256, -1, -1, -1).clone()
    x[:, -1, -1, -1] = torch.arange(256)
    label = torch.ones(256, dtype=torch.long)
    each = axial.element_bits(model, x, label)
    before = each[0].sum() - each[0, -1, -1, -1]
    assert abs(float((2.0 ** (before - bits(model, x, label))).sum()) - 1) < 1e-12
    assert model(x[:3], label[:3]).logsumexp(-1).abs().max() < 1e-12


def test_rows_that_are_equal_so_far_have_equal_logits():
    """Nothing is normalised over positions or examples."""
    model = speaking(dataclasses.replace(TINY, axes=(8, 8)))
    x = torch.randint(256, (2, 8, 8, 3))
    x[1, :4] = x[0, :4]
    logits = model(x)
    assert torch.equal(logits[0, :4], logits[1, :4])


def test_training_scores_what_evaluation_scores():
    config = dataclasses.replace(TINY, classes=2, given_steps=1)
    model = speaking(config)
    x, label = torch.randint(256, (3, 4, 8, 3)), torch.tensor([0, 1, 1])
    number = torch.zeros(3, dtype=torch.long)
    found = model.slice_bits(x, number, label)
    wanted = Model.slice_bits(model, x, number, label)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert abs(float(found.detach()) - float(axial.bits_per_dim(model, x, label).mean())) < 1e-10
    found.backward()
    again = model.slice_bits(x.to(torch.uint8), number, label.int(), checkpointing=True)
    gradients = torch.autograd.grad(again, [*model.parameters()])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-12, rtol=1e-9)
        assert gradient.abs().max() > 0


def test_a_start_from_data_makes_what_leaves_each_convolution_standard():
    torch.manual_seed(0)
    model = new_model(dataclasses.replace(TINY, axes=(8, 8), width=6, layers=2)).double()
    x = torch.randint(256, (16, 8, 8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.start_from(x)
    seen = {}
    for name, conv in model.named_modules():
        if isinstance(conv, NormedConv):
            conv.register_forward_hook(lambda *call, name=name: seen.update({name: call[-1]}))
    model(x)
    for name, out in seen.items():
        start = 0.1 if name.endswith("second") else 1.0
        assert out.mean((0, 2, 3)).abs().max() < 1e-8 * start
        assert (out.std((0, 2, 3), correction=0) / start - 1).abs().max() < 1e-6
    assert len(seen) == len([n for n in before if n.endswith(".g")])
    kept = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert kept == {name for name in before if name.endswith(".v")}


def test_a_start_does_not_blow_up_what_the_data_leaves_constant():
    """At a quarter of 4 x 4 one pixel is left, and its rows above are nothing."""
    for x in (torch.randint(4, (16, 4, 4, 3)), torch.zeros(16, 4, 4, 3, dtype=torch.uint8)):
        torch.manual_seed(0)
        model = new_model(dataclasses.replace(TINY, axes=(4, 4), layers=3))
        model.start_from(x)
        assert float(axial.bits_per_dim(model, x).max()) < 100
        exact = model(x)
        torch.testing.assert_close(exact, model.double()(x).float(), atol=0.01, rtol=0.01)


def test_autocast_leaves_the_mixture_its_precision():
    torch.manual_seed(0)
    model = new_model(TINY).eval()
    x = torch.randint(256, (2, 4, 8, 3))
    model.start_from(x)
    kinds = []
    for conv in (model.to_mixture, model.layers[0].u.first):
        conv.register_forward_hook(lambda *call: kinds.append(call[-1].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        coarse = model(x)
    assert kinds == [torch.bfloat16, torch.float32]
    assert coarse.dtype == torch.float32 and coarse.logsumexp(-1).abs().max() < 1e-5
    assert not torch.equal(coarse, model(x)) and (coarse - model(x)).abs().mean() < 0.2
    half = new_model(TINY).bfloat16().eval()
    assert half(x).logsumexp(-1).abs().max() < 1e-5


@pytest.mark.parametrize("axes", [(8, 12), (4, 4)])
def test_drawing_keeps_the_numbers_it_counts(axes):
    config = dataclasses.replace(TINY, axes=axes, layers=2)
    steps = new_model(config).steps(torch.zeros(3, *axes, 3, dtype=torch.long))
    assert sum(cache.numel() for cache in steps.caches) == 3 * config.cache_floats


def test_a_drawing_costs_the_arithmetic_of_scoring_most_of_it_by_rows():
    config, counts = dataclasses.replace(TINY, axes=(8, 12), layers=2), []
    for ranks in (range(8 * 12 * 3), range(0, 8 * 12 * 3, 12 * 3)):  # all, or what opens a row
        steps = new_model(config).steps(torch.zeros(1, 8, 12, 3, dtype=torch.long))
        with torch.no_grad(), FlopCounterMode(display=False) as counted:
            for rank in ranks:
                steps.logits(rank)
        counts.append(counted.get_total_flops() / config.pass_flops())
    assert 0.97 < counts[0] < 1.0 and counts[1] > 0.75


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": 17}, "values is 17: PixelCNN[+][+] mixes logistics cut into 256 values"),
        ({"axes": (6, 8)}, r"axes \(6, 8\): .* sides must be multiples of 4"),
        ({"axes": (8, 10)}, "sides must be multiples of 4"),
        ({"axes": (8,)}, "a PixelCNN is for pictures"),
        ({"axes": (4, 4, 4)}, "a PixelCNN is for pictures"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": 5000}, "number of layers is 5000"),
        ({"components": 0}, "components is 0"),
        ({"components": "ten"}, "components is 'ten'"),
        ({"given_channels": 1}, "given_channels is 1, which a sequence of pixels cannot show"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        dataclasses.replace(TINY, **settings)
    assert "\n" not in str(refusal.value)


def test_the_published_size_and_that_of_our_cost():
    published = PRESETS["pixelcnnpp-cifar10"]()
    assert round(published.model.parameters() / 1e6, 1) == 53.7
    assert round(published.model.pass_flops() / 1e9, 1) == 48.7
    ours, equal = (PRESETS[n]().model for n in ("cifar10", "pixelcnnpp-cifar10-98m"))
    ratio = equal.pass_flops() / (len(ours.slices) * ours.pass_flops())
    assert abs(ratio - 1) < 0.01
    text = published.model.outline()
    assert "8 x 8: 5 gated residual blocks a stream\n" in text and "mixture of 10" in text
