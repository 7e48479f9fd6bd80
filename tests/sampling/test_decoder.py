import pytest
import torch
from conftest import VARIANTS, config, random_input, recite, tiny_model

from axial import InputError, draw
from axial.models.attention import AxialAttention, KVCache
from axial.models.causal import given, order
from axial.sampling.decoder import Decoder, GumbelMax, decoding
from axial.sampling.kv_cache import cache_bytes
from axial.sampling.noise import gumbel


def asked(decoder, x, label=None, context=None):
    """The elements that are asked for by the logits of scoring `x`, in their order."""
    found, seen, start = decoder.model.config, {}, x.clone()
    start[:, ~given(found)] = -1
    decoder.fill(start, recite(x, seen), label, context)
    assert torch.equal(start, x)
    logits = decoder.model(x, label, context).flatten(1, -2)
    for element, found_logits in seen.items():
        torch.testing.assert_close(found_logits, logits[:, element], rtol=0, atol=1e-10)
    return list(seen)


@pytest.mark.parametrize("method", ["cached", "semi-parallel"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_client_is_asked_by_the_logits_of_scoring_in_the_order_of_prediction(name, method):
    found = VARIANTS[name]
    model, known = tiny_model(found), given(found).flatten()
    wanted = [e for e in order(found).tolist() if not known[e]]
    assert asked(Decoder(model, 2, method), *random_input(found, 2)) == wanted


@pytest.mark.parametrize("name", ["1d", "2d-channels", "2d-given-both", "3d-colour-clip"])
def test_one_example_stands_for_all_only_where_nothing_tells_them_apart(name):
    """Without label and context, what is given still differs from example to example."""
    x, _, _ = random_input(VARIANTS[name], 3)
    assert asked(Decoder(tiny_model(VARIANTS[name]), 3), x)


def gumbel_max(found, count, seed):
    """The choice that `draw` makes."""
    images = torch.arange(count)
    return GumbelMax(lambda line: gumbel(seed, images, line, found.values))


def buffers(decoder):
    """Every tensor in which the KV caches keep something."""
    for level in decoder.state.outer_caches:
        yield from (t for cache in level if cache for t in (cache.keys, cache.values))
    yield from (cache.rows for cache in getattr(decoder.state.inner.decoder, "caches", []))


@pytest.mark.parametrize("name", ["2d-deep", "3d-channels", "2d-lstm", "2d-rows", "1d-labels"])
def test_garbage_beyond_the_valid_part_of_a_cache_changes_nothing(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    _, label, context = random_input(found, 3)
    clean = draw(model, 3, seed=4, label=label, context=context)
    decoder, sizes = Decoder(model, 3), []
    for buffer in buffers(decoder):
        buffer.fill_(-1e30 if len(sizes) % 2 else 1e30)
        sizes.append(buffer.numel())
    assert sum(sizes) * 8 == 3 * cache_bytes(model)
    x = torch.full_like(clean, -1)
    decoder.fill(x, gumbel_max(found, 3, 4), label, context)
    assert torch.equal(x, clean)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_a_long_line_is_that_of_scoring_however_many_steps_a_product_takes(heads):
    found = config((40,), width=32, heads=heads, decoder_layers=(2,))
    decoder = Decoder(tiny_model(found), 2)
    for buffer in buffers(decoder):
        buffer.fill_(1e30)
    assert len(asked(decoder, random_input(found, 2)[0])) == 40


@pytest.mark.parametrize("name", ["2d-deep", "2d-lstm"])
def test_one_decoder_draws_and_asks_in_turn_in_inference_mode_and_outside(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    decoder, wanted = Decoder(model, 2), draw(model, 2)
    for inference in (False, True, False):
        for choose in (gumbel_max(found, 2, 0), recite(wanted, {})):
            x = torch.full_like(wanted, -1)
            with torch.inference_mode(inference):
                decoder.fill(x, choose)
            assert torch.equal(x, wanted) and not x.is_inference()


def count_calls(calls, name, function):
    def counted(*args):
        calls[name] = calls.get(name, 0) + 1
        return function(*args)

    return counted


def test_each_level_runs_at_its_own_rate():
    """Encoder once a channel, outer levels once a step but the last, inner once an element."""
    found = VARIANTS["3d-channels"]
    model, calls = tiny_model(found), {}
    model.encoder.register_forward_hook(count_calls(calls, "encoder", lambda *args: None))
    decoder = Decoder(model, 2)
    for level, step in enumerate(decoder.state.outer_steps):
        step.advance = count_calls(calls, level, step.advance)
    inner = decoder.state.inner.decoder
    inner.step = count_calls(calls, 2, inner.step)
    decoder.fill(torch.full((2, *found.axes, 3), -1), gumbel_max(found, 2, 0))
    a, b, c = found.axes
    assert calls == {"encoder": 3, 0: 3 * (a - 1), 1: 3 * a * (b - 1), 2: 3 * a * b * c}


@pytest.mark.parametrize("name", ["2d-deep", "2d-lstm"])
def test_a_known_prefix_is_taken_in_at_once(name):
    found = VARIANTS[name]
    model, calls = tiny_model(found), {}
    x = draw(model, 2)
    decoder = Decoder(model, 2)
    inner, outer = decoder.state.inner.decoder, decoder.state.outer_decoders[0]
    inner.step = count_calls(calls, "step", inner.step)
    inner.fill = count_calls(calls, "fill", inner.fill)
    outer.advance = count_calls(calls, "rows", outer.advance)
    kept = x.clone()
    kept.view(2, -1)[:, order(found)[-3:]] = -1
    decoder.fill(kept, recite(x, {}))
    assert torch.equal(kept, x) and calls == {"rows": 1, "fill": 1, "step": 3}


def rows_at_random(found, x):
    """What is left of some pictures where every other line, in prediction order, is missing."""
    left, lines = x.clone().flatten(1), order(found).view(-1, found.plane_axes[-1])
    left[:, lines[1::2].flatten()] = -1
    return left.view_as(x), lines[1::2]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "cached") for name in ("1d", "2d-channels", "2d-columns", "3d-rows")),
        *((name, "semi-parallel") for name in ("2d-rows", "3d")),
        *((name, "naive") for name in ("2d", "1d-columns")),
    ],
)
def test_it_pauses_after_every_line_that_was_not_known_and_skips_the_others(name, method):
    found = VARIANTS[name]
    model = tiny_model(found)
    x = draw(model, 2)
    decoder, blank = Decoder(model, 2, method), torch.full_like(x, -1)
    every = order(found).view(-1, found.plane_axes[-1])
    for start, lines in ((blank, every), rows_at_random(found, x), (x.clone(), [])):
        wanted, asked = start.clone().flatten(1), {}
        with decoding(model):
            shown = [seen.clone() for seen in decoder.lines(start, recite(x, asked))]
        assert torch.equal(start, x) and len(shown) == len(lines)
        assert list(asked) == [int(element) for line in lines for element in line]
        for seen, line in zip(shown, lines, strict=True):
            wanted[:, line] = x.flatten(1)[:, line]
            assert torch.equal(seen.flatten(1), wanted)


@pytest.mark.parametrize("method", ["cached", "semi-parallel", "naive"])
def test_logits_that_are_no_numbers_are_refused_whoever_answers(method):
    model = tiny_model(VARIANTS["2d"])
    x = draw(model, 2)
    decoder = Decoder(model, 2, method)
    decoder.fill(torch.full_like(x, -1), recite(x, {}))
    context = torch.full((2, *VARIANTS["2d"].axes, VARIANTS["2d"].width), torch.nan).double()
    with pytest.raises(InputError, match="logits are not finite"):
        decoder.fill(torch.full_like(x, -1), recite(x, {}), context=context)


def test_a_cache_returns_what_was_added_and_nothing_beyond():
    cache = KVCache(torch.full((2, 5, 1, 2, 3), 9.0), torch.full((2, 5, 1, 2, 3), 9.0))
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
    decoder = Decoder(model, 3).state.inner.decoder
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        whole = model.inner_decoder(x.unsqueeze(1)).squeeze(1)
        for known in range(6):
            if known:
                decoder.fill(x[:, :known])
            parts = [decoder.step(x[:, j], j) for j in range(known, 6)]
            torch.testing.assert_close(torch.stack(parts, 1), whole[:, known:], rtol=0, atol=1e-12)
