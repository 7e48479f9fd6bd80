"""The paper's Table 1 by measurement: what each family sees, costs and computes ahead.

    python experiments/table1.py --out experiments/results/table1_cpu.md
    python experiments/table1.py --device cuda --out experiments/results/table1_h200.md
    python experiments/table1.py --device cuda --out FILE.md --rows strided axial

Without a GPU: receptive fields at 8 to 64 pixels, by the masks of each family (receptive_field.py);
pairs of a query and a key and how they grow; sequential steps of drawing, and the share of its
arithmetic that is computed in parallel, counted in the sampler itself. `--device cuda` adds
what takes a GPU (table1_timing.py): exponents of time and memory, a training step with core
operations and with the best kernels, seconds to draw 64 pictures. FILE.png is the picture. What
was timed is kept row by row in FILE_timing.json: called again, the rest is timed.
"""

import argparse
import math
import platform
from pathlib import Path
from typing import Any

import torch
from receptive_field import settled, share_within_slice, shares
from rival_rows import ROWS, config_of
from table1_timing import exponent, timings
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.cost import forward_flops
from axial.models.families import model_of_shapes
from axial.models.family_config import FamilyConfig
from axial.models.local_config import LocalConfig
from axial.models.pixelcnn_config import PixelCnnPpConfig
from axial.models.sequence_config import FullConfig

SIDES = (8, 16, 32, 64)
GROWN = (8, 16, 32, 64, 128)
"""Sides over which exponents are fitted: 192 to 49,152 elements."""
SHOWN = 20
"""Layers in the picture."""
PERIOD = 4
"""Rows and columns after which the cost of a pixel of a PixelCNN repeats."""


def pairs(config: FamilyConfig) -> list[float]:
    """Pairs of a query and a key in each kind of layer, for a whole picture; [] if it has none."""
    if isinstance(config, ModelConfig):
        lengths = {config.plane_axes[axis] for axis in config.encoder_axes}
        return [len(config.slices) * config.positions * length for length in sorted(lengths)]
    if isinstance(config, BlocksConfig):
        masked = {config.pairs(layer) for layer in range(config.layers)}
        open_ = {config.pairs(layer, masked=False) for layer in range(config.encoder_layers)}
        return [config.slice_count * count for count in sorted(masked | open_)]
    if isinstance(config, FullConfig | LocalConfig):
        return sorted({config.pairs(layer) for layer in range(config.layers)}, reverse=True)
    return []


def products(config: FamilyConfig) -> float:
    """Pairs of the costliest kind of layer; of a convolution the pixels, each has as many taps."""
    return max(pairs(config), default=math.prod(config.axes))


def grown(preset: str) -> dict[str, float]:
    """Exponents, over the number of elements, of one layer's pairs and of scoring a picture."""
    configs = [config_of(preset, side) for side in GROWN]
    sizes = [math.prod(config.axes) * config.channels for config in configs]
    return {
        "pairs": exponent(sizes, [products(config) for config in configs]),
        "scoring": exponent(sizes, [float(forward_flops(config)) for config in configs]),
    }


def steps(config: FamilyConfig) -> int:
    """Passes of the network, one after another, that drawing a picture takes."""
    pixelwise = isinstance(config, BlocksConfig | PixelCnnPpConfig)
    return math.prod(config.axes) * (1 if pixelwise else config.channels)


def ahead(config: FamilyConfig) -> float:
    """The share of a drawing's operations in calls that cover a whole plane, slice or row.

    The Axial Transformer's is counted in a scoring pass, whose arithmetic its drawing has. Families
    over sequences have no such calls.
    """
    if isinstance(config, FullConfig | LocalConfig):
        return 0.0
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        return _ahead_axial(config) if isinstance(config, ModelConfig) else _ahead_stepped(config)


def _ahead_axial(config: ModelConfig) -> float:
    model = model_of_shapes(config).eval()
    x = torch.zeros(1, *config.axes, config.channels, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(x, checked=True)
    counts = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
    last = sum(
        count
        for name, count in counts.items()
        if name.endswith((".inner_decoder", ".to_logits")) and name.count(".") == 1
    )
    return 1 - last / counter.get_total_flops()


def _ahead_stepped(config: FamilyConfig) -> float:
    """Over a slice, or over some rows in the middle of a picture: PERIOD of them, columns alike."""
    model: Any = model_of_shapes(config).eval()
    x = torch.zeros(1, *config.axes, config.channels, dtype=torch.long, device="meta")
    drawing = model.steps(x)
    once, opening = [0], drawing._open
    with FlopCounterMode(display=False) as counter:

        def open_and_count(number: int) -> None:
            before = counter.get_total_flops()
            opening(number)
            once[0] += counter.get_total_flops() - before

        def pixel(number: int) -> int:
            before = counter.get_total_flops() - once[0]
            for channel in range(config.channels):
                drawing.logits(number * config.channels + channel)
            return counter.get_total_flops() - once[0] - before

        drawing._open = open_and_count
        if isinstance(config, BlocksConfig):
            each = sum(pixel(config.positions + place) for place in range(config.positions))
        else:
            each, wide = 0, config.axes[1]
            first = config.axes[0] // (2 * PERIOD) * PERIOD
            for row in range(first, first + PERIOD):
                start = [pixel(row * wide + column) for column in range(min(wide, 2 * PERIOD))]
                each += sum(start) + sum(start[PERIOD:]) * (wide - len(start)) // PERIOD
    return once[0] / (once[0] + each)


def measured(name: str, *, sides: tuple[int, ...] = SIDES) -> dict[str, Any]:
    """All of a row that a CPU can tell."""
    row = ROWS[name]
    found = {side: shares(config_of(row.published, side)) for side in sides}
    config = config_of(row.equal, 32)
    result: dict[str, Any] = {
        "shares": {side: found[side][-1] for side in sides},
        "by layer": {side: found[side] for side in sides},
        "pairs": pairs(config),
        "exponents": grown(row.equal),
        "steps": steps(config),
        "ahead": ahead(config),
        "parameters": config.parameters(),
        "flops": forward_flops(config),
    }
    if isinstance(config, BlocksConfig):
        result["within a slice"] = share_within_slice(config)
    return result


def verdicts(name: str, found: dict[str, Any]) -> list[str]:
    """What becomes of the paper's words for a row, by the rules of the columns."""
    row, said = ROWS[name], []
    if row.words is None:
        return []
    full = all(share == 1 for share in found["shares"].values())
    some = {side: share for side, share in found["shares"].items() if share == 1}
    rest = {side: share for side, share in found["shares"].items() if share < 1}
    if row.words[0] == "no" and some:
        listed = ", ".join(f"{side} x {side}" for side in some)
        less = ", ".join(f"{_percent(share)} at {side} x {side}" for side, share in rest.items())
        said.append(f'full receptive field "no" does not hold at {listed}, but: {less}')
    elif (row.words[0] == "yes") != full:
        said.append(f'full receptive field "{row.words[0]}" does not hold')
    if (row.words[1] == "yes") != (found["exponents"]["pairs"] < 1.95):
        said.append(f'faster than O(N^2) "{row.words[1]}" does not hold')
    if row.words[2] == "no":
        said.append(
            'needs no custom kernels "no" does not hold: reshapes and scaled_dot_product_attention '
            "give the same (tests/models/test_families.py)"
        )
    if row.words[3] == "no" and found["ahead"] > 0.05:
        said.append(
            f'semi-parallel "no" does not hold: {_percent(found["ahead"])} of a drawing\'s '
            f"arithmetic is done ahead, a slice at a time"
        )
    elif row.words[3] == "yes" and found["ahead"] < 0.05:
        said.append('semi-parallel "yes" does not hold')
    return [f"**{row.model}**: {one}." for one in said] or [f"**{row.model}**: all words hold."]


def text_of(results: dict[str, dict[str, Any]]) -> str:
    """The tables, and what becomes of the paper's words."""
    sides = list(next(iter(results.values()))["shares"])
    head = ["model", *(f"sees at {side} x {side}" for side in sides), "full from layer"]
    fields = []
    for name, found in results.items():
        layers = found["by layer"][32] if 32 in sides else found["by layer"][sides[-1]]
        full = layers[-1] == 1
        from_ = "as a whole" if name == "pixelcnn++" else str(settled(layers))
        shown = [_percent(share) for share in found["shares"].values()]
        fields.append([ROWS[name].model, *shown, from_ if full else f"never ({from_})"])
    first = _table(head, fields)
    head = ["model", "preset", "parameters", "GFLOP to score", "pairs a layer, thousands"]
    head += ["exponent of pairs", "of scoring", "steps to draw", "share computed in parallel"]
    costs = [
        [
            ROWS[name].model,
            f"`{ROWS[name].equal}`",
            f"{found['parameters'] / 1e6:.1f}M",
            f"{found['flops'] / 1e9:.1f}",
            " and ".join(f"{count / 1e3:,.0f}" for count in found["pairs"]) or "-",
            f"{found['exponents']['pairs']:.2f}",
            f"{found['exponents']['scoring']:.2f}",
            f"{found['steps']:,}",
            _percent(found["ahead"]),
        ]
        for name, found in results.items()
    ]
    parts = [
        "Share of the elements before it that a prediction depends on, over all of them, at the "
        "published depth; and the layer from which on a 32 x 32 picture is seen as well as ever:",
        first,
        "Cost at 32 x 32 x 3, for presets of about the cost of `cifar10`; exponents over 192 to "
        "49,152 elements:",
        _table(head, costs),
        "The paper's Table 1, word by word:",
        "\n".join(f"- {line}" for name in results for line in verdicts(name, results[name])),
    ]
    for found in results.values():
        if inside := found.get("within a slice"):
            listed = ", ".join(_percent(share) for share in inside)
            parts.append(
                f"Block Transformer, pixels of its own 16 x 16 slice, by decoder layer: {listed}."
            )
    return "\n\n".join(parts)


def _percent(share: float) -> str:
    return "100 %" if share == 1 else f"{100 * share:.1f} %"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw_picture(results: dict[str, dict[str, Any]], path: Path) -> None:
    """What is seen by layer and by size, pairs over elements, steps and what is ahead of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    layers, sizes, growth, work = figure.subplots(2, 2).flat
    marks = dict(zip(ROWS, "os^vDPXd", strict=True))
    sides = list(next(iter(results.values()))["shares"])
    side = 32 if 32 in sides else sides[-1]
    for place, (name, found) in enumerate(results.items()):
        how: dict[str, Any] = {"marker": marks[name], "label": ROWS[name].model, "markersize": 5}
        seen = [100 * share for share in found["by layer"][side]]
        if name == "pixelcnn++":  # layers of three resolutions: as a whole
            layers.plot([SHOWN], seen, linestyle="", **how)
        else:
            seen += seen[-1:] * (SHOWN - len(seen))
            layers.plot(range(1, 1 + SHOWN), seen[:SHOWN], alpha=0.8, **how)
        sizes.plot(sides, [100 * share for share in found["shares"].values()], alpha=0.8, **how)
        configs = [config_of(ROWS[name].equal, grid) for grid in GROWN]
        if pairs(configs[0]):
            count = [3 * grid**2 for grid in GROWN]
            growth.loglog(count, [products(config) for config in configs], **how)
        work.barh(place, 100 * found["ahead"], 0.6)
        work.text(100 * found["ahead"] + 1, place, f"{found['steps']:,} steps", va="center")
    layers.set(xlabel="layers", ylabel="% of earlier elements", title=f"Seen at {side} x {side}")
    layers.set_xticks(range(0, SHOWN + 1, 4))
    sizes.set(xlabel="side of the picture", ylabel="% of earlier elements", title="Seen by size")
    sizes.set_xscale("log", base=2)
    sizes.set_xticks(sides, list(map(str, sides)))
    growth.set(xlabel="elements", ylabel="pairs", title="Pairs of the costliest layer")
    work.set_yticks(range(len(results)), [ROWS[name].model for name in results])
    work.invert_yaxis()
    work.set(xlabel="% of the arithmetic", xlim=(0, 100), title="Drawing: done ahead of the steps")
    for panel in (layers, sizes, growth, work):
        panel.grid(alpha=0.3)
    sizes.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the tables; write them and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--sides", nargs="+", type=int, default=SIDES, help="for receptive fields")
    parser.add_argument("--device", default="cpu", help="cuda adds what takes a GPU")
    parser.add_argument("--toy", action="store_true", help="time tiny models, on any device")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write it, and draw FILE.png")
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {platform.machine()}"
    rows = "" if args.rows == list(ROWS) else f" --rows {' '.join(args.rows)}"
    parts = [
        f"`python experiments/table1.py --device {args.device}{rows}`, torch {torch.__version__}, "
        f"{where}. Receptive fields are computed from the masks, which tests compare with models "
        f"whose inputs are changed one by one; operations are counted in the product's own drawing."
    ]
    results = {name: measured(name, sides=tuple(args.sides)) for name in args.rows}
    parts.append(text_of(results))
    if args.out:
        picture = args.out.with_suffix(".png")
        draw_picture(results, picture)
        parts.append(f"![What is seen, pairs, steps]({picture.name})")
    if args.device != "cpu" or args.toy:
        parts.append(timings(args.rows, args.device, toy=args.toy, out=args.out))
    else:
        parts.append(
            "Not measured here, as it takes a GPU: exponents of time and memory, a step with core "
            "operations over one with the best kernels, seconds to draw 64 pictures."
        )
    text = "\n\n".join(parts)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
