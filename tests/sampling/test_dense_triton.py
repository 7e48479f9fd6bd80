"""The kernels of dense layers and norms are the layers, and note what the next norm needs."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from kernel_device import KERNEL_DEVICE, as_on_a_gpu, moments_of, on_a_gpu

from axial.sampling.folded import Folded, fold


def layers(inputs, outputs):
    """A norm, a dense layer, and both folded."""
    linear, norm = torch.nn.Linear(inputs, outputs), torch.nn.LayerNorm(inputs, eps=1e-5)
    torch.nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    linear, norm = (layer.to(KERNEL_DEVICE).requires_grad_(False) for layer in (linear, norm))
    return norm, linear, as_on_a_gpu(fold(linear, norm))


@pytest.mark.kernel
@pytest.mark.parametrize("memory", [99 << 10, 227 << 10])
@pytest.mark.parametrize("size", [torch.bfloat16, torch.float32], ids=str)
def test_the_tiles_of_a_product_fit_into_the_memory_that_a_program_shares(
    memory, size, monkeypatch
):
    """As GPUs of one generation have: 99 KiB those for games, 227 KiB those for computing."""
    from axial.sampling import dense_triton as kernels
    from axial.sampling import overlap_triton

    monkeypatch.setattr(overlap_triton, "shared_memory", lambda: memory)
    for overlapping, rows, inputs in itertools.product(
        (False, True), (5, 16, 32, 64, 128, 129, 5000), (16, 48, 320, 512, 640, 1536, 8192)
    ):
        monkeypatch.setattr(overlap_triton, "overlapping", lambda there=overlapping: there)
        cut = kernels.tile(torch.empty(rows, inputs, dtype=size))
        stage = (cut.rows + cut.columns) * cut.depth * size.itemsize
        assert cut.stages * stage <= memory and inputs % cut.depth == 0, (rows, inputs, cut)


@pytest.mark.kernel
@pytest.mark.parametrize("rows", [1, 3, 16, 33, 100, 200])
@pytest.mark.parametrize("activated", [False, True])
def test_the_kernel_of_a_norm_and_a_dense_layer_is_both(rows, activated):
    from axial.sampling import dense_triton as kernels

    torch.manual_seed(rows)
    for inputs, outputs in ((48, 17), *on_a_gpu([(256, 768), (320, 256)])):
        norm, linear, folded = layers(inputs, outputs)
        x = 2 * torch.randn(rows, inputs, device=KERNEL_DEVICE) + 1
        wanted = linear(norm(x))
        wanted = F.silu(wanted) if activated else wanted
        for moments in (None, moments_of(x), moments_of(x, 3)):  # of the whole row, and in parts
            found = kernels.normed_dense(kernels.Rows(x, moments), folded, activated=activated)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.kernel
@pytest.mark.parametrize("rows", [1, 3, 16, 33, 100, 200])
def test_the_kernel_of_a_sum_is_the_sum_and_notes_the_moments_of_its_rows(rows):
    from axial.sampling import dense_triton as kernels

    torch.manual_seed(rows)
    assert not any(kernels.measures(*each) for each in ((4, 48), (5, 512), (300, 48)))
    for inputs, outputs in ((48, 80), *on_a_gpu([(640, 320), (256, 512), (32, 1024)])):
        _, linear, _ = layers(inputs, outputs)
        x, branch = (torch.randn(rows, n, device=KERNEL_DEVICE) for n in (outputs, inputs))
        wanted = x + linear(branch)
        found, moments = kernels.added_dense(
            kernels.Rows(x, None), branch, as_on_a_gpu(fold(linear))
        )
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert (moments is not None) == kernels.measures(rows, outputs)
        if moments is not None:
            how = {"rtol": 1e-4, "atol": 1e-3}
            torch.testing.assert_close(moments.sum(1, keepdim=True), moments_of(found), **how)


@pytest.mark.kernel
@pytest.mark.parametrize("rows", [5, 70, 130, *on_a_gpu([256, 1024])])
def test_the_kernels_of_a_block_in_half_precision_are_the_block_to_its_rounding(rows):
    """At the sizes of the shipped model, where matrix units multiply."""
    from axial.sampling import dense_triton as kernels

    torch.manual_seed(rows)
    gpu = KERNEL_DEVICE == "cuda"
    width, dtype = (320, torch.bfloat16) if gpu else (32, torch.float16)  # an interpreter's own
    norm, to_hidden, into = layers(width, 2 * width)
    to_width = torch.nn.Linear(2 * width, width, device=KERNEL_DEVICE).requires_grad_(False)
    x = torch.randn(rows, width, device=KERNEL_DEVICE)
    wanted, found = x, kernels.Rows(x.to(dtype), None)
    into, out = (
        Folded(*(t.to(dtype) for t in f[:2]), f.sums) for f in (into, as_on_a_gpu(fold(to_width)))
    )
    into = into._replace(sums=into.weight.float().sum(0))
    for _ in range(3):
        wanted = wanted + to_width(F.silu(to_hidden(norm(wanted))))
        hidden = kernels.normed_dense(found, into, activated=True)
        found = kernels.added_dense(found, hidden, out)
    assert (found.moments is not None) == (rows < 1024) and found.x.dtype == dtype
    error = (found.x.float() - wanted).norm() / wanted.norm()
    assert error < 0.01, error


@pytest.mark.kernel
def test_the_norm_kernel_is_the_norm():
    from axial.sampling import norm_triton as kernels

    for rows, width in ((7, 1536), (4099, 48)):
        x = 3 * torch.randn(rows, width, device=KERNEL_DEVICE) + 5
        wanted = F.layer_norm(x, (width,), eps=1e-5)
        torch.testing.assert_close(kernels.normalize(x), wanted, rtol=1e-4, atol=1e-4)
        total, normed = kernels.add_and_normalize(x - 1, torch.ones_like(x))
        torch.testing.assert_close(total, x)
        torch.testing.assert_close(normed, wanted, rtol=1e-4, atol=1e-4)
