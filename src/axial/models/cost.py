"""What a model costs, counted from its configuration alone.

A multiply-add is two operations; matrix products are counted and nothing else. Masked attention
counts in full, as its products are usually computed in full.
"""

import math

from axial.models.config import ModelConfig


def forward_flops(config: ModelConfig) -> int:
    """Operations to score one example, all its channels."""
    return (config.planes - _given_planes(config)) * plane_flops(config)


def training_flops(config: ModelConfig) -> int:
    """Operations to train on one example: one random channel, forward and backward.

    A backward pass costs two forward passes; recomputation is not counted.
    """
    return 3 * plane_flops(config)


def plane_flops(config: ModelConfig) -> int:
    """Operations of one pass: one channel, or all of them where they are stacked."""
    width, count = config.width, len(config.axes)
    blocks = list(config.encoder_axes)
    each = width * config.values
    if config.encoder_layers:
        each += 3**count * 2 * config.channels * width
    for level in range(count):
        blocks += config.decoder_axes(level)
    if config.inner == "lstm":
        blocks.pop()
        each += 8 * width**2
    for axis in blocks:
        attended = 2 * config.plane_axes[axis] * width
        each += (4 + 2 * config.mlp_ratio) * width**2 + attended
    return 2 * math.prod(config.plane_axes) * each


def parameters(config: ModelConfig) -> int:
    """How many numbers the model learns."""
    width, hidden = config.width, config.mlp_ratio * config.width
    norm = 2 * width
    dense = 4 * width * (width + 1)
    feed_forward = hidden * (width + 1) + width * (hidden + 1)
    blocks = config.encoder_layers + sum(config.decoder_layers) - (config.inner == "lstm")
    total = blocks * (2 * norm + dense + feed_forward)
    total += (config.values + config.classes + sum(config.plane_axes)) * width
    total += norm + config.values * (width + 1)
    if config.inner == "lstm":
        total += 8 * width * (width + 1)
    if config.encoder_layers:
        inputs = 3 ** len(config.axes) * 2 * config.channels
        total += width * (inputs + 1 + sum(config.axes))
    return total


def _given_planes(config: ModelConfig) -> int:
    return config.given_channels if config.channel_mode == "encode" else 0
