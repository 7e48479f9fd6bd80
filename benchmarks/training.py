"""What a step of training costs on this device, and what the loop around it adds.

    python benchmarks/training.py --data cifar10_train.npy --preset cifar10

A bare step is forward, backward and optimizer on a batch that is already there. The loop is
`axial.train` itself: batches from the file, averaged weights, log, checkpoints. Model FLOPs are
counted from the configuration; peak is a large bfloat16 product in the same run.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import axial
from axial.batches import TrainingBatches
from axial.begin import Plan, begin
from axial.config import ModelConfig
from axial.cost import parameters, training_flops
from axial.data import Packed
from axial.model import AxialTransformer
from axial.presets import PRESETS
from axial.ranks import Ranks, ranks
from axial.readings import matrix_peak
from axial.train import train
from axial.trainer import Trainer

WARM_UP = 20
ROUNDS = 5


def bare_step(packed: Packed, plan: Plan, team: Ranks) -> float:
    """Seconds of forward, backward and optimizer alone, on a batch that is already there."""
    config = plan.training
    trainer = Trainer(AxialTransformer(model_of(packed, plan)), config, team)
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
    return statistics.median(rounds)


def model_of(packed: Packed, plan: Plan) -> ModelConfig:
    """What the preset trains on this data."""
    shape = packed.shape if plan.training.labels else replace(packed.shape, classes=0)
    return PRESETS[plan.preset](shape).model


def loop_steps(packed: Packed, plan: Plan, team: Ranks) -> tuple[float, float]:
    """Seconds of a step in the loop: between looks, and with log and checkpoints counted."""
    with tempfile.TemporaryDirectory() as folder:
        run, packed = begin(plan, Path(folder) / "run", team)
        train(run, packed, team)
        log = [record for record in run.log() if "loss" in record and record["step"] > WARM_UP]
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
    parser.add_argument("--data", required=True, help="a packed .npy file")
    parser.add_argument("--preset", default="cifar10", choices=sorted(PRESETS))
    parser.add_argument("--batch", type=int, help="that of the preset unless told")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device")
    args = parser.parse_args()
    packed = axial.open_packed(args.data)
    recipe = PRESETS[args.preset](packed.shape)
    training = replace(
        recipe.training,
        steps=args.steps,
        batch=args.batch or recipe.training.batch,
        save_every=max(1, args.steps // 2),
        validation=0,
        sample_every=0,
    )
    plan = Plan(preset=args.preset, data=args.data, training=training)
    with ranks(args.device) as team:
        bare = bare_step(packed, plan, team)
        between, whole = loop_steps(packed, plan, team)
        peak = matrix_peak(team.device)
    name = torch.cuda.get_device_name() if team.device.type == "cuda" else "CPU"
    model = model_of(packed, plan)
    flops = training_flops(model) * training.batch
    print(f"{name}, torch {torch.__version__}, {args.preset}: {parameters(model):,} parameters")
    print(f"batch {training.batch}, {args.steps} steps, a checkpoint every {training.save_every}")
    for what, each in (
        ("forward, backward, optimizer", bare),
        ("a step in the loop", between),
        ("the same, log and checkpoints counted", whole),
    ):
        share = f"{flops / each / peak:7.1%} of {peak / 1e12:.0f} TFLOP/s" if peak else ""
        print(f"{what:<40}{1e3 * each:9.2f} ms {each / bare - 1:+7.2%} {share}")


if __name__ == "__main__":
    main()
