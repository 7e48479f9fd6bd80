"""Every family beside the axial one: who sees whom, that it is a distribution, its caches."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import axial
from axial import ConfigError, bits, draw
from axial.models.cost import forward_flops
from axial.models.families import new_model
from axial.models.sequence_config import FullConfig, StridedConfig

SMALL = {"values": 3, "width": 8, "heads": 2, "mlp_ratio": 2, "qk_ratio": 0.5}
FULL = [FullConfig(axes=axes, channels=2, layers=2, **SMALL) for axes in [(4,), (2, 3), (2, 2, 2)]]
STRIDED = [
    StridedConfig(axes=axes, channels=2, layers=4, stride=stride, **SMALL)
    for axes, stride in [((6,), 3), ((3, 4), None), ((2, 2, 3), 4), ((3, 2), 2)]
]
ALL = FULL + STRIDED


def name(config):
    stride = f"-{config.stride}" if isinstance(config, StridedConfig) else ""
    return f"{type(config).__name__}-{'x'.join(map(str, config.axes))}{stride}"


def speaking(config, seed=0):
    """A model in float64 in which every layer speaks."""
    torch.manual_seed(seed)
    model = new_model(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return model


def see(config, layer):
    """The mask of a layer, by the formulas of the papers."""
    i, j = np.indices((config.length, config.length))
    stride = getattr(config, "stride", None)
    earlier = j <= i
    return {
        "full": lambda: earlier,
        "local": lambda: earlier & (i - j < stride),
        "strided": lambda: earlier & ((i - j) % stride == 0),
    }[config.pattern(layer)]()


def reach(config, layers):
    """What each prediction depends on after some layers: position i carries element i - 1."""
    seen = np.eye(config.length, dtype=bool)
    for layer in range(layers):
        seen = (see(config, layer).astype(int) @ seen.astype(int)) > 0
    return np.pad(seen[:, 1:], ((0, 0), (0, 1)))


def dependence(model):
    """Which logits move with which element, in the order of prediction."""
    config = model.config
    x = torch.randint(config.values, (1, *config.axes, config.channels))
    order = model.order()
    before = model(x).flatten(1, -2)[0][order]
    found = np.zeros((len(order), len(order)), bool)
    for rank, place in enumerate(order.tolist()):
        changed = x.clone()
        changed.view(-1)[place] = (changed.view(-1)[place] + 1) % config.values
        moved = (model(changed).flatten(1, -2)[0][order] - before).abs().amax(-1) > 1e-12
        found[:, rank] = moved.numpy()
    return found


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_prediction_depends_on_exactly_what_the_masks_promise(config, layers):
    if layers > config.layers:
        layers = config.layers
    config = dataclasses.replace(config, layers=layers)
    assert np.array_equal(dependence(speaking(config)), reach(config, layers))


@pytest.mark.parametrize("config", STRIDED, ids=name)
def test_two_layers_of_different_patterns_see_everything_before(config):
    for cycle in (("strided", "local"), ("local", "strided")):
        both = dataclasses.replace(config, layers=2, cycle=cycle)
        every = np.tri(config.length, k=-1, dtype=bool)
        assert np.array_equal(reach(both, 2), every)


@pytest.mark.parametrize("config", [FULL[0], STRIDED[0]], ids=name)
def test_probabilities_of_all_pictures_add_up_to_one(config):
    config = dataclasses.replace(config, axes=(3,), channels=2, classes=2)
    config = dataclasses.replace(config, stride=2) if isinstance(config, StridedConfig) else config
    model = speaking(config)
    every = torch.tensor(list(itertools.product(range(3), repeat=6))).view(-1, 3, 2)
    label = torch.ones(len(every), dtype=torch.long)
    assert abs(float((2.0 ** -bits(model, every, label)).sum()) - 1) < 1e-12


@pytest.mark.parametrize("config", ALL, ids=name)
def test_cached_drawing_equals_naive(config):
    config = dataclasses.replace(config, classes=2)
    model = speaking(config)
    context = torch.randn(3, *config.axes, config.width, dtype=torch.float64)
    how = {"seed": 3, "label": torch.tensor([0, 1, 1]), "context": context}
    x = draw(model, 3, **how)
    assert torch.equal(x, draw(model, 3, method="naive", **how))
    given = torch.where(torch.rand(x.shape) < 0.4, x, -1)
    again = draw(model, 3, given=given, **how)
    assert torch.equal(again, draw(model, 3, given=given, method="naive", **how))
    assert torch.equal(torch.stack(list(axial.stream(model, 3, **how)))[-1], x)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_steps_give_the_logits_of_the_whole_pass(config):
    model = speaking(config)
    x = torch.randint(config.values, (2, *config.axes, config.channels))
    whole = model(x).flatten(1, -2)
    with torch.no_grad():
        steps = model.steps(x)
        stepped = torch.stack([steps.logits(rank) for rank in range(config.length)], 1)
    torch.testing.assert_close(stepped, whole[:, model.order()], atol=1e-12, rtol=0)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_an_untrained_model_knows_nothing_and_examples_do_not_mix(config):
    model = new_model(config).double()
    x = torch.randint(config.values, (2, *config.axes, config.channels))
    assert (axial.bits_per_dim(model, x) - np.log2(3)).abs().max() < 1e-12
    model = speaking(config)
    changed = torch.cat([x[:1], (x[1:] + 1) % 3])
    assert torch.equal(model(x)[0], model(changed)[0])


@pytest.mark.parametrize("config", ALL, ids=name)
def test_costs_are_counted_from_the_configuration(config):
    config = dataclasses.replace(config, classes=3)
    model = speaking(config)
    assert config.parameters() == sum(p.numel() for p in model.parameters())
    x = torch.zeros(1, *config.axes, config.channels, dtype=torch.long)
    with FlopCounterMode(display=False) as counted:
        model.train()(x, torch.tensor([0]))
    assert forward_flops(config) == counted.get_total_flops()
    assert sum(see(config, 0).ravel()) == config.pairs(0)


@pytest.mark.parametrize("config", [FULL[1], STRIDED[1]], ids=name)
def test_a_saved_model_is_loaded_as_its_family(config, tmp_path):
    model = speaking(config)
    axial.save(model, tmp_path / "model")
    found = axial.load(tmp_path / "model")
    assert type(found) is type(model) and found.config == config
    assert axial.fingerprint(found) == axial.fingerprint(model)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (StridedConfig, {"stride": 5}, "stride is 5, which does not divide the 12 elements"),
        (StridedConfig, {"stride": 0}, "stride is 0"),
        (StridedConfig, {"cycle": ()}, r"cycle is \(\): name the pattern"),
        (StridedConfig, {"cycle": ("diagonal",)}, "cycle is 'diagonal': use one of full, strided"),
        (FullConfig, {"qk_ratio": 0.4}, "qk_ratio is 0.4: queries of 3.2 features"),
        (FullConfig, {"heads": 3}, "width 8 does not split into 3 heads"),
        (FullConfig, {"given_channels": 1}, "given_channels is 1, which a sequence of elements"),
    ],
)
def test_what_cannot_work_is_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**{"axes": (2, 3), "channels": 2, "layers": 1} | SMALL | settings)


def test_given_steps_are_known_to_all_and_carry_no_bits():
    config = dataclasses.replace(FULL[1], given_steps=1)
    model = speaking(config)
    x = torch.randint(3, (2, 2, 3, 2))
    assert not model(x)[:, 0].any() and config.elements == 6
    given = torch.where(torch.arange(2).view(1, 2, 1, 1) == 0, x, -1)
    drawn = draw(model, 2, given=given)
    assert torch.equal(drawn[:, 0], x[:, 0])
    assert torch.equal(drawn, draw(model, 2, given=given, method="naive"))
