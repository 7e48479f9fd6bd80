"""What drawing costs: naive, semi-parallel and cached beside one scoring pass, in one run.

    python benchmarks/sampling.py [--device cuda] [--picture FILE.png] [--sides 8 16]

The same model on grids of growing side, the same pictures by each method. "Semi-parallel" is the
paper's sampler, "cached" ours; "scoring" is one forward pass over all channels, whose arithmetic is
what a cached drawing costs. Two settings that stand for a grey and a colour picture on a CPU.
"""

import argparse
import math
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from axial import AxialTransformer, ModelConfig, bits, draw

METHODS = ["scoring", "cached", "semi-parallel", "naive"]
NAIVE_UP_TO = 8
"""Beyond this side the naive sampler takes longer than anyone would wait."""


@dataclass(frozen=True)
class Setting:
    """A model, and how many pictures to draw at once."""

    name: str
    channels: int
    width: int
    heads: int
    layers: int
    batch: int

    def config(self, side: int) -> ModelConfig:
        """The model for a square picture."""
        return ModelConfig(
            axes=(side, side),
            channels=self.channels,
            width=self.width,
            heads=self.heads,
            encoder_layers=self.layers if self.channels > 1 else 0,
            decoder_layers=(self.layers, self.layers),
        )


SETTINGS = [
    Setting("grey, width 128, 4/4 layers, batch 16", 1, 128, 4, 4, 16),
    Setting("colour, width 64, 4/4/4 layers, batch 4", 3, 64, 4, 4, 4),
]


def seconds(model: AxialTransformer, batch: int, method: str, device: str, repeats: int) -> float:
    """Median time to draw, or to score, a batch."""
    config = model.config
    x = torch.randint(config.values, (batch, *config.axes, config.channels), device=device)
    found = []
    for repeat in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        if method == "scoring":
            bits(model, x)
        else:
            draw(model, batch, seed=repeat, method=method)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:] or found)


def measure(setting: Setting, sides: list[int], device: str) -> dict[str, dict[int, float]]:
    """Seconds by method and side; slow ones are measured once, and naive on small grids only."""
    found: dict[str, dict[int, float]] = {method: {} for method in METHODS}
    for side in sides:
        torch.manual_seed(0)
        model = AxialTransformer(setting.config(side)).to(device).eval()
        model.reset_parameters(final_scale=1.0)
        for method in METHODS:
            if method == "naive" and side > NAIVE_UP_TO:
                continue
            repeats = 3 if method in ("scoring", "cached") else int(side <= 16)
            found[method][side] = seconds(model, setting.batch, method, device, repeats)
    return found


def report(setting: Setting, found: dict[str, dict[int, float]]) -> None:
    """Seconds, ratios to cached, and how each grows with the side."""
    print(f"\n{setting.name}: seconds (over cached)")
    sides = list(found["cached"])
    for side in sides:
        cells = []
        for method in METHODS:
            if side in found[method]:
                ratio = found[method][side] / found["cached"][side]
                cells.append(f"{method} {found[method][side]:.3f} ({ratio:.2f})")
        print(f"  {side:>3} x {side:<3} " + ", ".join(cells))
    for method in METHODS:
        values = list(found[method].items())
        if len(values) > 1:
            (first, early), (last, late) = values[0], values[-1]
            power = math.log(late / early) / math.log(last / first)
            print(f"  {method} grows as side ** {power:.2f} from {first} to {last}")


def draw_picture(results: dict[str, dict[str, dict[int, float]]], path: Path, title: str) -> None:
    """Seconds over the side, one panel for each setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(results), figsize=(5.2 * len(results), 4.4), squeeze=False)
    for panel, (name, found) in zip(grid[0], results.items(), strict=True):
        for method, values in found.items():
            panel.loglog(list(values), list(values.values()), marker="o", label=method)
        panel.set(title=name, xlabel="side", ylabel="seconds for the batch")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure everything, print it, draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--sides", type=int, nargs="+", default=[8, 16, 32])
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine() + " CPU"
    threads = torch.get_num_threads()
    title = f"{name}, {threads} threads, torch {torch.__version__}, float32"
    print(title)
    results = {}
    for setting in SETTINGS:
        results[setting.name] = measure(setting, args.sides, args.device)
        report(setting, results[setting.name])
    if args.picture:
        draw_picture(results, args.picture, title)
        print(f"\npicture: {args.picture}")


if __name__ == "__main__":
    main()
