"""The kernels for float64: what plain torch gives, to rounding."""

import copy

import pytest
import torch
from conftest import VARIANTS, random_input, request_for, tiny_model
from kernel_device import KERNEL_DEVICE

import axial
from axial.models import attention, layers
from axial.models.attention import AxialAttention
from axial.models.float64 import float64_kernels
from axial.sampling import levels

EXACT = {"rtol": 1e-13, "atol": 1e-13}


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(KERNEL_DEVICE)


@pytest.mark.kernel
@pytest.mark.parametrize("shape", [(3, 5, 40), (1, 1), (9, 600), (0, 8)])
def test_norm(shape):
    from axial.models import float64_triton as kernels

    x, (weight, bias) = 3 * numbers(*shape) + 2, numbers(2, shape[-1], seed=1)
    wanted = torch.layer_norm(x, shape[-1:], weight, bias, 1e-5)
    torch.testing.assert_close(kernels.normalize(x, weight, bias, 1e-5), wanted, **EXACT)
    wanted = torch.layer_norm(x, shape[-1:], None, None, 1e-5)
    torch.testing.assert_close(kernels.normalize(x, None, None, 1e-5), wanted, **EXACT)


@pytest.mark.kernel
def test_nonlinearity():
    from axial.models import float64_triton as kernels

    x = torch.cat([numbers(3000), torch.tensor([-1e4, -700.0, 0, 700, 1e4]).to(KERNEL_DEVICE)])
    torch.testing.assert_close(kernels.gate(x, 1.702), x * torch.sigmoid(1.702 * x), **EXACT)


@pytest.mark.kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 20, 17), (3, 1, 2)])
def test_attention_of_whole_lines(shape, axis, causal):
    from axial.models import float64_triton as kernels

    layer = AxialAttention(24, 3, axis, causal=causal).double()
    q, k, v = layer.parts(numbers(*shape, 72))  # views with strides of their own
    wanted = layer.attend(*(t.cpu() for t in (q, k, v)), causal=causal)
    assert kernels.can_attend(q, k, v)
    found = kernels.attend(q, k, v, causal=causal, scale=8**-0.5)
    torch.testing.assert_close(found.cpu(), wanted, **EXACT)


@pytest.mark.kernel
@pytest.mark.parametrize("known", [1, 7, 40])
def test_attention_of_one_step_to_those_before_it(known):
    from axial.models import float64_triton as kernels

    layer = AxialAttention(24, 3, 0, causal=True).double()
    cache = layer.cache(2, (40, 5))
    q, k, v = layer.parts(numbers(2, known, 5, 72))
    for buffer, value in ((cache.keys, k), (cache.values, v)):
        buffer.fill_(torch.nan)[:, :known] = value.cpu()
    keys, values = (t.to(KERNEL_DEVICE)[:, :known] for t in (cache.keys, cache.values))
    wanted = layer.attend(*(t.cpu() for t in (q[:, -1:], k, v)), causal=False, scale=0.3)
    found = kernels.attend(q[:, -1:], keys, values, causal=False, scale=0.3)
    torch.testing.assert_close(found.cpu(), wanted, **EXACT)


@pytest.mark.kernel
def test_long_lines_and_large_heads_are_left_to_torch():
    from axial.models import float64_triton as kernels

    def fits(length, size):
        q = torch.empty(1, length, 1, 1, size, dtype=torch.float64)
        return kernels.can_attend(q, q, q)

    assert fits(64, 64) and fits(32, 128) and not fits(65, 8) and not fits(33, 65)


def logits_and_drawing(found, device):
    """Of a model in float64 whose every layer counts; its drawing."""
    model = tiny_model(found).to(device)
    x, *told = (None if t is None else t.to(device) for t in random_input(found, 2))
    with torch.no_grad():
        logits = [
            model.channel_logits(x, torch.full((2,), c, device=device), *told).cpu()
            for c in range(found.given_channels, found.channels)
        ]
    return torch.stack(logits), axial.draw(model, 2, **request_for(found, 2)).cpu()


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["2d-deep", "3d-labels"])
def test_a_model_computes_the_same_by_them(name, monkeypatch):
    from axial.models import float64_triton as kernels

    served = []

    def where_they_serve(x):
        served.append(x.dtype == torch.float64 and not torch.is_grad_enabled())
        return kernels if served[-1] else None

    found = VARIANTS[name]
    wanted, drawn = logits_and_drawing(found, KERNEL_DEVICE)
    for module in (attention, layers, levels):
        monkeypatch.setattr(module, "float64_kernels", where_they_serve)
    logits, drawn_by_them = logits_and_drawing(found, KERNEL_DEVICE)
    torch.testing.assert_close(logits, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(drawn, drawn_by_them) and any(served)


def test_they_serve_float64_on_a_gpu_where_nothing_is_differentiated():
    for x in (torch.ones(2, dtype=torch.float64), torch.ones(2, device="meta")):
        with torch.no_grad():
            assert float64_kernels(x) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_a_gpu_computes_what_a_cpu_does(name):
    x = torch.ones(1, dtype=torch.float64, device="cuda")
    with torch.no_grad():
        assert float64_kernels(x) is not None and float64_kernels(x.float()) is None
    assert float64_kernels(x) is None
    logits, drawn = logits_and_drawing(VARIANTS[name], "cuda")
    wanted, also = logits_and_drawing(VARIANTS[name], "cpu")
    torch.testing.assert_close(logits, wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(drawn, also)


@pytest.mark.gpu
def test_the_shipped_model_scores_and_draws_in_float64_on_a_gpu_as_on_a_cpu():
    model = axial.load("cifar10").double()
    x = axial.draw(model, 2, seed=0)
    wanted, on_gpu = axial.element_bits(model, x), copy.deepcopy(model).cuda()
    found = axial.element_bits(on_gpu, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
    assert torch.equal(axial.draw(on_gpu, 2, seed=0).cpu(), x)
