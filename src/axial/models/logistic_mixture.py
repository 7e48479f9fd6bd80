"""Mixtures of discretized logistics (Salimans et al. 2017) as exact categoricals of 256 values.

A component is a logistic distribution for each channel of a pixel, cut into 256 bins; its mean
moves with the channels before. A channel then has the mixture given those, with the weights that
Bayes' rule gives to the components: bins are differences of sigmoids, so they add up to one.

*grid pixels, c channels, k components, v values, n numbers that describe the mixture of a pixel.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

VALUES = 256
_LEAST_LOG_SCALE = -7.0
_LOG_BIN = math.log(2 / (VALUES - 1))
_FEW = 1e-3
"""Bins of fewer scales than that are told from a series, which cannot vanish."""


class LogisticMixture:
    """The mixture of each pixel of a grid, given the pixel's channels so far.

    Of a pixel's `numbers` the first k are logits of the components, then c times k means, as many
    log scales, and k coefficients for each pair of a channel and one before it. In `x` channels
    that are not known yet may hold anything from 0 to 255: only later ones heed them.
    """

    def __init__(self, numbers: Float[Tensor, "*grid n"], x: Int[Tensor, "*grid c"]) -> None:
        channels = x.shape[-1]
        parts = [1, channels, channels, channels * (channels - 1) // 2]
        numbers = rearrange(numbers, "... (p k) -> ... p k", p=sum(parts))
        logits, means, log_scales, coefficients = torch.split(numbers, parts, -2)
        scaled = scaled_values(x, numbers.dtype).unsqueeze(-1)
        moved = [means[..., :1, :]]
        for channel in range(1, channels):
            first = channel * (channel - 1) // 2
            slopes = torch.tanh(coefficients[..., first : first + channel, :])
            told = (slopes * scaled[..., :channel, :]).sum(-2, keepdim=True)
            moved.append(means[..., channel : channel + 1, :] + told)
        self.means = torch.cat(moved, -2)
        self.log_scales = log_scales.clamp(min=_LEAST_LOG_SCALE)
        found = log_probability(x.unsqueeze(-1), self.means, self.log_scales)
        # Weights of the components before the first channel, after it, and so on: c + 1 of them.
        self.log_weights = torch.cat([F.log_softmax(logits, -1), found], -2).cumsum(-2)

    def logits(self) -> Float[Tensor, "*grid c v"]:
        """Log probabilities of the values of every channel, given the channels before it."""
        every = range(self.means.shape[-2])
        return torch.stack([self.channel_logits(channel) for channel in every], -2)

    def channel_logits(self, channel: int) -> Float[Tensor, "*grid v"]:
        """Those of one channel."""
        weights = F.log_softmax(self.log_weights[..., channel, :], -1).unsqueeze(-1)
        bins = log_bins(self.means[..., channel, :], self.log_scales[..., channel, :])
        return (weights + bins).logsumexp(-2)

    def nats(self) -> Float[Tensor, "*grid"]:
        """Minus the log probability of all channels together: the sum of what they have alone."""
        return -self.log_weights[..., -1, :].logsumexp(-1)


def scaled_values(x: Int[Tensor, "*s"], dtype: torch.dtype) -> Float[Tensor, "*s"]:
    """Values as numbers from -1 to 1."""
    return x.to(dtype) * (2 / (VALUES - 1)) - 1


def log_probability(
    x: Int[Tensor, "*#s"], means: Float[Tensor, "*s"], log_scales: Float[Tensor, "*s"]
) -> Float[Tensor, "*s"]:
    """Log probabilities of single values."""
    value, steep = x.to(means.dtype), torch.exp(-log_scales)
    below = F.logsigmoid(((2 * value - VALUES + 2) / (VALUES - 1) - means) * steep)
    above = F.logsigmoid((means - (2 * value - VALUES) / (VALUES - 1)) * steep)
    first, last = x == 0, x == VALUES - 1
    below, above = below.masked_fill(last, 0.0), above.masked_fill(first, 0.0)
    return below + above + _log_width(log_scales).masked_fill(first | last, 0.0)


def log_bins(means: Float[Tensor, "*s"], log_scales: Float[Tensor, "*s"]) -> Float[Tensor, "*s v"]:
    """Log probabilities of all values; between two lies one border, and none at the ends."""
    j = torch.arange(1, VALUES, device=means.device, dtype=torch.float64)
    borders = ((2 * j - VALUES) / (VALUES - 1)).to(means.dtype)
    z = (borders - means.unsqueeze(-1)) * torch.exp(-log_scales).unsqueeze(-1)
    below, above = F.logsigmoid(z), F.logsigmoid(-z)
    inner = below[..., 1:] + above[..., :-1] + _log_width(log_scales).unsqueeze(-1)
    return torch.cat([below[..., :1], inner, above[..., -1:]], -1)


def _log_width(log_scales: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """log(1 - exp(-d)), where d is the width of a bin in scales.

    With it s(a) - s(b) = s(a) s(-b) (1 - exp(b - a)), in which nothing cancels.
    """
    log_d = _LOG_BIN - log_scales
    d = log_d.exp()
    few = d < _FEW
    series = log_d + d * (d / 24 - 0.5)
    return torch.where(few, series, torch.log(-torch.expm1(-d.masked_fill(few, 1.0))))
