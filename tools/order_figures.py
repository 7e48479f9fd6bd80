"""Draw what each level of a running model sees: the figures of docs/order.md.

    python tools/order_figures.py

Nothing here knows how the model works. One element of the input is changed at a time, and a
position that moves is a position that sees it; levels before the one in question are held
still, so that each panel shows what that level adds.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axial import AxialTransformer, ModelConfig
from axial.models.causal import shift

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
ROUNDING = 1e-12
"""On some CPUs an example's last bits depend on its place in the batch."""
IMAGE = ModelConfig(
    axes=(5, 6), channels=3, values=3, width=16, heads=2, encoder_layers=2, decoder_layers=(2, 1)
)
VOLUME = ModelConfig(
    axes=(3, 3, 4), values=3, width=16, heads=2, encoder_layers=0, decoder_layers=(3, 2, 1)
)


def speaking(config: ModelConfig) -> AxialTransformer:
    """A model whose every layer matters: at the usual scale rounding would hide dependence."""
    torch.manual_seed(0)
    model = AxialTransformer(config)
    model.reset_parameters(final_scale=1.0)
    return model.double().eval()


def seen(
    model: AxialTransformer,
    level: str,
    position: Sequence[int],
    channel: int,
    *,
    shifted: int | None = None,
) -> Tensor:
    """Which input elements (*axes, c) the output of a level sees at one position.

    `level` is the name of a module of the model; "" is the model itself, its logits. `shifted`
    moves the output along that axis first, as the model does before it hands it on.
    """
    config = model.config
    shape = (*config.axes, config.channels)
    count = torch.Size(shape).numel()
    x = torch.randint(config.values, shape, generator=torch.Generator().manual_seed(1))
    changed = x.flatten().repeat(count + 1, 1)
    changed[range(count), range(count)] = (x.flatten() + 1) % config.values
    outputs: list[Tensor] = []
    hooks = [
        module.register_forward_hook(_hold_still)
        for name, module in model.named_modules()
        if _stands_before(name, level)
    ]
    hooks.append(
        model.get_submodule(level or "to_logits").register_forward_hook(
            lambda module, args, output: outputs.append(output)
        )
    )
    channels = torch.full((count + 1,), channel)
    with torch.no_grad():
        model.channel_logits(changed.view(count + 1, *shape), channels)
    for hook in hooks:
        hook.remove()
    output = outputs[0] if shifted is None else shift(outputs[0], shifted)
    at = output.flatten(1, -2)[:, np.ravel_multi_index(tuple(position), config.axes)]
    return ((at[:-1] - at[-1:]).abs() > ROUNDING).any(-1).view(shape)


def _hold_still(module: Any, args: Any, output: Tensor) -> Tensor:
    """Replace every example's output by that of the last one, which is unchanged."""
    return output[-1:].expand_as(output)


def _stands_before(name: str, level: str) -> bool:
    """Encoder, then the outer levels in turn, then the inner one; "" waits for all of them."""
    order = ["encoder", "outer_decoders.0", "outer_decoders.1", "inner_decoder"]
    return level in order and name in order[: order.index(level)]


def draw_panels(
    panels: Sequence[tuple[str, Tensor, Callable[[int, int], bool]]], columns: int, path: Path
) -> None:
    """Grids of squares: blue is seen, red the element asked for, dotted if it sees itself."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Circle, Rectangle

    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.3 * columns, 2.15 * rows), squeeze=False, layout="constrained"
    )
    for panel, (title, field, is_asked) in zip(grid.flat, panels, strict=True):
        height, width = field.shape
        panel.set_title(title, fontsize=9)
        panel.set(xlim=(-0.05, width + 0.05), ylim=(height + 0.05, -0.05), aspect="equal")
        panel.axis("off")
        for i, j in itertools.product(range(height), range(width)):
            colour = "#d62728" if is_asked(i, j) else "#4c8fd6" if field[i, j] else "#ececec"
            edge = "#1f4e8c" if field[i, j] else "#c8c8c8"
            place = (j + 0.05, i + 0.05)
            panel.add_patch(Rectangle(place, 0.9, 0.9, facecolor=colour, edgecolor=edge))
            if is_asked(i, j) and field[i, j]:
                panel.add_patch(Circle((j + 0.5, i + 0.5), 0.22, facecolor="#4c8fd6"))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def image_figure(path: Path) -> None:
    """One channel of an image: outer level, its shift, inner level, and all of them."""
    model, asked = speaking(IMAGE), (2, 3)
    fields = {
        "outer decoder": seen(model, "outer_decoders.0", asked, 1),
        "... shifted down": seen(model, "outer_decoders.0", asked, 1, shifted=0),
        "inner decoder": seen(model, "inner_decoder", asked, 1),
        "the prediction": seen(model, "", asked, 1),
    }
    panels = [(name, field[..., 1], lambda i, j: (i, j) == asked) for name, field in fields.items()]
    draw_panels(panels, 4, path)


def channels_figure(path: Path) -> None:
    """All three channels, for the encoder and for the prediction of an element of the second."""
    model, asked = speaking(IMAGE), (2, 3)
    panels = []
    for title, level in (("encoder", "encoder"), ("prediction", "")):
        field = seen(model, level, asked, 1)
        for channel, colour in enumerate(("red", "green", "blue")):
            here = channel == 1
            panels.append(
                (
                    f"{title}: {colour}",
                    field[..., channel],
                    lambda i, j, h=here: h and (i, j) == asked,
                )
            )
    draw_panels(panels, 3, path)


def volume_figure(path: Path) -> None:
    """A volume, slice by slice: what each of three levels adds."""
    model, asked = speaking(VOLUME), (1, 1, 2)
    levels = {
        "outer decoder 0, shifted": seen(model, "outer_decoders.0", asked, 0, shifted=0),
        "outer decoder 1, shifted": seen(model, "outer_decoders.1", asked, 0, shifted=1),
        "inner decoder": seen(model, "inner_decoder", asked, 0),
        "the prediction": seen(model, "", asked, 0),
    }
    panels = [
        (f"{name}: slice {depth}", field[depth, ..., 0], lambda i, j, d=depth: (d, i, j) == asked)
        for name, field in levels.items()
        for depth in range(VOLUME.axes[0])
    ]
    draw_panels(panels, 3, path)


def main(folder: Path = FIGURES) -> None:
    """Draw all figures."""
    image_figure(folder / "order_image.png")
    channels_figure(folder / "order_channels.png")
    volume_figure(folder / "order_volume.png")


if __name__ == "__main__":
    main()
