"""What keeps a model from learning few pictures by heart: 500 of CIFAR-10, shrunk, on a CPU.

    python experiments/few_pictures.py --data FOLDER/train.npy --out OUT [--rows plain rotate]

`train.npy` is what `axial data` makes of CIFAR-10. Pictures are shrunk to 8 x 8 by means, the first
500 trained on and the next 1,000 held out. Each row is one change of the first, with seeds 0 and 1;
a row takes about two minutes on two cores. Given again, the command goes on where it stopped. So
small a model and so few pictures say whether a change regularises, not what it is worth elsewhere.
"""

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

import axial
from axial.checkpoints.run_folder import Run
from axial.data.in_memory import pack_array

ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotate": {"augment": ("rotate",)},
    "all": {"augment": ("rotate", "transpose", "colours")},
    "depth": {"stochastic_depth": 0.2},
    "dropout": {"dropout": 0.1},
}
SETTINGS: dict[str, Any] = {
    "width": 64,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": (4, 2),
    "batch": 16,
    "steps": 1000,
    "learning_rate": 3e-3,
    "validation": 1000,
    "hold_out": "last",
    "validate_every": 250,
    "sample_every": 0,
    "log_every": 50,
}
TRAINED_ON, SHRUNK = 500, 4
SEEDS = (0, 1)


def shrunk(path: Path, out: Path) -> Path:
    """The first pictures, each square of them one pixel; packed."""
    x = axial.open_packed(path).array[: TRAINED_ON + SETTINGS["validation"]].astype(np.float64)
    count, height, width, channels = x.shape
    squares = x.reshape(count, height // SHRUNK, SHRUNK, width // SHRUNK, SHRUNK, channels)
    small = squares.mean((2, 4)).round().astype(np.uint8)
    if not out.exists():
        pack_array(small, out, values=256)
    return out


def found_by(name: str, seed: int, data: Path, out: Path) -> tuple[list[float], float]:
    """Train a row: its looks at what is held out, and what its best model has learned."""
    folder = out / f"{name}-{seed}"
    settings = SETTINGS | ROWS[name] | {"seed": seed}
    outcome = axial.train(
        "small", data=data, out=folder, device="cpu", resume=Run.exists(folder), **settings
    )
    if outcome.signal is not None:
        raise SystemExit(f"{folder}: interrupted; the same command resumes it")
    looks = [record["validation"] for record in Run(folder).log() if "validation" in record]
    known = axial.evaluate(axial.load(folder), axial.open_packed(data), subset=range(TRAINED_ON))
    return looks, known.bits_per_dim


def main() -> None:
    """Train every row and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="packed pictures, 32 x 32")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    data = shrunk(args.data, args.out / "pictures.npy")
    lines = [
        "| row | held out, best | at the end | trained on | spread of seeds |",
        "|---" * 5 + "|",
    ]
    for name in args.rows:
        runs = [found_by(name, seed, data, args.out) for seed in SEEDS]
        best = [min(looks) for looks, _ in runs]
        figures = (best, [looks[-1] for looks, _ in runs], [known for _, known in runs])
        means = " | ".join(f"{statistics.fmean(each):.4f}" for each in figures)
        lines.append(f"| {name} | {means} | {max(best) - min(best):.4f} |")
    print(f"{os.cpu_count()} CPU cores, torch {torch.__version__}; bits/dim, means of {len(SEEDS)}")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
