"""The learning rate at each step of a run."""

import math

from axial.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """That of an update, counted from 0."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    share = {
        "constant": 1.0,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "trapezoid": min(1.0, 2 * (1 - done)),
    }
    return config.learning_rate * share[config.schedule]
