"""The particle filter of a completion: several versions of each example, channel by channel.

b examples, k particles of each, *axes the data axes, c channels.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from axial.models.causal import given as always_given
from axial.models.likelihood import planes_at_once
from axial.models.protocol import Context, Label, Model, evaluating
from axial.sampling.draw import draw
from axial.sampling.noise import gumbel


def filtered(
    model: Model,
    x: Int[Tensor, "b *axes c"],
    mask: Bool[Tensor, "*axes c"],
    particles: int,
    conditions: tuple[Label, Context],
    *,
    seed: int,
    temperature: float,
    first: int,
    **how: Any,
) -> Int[Tensor, "b *axes c"]:
    """Complete `x`, whose known elements are those of `mask`; `how` goes to `draw`.

    The missing part of a channel is drawn in each particle, which is then weighted by the
    probability it gives the kept part of the next channel, and resampled; at the end one particle
    of each example is returned.
    """
    count, device = len(x), next(model.parameters()).device
    x = x.to(device).repeat_interleave(particles, 0)
    label, context = (
        None if t is None else t.to(device).repeat_interleave(particles, 0) for t in conditions
    )
    how |= {"seed": seed, "temperature": temperature, "first": first * particles}
    how |= {"label": label, "context": context}
    versions = first * particles + torch.arange(len(x), device=device)
    for channel in range(model.config.channels):
        kept = mask[..., channel] & ~always_given(model.config)[..., channel]
        if channel and kept.any():
            weights = _log_probability(model, x, label, context, channel, kept, temperature)
            x = x[_resampled(weights.view(count, -1), seed, versions, x[0].numel() + channel)]
        if (x[..., channel] < 0).any():
            later = x.clone()
            later[..., channel + 1 :].clamp_(min=0)
            x[..., channel] = draw(model, len(x), given=later, **how)[..., channel]
    return x[::particles]


def _resampled(
    weights: Float64[Tensor, "b k"], seed: int, versions: Int[Tensor, " bk"], element: int
) -> Int[Tensor, " bk"]:
    """Which particle each particle continues, drawn by the weights of those of its example."""
    count, particles = weights.shape
    noise = gumbel(seed, versions, torch.tensor([element], device=versions.device), particles)
    chosen = (weights.unsqueeze(1) + noise.view(count, particles, particles)).argmax(-1)
    start = particles * torch.arange(count, device=weights.device)
    return (chosen + start.unsqueeze(1)).flatten()


def _log_probability(
    model: Model,
    x: Tensor,
    label: Tensor | None,
    context: Tensor | None,
    channel: int,
    kept: Tensor,
    temperature: float,
) -> Tensor:
    """That of the kept part of a channel, given the channels before it."""
    found = []
    at_once = planes_at_once(model.config, x.device, steady=True)
    for rows in torch.split(torch.arange(len(x), device=x.device), at_once):
        part, number = x[rows], torch.full((len(rows),), channel, device=x.device)
        with evaluating(model):
            conditions = (None if t is None else t[rows] for t in (label, context))
            logits = model.channel_logits(part.clamp(min=0), number, *conditions)
        scores = (logits.double() / temperature).log_softmax(-1)
        chosen = scores.gather(-1, part[..., channel].clamp(min=0).unsqueeze(-1)).squeeze(-1)
        found.append(chosen[:, kept.to(x.device)].sum(-1))
    return torch.cat(found)
