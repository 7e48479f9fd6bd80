"""The kernels for float64: what plain torch gives, to rounding, where the package itself asks."""

import copy
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from conftest import VARIANTS, config, random_input, recite, request_for, tiny_model
from kernel_device import KERNEL_DEVICE
from torch import nn

import axial
from axial.models import attention, kernel_choice, layers
from axial.models.attention import AxialAttention
from axial.models.kernel_choice import fused, kernels_allowed, may_launch, served
from axial.models.protocol import evaluating
from axial.sampling import levels
from axial.sampling.decoder import Decoder

EXACT = {"rtol": 1e-13, "atol": 1e-13}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(KERNEL_DEVICE)


@pytest.mark.kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 20, 17), (3, 1, 2)])
def test_attention_of_whole_lines_is_torchs(shape, size, axis, causal):
    from axial.models import float64_triton as kernels

    layer = AxialAttention(24, 3, axis, causal=causal).double()
    q, k, v = layer.parts(size * numbers(*shape, 72))  # views with strides of their own
    wanted = layer.attend(*(t.cpu() for t in (q, k, v)), causal=causal)
    assert kernels.can_attend(q, k, v)
    found = kernels.attend(q, k, v, causal=causal, scale=8**-0.5)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-12, atol=1e-12 * size)


@pytest.mark.kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 7), (1, 40), (6, 40), (20, 3), (9, 9)])
def test_attention_to_a_memory_whose_parts_lie_each_in_its_own_way(queries, keys, causal):
    from axial.models import float64_triton as kernels

    q = numbers(2, queries, 5, 3, 16)[..., :8]
    k = numbers(5, 2, keys, 8, 3, seed=1).permute(1, 2, 0, 4, 3).contiguous()
    v = numbers(keys, 3, 2, 5, 8, seed=2).permute(2, 0, 3, 1, 4)
    found = kernels.attend(q, k, v, causal=causal, scale=0.3)
    scores = 0.3 * torch.einsum("rlfne,rmfne->rfnlm", q, k)
    if causal:
        later = torch.ones(queries, keys, device=q.device).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
    wanted = torch.einsum("rfnlm,rmfne->rlfne", scores.softmax(-1), v)
    torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.kernel
def test_what_lies_beyond_the_known_steps_is_not_read():
    from axial.models import float64_triton as kernels

    q, k, v = numbers(3, 2, 20, 1, 2, 8)
    wanted = kernels.attend(q[:, :1], k[:, :7], v[:, :7], causal=False, scale=1.0)
    k[:, 7:] = v[:, 7:] = torch.nan
    found = kernels.attend(q[:, :1], k[:, :7], v[:, :7], causal=False, scale=1.0)
    assert torch.equal(found, wanted)


@pytest.mark.kernel
def test_long_lines_large_heads_and_scattered_features_are_left_to_torch():
    from axial.models import float64_triton as kernels

    def fits(queries, keys, size):
        q, k = (torch.empty(1, n, 1, 1, size, dtype=torch.float64) for n in (queries, keys))
        return kernels.can_attend(q, k, k)

    assert fits(64, 64, 64) and fits(32, 1, 128) and fits(1, 32, 128)
    assert not any(fits(*each, 8) for each in ((65, 65), (65, 1), (1, 65)))
    assert not any(fits(*each, 65) for each in ((33, 33), (33, 1), (1, 33)))
    scattered = torch.empty(1, 4, 1, 8, 3, dtype=torch.float64).transpose(3, 4)
    for place in range(3):
        given = [torch.empty(1, 4, 1, 3, 8, dtype=torch.float64)] * 3
        given[place] = scattered
        assert not kernels.can_attend(*given)


@pytest.fixture
def calls(monkeypatch):
    """How often each kernel was called: they serve float64, whatever the device."""
    from axial.models import elementwise_triton, float64_triton

    found = Counter()

    def counted(kernels, name):
        call = getattr(kernels, name)

        def run(*given, **how):
            found[name] += 1
            return call(*given, **how)

        monkeypatch.setattr(kernels, name, run)

    counted(float64_triton, "attend")
    counted(elementwise_triton, "normalize")
    counted(elementwise_triton, "gate")

    def allowed(x):
        return x.dtype == torch.float64 and kernel_choice._allowed.depth > 0

    for module, asked in (
        (attention, "served"),
        (levels, "served"),
        (levels, "fused"),
        (layers, "fused"),
    ):
        monkeypatch.setattr(module, asked, allowed)
    return found


def logits_by_levels(model, x, *told):
    """Those that the decoder finds, element after element, by its caches."""
    seen = {}
    with kernels_allowed():
        Decoder(model, len(x)).fill(torch.full_like(x, -1), recite(x, seen), *told)
    return torch.stack([seen[place] for place in sorted(seen)])


def logits_by_passes(model, x, *told):
    with evaluating(model):
        channels = range(model.config.given_channels, model.config.channels)
        found = [
            model.channel_logits(x, torch.full((len(x),), c, device=x.device), *told)
            for c in channels
        ]
    return torch.stack(found)


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["2d-deep", "3d-labels", "long"])
def test_a_model_computes_the_same_by_them(name, request):
    found = VARIANTS.get(name) or config((2, 20))  # of which the first steps have rows to spare
    model = tiny_model(found).to(KERNEL_DEVICE)
    x, *told = (None if t is None else t.to(KERNEL_DEVICE) for t in random_input(found, 2))
    ways = logits_by_passes, logits_by_levels
    wanted = [way(model, x, *told) for way in ways]
    calls = request.getfixturevalue("calls")
    torch.testing.assert_close(logits_by_passes(model, x, *told), wanted[0], **CLOSE)
    passes, blocks = found.channels, len(list(model.blocks()))
    per_pass = {"normalize": 2 * blocks + 1, "gate": blocks, "attend": blocks}
    if KERNEL_DEVICE == "cpu":
        assert calls == {kernel: passes * count for kernel, count in per_pass.items()}
    calls.clear()
    torch.testing.assert_close(logits_by_levels(model, x, *told), wanted[1], **CLOSE)
    assert calls["attend"] >= len(model.inner_decoder) * x[0].numel()


@pytest.mark.kernel
def test_the_scale_of_attention_is_the_one_that_is_asked_for(calls):
    layer, (q, k, v) = AxialAttention(24, 3, 0, causal=False), numbers(3, 2, 5, 1, 3, 8)
    for scale in (None, 0.3):
        with kernels_allowed():
            found = layer.attend(q, k, v, causal=False, scale=scale)
        wanted = layer.attend(q, k, v, causal=False, scale=scale)
        torch.testing.assert_close(found, wanted, **EXACT)
    assert calls["attend"] == 2


@pytest.mark.kernel
def test_norms_of_another_kind_and_lines_that_do_not_fit_are_computed_by_torch(calls):
    x, hooked = numbers(3, 5, 8), nn.LayerNorm(8).double()
    hooked.register_forward_hook(lambda *given: 7 * given[2])
    kinds = [hooked, nn.LayerNorm(8, bias=False), nn.LayerNorm((5, 8))]
    for layer in (each.double().to(KERNEL_DEVICE) for each in kinds):
        nn.init.uniform_(layer.weight, 1, 2)
        with kernels_allowed(), torch.no_grad():
            assert torch.equal(layers.normalize(layer, x), layer(x))
    with kernels_allowed(), pytest.raises(RuntimeError, match="shape"):
        layers.normalize(nn.LayerNorm(4).double().to(KERNEL_DEVICE), x)
    q, layer = numbers(2, 70, 1, 3, 8), AxialAttention(24, 3, 0, causal=False)
    with kernels_allowed():
        found = layer.attend(q, q, q, causal=False)
    assert torch.equal(found, layer.attend(q, q, q, causal=False)) and not calls


def on_a_gpu(dtype, count=kernel_choice._WORTH_IT):
    """What a predicate asks of a tensor there."""
    short = dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    asked = {"is_floating_point": lambda: short, "numel": lambda: count}
    return SimpleNamespace(dtype=dtype, device=torch.device("cuda"), is_cuda=True, **asked)


def test_they_serve_where_the_package_itself_computes_on_a_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(kernel_choice, "runs_triton", lambda device: not asked.append(device))
    x, shorter = on_a_gpu(torch.float64, 2), on_a_gpu(torch.float32)
    with torch.no_grad():
        assert not served(x) and not fused(x)  # somebody else's own call
    with evaluating(nn.Linear(1, 1)):
        with evaluating(nn.Linear(1, 1)):
            assert served(x) and not served(shorter)
        for each in (x, shorter, on_a_gpu(torch.bfloat16), on_a_gpu(torch.float16)):
            assert fused(each)
        assert not fused(on_a_gpu(torch.int64))
        assert not fused(on_a_gpu(torch.float32, kernel_choice._WORTH_IT - 1))
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert fused(x) and not fused(shorter)  # autocast decides itself what is short
        assert served(x)
        with torch.enable_grad():
            assert not served(x) and not fused(x)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not served(x) and not fused(x)
        with monkeypatch.context() as patch:
            patch.setattr(kernel_choice, "_allowed", None)  # is not looked at then
            assert not any((served(x), fused(x), fused(shorter), may_launch(shorter)))
    assert set(asked) == {x.device}


def test_what_is_compiled_has_no_break_where_it_asks_for_kernels():
    def ask(x):
        return x + 1 if served(x) or fused(x) or may_launch(x) else x - 1

    compiled, x = torch.compile(ask, backend="eager", fullgraph=True), torch.ones(3).double()
    for scoring in (nullcontext(), kernels_allowed(), torch.no_grad()):
        with scoring:
            assert torch.equal(compiled(x), x - 1)


def test_a_cpu_is_not_served():
    x = torch.ones(kernel_choice._WORTH_IT, dtype=torch.float64)
    with evaluating(nn.Linear(1, 1)):
        assert not served(x) and not fused(x) and not fused(x.float())


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_a_gpu_computes_what_a_cpu_does(name):
    found = VARIANTS[name]
    x, *told = random_input(found, 2)
    near = tiny_model(found)
    far, there = tiny_model(found).cuda(), [None if t is None else t.cuda() for t in (x, *told)]
    with evaluating(far):
        assert served(torch.ones(1, dtype=torch.float64, device="cuda"))
    found_there = logits_by_passes(far, *there).cpu()
    torch.testing.assert_close(found_there, logits_by_passes(near, x, *told), **CLOSE)
    request = request_for(found, 2)
    assert torch.equal(axial.draw(far, 2, **request).cpu(), axial.draw(near, 2, **request))


@pytest.mark.gpu
def test_the_shipped_model_scores_and_draws_in_float64_on_a_gpu_as_on_a_cpu():
    model = axial.load("cifar10").double()
    x = axial.draw(model, 2, seed=0)
    wanted, on_gpu = axial.element_bits(model, x), copy.deepcopy(model).cuda()
    found = axial.element_bits(on_gpu, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
    assert torch.equal(axial.draw(on_gpu, 2, seed=0).cpu(), x)
