"""Which recipe learns CIFAR-10 fastest: one change at a time, each for the same time on one GPU.

    python experiments/recipes.py rows                             what can be run
    python experiments/recipes.py run ROW --data FOLDER --out OUT  [--minutes 4 --seed 0 --test]
    python experiments/recipes.py run ROW --data FOLDER --out OUT  --minutes 25 --stretches 6
    python experiments/recipes.py table OUT ... [--out FILE.md]    and FILE.png, the curves

`FOLDER` holds train.npy and test.npy as `axial data` writes them. A row is a `Recipe`, trained by
`axial.train` in OUT/run; OUT/result.json and OUT/log.jsonl hold what the table needs. The last
5,000 training images are never trained on: rows are compared on them, by the last averaged weights.
`--test` scores the test images once, in float32.

`--stretches N` trains N times so many minutes, each stretch from the averaged weights of the one
before (`--init`) and all but the last at a constant learning rate. They lie in OUT/stretch-1 ...
and OUT/run; the same command, given again, resumes what was interrupted.
"""

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import recipe_rows
import torch
from recipe_rows import ROWS, changes_of, setting_of
from recipe_table import table, table_of

import axial
from axial.checkpoints.run_folder import Run
from axial.data.packed import Packed
from axial.evaluation.result import write_json
from axial.models.protocol import Model
from axial.shape import DataShape
from axial.training.config import Recipe

TRIED = ("width", "batch", "warmup")
"""What may be changed on the command line, to try things out."""


def run(args: argparse.Namespace) -> None:
    """Train one row, score it, write what was found."""
    tried = {name: getattr(args, name) for name in TRIED if getattr(args, name) is not None}
    setting = replace(setting_of(args.row), **tried)
    if setting.norm != "layer":
        raise SystemExit(
            f"{args.row}: {setting.norm} norm is not in the package; it was tried once"
        )
    packed = axial.open_packed(args.data / "train.npy")
    recipe = setting.recipe(packed.shape, seed=args.seed)
    print(f"{args.row}: {changes_of(args.row)}", setting, sep="\n", flush=True)
    limit = {"max_minutes": args.minutes} if args.steps is None else {"steps": args.steps}
    log = train_stretches(recipe, packed.path, args, limit)
    scores = [record for record in log if "validation" in record]
    paces = [record for record in log if "examples_per_second" in record][1:] or log[:1]
    used = [record["mfu"] for record in paces if "mfu" in record]
    steps, model = scores[-1]["step"], axial.load(args.out / "run", device=args.device)
    tried |= {} if args.steps is None else {"steps": args.steps}
    tried |= {} if args.stretches == 1 else {"stretches": args.stretches}
    result: dict[str, Any] = {
        "row": args.row,
        "tried": tried,
        "seed": args.seed,
        "seconds_allowed": 60 * args.minutes * args.stretches,
        "conditional": setting.labels,
        "setting": asdict(setting),
        "model": recipe.model.to_json(),
        "parameters": recipe.model.parameters(),
        "training": recipe.training.to_json() | limit,
        "steps": steps,
        "examples": steps * setting.batch,
        "seconds": log[-1]["seconds"],
        "seconds_each_step": statistics.median(
            setting.batch / record["examples_per_second"] for record in paces
        ),
        "peak_share": statistics.median(used) if used else None,
        "validation": {
            "bits_per_dim": scores[-1]["validation"],
            "standard_error": scores[-1]["standard_error"],
        },
        "learned": learned(model, packed),
        "looks": [record["validation"] for record in scores],
        "test": None,
        "device": torch.cuda.get_device_name() if used else "CPU",
        "torch": torch.__version__,
    }
    if args.test:
        test = axial.open_packed(args.data / "test.npy")
        result["test"] = axial.evaluate(model, test).to_json()
    lines = [{"step": 0, "seconds": 0, **result}, *scores]
    (args.out / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(args.out / "result.json", result)
    print(table_of([result]), flush=True)


def train_stretches(
    recipe: Recipe, data: Path, args: argparse.Namespace, limit: dict[str, Any]
) -> list[dict[str, Any]]:
    """Train one stretch after another; the lines of their logs, as those of one run."""
    folders = [args.out / f"stretch-{i}" for i in range(1, args.stretches)] + [args.out / "run"]
    lines: list[dict[str, Any]] = []
    for number, folder in enumerate(folders):
        training = recipe.training
        if folder is not folders[-1]:
            training = replace(training, schedule="constant")
        # Another seed: the order, flips and variants of a stretch are not those of the one before.
        training = replace(training, seed=training.seed + 1000 * number)
        outcome = axial.train(
            replace(recipe, training=training),
            data=data,
            out=folder,
            device=args.device,
            init=folders[number - 1] if number else None,
            resume=Run.exists(folder),
            **limit,
        )
        if outcome.signal is not None:
            raise SystemExit(f"{folder}: interrupted; the same command resumes it")
        lines += _after(lines[-1:], Run(folder))
    return lines


def _after(before: list[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    """The log of a run with its steps and seconds counted on, and a line of its end."""
    log, (state, _) = run.log(), run.newest()  # type: ignore[misc]
    clock = {record["step"]: record["seconds"] for record in log if "seconds" in record}
    lines = [record | {"seconds": clock[record["step"]]} for record in log]
    lines.append({name: state[name] for name in ("step", "seconds")})
    first = before[0] if before else {"step": 0, "seconds": 0.0}
    return [line | {name: first[name] + line[name] for name in first} for line in lines]


def learned(model: Model, packed: Packed) -> dict[str, Any]:
    """The score on as many images as are held out, the first of those that it was trained on."""
    held_out = recipe_rows.HELD_OUT
    subset = range(min(held_out, len(packed) - held_out))
    found = axial.evaluate(model, packed, subset=subset)
    return {"bits_per_dim": found.bits_per_dim, "standard_error": found.standard_error}


def show_rows(args: argparse.Namespace) -> None:
    """Print every row and what it changes."""
    shape = DataShape(axes=(32, 32), channels=3, classes=10)
    for name, row in ROWS.items():
        size = setting_of(name).model(shape).parameters() / 1e6
        against = f"{row.parent}: " if row.parent else ""
        print(f"{name:<24} {size:4.1f}M  {against}{changes_of(name)}")


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("rows", help="print every row and what it changes")
    step.set_defaults(do=show_rows)
    step = steps.add_parser("run", help="train a row")
    step.add_argument("row", choices=ROWS, metavar="ROW", help="one of those that `rows` prints")
    step.add_argument("--data", type=Path, required=True, help="holds train.npy and test.npy")
    step.add_argument("--out", type=Path, required=True, help="folder for run, log and result")
    step.add_argument("--minutes", type=float, default=4.0)
    step.add_argument("--steps", type=int, help="end after so many instead, for equal steps")
    step.add_argument("--stretches", type=int, default=1, help="so many times, one after another")
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--test", action="store_true", help="score the test images at the end")
    step.add_argument("--device", help="cpu or cuda; default: a GPU where there is one")
    for name in TRIED:
        step.add_argument(f"--{name}", type=int, help="to try things out: in place of the row's")
    step.set_defaults(do=run)
    step = steps.add_parser("table", help="print what runs found")
    step.add_argument("runs", type=Path, nargs="+", metavar="OUT")
    step.add_argument("--out", type=Path, metavar="FILE.md", help="write it, and draw FILE.png")
    step.set_defaults(do=table)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
