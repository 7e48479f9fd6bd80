"""What a model costs, counted from its configuration alone.

A multiply-add is two operations; matrix products are counted and nothing else. Masked attention
counts in full, as its products are usually computed in full.
"""

import math

from axial.config import ModelConfig


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
    width, axes = config.width, config.plane_axes
    positions = math.prod(axes)
    last = len(axes) - 1
    total = 2 * positions * width * config.values
    if config.encoder_layers:
        total += 2 * positions * 3 ** len(axes) * 2 * config.channels * width
        total += _blocks_flops(config, config.encoder_layers, list(range(last, -1, -1)))
    for level in range(last):
        cycle = list(range(last, level - 1, -1))
        total += _blocks_flops(config, config.decoder_layers[level], cycle)
    if config.inner == "lstm":
        total += 2 * positions * 8 * width**2
    else:
        total += _blocks_flops(config, config.decoder_layers[last], [last])
    return total


def _blocks_flops(config: ModelConfig, layers: int, cycle: list[int]) -> int:
    positions = math.prod(config.plane_axes)
    dense = 2 * positions * (4 + 2 * config.mlp_ratio) * config.width**2
    lengths = [config.plane_axes[cycle[layer % len(cycle)]] for layer in range(layers)]
    attention = [2 * 2 * positions * length * config.width for length in lengths]
    return layers * dense + sum(attention)


def _given_planes(config: ModelConfig) -> int:
    return config.given_channels if config.channel_mode == "encode" else 0
