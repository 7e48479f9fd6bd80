"""PixelCNN++'s authors' weights -> our model: every size but the picture's is read off shapes."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from axial.errors import CheckpointError
from axial.models.pixelcnn_config import PixelCnnPpConfig
from axial.models.pixelcnnpp import PixelCnnPp
from axial.models.pixelcnnpp_layers import NormedConv, NormedTransposed

_LAST = re.compile(r"dense_(\d+)/V")
# Axes of their v in the order of ours: outputs, inputs, rows, columns.
_AXES = {"conv2d": (3, 2, 0, 1), "deconv2d": (2, 3, 0, 1), "dense": (1, 0)}


def from_pixelcnnpp(
    variables: Mapping[str, NDArray[Any]], *, axes: tuple[int, int] = (32, 32)
) -> PixelCnnPp:
    """The model that holds variables by the names of openai/pixel-cnn, for RGB pictures of `axes`.

    Names may have the root scope `model/`; of a checkpoint, give the averages or the raw weights.
    The class-conditional model, which projects labels in each block, is not supported.
    """
    variables = {name.removeprefix("model/"): value for name, value in variables.items()}
    used: set[str] = set()

    def take(name: str, ndim: int) -> NDArray[Any]:
        if name not in variables:
            raise CheckpointError(
                f"{name!r} is missing: give all variables of an unconditional PixelCNN++ by their "
                f"names"
            )
        found = np.asarray(variables[name])
        if found.ndim != ndim:
            raise CheckpointError(f"{name!r} has shape {found.shape}: it should have {ndim} axes")
        used.add(name)
        return found

    _, _, inputs, width = take("conv2d_0/V", 4).shape
    last = max((int(m[1]) for m in map(_LAST.fullmatch, variables) if m), default=0)
    outputs = take(f"dense_{last}/V", 2).shape[1]
    count = sum(name.startswith("conv2d_") and name.endswith("/V") for name in variables)
    if inputs != 4 or outputs % 10 or count < 39 or (count - 15) % 24:
        raise CheckpointError(
            f"{inputs} inputs, {outputs} outputs and {count} convolutions are no PixelCNN++ of "
            f"RGB pictures: it has 4, a multiple of 10, and 15 more than a multiple of 24"
        )
    config = PixelCnnPpConfig(
        axes=axes, channels=3, width=width, layers=(count - 15) // 24, components=outputs // 10
    )
    weights: dict[str, NDArray[Any]] = {}
    numbers = dict.fromkeys(_AXES, 0)
    for ours, conv in PixelCnnPp.of_shapes(config).named_modules():
        if not isinstance(conv, NormedConv):
            continue
        kind = "conv2d" if conv.v[0, 0].numel() > 1 else "dense"
        kind = "deconv2d" if isinstance(conv, NormedTransposed) else kind
        theirs = f"{kind}_{numbers[kind]}"
        numbers[kind] += 1
        v = take(f"{theirs}/V", len(_AXES[kind])).transpose(_AXES[kind])
        weights[f"{ours}.v"] = v.reshape(*v.shape, *(1,) * (4 - v.ndim))
        for name in ("g", "b"):
            weights[f"{ours}.{name}"] = take(f"{theirs}/{name}", 1)
    if rest := sorted(variables.keys() - used):
        raise CheckpointError(f"{rest[0]!r} belongs to no unconditional PixelCNN++ of these sizes")
    order = mixture_order(config.components)
    weights |= {f"to_mixture.{name}": weights[f"to_mixture.{name}"][order] for name in "vgb"}
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    return PixelCnnPp.from_weights(config, tensors)


def mixture_order(components: int) -> NDArray[np.int64]:
    """Where our numbers of a pixel's mixture stand among theirs.

    They have the logits, and for each channel its means, log scales and one set of coefficients.
    """
    theirs = np.arange(10 * components).reshape(10, components)
    by_channel = theirs[1:].reshape(3, 3, components)
    return np.concatenate([theirs[:1].ravel(), by_channel.swapaxes(0, 1).ravel()])
