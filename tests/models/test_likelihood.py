import math

import pytest
import torch
from conftest import (
    BUDGET,
    BULKY,
    ENUMERABLE,
    VARIANTS,
    config,
    every_image,
    random_input,
    takes_its_budget,
    tiny_model,
)

import axial.models.likelihood
from axial import AxialTransformer, bits, bits_per_dim, element_bits
from axial.errors import ConfigError
from axial.models.causal import given, order


@pytest.mark.parametrize("name", ENUMERABLE)
def test_the_probabilities_of_all_images_add_up_to_one(name):
    found = ENUMERABLE[name]
    model = tiny_model(found)
    known = given(found)
    x = every_image(found, ~known)
    example, label, context = random_input(found, 1)
    x[:, known] = example[:, known]
    label = None if label is None else label.expand(len(x))
    total = (-bits(model, x, label, context.expand(len(x), *context.shape[1:]))).exp2().sum()
    assert abs(total - 1) < 1e-12


@pytest.mark.parametrize("name", VARIANTS)
def test_bits_are_the_sum_of_single_conditional_terms(name):
    """Each term is computed with all later elements replaced by others."""
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, context = random_input(found, 2)
    known = given(found).flatten()
    free = torch.tensor([e for e in order(found).tolist() if not known[e]])
    hidden = x.flatten(1).repeat(len(free), 1, 1)
    for place in range(len(free)):
        hidden[place, :, free[place:]] += 1
    hidden = (hidden % found.values).view(-1, *x.shape[1:])
    label, context = (
        None if t is None else t.repeat(len(free), *(1,) * (t.ndim - 1)) for t in (label, context)
    )
    logits = model(hidden, label, context).flatten(1, -2).unflatten(0, (len(free), 2))
    terms = logits[torch.arange(len(free)), :, free].log_softmax(-1)  # (place, example, value)
    values = x.flatten(1)[:, free].T.unsqueeze(-1)
    total = -terms.gather(-1, values).sum((0, 2)) / math.log(2)
    found_bits = bits(model, x, *(None if t is None else t[:2] for t in (label, context)))
    torch.testing.assert_close(found_bits, total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", VARIANTS)
def test_any_batching_gives_the_same_bits(name, monkeypatch):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, context = random_input(found, 5)
    together = bits(model, x, label, context)
    each = axial.models.likelihood._WORKING_BYTES // axial.models.likelihood.planes_at_once(found)
    for planes in (1, 2, 7):
        monkeypatch.setattr(axial.models.likelihood, "_WORKING_BYTES", planes * (each + 1))
        torch.testing.assert_close(bits(model, x, label, context), together, rtol=0, atol=1e-10)
    where = element_bits(model, x, label, context)
    torch.testing.assert_close(where.flatten(1).sum(1), together, rtol=0, atol=1e-10)
    assert not where[:, given(found)].any() and (where[:, ~given(found)] > 0).all()
    torch.testing.assert_close(
        bits_per_dim(model, x, label, context), together / int((~given(found)).sum())
    )


def test_no_examples_have_no_bits():
    found = VARIANTS["2d-channels"]
    x = torch.zeros(0, *found.axes, found.channels, dtype=torch.long)
    assert bits(tiny_model(found), x).shape == (0,)


@pytest.mark.parametrize("name", ["2d-channels", "2d-rows"])
def test_memory_is_bounded_however_many_examples(name, monkeypatch):
    found = VARIANTS[name]
    model = tiny_model(found)
    seen = []
    model.norm.register_forward_hook(lambda module, args, out: seen.append(out.shape[0]))
    each = axial.models.likelihood._WORKING_BYTES // axial.models.likelihood.planes_at_once(found)
    monkeypatch.setattr(axial.models.likelihood, "_WORKING_BYTES", 4 * (each + 1))
    x, _, _ = random_input(found, 50)
    bits(model, x)
    assert max(seen) == 4 and sum(seen) == 50 * len(found.slices)
    seen.clear()
    element_bits(model, x, planes=3)
    assert max(seen) == 3 and sum(seen) == 50 * len(found.slices)


@pytest.mark.parametrize(
    "name", ["2d-channels", "2d-labels", "2d-given-channels", "2d-given-steps"]
)
def test_the_encoder_sees_one_example_for_all_where_nothing_is_known(name, monkeypatch):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, _ = random_input(found, 5)
    wanted = bits(model, x, label)
    seen = []
    model.encoder.convolution.register_forward_hook(lambda m, args, out: seen.append(len(out)))
    alone = [
        bits(model, x[i : i + 1], None if label is None else label[i : i + 1]) for i in range(5)
    ]
    torch.testing.assert_close(torch.cat(alone), wanted, rtol=0, atol=1e-11)
    for planes, parts in ((100, [5]), (2, [2, 2, 1])):
        seen.clear()
        likelihood = axial.models.likelihood
        monkeypatch.setattr(likelihood, "planes_at_once", lambda *_, planes=planes: planes)
        bits(model, x, label)
        first = [1] if name == "2d-channels" else parts
        assert seen == first + parts * (len(found.slices) - 1)


def test_the_estimate_of_memory_is_what_scoring_takes(monkeypatch):
    logits = config((8, 8), values=1000, width=8)
    monkeypatch.setattr(axial.models.likelihood, "_WORKING_BYTES", BUDGET)
    for found in (*BULKY, logits):
        model = tiny_model(found, dtype=torch.float32)
        planes = axial.models.likelihood.planes_at_once(found)
        x, _, _ = random_input(found, planes + 1)
        assert planes > 1
        assert takes_its_budget(lambda m=model, x=x: bits(m, x))


def test_lower_precision_is_still_a_distribution_and_close():
    found = ENUMERABLE["2d-channels"]
    exact = tiny_model(found)
    x = every_image(found, ~given(found))
    reference = bits(exact, x)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 0.5)):
        lower = bits(tiny_model(found, dtype=dtype), x)
        assert lower.dtype == torch.float64
        assert 0 < (lower - reference).abs().max() < tolerance
        # Every conditional is normalised in float64, so rounding makes another distribution.
        assert abs((-lower).exp2().sum() - 1) < 1e-9


def test_sixteen_bit_values_fit_sixteen_bit_models():
    found = config((2, 2), channels=2, values=65536)
    x = torch.tensor([0, 65535]).expand(1, 2, 2, 2)
    assert bits(tiny_model(found, dtype=torch.float16), x).isfinite().all()


@pytest.mark.parametrize("planes", [0, -1])
def test_a_number_of_planes_that_cannot_be_is_refused(planes):
    found = config((2, 2))
    x = torch.zeros(1, 2, 2, 1, dtype=torch.long)
    with pytest.raises(ConfigError, match=f"planes is {planes}"):
        element_bits(tiny_model(found), x, planes=planes)


def test_scoring_ignores_dropout_and_leaves_the_model_as_it_was():
    found = config((3, 4), dropout=0.5)
    model = tiny_model(found)
    x, _, _ = random_input(found, 3)
    calm = bits(model, x)
    model.train()
    assert torch.equal(bits(model, x), calm) and model.training


def test_a_given_frame_carries_no_bits_but_informs_the_rest():
    for name in ("2d-stacked-clip", "3d-colour-clip", "2d-rows-given", "2d-columns-given"):
        found = VARIANTS[name]
        model = tiny_model(found)
        x, label, context = random_input(found, 1)
        before = element_bits(model, x, label, context)
        changed = x.clone()
        changed[:, given(found)] = (changed[:, given(found)] + 1) % found.values
        after = element_bits(model, changed, label, context)
        assert not after[:, given(found)].any()
        assert (before != after)[:, ~given(found)].all()


def test_how_a_given_frame_would_be_scored_changes_nothing():
    found = VARIANTS["3d-colour-clip"]
    model = tiny_model(found)
    x, _, _ = random_input(found, 2)
    calm, logits = element_bits(model, x), model(x)
    channel = torch.tensor([0, 2])
    some = model.channel_logits(x, channel)

    def scramble(layer, inputs, out):
        return torch.cat([torch.randn_like(out[:, :1]), out[:, 1:]], 1)

    model.to_logits.register_forward_hook(scramble)
    assert torch.equal(element_bits(model, x), calm) and torch.equal(model(x), logits)
    assert torch.equal(model.channel_logits(x, channel), some)
    stacked = tiny_model(VARIANTS["2d-stacked-clip"])
    scored = []
    stacked.to_logits.register_forward_hook(lambda layer, inputs, out: scored.append(len(out)))
    bits(stacked, random_input(stacked.config, 2)[0])
    assert sum(scored) == 2 * 3  # the channels of the given frame are not scored at all


@pytest.mark.gpu
def test_a_gpu_scores_examples_that_wait_in_memory():
    found = config((8, 8), channels=3, values=256, width=64, heads=4)
    torch.manual_seed(0)
    model = AxialTransformer(found)
    model.reset_parameters(final_scale=1.0)
    x, _, _ = random_input(found, 16)
    reference = bits(model, x)
    torch.testing.assert_close(bits(model.cuda(), x), reference, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(bits(model.bfloat16(), x), reference, rtol=2e-2, atol=0)
