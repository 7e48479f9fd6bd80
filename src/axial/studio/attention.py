"""What the prediction of one pixel attends to: each layer and head along its row and column.

b channels of one example as a batch, *plane the grid of the decoder, d width, n heads, l length
of a line.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from axial.data.packed import Array
from axial.models.attention import AxialAttention
from axial.models.causal import stack
from axial.models.config import ModelConfig
from axial.models.protocol import LevelModel, Model, evaluating
from axial.studio.wire import packed


def has_attention(model: Model) -> bool:
    """Whether there is attention along axes to look at."""
    return isinstance(model, LevelModel)


def attention_at(
    model: Model, x: Tensor, label: Tensor | None, place: tuple[int, ...]
) -> list[dict[str, Any]]:
    """The attention behind the prediction of each channel of a pixel of one example (1, *axes, c).

    The inner level sees an element as the position after its own, and an outer level hands what
    it saw to the next step of its axis: weights are told by the pixels whose values they read.
    """
    assert isinstance(model, LevelModel)
    config = model.config
    channels = range(config.given_channels, config.channels)
    found: list[dict[str, Any]] = []
    stacked = config.channel_mode != "encode"
    with evaluating(model), _inputs(model) as seen:
        if stacked:
            model(x, label)
        else:
            number = torch.tensor(list(channels), device=x.device)
            rows = x.expand(len(channels), *x.shape[1:])
            model.channel_logits(rows, number, None if label is None else label.expand(len(rows)))
        grid, pixels = _pixels(config)
        for row, channel in enumerate(channels):
            at = tuple(np.argwhere(grid == _flat(config, place, channel))[0]) if stacked else place
            for stage, layers in _stages(model):
                for layer, block in enumerate(layers):
                    inputs = seen[block.attention][0 if stacked else row]
                    line = _line(stage, block.attention, inputs, at, pixels)
                    if line is not None:
                        found.append({"channel": channel, "stage": stage, "layer": layer} | line)
    return found


def _stages(model: LevelModel) -> Iterator[tuple[str, list[Any]]]:
    """The levels in the order of computation, each with its blocks; an LSTM has none."""
    encoder = getattr(model, "encoder", None)
    if encoder is not None:
        yield "encoder", list(encoder.blocks)
    for level, blocks in enumerate(model.outer_decoders):
        assert isinstance(blocks, nn.ModuleList)
        yield f"outer decoder {level}", list(blocks)
    if isinstance(model.inner_decoder, nn.ModuleList):
        yield "inner decoder", list(model.inner_decoder)


@contextmanager
def _inputs(model: nn.Module) -> Iterator[dict[nn.Module, Tensor]]:
    """What goes into each attention layer during a pass of the model."""
    seen: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, args: tuple[Any, ...]) -> None:
        seen[layer] = args[0]

    layers = [layer for layer in model.modules() if isinstance(layer, AxialAttention)]
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _line(
    stage: str, layer: AxialAttention, x: Tensor, at: tuple[int, ...], pixels: Array
) -> dict[str, Any] | None:
    """The weights of a layer's heads along its axis; None where it says nothing to the pixel.

    `x` (*plane, d) is its input for one channel, `pixels` the pixel of each place of the plane.
    """
    query = list(at)
    if stage.startswith("outer"):
        level = int(stage.split()[-1])
        query[level] -= 1
        if query[level] < 0:
            return None
    if stage == "encoder":
        pixels = np.arange(int(np.prod(x.shape[:-1]))).reshape(x.shape[:-1])
    through = tuple(
        slice(None) if axis == layer.axis else slice(i, i + 1) for axis, i in enumerate(query)
    )
    weights = layer.weights(x[through].unsqueeze(0))[0]  # (*plane of one line, n, l)
    own = tuple(query[axis] if axis == layer.axis else 0 for axis in range(len(query)))
    heads = weights[own].float().cpu().numpy()
    places = pixels[through].ravel()
    if stage == "inner decoder":  # position j carries the element before it
        places = np.concatenate([[-1], places[:-1]])
    return {
        "axis": layer.axis,
        "causal": layer.causal,
        "heads": len(heads),
        "positions": packed(places, np.int32),
        "weights": packed(heads, np.float32),
    }


def _pixels(config: ModelConfig) -> tuple[Array, Array]:
    """For each place of the decoder's grid its flat index into (*axes, c), and into (*axes)."""
    shape = (*config.axes, config.channels)
    every = torch.arange(int(np.prod(shape))).view(1, *shape)
    if config.channel_mode == "encode":
        grid = every[0, ..., 0].numpy()
    else:
        grid = stack(every, config)[0].numpy()
    return grid, grid // config.channels


def _flat(config: ModelConfig, place: tuple[int, ...], channel: int) -> int:
    return int(np.ravel_multi_index((*place, channel), (*config.axes, config.channels)))
