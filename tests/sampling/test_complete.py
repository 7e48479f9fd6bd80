"""Completions follow the conditional that the model's own probabilities define."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from conftest import VARIANTS, config, every_image, normal, random_input, tiny_model

from axial import AxialError, bits, draw
from axial.sampling.complete import complete, is_exact, kept_part
from axial.sampling.noise import gumbel

COLOUR = config((2, 1), channels=3, values=2)
KEPT = torch.tensor([1, 1, 1, -1, -1, -1]).view(1, 2, 1, 3)
"""The first row of it."""


def test_what_is_kept_is_leading_rows_frames_and_channels():
    picture, clip, volume = (
        config((3, 2), channels=3),
        config((3, 2), channels=6),
        config((3, 2, 2)),
    )
    rows = kept_part(picture, keep=1, keep_channels=None)
    assert rows[:1].all() and not rows[1:].any()
    red = kept_part(picture, keep=None, keep_channels=1)
    assert red[..., :1].all() and not red[..., 1:].any()
    both = kept_part(picture, keep=1, keep_channels=1)
    assert torch.equal(both, rows | red)
    frame = kept_part(clip, keep=1, keep_channels=None)
    assert frame[..., :3].all() and not frame[..., 3:].any()
    steps = kept_part(volume, keep=2, keep_channels=None)
    assert steps[:2].all() and not steps[2:].any()
    own = kept_part(VARIANTS["2d-given-both"], keep=2, keep_channels=None)
    assert own[..., 0].all() and own[:2].all() and not own[2:, :, 1:].any()


@pytest.mark.parametrize(
    ("found", "kept", "exact"),
    [
        (config((3, 2)), {"keep": 1}, True),
        (config((3, 2), channels=3), {"keep": 1}, False),
        (config((3, 2), channels=3), {"keep_channels": 2}, True),
        (config((3, 2), channels=6), {"keep": 1}, True),
        (config((3, 2), channels=3, channel_mode="columns"), {"keep": 1}, True),
        (config((3, 2), channels=3, channel_mode="columns"), {"keep_channels": 1}, False),
        (config((3, 2), channels=3, channel_mode="rows"), {"keep": 1}, False),
        (config((3, 2), channels=2, given_steps=1), {"keep": 1}, True),
    ],
)
def test_only_a_prefix_of_the_order_of_prediction_is_exact(found, kept, exact):
    mask = kept_part(found, **({"keep": None, "keep_channels": None} | kept))
    assert is_exact(found, mask) is exact


def opinionated(found, seed):
    """A tiny model whose channels depend on each other more than those of random weights do."""
    model = tiny_model(found, seed=seed)
    if model.encoder is not None:
        model.encoder.convolution.weight.data *= 3
    model.to_logits.weight.data *= 3
    return model


def distance(model, particles, count, *, context=None, temperature=1.0):
    """Total variation between completions of all but the last row and the true conditional."""
    found = model.config
    mask = kept_part(found, keep=found.axes[0] - 1, keep_channels=None)
    image = random_input(found, 1)[0]
    images = every_image(found, ~mask)
    images[:, mask] = image[:, mask]
    label = torch.ones(1, dtype=torch.long) if found.classes else None
    told = [None if t is None else t.expand(len(images), *t.shape[1:]) for t in (label, context)]
    probability = (-bits(tempered(model, temperature), images, *told)).exp2()
    given = image.masked_fill(~mask, -1).expand(count, *image.shape[1:])
    how = {"label": label, "context": context, "temperature": temperature, "seed": 1}
    x = complete(model, given, particles=particles, **how)
    assert torch.equal(x[:, mask], given[:, mask])
    key = found.values ** torch.arange(x[0].numel())
    place = (x.flatten(1) @ key).unsqueeze(1) == (images.flatten(1) @ key)
    assert place.any(1).all()
    seen = place.double().mean(0)
    return float((seen - probability / probability.sum()).abs().sum() / 2)


def tempered(model, temperature):
    """The model whose logits are divided by the temperature."""
    model = copy.deepcopy(model)
    model.to_logits.weight.data /= temperature
    model.to_logits.bias.data /= temperature
    return model


STEPS = config((3, 1), channels=3, values=2, given_steps=1)
LABELS = config((2, 1), channels=3, values=2, classes=2)
ROWS = config((2, 1), channels=2, values=2, channel_mode="rows")


@pytest.mark.parametrize(
    ("found", "seed"),
    [(COLOUR, 3), (LABELS, 8), (ROWS, 9), (STEPS, 4)],
    ids=["colour", "labels", "rows", "given"],
)
def test_many_candidates_give_the_enumerated_conditional(found, seed):
    """1,000 draws of at most 8 outcomes stray by 0.01 to 0.04; forcing alone is plainly wrong."""
    model = opinionated(found, seed)
    assert distance(model, 1, 2000) > 0.07
    assert distance(model, 16, 1000) < 0.05


def test_candidates_follow_the_context_and_the_temperature():
    """Candidates weighed without the one stray by 0.11, without the other by 0.09."""
    context = 3 * normal(1, *COLOUR.axes, COLOUR.width, seed=6)
    assert distance(opinionated(COLOUR, 5), 16, 1000, context=context) < 0.06
    assert distance(opinionated(COLOUR, 5), 32, 500, temperature=0.4) < 0.03


def test_choosing_a_candidate_takes_noise_that_no_element_takes(monkeypatch):
    asked = []

    def spy(seed, image, element, values):
        asked.extend(element.tolist())
        return gumbel(seed, image, element, values)

    monkeypatch.setattr("axial.sampling.particle_filter.gumbel", spy)
    given = torch.full((2, *COLOUR.axes, 3), -1)
    given[:, 0] = 1
    complete(tiny_model(COLOUR), given, particles=3)
    assert asked == [6 + 1, 6 + 2]  # six elements, and the two channels that are weighed


def test_every_example_counts_in_what_is_exact():
    model = tiny_model(COLOUR)
    blank, rows = torch.full((2, 2, 1, 3), -1), torch.full((2, 2, 1, 3), -1)
    blank[0, 0, 0, 0] = rows[0, 0, 0, 0] = 1
    whole = complete(model, blank, particles=4, seed=3)  # a prefix, and nothing at all
    assert torch.equal(whole, draw(model, 2, given=blank, seed=3))
    rows[1, 0] = 1
    for given in (rows, rows.flip(0)):
        with pytest.raises(AxialError, match="in every example"):
            complete(model, given, particles=4)


def test_where_the_kept_part_is_a_prefix_candidates_change_nothing():
    found = VARIANTS["2d-channels"]
    model = tiny_model(found)
    given = draw(model, 3)
    given[..., 1:] = -1
    plain = draw(model, 3, given=given, seed=5, first=2)
    assert torch.equal(complete(model, given, particles=7, seed=5, first=2), plain)


def test_a_completion_depends_on_its_number_alone():
    model = tiny_model(COLOUR)
    given = torch.full((4, *COLOUR.axes, 3), -1)
    given[:, 0] = 1
    whole = complete(model, given, particles=5, seed=2)
    parts = [complete(model, given[:1], particles=5, seed=2, first=i) for i in range(4)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(complete(model, given, particles=5, seed=2, batch=3), whole)


@pytest.mark.parametrize(
    ("kept", "settings", "message"),
    [
        ({"keep": 3}, {}, "keep is 3"),
        ({"keep": -1}, {}, "keep is -1"),
        ({"keep_channels": 4}, {}, "keep_channels is 4"),
        ({}, {}, "nothing is kept"),
        ({"keep": 2}, {}, "everything is kept"),
        ({"keep": 1}, {"particles": 0}, "particles is 0"),
        ({"keep": 1}, {"particles": 2, "temperature": 0.0}, "temperature is 0: particles"),
        ({"keep": 1}, {"particles": 2, "temperature": -1.0}, "temperature"),
    ],
)
def test_what_cannot_be_completed_is_refused_in_one_line(kept, settings, message):
    with pytest.raises(AxialError) as caught:
        mask = kept_part(COLOUR, **({"keep": None, "keep_channels": None} | kept))
        given = torch.zeros(1, *COLOUR.axes, 3, dtype=torch.long).masked_fill(~mask, -1)
        complete(tiny_model(COLOUR), given, **settings)
    assert message in caught.value.as_written and "\n" not in str(caught.value)


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (torch.full((0, 2, 1, 3), -1), {}, "count is 0"),
        (torch.tensor(-1), {}, "count is 0"),
        (KEPT.double(), {}, "given is torch.float64"),
        (KEPT[:, :1], {}, "given has shape (1, 1, 1, 3)"),
        (KEPT, {"first": -1}, "first is -1"),
        (KEPT, {"first": 1 << 63}, "first is 9223372036854775808"),
        (KEPT, {"temperature": math.inf}, "temperature is inf"),
        (KEPT, {"label": torch.tensor([1])}, "this model is unconditional"),
        (KEPT, {"context": torch.zeros(1, 2, 1, 5)}, "context has shape (1, 2, 1, 5)"),
    ],
)
def test_bad_input_is_refused_with_and_without_candidates(given, settings, message, particles):
    with pytest.raises(AxialError) as caught:
        complete(tiny_model(COLOUR), given, particles=particles, **settings)
    assert message in caught.value.as_written and "\n" not in str(caught.value)


def test_candidates_need_channels_one_after_another():
    found = config((2, 1), channels=2, values=2, channel_mode="columns")
    given = torch.full((1, 2, 1, 2), -1)
    given[..., 0] = 1
    with pytest.raises(AxialError, match="channels that are predicted one after another"):
        complete(tiny_model(found), given, particles=2)


@pytest.mark.parametrize("place", [(1, 0, 1), (slice(None), 0), (0, 1)], ids=str)
def test_candidates_refuse_a_kept_part_that_is_no_prefix_of_its_channel(place):
    given = torch.full((1, 2, 2, 3), -1)
    given[0][place] = 0  # an element, a column, the end of a row
    with pytest.raises(AxialError, match="same leading part of each channel"):
        complete(tiny_model(replace(COLOUR, axes=(2, 2))), given, particles=2)
