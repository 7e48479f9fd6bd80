"""A dense layer is one thing, whichever library computes it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from axial import AxialAttention
from axial.models import dense as dense_layers
from axial.models.dense import dense


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    """As on a processor where oneDNN is preferred; the numbers are the same on all others."""
    monkeypatch.setattr(dense_layers, "prefers_onednn", lambda: True)


@pytest.fixture
def convolved(monkeypatch):
    """How many dense layers were computed as convolutions."""
    calls, convolve = [], F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *given: calls.append(given) or convolve(*given))
    return calls


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def layer_of(width, out, dtype=torch.float32, bias=True):
    layer = nn.Linear(width, out, bias=bias).to(dtype)
    for number, parameter in enumerate(layer.parameters()):
        parameter.detach().copy_(numbers(*parameter.shape, seed=number + 1))
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 8, 16, 40), (2, 4, 8, 8, 40), (512, 40)], ids=str)
def test_output_and_gradients_are_those_of_the_layer(shape, bias, convolved):
    layer, x = layer_of(40, 72, bias=bias), numbers(*shape).requires_grad_()
    exact, precise = layer_of(40, 72, torch.float64, bias), x.detach().double().requires_grad_()
    towards = numbers(*shape[:-1], 72, seed=9)
    found = dense(layer, x)
    expected = exact(precise)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)
    grads = torch.autograd.grad(found, [x, *layer.parameters()], towards)
    wanted = torch.autograd.grad(expected, [precise, *exact.parameters()], towards.double())
    for ours, theirs in zip(grads, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-3)
    assert len(convolved) == 1


@pytest.mark.parametrize("scattered", [False, True])
def test_large_products_in_float64_are_those_of_the_layer(scattered, monkeypatch):
    """As on a GPU, where the bias is added by another call; the numbers are the same anywhere."""
    monkeypatch.setattr(dense_layers, "_takes_cublas", lambda layer, x: True)
    layer, x = layer_of(40, 72, torch.float64), numbers(16, 8, 4, 40, dtype=torch.float64)
    x = (x.transpose(1, 2) if scattered else x).requires_grad_()
    found, wanted = dense(layer, x), layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    towards = numbers(*wanted.shape, dtype=torch.float64, seed=9)
    ours, theirs = (
        torch.autograd.grad(out, [x, *layer.parameters()], towards) for out in (found, wanted)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_only_large_products_in_float64_on_a_gpu_go_to_cublas(gpu_like):
    layer, large = layer_of(8, 8, torch.float64), numbers(8, 512, 8, dtype=torch.float64)
    assert dense_layers._takes_cublas(layer, gpu_like(large))
    assert not dense_layers._takes_cublas(layer, gpu_like(large[:, 1:]))
    assert not dense_layers._takes_cublas(layer, large)
    assert not dense_layers._takes_cublas(layer, gpu_like(large.float()))
    without = layer_of(8, 8, torch.float64, bias=False)
    assert not dense_layers._takes_cublas(without, gpu_like(large))
    layer.register_forward_hook(lambda *given: None)
    assert not dense_layers._takes_cublas(layer, gpu_like(large))


@pytest.fixture
def gpu_like():
    """Turns a tensor into what says of itself that it is on a GPU."""
    return lambda x: SimpleNamespace(dtype=x.dtype, shape=x.shape, is_cuda=True)


def test_what_is_not_contiguous_gives_the_same(convolved):
    layer, x = layer_of(40, 72), numbers(16, 8, 4, 40).transpose(1, 2)
    torch.testing.assert_close(dense(layer, x), layer(x), rtol=0, atol=1e-4)
    assert len(convolved) == 1


def test_attention_takes_it_and_stays_as_exact(convolved):
    layer = AxialAttention(64, 4, axis=0, causal=True)
    x = numbers(2, 8, 32, 64)
    found = layer(x)
    assert len(convolved) == 2
    torch.testing.assert_close(found.double(), layer.double()(x.double()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["float64", "few", "odd", "autocast", "compiled"])
def test_anything_else_is_the_layer_to_the_bit(case, convolved, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: case == "compiled")
    dtype = torch.float64 if case == "float64" else torch.float32
    layer = layer_of(40, 72, dtype)
    x = numbers({"few": 16, "odd": 1025}.get(case, 1024), 40, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert torch.equal(dense(layer, x), layer(x))
    assert not convolved


def test_a_hook_is_run_and_an_exchanged_layer_asked():
    layer, x = layer_of(40, 72), numbers(1024, 40)
    layer.register_forward_hook(lambda layer, given, out: out + 1)
    assert torch.equal(dense(layer, x), F.linear(x, layer.weight, layer.bias) + 1)

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = Doubled(40, 72)
    assert torch.equal(dense(layer, x), 2 * F.linear(x, layer.weight, layer.bias))

    layer, seen = layer_of(40, 72), []
    layer.register_full_backward_hook(lambda *given: seen.append(given) and None)
    dense(layer, x.clone().requires_grad_()).sum().backward()
    assert len(seen) == 1
