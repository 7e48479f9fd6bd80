"""Does the GPU's own path train the model that the plain path trains? A thousand steps of each.

    python benchmarks/paths.py --data train.npy --out FILE.json [--settings dropout LSTM] [--jobs 4]
    python benchmarks/paths.py table FILE.json

The plain path is float32 without TF32, nothing compiled, no CUDA graph: what a CPU does. The fast
one is what `axial train` does on a GPU: bfloat16 autocast, compiled, replayed as a CUDA graph. Both
start from the same weights and see the same batches and channels. A setting passes if the held-out
scores of both lie within their spread, which seeds 0 to 2 of the first setting tell, and if a model
with dropout scores better with nothing dropped. Exit status 1 if one does not. FILE.json keeps each
run as it ends: called again, what is missing is run. `--jobs` pays where processes share a GPU
(nvidia-cuda-mps-control -d); otherwise they take turns on it.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from axial.data.batches import TrainingBatches, channels
from axial.data.packed import Packed
from axial.data.packing import open_data
from axial.evaluation.result import write_json
from axial.evaluation.scoring import score
from axial.models.axial_transformer import AxialTransformer
from axial.models.protocol import Model
from axial.presets import fitted
from axial.shape import DataShape
from axial.system.devices import exact_float32
from axial.system.ranks import Ranks, ranks
from axial.training.config import TrainConfig
from axial.training.hold_out import split
from axial.training.loss import SliceBits
from axial.training.trainer import Trainer

SEEDS = 3
"""Of the first setting, to see how far apart equal paths end."""
ALLOWED = 4.0
"""Standard deviations of a difference."""
LEAST = 0.004
"""Bits/dim that two paths may differ by, however small the spread of a few seeds."""
HELD_OUT, LAST = 512, 100
"""Examples scored at the end; steps whose training loss is averaged."""


@dataclass(frozen=True)
class Setting:
    """What it changes of the model and of its training."""

    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


PATHS = ("plain", "fast")
Job = tuple[str, str, int]
"""A setting, a path and a seed."""
FIRST = "plain model"
SETTINGS = {
    FIRST: Setting(),
    "dropout": Setting({"dropout": 0.1}),
    "dropout in the encoder": Setting({"encoder_dropout": 0.1}),
    "stochastic depth": Setting({"stochastic_depth": 0.2}),
    "variants": Setting({"augment": ("rotate", "colours")}),
    "accumulation": Setting({"dropout": 0.1}, {"grad_accum": 2}),
    "activation checkpointing": Setting({"dropout": 0.1}, {"activation_checkpointing": True}),
    "labels": Setting({}, {"labels": True}),
    "AdamW": Setting({}, {"optimizer": "adamw", "learning_rate": 1e-3}),
    "channels as rows": Setting({"channel_mode": "rows", "encoder_layers": 0}),
    "channels as columns": Setting({"channel_mode": "columns", "encoder_layers": 0}),
    "LSTM": Setting({"inner": "lstm", "decoder_layers": (4, 1)}),
}


def trained(name: str, path: str, seed: int, packed: Packed, team: Ranks, steps: int) -> Any:
    """Train one model one way; its losses, scored with and without dropping."""
    setting, fast = SETTINGS[name], path == "fast"
    shape: DataShape = packed.shape
    labels = setting.training.get("labels", False)
    shape = shape if labels else replace(shape, classes=0)
    config = replace(fitted(shape, width=128, heads=4, rounds=2, inner_layers=2), **setting.model)
    training = TrainConfig(
        steps=steps,
        batch=32,
        learning_rate=2e-3,
        seed=seed,
        embeddings="smooth",
        optimizer="muon",
        schedule="trapezoid",
        warmup=min(100, steps // 10),
        ema=0.99,
        precision="bfloat16" if fast else "float32",
        compile=fast,
        cuda_graph=fast,
    )
    training = replace(training, **setting.training)
    used, held_out = split(len(packed), HELD_OUT, "last")
    torch.manual_seed(seed)
    model = AxialTransformer(config)
    model.smooth_embeddings()
    with nullcontext() if fast else exact_float32():
        trainer = Trainer(model, training, team)
        batches = TrainingBatches(
            packed, training.batch, seed=seed, augment=config.augment, subset=used
        )
        readings = []
        with closing(batches.stream()) as stream:
            for step in range(steps):
                readings.append(trainer.step(step, next(stream)))
    losses = torch.stack(readings)[:, 0].double().cpu()
    averaged = trainer.ema_model()
    return {
        "device": device_name(team),
        "torch": torch.__version__,
        "steps": steps,
        "recorded": trainer.cuda_graph is not None,
        "training": losses[-LAST:].mean().item(),
        "held_out": score(averaged, packed, subset=held_out, identify=False).bits_per_dim,
        "dropping": dropping_bits(averaged, packed, held_out, team),
    }


def dropping_bits(model: Model, packed: Packed, held_out: Any, team: Ranks) -> Any:
    """Bits/dim of one channel of each held-out example with dropout on, then off; None without."""
    if not any(getattr(model.config, rate) for rate in model.config.rates):
        return None
    x = torch.from_numpy(packed.rows(held_out)).to(team.device)
    channel = channels(0, 0 * held_out, held_out, 0, packed.shape.channels)
    inputs = x.long(), torch.from_numpy(channel).to(team.device)
    loss, found = SliceBits(model), []
    with torch.no_grad(), exact_float32():
        for training in (True, False):
            torch.manual_seed(0)
            model.train(training)
            parts = zip(*(torch.split(t, 64) for t in inputs), strict=True)
            found.append(statistics.fmean(loss(*part).item() for part in parts))
    return found


def compare(args: argparse.Namespace) -> None:
    """Run what is missing of every setting both ways, and keep each run in the file."""
    jobs = [(name, path, 0) for name in args.settings for path in PATHS]
    jobs += [(FIRST, path, seed) for seed in range(SEEDS) for path in PATHS]
    found = read_runs(args.out) if args.out.exists() else {}
    missing = [job for job in dict.fromkeys(jobs) if job not in found]
    keeping = Lock()

    def keep(job: Job) -> None:
        run = in_process(job, args)
        with keeping:
            found[job] = run
            named = [[*key, run] for key, run in sorted(found.items())]
            write_json(args.out, {"runs": named})

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(keep, missing))


def read_runs(path: Path) -> dict[Job, Any]:
    """What a file keeps."""
    runs = json.loads(path.read_text())["runs"]
    return {(name, way, seed): run for name, way, seed, run in runs}


def table(found: dict[Job, Any]) -> bool:
    """Print what there is of every setting; tell whether all that is complete passed."""
    ways = {(run["device"], run["torch"], run["steps"]) for run in found.values()}
    for device, torch_version, steps in sorted(ways):
        print(f"{device}, torch {torch_version}, {steps:,} steps")
    seeds = [seed for seed in range(SEEDS) if all((FIRST, path, seed) in found for path in PATHS)]
    allowed = math.inf
    if len(seeds) > 1:
        ends = [[found[FIRST, path, seed]["held_out"] for seed in seeds] for path in PATHS]
        spread = statistics.fmean(statistics.stdev(of_path) for of_path in ends)
        allowed = max(LEAST, ALLOWED * 2**0.5 * spread)
        print(f"spread of {len(seeds)} seeds {spread:.4f}")
        print(f"held out, fast and plain may differ by {allowed:.4f}")
    print()
    print("| setting | training: plain | fast | held out: plain | fast | dropping | not | |")
    print("|---|---|---|---|---|---|---|---|")
    verdicts = [row(name, found, allowed) for name in SETTINGS]
    return not set(verdicts) & {"differs", "better dropping"}


def row(name: str, found: dict[Job, Any], allowed: float) -> str:
    """Print the line of a setting; return its verdict."""
    if any((name, path, 0) not in found for path in PATHS):
        print(f"| {name} | | | | | | | not run |")
        return "not run"
    plain, fast = (found[name, path, 0] for path in PATHS)
    apart = abs(plain["held_out"] - fast["held_out"])
    on, off = fast["dropping"] or (None, None)
    verdict = "differs" if apart > allowed else "better dropping" if on and on < off else "ok"
    verdict = f"{apart:.4f} apart" if allowed == math.inf and verdict == "ok" else verdict
    trained = [plain["training"], fast["training"]]
    figures = [*trained, plain["held_out"], fast["held_out"], on, off]
    shown = " | ".join("" if figure is None else f"{figure:.4f}" for figure in figures)
    print(f"| {name} | {shown} | {verdict} |", flush=True)
    return verdict


def in_process(job: Job, args: argparse.Namespace) -> Any:
    """One run in a process of its own: what is compiled or allocated stays there."""
    name, path, seed = job
    command = [sys.executable, __file__, "--data", str(args.data), "--steps", str(args.steps)]
    command += ["--one", name, path, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {path}, seed {seed}: {done.stderr[-2000:]}")
    print(job, done.stdout.strip(), file=sys.stderr, flush=True)
    return json.loads(done.stdout)


def device_name(team: Ranks) -> str:
    """What computed."""
    return torch.cuda.get_device_name() if team.device.type == "cuda" else "CPU"


def main() -> None:
    """Compare, or with --one do a single run for the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", nargs="*", metavar="table FILE.json", help="print what is there")
    parser.add_argument("--data", type=Path, help="pictures, as `axial data` takes")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keeps every run")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.table:
        if len(args.table) != 2 or args.table[0] != "table":
            parser.error("say: table FILE.json")
        sys.exit(0 if table(read_runs(Path(args.table[1]))) else 1)
    if args.data is None or (args.out is None and args.one is None):
        parser.error("give --data and --out")
    if args.one is None:
        compare(args)
        sys.exit(0 if table(read_runs(args.out)) else 1)
    name, path, seed = args.one
    with tempfile.TemporaryDirectory() as scratch, ranks(None) as team:
        packed = open_data(args.data, Path(scratch))
        print(json.dumps(trained(name, path, int(seed), packed, team, args.steps)))


if __name__ == "__main__":
    main()
