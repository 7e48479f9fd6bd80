"""Which optimizer updates which parameters, and which of them decay."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from axial.training.config import TrainConfig
from axial.training.muon import Muon


def optimizers(
    values: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    config: TrainConfig,
    matrices: Mapping[str, int | None],
) -> list[torch.optim.Optimizer]:
    """Adam or AdamW for all, or Muon for the model's `matrices` and AdamW for the rest."""
    hidden = {n: v for n, v in values.items() if config.optimizer == "muon" and n in matrices}
    found = [_adam({n: v for n, v in values.items() if n not in hidden}, config)]
    if hidden:
        found.append(Muon(hidden, parameters, heads=matrices, weight_decay=config.weight_decay))
    return found


def _adam(values: Mapping[str, Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    """Matrices decay; biases, norms, embeddings and positions do not."""
    matrices = [value for name, value in values.items() if _decays(name, value)]
    others = [value for name, value in values.items() if not _decays(name, value)]
    betas = (0.9, config.beta2)
    found: torch.optim.Optimizer
    if config.optimizer == "adam":
        found = torch.optim.Adam([*values.values()], betas=betas, fused=True)
    else:
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        found = torch.optim.AdamW(groups, betas=betas, fused=True)
    for value in values.values():
        # What the optimizer itself would make at its first step; a checkpoint wants it before.
        found.state[value] = {
            "step": torch.zeros((), device=value.device),
            "exp_avg": torch.zeros_like(value),
            "exp_avg_sq": torch.zeros_like(value),
        }
    return found


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and "embedding" not in name and "positions" not in name
