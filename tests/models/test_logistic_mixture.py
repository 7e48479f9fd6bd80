"""Mixtures of discretized logistics: that they are distributions, and the ones they should be."""

import numpy as np
import pytest
import torch

from axial.models.logistic_mixture import LogisticMixture, log_bins, log_probability


def numbers_of(channels, components):
    return components * (1 + 2 * channels + channels * (channels - 1) // 2)


def mixture(channels, *, count=64, components=3, spread=2.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, numbers_of(channels, components))
    numbers = spread * torch.randn(shape, generator=generator, dtype=dtype)
    x = torch.randint(256, (count, channels), generator=generator)
    return numbers, x


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_every_channel_has_a_distribution_and_together_they_have_the_mixture(channels):
    for spread in (0.1, 2.0, 30.0):
        numbers, x = mixture(channels, spread=spread)
        found = LogisticMixture(numbers, x)
        logits = found.logits()
        assert logits.isfinite().all() and logits.logsumexp(-1).abs().max() < 1e-12
        chosen = logits.gather(-1, x.unsqueeze(-1)).sum((-1, -2))
        torch.testing.assert_close(-chosen, found.nats(), rtol=1e-12, atol=1e-12)
        one_by_one = [found.channel_logits(channel) for channel in range(channels)]
        assert torch.equal(torch.stack(one_by_one, -2), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_vanishes_or_cancels_at_any_scale(dtype):
    bound, share = (1e-12, 1e-12) if dtype == torch.float64 else (2e-5, 1e-5)
    means = torch.tensor([-40.0, -1.0, -0.996, 0.0, 0.5, 1.0, 3.0], dtype=dtype).repeat(8)
    log_scales = torch.tensor([-7.0, -6, -4, -1, 0, 3, 40, 300], dtype=dtype).repeat_interleave(7)
    found = log_bins(means, log_scales)
    assert found.isfinite().all() and found.logsumexp(-1).abs().max() < bound
    wide = (t.unsqueeze(1).expand(-1, 256) for t in (means, log_scales))
    each = log_probability(torch.arange(256).unsqueeze(0), *wide)
    torch.testing.assert_close(each, found, rtol=share, atol=bound)
    # Far out in the tail the difference of two sigmoids is 0, and its logarithm known all the same.
    far = float(log_probability(torch.tensor(200), means[1], log_scales[1]))
    steep, lower = np.exp(7.0), (2 * 200 - 256) / 255 + 1
    assert far == pytest.approx(np.log(-np.expm1(-2 / 255 * steep)) - lower * steep, rel=share)


def test_scales_have_a_least_one():
    numbers, x = mixture(1, components=1)
    numbers[:, 2] = torch.tensor([-7.0, -9.0]).repeat(32)
    cut = LogisticMixture(numbers, x).logits()
    steep = log_bins(numbers[:, 1:2], torch.full((64, 1), -7.0, dtype=torch.float64))
    torch.testing.assert_close(cut, steep, atol=1e-9, rtol=1e-12)


def test_pairs_of_channels_have_the_probabilities_of_the_formula_and_add_up_to_one():
    """All 65,536 of them, by plain differences of sigmoids; so many as can be enumerated."""
    numbers, _ = mixture(2, count=1, spread=1.0)
    x = torch.cartesian_prod(torch.arange(256), torch.arange(256))
    logits = LogisticMixture(numbers.expand(256, -1), x[::256]).logits()
    first = logits[0, 0]  # alike whatever the first channel is
    assert torch.equal(logits[:, 0], first.expand(256, 256))
    found = (first.unsqueeze(1) + logits[:, 1]).exp().numpy()
    assert abs(found.sum() - 1) < 1e-12

    weights, means, scales, slope = (
        part.numpy() for part in numbers[0].view(-1, 3).split([1, 2, 2, 1])
    )
    weights = np.exp(weights[0]) / np.exp(weights[0]).sum()
    value = np.arange(256) / 127.5 - 1

    def bins(mean, log_scale):
        """(..., 256) of (...) means."""
        upper = 1 / (1 + np.exp(-(value + 1 / 255 - mean[..., None]) * np.exp(-log_scale)))
        upper[..., -1] = 1.0
        return np.diff(upper, prepend=0.0)

    wanted = 0.0
    for k in range(3):
        moved = means[1, k] + np.tanh(slope[0, k]) * value
        own = bins(np.array(means[0, k]), scales[0, k])[:, None]
        wanted = wanted + weights[k] * own * bins(moved, scales[1, k])
    np.testing.assert_allclose(found, wanted, atol=1e-15)


def test_channels_that_are_not_known_yet_are_not_looked_at():
    numbers, x = mixture(3)
    before = LogisticMixture(numbers, x).logits()
    for channel in range(3):
        changed = x.clone()
        changed[:, channel:] = (x[:, channel:] + 100) % 256
        after = LogisticMixture(numbers, changed).logits()
        assert torch.equal(after[:, : channel + 1], before[:, : channel + 1])
        if channel < 2:
            moved = (after[:, channel + 1 :] - before[:, channel + 1 :]).abs().amax(-1)
            assert (moved > 0).all()


@pytest.mark.parametrize("values", [(0, 255, 7), (128, 0, 255), (255, 1, 0)])
def test_the_gradient_is_that_of_the_nats(values):
    numbers, _ = mixture(3, count=2)
    x = torch.tensor([values, values])
    numbers.requires_grad_()
    assert torch.autograd.gradcheck(lambda n: LogisticMixture(n, x).nats(), numbers)
    wide = numbers.detach().clone()
    wide[:, 12:21] = torch.tensor([-60.0, 0.0, 400.0] * 3)  # scales, some beyond any float
    wide.requires_grad_()
    LogisticMixture(wide, x).nats().sum().backward()
    assert wide.grad.isfinite().all()
