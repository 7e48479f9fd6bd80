"""What a model costs, counted from its configuration alone.

A multiply-add is two operations; matrix products are counted and nothing else. Masked attention
counts in full, as its products are usually computed in full.
"""

from axial.models.family_config import FamilyConfig


def forward_flops(config: FamilyConfig) -> int:
    """Operations to score one example, all its channels."""
    given = config.given_channels if config.planes > 1 else 0
    return (config.planes - given) * config.pass_flops()


def training_flops(config: FamilyConfig) -> int:
    """Operations to train on one example: one random slice of it, forward and backward.

    A backward pass costs two forward passes; recomputation is not counted.
    """
    return 3 * config.pass_flops()
