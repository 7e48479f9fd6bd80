"""Which recipe learns CIFAR-10 fastest: one change at a time, each for the same time on one GPU.

    python benchmarks/recipes.py rows                             what can be run
    python benchmarks/recipes.py run ROW --data FOLDER --out RUN  [--seconds 240 --seed 0 --test]
    python benchmarks/recipes.py table RUN ... [--out FILE.md]    and FILE.png, the curves
    python benchmarks/recipes.py join RUN --out CHECKPOINT        what `axial.load` takes

`FOLDER` holds train.npy and test.npy as `axial data` writes them. The last 5,000 training images
are never trained on: rows are compared on them, by the last averaged weights. Scoring them counts
in the seconds, compiling the first step does not. After the time is over they are scored by the
weights of the last step too, and as many of those trained on by the averaged ones, which tells
what was learned by heart; `--test` scores the test images once, in float32 and with the weights as
they are kept, rounded to bfloat16.
"""

import argparse
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipe_models import RowTrainer, begun, shaped
from recipe_rows import HELD_OUT, ROWS, Setting, changes_of, setting_of
from recipe_table import LOOKED_AT, table, table_of
from timed import UNKNOWN_STEPS, HeldOut, Timed, join_parts, write_parts

from axial.data.batches import Indices, TrainingBatches, split
from axial.models.config import DataShape, TrainConfig
from axial.models.cost import parameters, training_flops
from axial.data.packed import Packed, open_packed
from axial.evaluation.scoring import Evaluation, evaluate, write_json
from axial.models.axial_transformer import AxialTransformer
from axial.system.ranks import Ranks, ranks
from axial.training.metrics import matrix_peak
from axial.training.trainer import State

SCORING_SHARE = 0.1
"""Of the time, what scoring along the way may take."""
FEW = 500
"""Test images that a CPU scores in minutes: their figure stands beside that of all."""
TRIED = ("width", "batch", "warmup")
"""What may be changed on the command line, to try things out."""


def run(args: argparse.Namespace) -> None:
    """Train one row for some seconds, score it, write what was found."""
    if args.steps is not None and args.steps < 2:
        raise SystemExit(f"--steps {args.steps}: the first does not count; use 2 or more")
    tried = {name: getattr(args, name) for name in TRIED if getattr(args, name) is not None}
    setting = replace(setting_of(args.row), **tried)
    packed = open_packed(args.data / "train.npy")
    test = open_packed(args.data / "test.npy") if args.test else None
    config = setting.model(packed.shape)
    setting.training(UNKNOWN_STEPS, seed=args.seed)  # what cannot be trained is refused here
    result: dict[str, Any] = {
        "row": args.row,
        "tried": tried | {n: v for n in ("limit", "steps") if (v := getattr(args, n)) is not None},
        "seed": args.seed,
        "seconds_allowed": args.seconds,
        "conditional": setting.labels,
        "setting": asdict(setting),
        "model": config.to_json(),
        "parameters": parameters(config),
    }
    print(f"{args.row}: {changes_of(args.row)}", setting, sep="\n")
    print(f"{parameters(config):,} parameters", flush=True)
    clear(args.out)
    with ranks(args.device) as team:
        averaged, last, found = train(setting, packed, team, result, args)
        averaged = {name: value.bfloat16().float() for name, value in averaged.items()}
        model = shaped(setting, AxialTransformer.from_weights(config, averaged))
        if args.weights:
            write_parts(args.out, model)  # before anything else can fail
        unaveraged = shaped(setting, AxialTransformer.from_weights(config, last))
        used, held_out = parts(packed, args.limit)
        how = {"ranks": team, "precision": found["validation"]["precision"], "identify": False}
        result |= found | {
            "learned": evaluate(model, packed, subset=used[:HELD_OUT], **how).to_json(),
            "unaveraged": evaluate(unaveraged, packed, subset=held_out, **how).to_json(),
            "test": None,
        }
        if test is not None:
            scored = np.arange(len(test))[: args.limit]
            every = evaluate(model, test, ranks=team, subset=scored)
            few = {"first": FEW, "bits_per_dim_of_first": first_bits(every)}
            result["test"] = every.to_json() | few
    write_json(args.out / "result.json", result)
    print(table_of([result]), flush=True)


def train(
    setting: Setting, packed: Packed, team: Ranks, about: dict[str, Any], args: argparse.Namespace
) -> tuple[State, State, dict[str, Any]]:
    """The averaged weights and those of the last step, and what was found on the way there."""

    def plan(steps: int) -> TrainConfig:
        return setting.training(min(steps, args.steps or steps), seed=args.seed)

    config = setting.model(packed.shape)
    peak = matrix_peak(team.device)
    used, held_out = parts(packed, args.limit)
    model = begun(setting, config, args.seed, team.device)
    trainer = RowTrainer(setting, model, plan(UNKNOWN_STEPS), team)
    scored = HeldOut(
        packed=packed,
        along=held_out[:LOOKED_AT],
        at_end=held_out,
        keep="last",
        share=SCORING_SHARE,
    )
    timed = Timed(trainer, scored, args.out / "log.jsonl", seconds=args.seconds, plan=plan)
    timed.write(**about)
    batches = TrainingBatches(packed, setting.batch, seed=args.seed, flip=setting.flip, subset=used)
    timed.run(batches)
    seconds, each = timed.elapsed, statistics.median(timed.pace)
    flops = setting.batch * training_flops(config) / each
    last = {name: value.detach() for name, value in trainer.parameters.items()}
    found = {
        "training": trainer.config.to_json(),
        "steps": timed.step,
        "examples": timed.step * setting.batch,
        "seconds": seconds,
        "seconds_compiling": timed.compiling,
        "seconds_each_step": each,
        "teraflops": flops / 1e12,
        "peak_share": flops / peak if peak else None,
        "most_memory": timed.memory,
        "validation": timed.scores[-1].to_json(),
        "looks": timed.looks,
        "device": torch.cuda.get_device_name() if peak else "CPU",
        "torch": torch.__version__,
    }
    return timed.weights, last, found


def parts(packed: Packed, limit: int | None) -> tuple[Indices, Indices]:
    """What is trained on, and what is held out; the first so many of each, if told."""
    used, held_out = split(len(packed), HELD_OUT, "last")
    return used[:limit], held_out[:limit]


def first_bits(found: Evaluation) -> float:
    """Bits/dim of the first images alone."""
    return float(found.bits[found.index < FEW].mean()) / found.elements


def clear(folder: Path) -> None:
    """Make a folder for a run, without what an earlier one left there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = folder.glob("weights-*.safetensors")
    for path in [folder / "result.json", folder / "log.jsonl", *parts]:
        path.unlink(missing_ok=True)


def show_rows(args: argparse.Namespace) -> None:
    """Print every row and what it changes."""
    shape = DataShape(axes=(32, 32), channels=3, classes=10)
    for name, row in ROWS.items():
        size = parameters(setting_of(name).model(shape)) / 1e6
        against = f"{row.parent}: " if row.parent else ""
        print(f"{name:<24} {size:4.1f}M  {against}{changes_of(name)}")


def join(args: argparse.Namespace) -> None:
    """Put the parts of a run's weights together."""
    join_parts(args.run, args.out)


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("rows", help="print every row and what it changes")
    step.set_defaults(do=show_rows)
    step = steps.add_parser("run", help="train a row")
    step.add_argument("row", choices=ROWS, metavar="ROW", help="one of those that `rows` prints")
    step.add_argument("--data", type=Path, required=True, help="holds train.npy and test.npy")
    step.add_argument("--out", type=Path, required=True, help="folder for log, result, weights")
    step.add_argument("--seconds", type=float, default=240)
    step.add_argument(
        "--steps", type=int, help="end after so many, for rows at equal steps: 2 or more"
    )
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--test", action="store_true", help="score the test images at the end")
    step.add_argument("--no-weights", dest="weights", action="store_false", help="keep no weights")
    step.add_argument("--device", help="cpu or cuda; a GPU where there is one unless told")
    for name in TRIED:
        step.add_argument(f"--{name}", type=int, help="to try things out: in place of the row's")
    step.add_argument("--limit", type=int, help="the same: only the first so many of all images")
    step.set_defaults(do=run)
    step = steps.add_parser("table", help="print what runs found")
    step.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    step.add_argument("--out", type=Path, metavar="FILE.md", help="write it, and draw FILE.png")
    step.set_defaults(do=table)
    step = steps.add_parser("join", help="make a checkpoint of a run's weights")
    step.add_argument("run", type=Path)
    step.add_argument("--out", type=Path, required=True)
    step.set_defaults(do=join)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
