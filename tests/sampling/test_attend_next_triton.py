"""Attention of one step to a KV cache is causal attention."""

import pytest
import torch
from kernel_device import KERNEL_DEVICE, on_a_gpu

from axial.models.attention import KVCache


@pytest.mark.kernel
@pytest.mark.parametrize("size", [3, 16, *on_a_gpu([96])])
@pytest.mark.parametrize("length", [5, 18, *on_a_gpu([32, 70])])
@pytest.mark.parametrize("cut", [(1, 8), (5, 4), *on_a_gpu([(None, 16), (1, 32), (4, 16)])])
def test_the_attention_kernel_is_causal_attention_and_reads_nothing_stale(size, length, cut):
    from axial.sampling import attend_next_triton as kernels

    torch.manual_seed(size)
    whole = torch.randn(2, length, 3, 4, 3, size, device=KERNEL_DEVICE)
    q, k, v = whole.unbind(-2)  # r l f n e
    scores = torch.einsum("rlfne,rmfne->rfnlm", q, k)
    later = torch.ones(length, length, device=KERNEL_DEVICE).triu(1).bool()
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    wanted = torch.einsum("rfnlm,rmfne->rlfne", weights, v)
    # What is not yet put in is no number.
    cache = KVCache(torch.full_like(k, torch.nan), torch.full_like(v, torch.nan))
    for j in range(length):
        q, k, v = whole[:, j : j + 1].unbind(-2)
        place = torch.tensor(j, dtype=torch.int32, device=KERNEL_DEVICE)
        found = kernels.attend_next(q, k, v, cache, place, together=cut[0], steps=cut[1])
        torch.testing.assert_close(found, wanted[:, j : j + 1], rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.stack([cache.keys, cache.values], -2), whole[..., 1:, :])
