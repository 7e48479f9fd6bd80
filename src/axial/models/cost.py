"""What a model costs, counted from its configuration alone.

A multiply-add is two operations; matrix products are counted and nothing else. Masked attention
counts in full, as its products are usually computed in full.
"""

from axial.models.family_config import FamilyConfig


def forward_flops(config: FamilyConfig) -> int:
    """Operations to score one example, all its slices."""
    return len(config.slices) * config.pass_flops()


def training_flops(config: FamilyConfig) -> int:
    """Operations to train on one example: one random slice of it, forward and backward.

    A backward pass costs two forward passes; recomputation is not counted.
    """
    return 3 * config.pass_flops()
