import pytest
import torch
from conftest import VARIANTS, random_input, tiny_model

import axial.layers
from axial import draw
from axial.attention import AxialAttention, LineCache
from axial.causal import given, order
from axial.incremental import walk


def recite(x, seen):
    """Answer with the values of `x`, and keep the logits of every element."""
    flat = x.flatten(1)

    def choose(line):
        def answer(j, logits):
            seen[int(line[j])] = logits
            return flat[:, line[j]]

        return answer

    return choose


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_walk_sees_the_logits_of_scoring_in_the_order_of_prediction(name, cached):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, context = random_input(found, 2)
    start = x.clone()
    start[:, ~given(found)] = -1
    seen = {}
    with torch.no_grad():
        walk(model, start, recite(x, seen), label, context, cached=cached)
        logits = model(x, label, context).flatten(1, -2)
    assert torch.equal(start, x)
    free = [e for e in order(found).tolist() if not given(found).flatten()[e]]
    assert list(seen) == free
    for element, found_logits in seen.items():
        torch.testing.assert_close(found_logits, logits[:, element], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["2d-deep", "3d-channels", "2d-lstm", "2d-rows", "1d-labels"])
def test_garbage_beyond_the_valid_part_of_a_cache_changes_nothing(name, monkeypatch):
    found = VARIANTS[name]
    model = tiny_model(found)
    _, label, context = random_input(found, 3)
    clean = draw(model, 3, seed=4, label=label, context=context)
    filled = []

    def cache(self, batch, axes, real=AxialAttention.cache):
        made = real(self, batch, axes)
        made.keys.fill_(1e30)
        made.values.fill_(-1e30)
        filled.append(made)
        return made

    monkeypatch.setattr(AxialAttention, "cache", cache)
    assert torch.equal(draw(model, 3, seed=4, label=label, context=context), clean)
    assert filled


def test_each_level_runs_at_its_own_rate():
    """Encoder once a channel, outer levels once a step but the last, inner once an element."""
    found = VARIANTS["3d-channels"]
    model = tiny_model(found)
    calls = {}

    def count(name, module):
        def hook(*args):
            calls[name] = calls.get(name, 0) + 1

        module.register_forward_hook(hook)

    count("encoder", model.encoder)
    for level, decoder in enumerate([*model.outer_decoders, model.inner_decoder]):
        count(level, decoder[0])
    draw(model, 2)
    a, b, c = found.axes
    assert calls == {"encoder": 3, 0: 3 * (a - 1), 1: 3 * a * (b - 1), 2: 3 * a * b * c}


def test_a_known_prefix_is_taken_in_at_once():
    found = VARIANTS["2d-deep"]
    model = tiny_model(found)
    x = draw(model, 2)
    calls = []
    model.inner_decoder[0].register_forward_hook(lambda *args: calls.append(1))
    height, width = found.axes
    kept = x.clone()
    kept[:, height - 1 :] = -1
    draw(model, 2, given=kept)
    assert len(calls) == width


def test_every_finished_line_is_told_with_what_is_known_so_far():
    for name in ("2d-channels", "2d-rows", "2d-columns", "3d"):
        found = VARIANTS[name]
        model = tiny_model(found)
        x = draw(model, 2)
        told = []
        start = torch.full_like(x, -1)
        with torch.no_grad():
            walk(model, start, recite(x, {}), finished=lambda seen, t=told: t.append(seen.clone()))
        lines = x[0].numel() // found.plane_axes[-1]
        assert len(told) == lines and torch.equal(told[-1], x)
        for count, seen in enumerate(told, 1):
            done = order(found)[: count * found.plane_axes[-1]]
            wanted = torch.full_like(x, -1).flatten(1)
            wanted[:, done] = x.flatten(1)[:, done]
            assert torch.equal(seen.flatten(1), wanted)


def test_a_cache_returns_what_was_added_and_nothing_beyond():
    cache = LineCache(torch.full((2, 5, 1, 2, 3), 9.0), torch.full((2, 5, 1, 2, 3), 9.0))
    first, second = torch.randn(2, 2, 1, 2, 3), torch.randn(2, 1, 1, 2, 3)
    cache.add(first, -first, 0)
    keys, values = cache.add(second, -second, 2)
    assert torch.equal(keys, torch.cat([first, second], 1)) and torch.equal(values, -keys)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_advancing_step_by_step_is_causal_attention(axis):
    torch.manual_seed(0)
    layer = AxialAttention(8, 2, axis, causal=True).double().eval()
    axes = (1,) * axis + (5, 3, 2)[axis:]
    layer.requires_grad_(False)
    x = torch.randn(2, *axes, 8, dtype=torch.float64)
    whole = layer(x)
    for prefix in range(axes[axis]):
        cache = layer.cache(2, axes)
        parts = [layer.advance(x.narrow(1 + axis, 0, prefix), cache, 0)] if prefix else []
        for step in range(prefix, axes[axis]):
            parts.append(layer.advance(x.narrow(1 + axis, step, 1), cache, step))
        torch.testing.assert_close(torch.cat(parts, 1 + axis), whole, rtol=0, atol=1e-12)


def test_lstm_states_are_those_of_one_run():
    model = tiny_model(VARIANTS["2d-lstm"])
    lstm = model.inner_decoder
    assert isinstance(lstm, axial.layers.LSTM)
    x = torch.randn(3, 1, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        whole = lstm(x)
        caches = lstm.caches(3, (1, 6))
        parts = [lstm.advance(x[:, :, :2], caches, 0)]
        parts += [lstm.advance(x[:, :, j : j + 1], caches, j) for j in range(2, 6)]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-12)
