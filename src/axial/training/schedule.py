"""The learning rate at each step of a run, and whether a run is long enough for its settings."""

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


def doubts(config: TrainConfig) -> list[str]:
    """Why the EMA weights, which are the run's model, may end near where they started."""
    found: list[str] = []
    if config.max_minutes is not None:  # how many steps there will be is not known
        return found
    if config.warmup >= config.steps:
        found.append(
            f"warmup {config.warmup:,} is no shorter than the run of {config.steps:,} steps: the "
            f"learning rate only rises; use a smaller --warmup"
        )
    reach = 0 if config.ema is None or config.ema_warmup else 1 / (1 - config.ema)
    if reach > config.steps:
        found.append(
            f"ema {config.ema} reaches back {reach:,.0f} steps, further than the run of "
            f"{config.steps:,}: its model will be mostly its starting weights; use --ema-warmup"
        )
    return found
