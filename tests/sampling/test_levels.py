"""The kernels and the recorded line do what plain torch does, step by step."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import VARIANTS, config, random_input, recite, tiny_model
from kernel_device import KERNEL_DEVICE, as_on_a_gpu, on_a_gpu
from torch import backends

from axial import draw
from axial.models.causal import order
from axial.sampling import folded, levels_triton
from axial.sampling import levels as lines
from axial.sampling.decoder import Decoder, GumbelMax
from axial.sampling.folded import Folded, fold
from axial.sampling.kv_cache import DecoderState
from axial.sampling.levels import InnerLevel, sensible_threads
from axial.sampling.levels_triton import TritonInnerLevel, TritonOuterStep
from axial.sampling.noise import SeededNoise

gpu = pytest.mark.gpu


SMALL = config((2, 3), channels=2, values=5, width=16, heads=2, decoder_layers=(2, 1), mlp_ratio=2)
BIG = config((4, 6), channels=3, values=20, width=48, heads=3, decoder_layers=(2, 3), mlp_ratio=2)


def test_a_folded_layer_is_the_norm_and_the_layer():
    torch.manual_seed(0)
    norm, linear = torch.nn.LayerNorm(6, eps=1e-5).double(), torch.nn.Linear(6, 4).double()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x, scale = torch.randn(3, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    layer = fold(linear, norm, scale)
    torch.testing.assert_close(layer.sums, layer.weight.sum(0))
    found = F.layer_norm(x, (6,)) @ layer.weight + layer.bias
    torch.testing.assert_close(found, scale * linear(norm(x)), rtol=0, atol=1e-12)


@pytest.mark.skipif(not backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_a_packed_layer_does_what_it_did_before(monkeypatch):
    monkeypatch.setattr(folded, "prefers_onednn", lambda: True)
    draw = np.random.default_rng(0).standard_normal
    weight, bias, x, y = (
        torch.from_numpy(draw(n)).float() for n in ((24, 40), 40, (8, 24), (8, 40))
    )
    plain = Folded(weight, bias, weight.sum(0))
    packed = plain.packed(8)
    assert packed.weight.is_mkldnn and torch.equal(packed.matrix, plain.weight)
    out = torch.empty(8, 40)
    packed.apply(x, out=out)
    for found, expected in [
        (packed.apply(x), plain.apply(x)),
        (out, plain.apply(x)),
        (packed.silu(x), plain.silu(x)),
        (packed.add_to(y.clone(), x), plain.add_to(y.clone(), x)),
    ]:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert not plain.packed(1).weight.is_mkldnn  # a row or two are faster as they are
    exact = Folded(weight.double(), bias.double(), weight.sum(0))
    assert exact.packed(8) is exact


@pytest.mark.skipif(not backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("name", ["1d", "2d-deep", "3d-channels"])
def test_packed_weights_draw_and_complete_what_plain_ones_do(name, monkeypatch):
    model = tiny_model(VARIANTS[name]).float()
    given = torch.full((6, *VARIANTS[name].axes, VARIANTS[name].channels), -1)
    given[:, 0] = 1
    given.view(6, -1)[:, -1] = 0
    found = []
    for preferred in (True, False):
        monkeypatch.setattr(folded, "prefers_onednn", lambda preferred=preferred: preferred)
        found.append([draw(model, 6, seed=1), draw(model, 6, seed=1, given=given)])
    assert all(map(torch.equal, *found))


def test_small_steps_take_one_thread_and_all_come_back():
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), sensible_threads(16 * 128**2):
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
        with sensible_threads(4096 * 128**2):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["1d", "2d-deep", "2d-lstm"])
def test_what_a_gpu_records_draws_what_a_cpu_draws(name):
    found = VARIANTS[name]
    line, generator = InnerLevel(tiny_model(found), 3), torch.Generator().manual_seed(1)
    base = torch.randn(3, line.length, found.width, generator=generator, dtype=torch.float64)
    noise = torch.randn(3, line.length, found.values, generator=generator, dtype=torch.float64)
    known = torch.randint(found.values, (3, line.length), generator=generator)
    known[torch.rand(known.shape, generator=generator) < 0.7] = -1
    on_cpu, recorded = known.clone(), known.clone()
    with torch.no_grad():
        line.draw(on_cpu, base, 0, noise)
        line._choose_along(recorded, base, noise)
    assert torch.equal(recorded, on_cpu) and (recorded >= 0).all()
    assert torch.equal(recorded[known >= 0], known[known >= 0])


def test_a_step_leaves_its_input_and_few_keys_or_many_make_no_difference(monkeypatch):
    found = VARIANTS["2d-deep"]
    model, outs = tiny_model(found), []
    x = torch.randn(2, 1, found.axes[1], found.width, dtype=torch.float64)
    before = x.clone()
    for few in (lines._FEW_KEYS, 0):
        monkeypatch.setattr(lines, "_FEW_KEYS", few)
        step = DecoderState(model, 2).outer_steps[0]
        with torch.no_grad():
            outs.append(torch.stack([step.advance(x, start) for start in range(3)]))
        assert torch.equal(x, before)
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)


@gpu
@pytest.mark.parametrize(
    "name", ["1d", "2d-deep", "2d-channels", "2d-lstm", "2d-rows", "3d-labels"]
)
def test_a_recorded_line_draws_what_the_naive_sampler_draws(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    _, label, context = random_input(found, 5)
    wanted = draw(model, 5, seed=3, label=label, context=context, method="naive")
    model = model.to("cuda")
    for batch in (5, 2):  # one recording, and one replayed for three batches
        drawn = draw(model, 5, seed=3, label=label, context=context, batch=batch)
        assert torch.equal(drawn.cpu(), wanted)
    kept = wanted.clone()
    kept[:, -1:] = -1
    drawn = draw(model, 5, seed=3, label=label, context=context, given=kept)
    assert torch.equal(drawn.cpu(), wanted)


def kernel_decoder(model, batch):
    from axial.sampling import inner_step_triton as kernels

    decoder = Decoder(model, batch)
    state = decoder.state
    levels = zip(state.outer_decoders, state.outer_caches, strict=True)
    state.outer_steps = [TritonOuterStep(*level, kernels) for level in levels]
    state.inner = TritonInnerLevel(model, batch, kernels)
    state.inner.to_logits = as_on_a_gpu(state.inner.to_logits)
    for block in [block for level in [*state.outer_steps, state.inner] for block in level.blocks]:
        for name in ("to_qkv", "to_out", "mlp_in", "mlp_out"):
            setattr(block, name, as_on_a_gpu(getattr(block, name)))
    outer = [cache for level in state.outer_caches for cache in level if cache]
    for cache in [*outer, *state.inner.caches]:
        cache.keys.fill_(1e30)
        cache.values.fill_(1e30)
    return decoder


class Launched:
    """What a CUDA graph replays, launched anew: an interpreter records nothing."""

    def __init__(self, run, *inputs):
        self.replay = run


CASES = [
    *[(SMALL, torch.float32, known, batch) for known in (0, 7) for batch in (2, 9)],
    *on_a_gpu(
        [
            (BIG, dtype, known, batch)
            for dtype in (torch.float32, torch.bfloat16)
            for known in (0, 12, 39)
            for batch in (2, 9)
        ]
    ),
]


@pytest.mark.kernel
@pytest.mark.parametrize("found, dtype, known, batch", CASES)
def test_the_kernels_give_the_logits_of_scoring(found, dtype, known, batch, monkeypatch):
    """Also where leading elements are known: rows, a channel, a part of a row."""
    if KERNEL_DEVICE == "cpu":
        monkeypatch.setattr(levels_triton, "CudaGraph", Launched)
    model = tiny_model(found).to(KERNEL_DEVICE)
    for name, bias in model.named_parameters():  # new ones are zero
        if name.endswith("bias"):
            torch.nn.init.normal_(bias, std=0.3)
    x, _, _ = random_input(found, batch)
    x = x.to(KERNEL_DEVICE)
    wanted = model(x).flatten(1, -2).detach()
    model = model.to(dtype)
    seen = {}
    start = x.clone().flatten(1)
    start[:, order(found)[known:]] = -1
    start = start.view_as(x)
    kernel_decoder(model, batch).fill(start, recite(x, seen))
    assert torch.equal(start, x) and set(seen) == set(order(found)[known:].tolist())
    worst = max(float((logits.double() - wanted[:, e]).abs().max()) for e, logits in seen.items())
    assert worst < (1e-4 if dtype == torch.float32 else 0.25), worst


@pytest.mark.kernel
def test_the_kernels_draw_what_is_drawn_without_them(monkeypatch):
    if KERNEL_DEVICE == "cpu":
        monkeypatch.setattr(levels_triton, "CudaGraph", Launched)
    model = tiny_model(SMALL).to(KERNEL_DEVICE)
    wanted = draw(model, 6, seed=2)
    found = torch.full_like(wanted, -1)
    noise = SeededNoise(2, torch.arange(6, device=KERNEL_DEVICE), SMALL, 1.0)
    kernel_decoder(model.float(), 6).fill(found, GumbelMax(noise))
    assert torch.equal(found, wanted)


@gpu
@pytest.mark.parametrize("batch", [2, 9, 1024])
def test_a_line_that_was_asked_is_drawn_and_nothing_beyond_it_is_written(batch):
    model = tiny_model(BIG, dtype=torch.bfloat16).to("cuda")
    line = kernel_decoder(model, batch).state.inner
    room = torch.full((batch * line.length + 1,), -1, device="cuda")
    line.line = room[:-1].view(batch, -1)
    base = torch.randn(batch, line.length, BIG.width, device="cuda").bfloat16()
    noise = torch.zeros(batch, line.length, BIG.values, device="cuda", dtype=torch.float64)
    asked, drawn = torch.full((2, batch, line.length), -1, device="cuda")
    with torch.no_grad():
        line.ask(asked, base, 0, lambda j, logits: logits.argmax(-1))
        line.draw(drawn, base, 0, noise)
    assert torch.equal(asked, drawn) and room[-1] == -1


@gpu
@pytest.mark.parametrize("batch", [4, 5])
def test_bf16_pictures_depend_on_seed_and_batch_size_alone(batch):
    model = tiny_model(BIG, dtype=torch.bfloat16).to("cuda")
    whole = draw(model, 6, seed=1, batch=batch)
    assert torch.equal(draw(model, 6, seed=1, batch=batch), whole)
    assert torch.equal(draw(model, 1, seed=1, batch=batch, first=5), whole[5:])
    assert len(whole.unique(dim=0)) == 6


@gpu
def test_logits_that_are_no_numbers_are_noticed_inside_a_recording():
    from axial import AxialError

    for dtype in (torch.float64, torch.bfloat16):
        model = tiny_model(BIG, dtype=dtype).to("cuda")
        model.to_logits.bias.data[3] = float("nan")
        with pytest.raises(AxialError, match="logits are not finite"):
            draw(model, 2)
