"""The EMA of the weights: its decay at each step, and its update."""

from collections.abc import Sequence

import torch
from torch import Tensor

from axial.training.config import TrainConfig


def ema_decay(config: TrainConfig, step: int) -> float:
    """How much of the EMA stays at an update, counted from 0."""
    decay = config.ema
    if decay is None:
        decay = max(0.0, 1 - 1 / config.ema_horizon / config.steps)
    return min(decay, (1 + step) / (10 + step)) if config.ema_warmup else decay


def update_ema(ema: Sequence[Tensor], weights: Sequence[Tensor], share: Tensor) -> None:
    """Move the EMA towards the weights by a share of the way, in place."""
    apart = torch._foreach_sub(list(weights), list(ema))
    torch._foreach_mul_(apart, share)
    torch._foreach_add_(list(ema), apart)
