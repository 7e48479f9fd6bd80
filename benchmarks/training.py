"""What a step of training costs on this device, and what the loop around it adds.

    python benchmarks/training.py --preset base --batch 256 [--data train.npy] [--bare --profile]

The loop is the product's own: batches from the file, or from one of random numbers, log and,
with --saving, checkpoints. A bare step is forward, backward, optimizer and averages on one batch.
Model FLOPs are counted from the configuration, recomputation is not; peak is a large bfloat16
product in the same run. The first steps, which compile, do not count.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_times import kernel_times, print_kernels

import axial
from axial.data.batches import TrainingBatches
from axial.data.packed import Packed
from axial.data.packed_writer import PackedWriter
from axial.models.config import Sizes
from axial.models.cost import training_flops
from axial.models.families import new_model
from axial.models.family_config import FamilyConfig
from axial.presets import PRESETS
from axial.shape import DataShape
from axial.system.ranks import Ranks, ranks
from axial.training.loop import train
from axial.training.metrics import matrix_peak
from axial.training.plan import Plan
from axial.training.start import open_run
from axial.training.trainer import Trainer

WARM_UP = 20
ROUNDS = 5
EXAMPLES = 4096
"""Random ones."""
PROFILED, SHOWN = 3, 24
"""Steps, and kernels of them."""


def bare_step(packed: Packed, plan: Plan, team: Ranks, *, profile: bool) -> float:
    """Seconds of a step alone, on a batch that is already there."""
    config = plan.training
    trainer = Trainer(new_model(model_of(packed, plan)), config, team)
    batch = TrainingBatches(packed, config.batch, seed=0).at(0)

    def step() -> None:
        trainer.step(config.warmup, batch)

    for _ in range(WARM_UP):
        step()
    rounds, each = [], max(1, config.steps // ROUNDS)
    for _ in range(ROUNDS):
        synchronize(team.device)
        begun = time.perf_counter()
        for _ in range(each):
            step()
        synchronize(team.device)
        rounds.append((time.perf_counter() - begun) / each)
    if profile:
        report_profile(step)
    return statistics.median(rounds)


def report_profile(step: Callable[[], object]) -> None:
    """Print the kernels that take the most time."""
    kernels = kernel_times(lambda: [step() for _ in range(PROFILED)])
    busy = sum(kernel.seconds for kernel in kernels)
    print(f"kernels run {1e3 * busy / PROFILED:.2f} ms a step, of which:")
    print_kernels(kernels, busy, calls=PROFILED, most=SHOWN)


def random_pictures(path: Path, shape: DataShape, count: int) -> None:
    """Write examples that have the right shape, for want of real ones."""
    size = (count, *shape.axes, shape.channels)
    values = np.random.default_rng(0).integers(shape.values, size=size, dtype=np.uint8)
    with PackedWriter(path) as writer:
        writer.append(values)
        facts: dict[str, Any] = {"source": "random", "version": None, "split": "train"}
        facts |= {"values": shape.values, "skipped": 0, "notes": ("random numbers",)}
        writer.finish(None, 0, None, **facts, command="python benchmarks/training.py")


def model_of(packed: Packed, plan: Plan) -> FamilyConfig:
    """What the preset trains on this data."""
    shape = packed.shape if plan.training.labels else replace(packed.shape, classes=0)
    return plan.sizes.applied(PRESETS[plan.name](shape).model)


def loop_steps(packed: Packed, plan: Plan, team: Ranks) -> tuple[float, float]:
    """Seconds of a step in the loop: between looks, and with log and checkpoints counted."""
    with tempfile.TemporaryDirectory() as folder:
        run, packed = open_run(plan, Path(folder) / "run", team)
        train(run, packed, team)
        log = [record for record in run.log() if "loss" in record and record["step"] >= WARM_UP]
    steps = log[-1]["step"] - log[0]["step"]
    between = statistics.median(plan.training.batch / r["examples_per_second"] for r in log)
    return between, (log[-1]["seconds"] - log[0]["seconds"]) / steps


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="a packed .npy file; random pictures unless told")
    parser.add_argument("--preset", default="base", choices=sorted(PRESETS))
    parser.add_argument("--dropout", type=float, help="that of the preset unless told")
    parser.add_argument("--batch", type=int, help="that of the preset unless told")
    parser.add_argument("--steps", type=int, default=100, help="after the first ones")
    parser.add_argument("--saving", action="store_true", help="a checkpoint in the middle")
    parser.add_argument("--bare", action="store_true", help="also a step without the loop")
    parser.add_argument("--profile", action="store_true", help="which kernels take its time")
    parser.add_argument("--device")
    args = parser.parse_args()
    if args.profile and not torch.cuda.is_available():
        parser.error("--profile is of a GPU's kernels")
    with tempfile.TemporaryDirectory() as folder, ranks(args.device) as team:
        if not args.data:
            args.data = str(Path(folder) / "random.npy")
            shape = replace(PRESETS[args.preset]().model.data, classes=0)
            random_pictures(Path(args.data), shape, EXAMPLES)
        measure(args, team)


def measure(args: argparse.Namespace, team: Ranks) -> None:
    """One preset on one file."""
    packed = axial.open_packed(args.data)
    recipe = PRESETS[args.preset](packed.shape)
    steps = WARM_UP + args.steps
    training = replace(
        recipe.training,
        steps=steps,
        batch=args.batch or recipe.training.batch,
        save_every=WARM_UP + args.steps // 2 if args.saving else steps,
        validation=0,
        sample_every=0,
    )
    sizes = Sizes(dropout=args.dropout)
    plan = Plan(
        name=args.preset,
        preset=PRESETS[args.preset],
        data=args.data,
        training=training,
        sizes=sizes,
    )
    model = model_of(packed, plan)
    name = torch.cuda.get_device_name() if team.device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {args.preset}: {model.parameters():,} parameters")
    print(f"batch {training.batch}, {args.steps} steps, dropout {model.dropout}", flush=True)
    found = {}
    if args.bare or args.profile:
        found["a step on one batch"] = bare_step(packed, plan, team, profile=args.profile)
    between, whole = loop_steps(packed, plan, team)
    found["a step in the loop, median"] = between
    found["a step in the loop, mean" + ", a checkpoint counted" * args.saving] = whole
    peak = matrix_peak(team.device)
    flops = training_flops(model) * training.batch
    for what, each in found.items():
        share = f"{flops / each / peak:7.1%} of {peak / 1e12:.0f} TFLOP/s" if peak else ""
        print(f"{what:<48}{1e3 * each:9.2f} ms {share}")
    if team.device.type == "cuda":
        print(f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
