"""Draw what one prediction of each family has seen after each layer: the figure of docs/rivals.md.

    python tools/rivals_figure.py

As in order_figures.py nothing is known of the models: one element of the input is changed at a
time, and a layer whose output at the place in question moves has seen it. The pictures are small,
and so are the strides and blocks: 12 x 12 pixels of three channels, which are three strips each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from order_figures import FIGURES, ROUNDING
from torch import Tensor

from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.families import new_model
from axial.models.family_config import FamilyConfig
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.protocol import Model
from axial.models.sequence_config import FullConfig, StridedConfig

SIDE, CHANNELS, CHUNK, PICTURES = 12, 3, 72, 2
ASKED = (7, 6, 1)
"""Row, column and channel of the element that is predicted."""
_DATA: dict[str, Any] = {"axes": (SIDE, SIDE), "channels": CHANNELS}
_SIZES: dict[str, Any] = {**_DATA, "values": 3, "width": 12, "heads": 2}


@dataclass(frozen=True)
class Shown:
    """A family: a small model, and which of its layers are drawn."""

    name: str
    config: FamilyConfig
    layers: dict[int, str]
    """What stands above the panel of each layer, by its number in `model.blocks()`."""


FAMILIES = (
    Shown(
        "Axial\nTransformer",
        ModelConfig(**_SIZES, encoder_layers=2, decoder_layers=(2, 1)),
        {
            0: "encoder 1",
            1: "encoder 2",
            2: "outer 1, shifted",
            3: "outer 2, shifted",
            4: "inner 1",
        },
    ),
    Shown("Transformer", FullConfig(**_SIZES, layers=1), {0: "layer 1"}),
    Shown(
        "Strided Sparse\nTransformer",
        StridedConfig(**_SIZES, layers=2),
        {0: "layer 1, strided", 1: "layer 2, local"},
    ),
    Shown(
        "Image Transformer,\n1-D blocks of 48",
        Local1dConfig(**_SIZES, layers=5, block=48, norm="pre"),
        {at: f"layer {at + 1}" for at in range(5)},
    ),
    Shown(
        "Image Transformer,\n2-D, 3 x 3 pixels",
        Local2dConfig(**_SIZES, layers=4, block=(3, 9), flange=(3, 3), norm="pre"),
        {at: f"layer {at + 1}" for at in range(4)},
    ),
    Shown(
        "Block\nTransformer",
        BlocksConfig(
            **_SIZES,
            head_width=6,
            embedding_width=6,
            subscale=(2, 2),
            encoder_layers=2,
            layers=2,
            block_shapes=((6, 3), (3, 6)),
        ),
        {0: "encoder 1", 1: "encoder 2", 2: "decoder 1", 3: "decoder 2"},
    ),
    Shown(
        "Gated\nPixelCNN",
        GatedPixelCnnConfig(**_DATA, values=3, width=24, layers=5, first_kernel=5, kernel=3),
        {at: f"layer {at + 1}" for at in range(5)},
    ),
    Shown(
        "PixelCNN++",
        PixelCnnPpConfig(**_DATA, width=8, layers=1, components=2),
        {
            0: "12 x 12, down",
            2: "6 x 6, down",
            5: "3 x 3, up",
            8: "6 x 6, up",
            11: "12 x 12, up",
        },
    ),
)


def speaking(config: FamilyConfig) -> Model:
    """A model whose every layer matters; numpy draws its weights alike with every torch."""
    model, drawn = new_model(config).double().eval(), np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        std = 1.5 if name.endswith(".g") else 0.3
        parameter.data = torch.from_numpy(std * drawn.standard_normal(parameter.shape))
    return model


def at_place(config: FamilyConfig, layer: int) -> Callable[[Any], Tensor]:
    """How the features that lead to the prediction are found in the output of a layer."""
    row, column, channel = ASKED
    if isinstance(config, ModelConfig):
        outer = config.encoder_layers <= layer < config.encoder_layers + config.decoder_layers[0]
        return lambda out: out[:, row - outer, column]  # the shift hands a row to the next one
    if isinstance(config, BlocksConfig):
        return lambda out: out[:, row // config.subscale[0], column // config.subscale[1]]
    if isinstance(config, GatedPixelCnnConfig):
        return lambda out: out[1][:, channel :: config.channels, row, column]
    if isinstance(config, PixelCnnPpConfig):
        kind, level = config.plan[layer]
        level += kind == "halve"
        return lambda out: out[1][:, :, row >> level, column >> level]
    rank = int(np.argsort(config.order())[np.ravel_multi_index(ASKED, (SIDE, SIDE, CHANNELS))])
    return lambda out: out[:, rank]


def predicted(model: Model, x: Tensor) -> Tensor:
    """Logits of the element, by the one pass that predicts it; hooks see no other."""
    row, column, channel = ASKED
    config = model.config
    if isinstance(config, ModelConfig):
        return model.channel_logits(x, torch.full((len(x),), channel))[:, row, column]
    if isinstance(config, BlocksConfig):
        down, right = config.subscale
        number = torch.full((len(x),), row % down * right + column % right)
        return model.slice_logits(x, number)[:, row // down, column // right, channel]
    return model(x)[:, row, column, channel]


def outputs_of(model: Model, x: Tensor) -> list[Tensor]:
    """The features of each layer that lead to the prediction, and its logits."""
    found: list[Tensor] = []

    def keep(at: Callable[[Any], Tensor]) -> Callable[..., None]:
        return lambda module, args, out: found.append(at(out))

    hooks = [
        block.register_forward_hook(keep(at_place(model.config, layer)))
        for layer, block in enumerate(model.blocks())
    ]
    with torch.no_grad():
        found.append(predicted(model, x))
    for hook in hooks:
        hook.remove()
    return found


def seen(config: FamilyConfig) -> list[Tensor]:
    """What each layer, and last the prediction, has seen: (rows, columns, channels)."""
    model, shape = speaking(config), (SIDE, SIDE, CHANNELS)
    count = SIDE * SIDE * CHANNELS
    found = torch.zeros(len(list(model.blocks())) + 1, count, dtype=torch.bool)
    # In a single picture a rectifier may hide what an element does.
    for picture in np.random.default_rng(1).integers(config.values, size=(PICTURES, count)):
        for start in range(0, count, CHUNK):
            numbers = torch.arange(start, min(start + CHUNK, count))
            x = torch.from_numpy(picture).repeat(len(numbers) + 1, 1)
            x[range(len(numbers)), numbers] += config.values // 2
            outputs = outputs_of(model, (x % config.values).view(-1, *shape))
            for moved, out in zip(found, outputs, strict=True):
                moved[numbers] |= (out[:-1] - out[-1]).abs().flatten(1).amax(1) > ROUNDING
    return list(found.view(-1, *shape))


def earlier(config: FamilyConfig) -> Tensor:
    """Which elements come before the one that is asked for."""
    rank = np.argsort(config.order()).reshape(SIDE, SIDE, CHANNELS)
    return torch.from_numpy(rank < rank[ASKED])


def colours(field: Tensor, before: Tensor) -> np.ndarray[Any, Any]:
    """A picture (rows, strips, rgb): seen, not seen though earlier, later, and the element."""
    picture = np.full((*field.shape, 3), 0.93)
    picture[before.numpy()] = (0.99, 0.85, 0.66)
    picture[field.numpy()] = (0.22, 0.49, 0.78)
    picture[ASKED] = (0.84, 0.15, 0.16)
    return picture.reshape(SIDE, SIDE * CHANNELS, 3)


def main(path: Path = FIGURES / "rivals_seen.png") -> None:
    """Draw a row of panels for each family."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 1 + max(len(shown.layers) for shown in FAMILIES)
    size = (2.0 * columns + 1.0, 2.2 * len(FAMILIES))
    figure, grid = plt.subplots(len(FAMILIES), columns, figsize=size, layout="constrained")
    for panel in grid.flat:
        panel.axis("off")
    for row, shown in zip(grid, FAMILIES, strict=True):
        fields, before = seen(shown.config), earlier(shown.config)
        titles = {**shown.layers, len(fields) - 1: "prediction"}
        for panel, (layer, title) in zip(row, titles.items(), strict=False):
            share = (fields[layer] & before).sum() / before.sum()
            panel.set_title(f"{title}: {100 * share:.0f} %", fontsize=9)
            panel.imshow(
                colours(fields[layer], before), extent=(0, SIDE, SIDE, 0), interpolation="nearest"
            )
            for line in range(SIDE + 1):
                panel.plot([line, line], [0, SIDE], color="white", linewidth=0.8)
                panel.plot([0, SIDE], [line, line], color="white", linewidth=0.8)
        row[0].text(-0.1, 0.5, shown.name, transform=row[0].transAxes, ha="right", va="center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
