import pytest
import torch
from conftest import VARIANTS, config, random_input, tiny_model

import axial.models.axial_transformer
import axial.models.layers
from axial.models.causal import given, order, shift, stack, stack_context, unstack

ROUNDING = 1e-12
"""On some CPUs an example's last bits depend on its place in the batch."""


def assert_causal(model):
    """Change one element at a time: nothing at or before it moves, everything after it does.

    Given elements come before everything else and are never predicted.
    """
    sequence = order(model.config)
    known = given(model.config).flatten()[sequence]
    x, label, context = random_input(model.config, 1)
    count = len(sequence)
    changed = x.repeat(count + 1, *(1,) * (x.ndim - 1)).view(count + 1, -1)
    for row, element in enumerate(sequence):
        changed[row, element] = (changed[row, element] + 1) % model.config.values
    changed = changed.view(count + 1, *x.shape[1:])
    label = None if label is None else label.expand(count + 1)
    context = context.expand(count + 1, *context.shape[1:])
    with torch.no_grad():
        logits = model(changed, label, context).flatten(1, -2)[:, sequence]
    moved = ((logits[:-1] - logits[-1:]).abs() > ROUNDING).any(-1)

    for i in range(count):
        after = torch.arange(count) > (-1 if known[i] else i)
        wanted = after & ~known
        leaks = (moved[i] & ~wanted).nonzero().flatten().tolist()
        blind = (wanted & ~moved[i]).nonzero().flatten().tolist()
        assert not leaks, f"element {i} of the order leaks into {leaks}"
        assert not blind, f"element {i} of the order is invisible to {blind}"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_prediction_sees_everything_before_it_and_nothing_after(name):
    assert_causal(tiny_model(VARIANTS[name]))


def masked_blocks(model):
    """The blocks whose mask hides something: it does not along an axis of length 1."""
    axes = model.config.plane_axes
    attentions = [m for m in model.modules() if isinstance(m, axial.models.layers.AxialAttention)]
    return [a for a in attentions if a.causal and axes[a.axis] > 1]


@pytest.mark.parametrize("name", VARIANTS)
def test_each_mask_is_needed(name):
    model = tiny_model(VARIANTS[name])
    blocks = masked_blocks(model)
    masked = {block.axis for block in blocks}
    inner_axis = len(model.config.plane_axes) - 1
    for axis, length in enumerate(model.config.plane_axes):
        lstm = axis == inner_axis and model.config.inner == "lstm"
        assert axis in masked or length == 1 or lstm
    for block in blocks:
        block.causal = False
        with pytest.raises(AssertionError, match="leaks"):
            assert_causal(model)
        block.causal = True


@pytest.mark.parametrize("name", VARIANTS)
def test_each_shift_is_needed(name, monkeypatch):
    model = tiny_model(VARIANTS[name])
    for broken, length in enumerate(model.config.plane_axes):
        # Along a length of 1 a shift still has to throw everything away.
        unshifted = lambda x, axis, k=broken: x if axis == k else shift(x, axis)  # noqa: E731
        monkeypatch.setattr(axial.models.axial_transformer, "shift", unshifted)
        with pytest.raises(AssertionError, match="leaks"):
            assert_causal(model)
        if length == 1:
            continue
        dropped = lambda x, axis, k=broken: shift(x, axis) * (axis != k)  # noqa: E731
        monkeypatch.setattr(axial.models.axial_transformer, "shift", dropped)
        with pytest.raises(AssertionError, match="invisible"):
            assert_causal(model)


@pytest.mark.parametrize("name", ["1d-channels", "2d-channels", "3d-channels", "2d-given-steps"])
def test_what_the_encoder_shows_is_needed_and_no_more(name, monkeypatch):
    model = tiny_model(VARIANTS[name])
    visible = axial.models.axial_transformer.visible
    monkeypatch.setattr(
        axial.models.axial_transformer, "visible", lambda *args: ~visible(*args) | visible(*args)
    )
    with pytest.raises(AssertionError, match="leaks"):
        assert_causal(model)
    monkeypatch.setattr(
        axial.models.axial_transformer, "visible", lambda *args: visible(*args) & False
    )
    with pytest.raises(AssertionError, match="invisible"):
        assert_causal(model)


def test_shift_moves_by_one_along_its_axis_and_zeros_enter():
    x = torch.arange(1.0, 1 + 2 * 3 * 4 * 2).view(2, 3, 4, 2)
    down, right = shift(x, 0), shift(x, 1)
    assert torch.equal(down[:, 1:], x[:, :-1]) and not down[:, 0].any()
    assert torch.equal(right[:, :, 1:], x[:, :, :-1]) and not right[:, :, 0].any()


@pytest.mark.parametrize("mode", ["rows", "columns"])
@pytest.mark.parametrize("axes", [(3,), (2, 3), (2, 3, 4)], ids=str)
def test_stacking_lays_channels_in_the_order_of_prediction(mode, axes):
    found = config(axes, channels=3, channel_mode=mode)
    index = torch.arange(3 * torch.Size(axes).numel()).view(1, *axes, 3)
    plane = stack(index, found)
    assert plane.shape[1:] == found.plane_axes
    assert torch.equal(plane.flatten(), order(found))
    assert torch.equal(unstack(plane.unsqueeze(-1), found).squeeze(-1), index)
    context = index[..., :1].double().expand(*index.shape[:-1], found.width)
    repeated = unstack(stack_context(context, found), found)
    for channel in range(3):
        assert torch.equal(repeated[..., channel, :], context)


def test_the_order_is_by_channel_and_raster_or_raster_with_channels_inside():
    assert order(config((2, 2), channels=2)).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    rows = config((2, 2), channels=2, channel_mode="rows")
    assert order(rows).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    columns = config((2, 2), channels=2, channel_mode="columns")
    assert order(columns).tolist() == list(range(8))
