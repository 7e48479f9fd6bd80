"""Every family on CIFAR-10 for the same time on the same GPU, at about the same cost of scoring.

    python experiments/rivals.py rows
    python experiments/rivals.py hours [--tflops 240]            to reach the published figures
    python experiments/rivals.py run ROW --data FOLDER --out OUT [--minutes 4 --seeds 3 --most 1]
    python experiments/rivals.py table OUT [--out FILE.md]       and FILE.png, the curves

`FOLDER` holds train.npy and test.npy as `axial data` writes them. A row is a preset of about the
cost of `cifar10`, trained by its recipe: the same optimizer, schedule, batch, mirrored pictures and
averaged weights for all. `run` trains it once for each of the same learning rates with seed 0; the
last 5,000 training images, never trained on, say which is best. `--seeds 3` adds seeds 1 and 2 at
the best rate. The best is scored once on the test images, in float32. With `--trial-minutes 1` the
rates are tried in shorter trainings, and seed 0 is trained at the best of them alone.

A rate at which training diverges counts as a trial. `run` can be stopped and called again: what
is finished stays, what was begun is resumed. `--most` ends it after so many trainings.
OUT/ROW/RATE-SEED/result.json and log.jsonl are what the table needs, RATE-trial those of a shorter
trial; the run itself lies beside them in `run`.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rival_rows import PUBLISHED, ROWS
from rival_table import best_of, table

import axial
from axial.checkpoints.run_folder import Run
from axial.errors import TrainingError
from axial.evaluation.result import write_json
from axial.models.config import Sizes
from axial.models.cost import forward_flops, training_flops
from axial.models.family_config import FamilyConfig
from axial.presets import PRESETS
from axial.shape import DataShape
from axial.training.config import Recipe

RATES = (1e-3, 2e-3, 4e-3)
"""Tried for every row: that of `cifar10`, half and twice of it."""
HELD_OUT = 5000
"""Training images that rates are chosen on: the last ones."""
VALIDATE_EVERY = 2000
"""Steps of the axial row; others have as many operations between two looks, or a step."""


def recipe_of(row: str, shape: DataShape, *, rate: float, seed: int, **sizes: Any) -> Recipe:
    """The preset of a row; what differs from row to row is the model and the rate alone."""
    recipe = PRESETS[ROWS[row].equal](replace(shape, classes=0))
    ours, theirs = (training_flops(each.model) for each in (PRESETS["cifar10"](shape), recipe))
    every = max(1, round(VALIDATE_EVERY * ours / theirs))
    training = replace(
        PRESETS["cifar10"]().training,
        learning_rate=rate,
        seed=seed,
        validation=HELD_OUT,
        hold_out="last",
        sample_every=0,
        validate_every=every,
        save_every=every,
    )
    return Recipe(model=Sizes(**sizes).applied(recipe.model), training=training)


class Task(NamedTuple):
    """One training of a row."""

    rate: float
    seed: int = 0
    trial: bool = False
    """Whether it is a shorter one, that says no more than whether the rate is good."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.rate:g}-{'trial' if self.trial else self.seed}"


def wanted(row: str, out: Path, seeds: int, *, trials: bool) -> Iterator[Task]:
    """What to train: all rates first, then more seeds of the best."""
    for rate in RATES:
        yield Task(rate, trial=trials)
    rate = best_of(out / row, trial=trials)["rate"]
    for seed in range(0 if trials else 1, seeds):
        yield Task(rate, seed)


def run(args: argparse.Namespace) -> None:
    """Train what is missing of a row, and score its best on the test images."""
    done = 0
    for task in wanted(args.row, args.out, args.seeds, trials=args.trial_minutes is not None):
        folder = args.out / args.row / task.name
        if (folder / "result.json").exists():
            continue
        if done == args.most:
            print(f"{args.row}: more is to be run: call this again", flush=True)
            return
        train_once(args, folder, task)
        done += 1
    score_best(args)


def train_once(args: argparse.Namespace, folder: Path, task: Task) -> None:
    """One training, or the rest of it."""
    rate, seed = task.rate, task.seed
    packed = axial.open_packed(args.data / "train.npy")
    sizes = {"width": args.width} if args.width else {}
    recipe = recipe_of(args.row, packed.shape, rate=rate, seed=seed, **sizes)
    tried = {"batch": args.batch, "warmup": args.warmup}
    how = {name: value for name, value in tried.items() if value is not None}
    recipe = replace(recipe, training=replace(recipe.training, **how))
    minutes = args.trial_minutes if task.trial else args.minutes
    limit = {"max_minutes": minutes} if args.steps is None else {"steps": args.steps}
    inside = folder / "run"
    print(f"{args.row}, rate {rate:g}, seed {seed}{', a trial' * task.trial}", flush=True)
    torch.compiler.reset()
    place: dict[str, Any] = {"data": packed.path, "out": inside, "device": args.device}
    try:
        if Run.exists(inside):
            outcome = axial.train(resume=True, **place)
        else:
            outcome = axial.train(recipe, **place, **limit)
    except TrainingError as error:
        if "not finite" not in str(error):
            raise
        print(f"{args.row}: {error}", flush=True)
        write_json(folder / "result.json", {"row": args.row, **task._asdict()})
        return
    if outcome.signal is not None:
        raise SystemExit(f"{folder}: was stopped; call this again to resume it")
    write_result(args, folder, recipe, task, limit.get("max_minutes"))


def write_result(
    args: argparse.Namespace, folder: Path, recipe: Recipe, task: Task, minutes: float | None
) -> None:
    """What the table needs of a finished run."""
    inside, batch = folder / "run", recipe.training.batch
    log = Run(inside).log()
    scores = [record for record in log if "validation" in record]
    seconds = {record["step"]: record["seconds"] for record in log if "seconds" in record}
    flops = training_flops(recipe.model) * batch
    result = {
        "row": args.row,
        "preset": ROWS[args.row].equal,
        **task._asdict(),
        "minutes": minutes,
        "model": recipe.model.to_json(),
        "training": recipe.training.to_json(),
        "parameters": recipe.model.parameters(),
        "flops_to_score": forward_flops(recipe.model),
        "flops_a_step": flops,
        "steps": scores[-1]["step"],
        "examples": batch * scores[-1]["step"],
        "seconds": Run(inside).newest()[0]["seconds"],  # type: ignore[index]
        "held_out": scores[-1]["validation"],
        "standard_error": scores[-1]["standard_error"],
        "test": None,
        "draw": None,
        "device": torch.cuda.get_device_name() if _on_gpu(args) else "CPU",
        "torch": torch.__version__,
    }
    kept = [
        {"step": r["step"], "seconds": seconds[r["step"]], "held_out": r["validation"]}
        for r in scores
        if r["step"] in seconds
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    write_json(folder / "result.json", result)


def score_best(args: argparse.Namespace) -> None:
    """Score the runs of the best rate on the test images, and time the drawing of its first."""
    best = best_of(args.out / args.row)
    for path in sorted((args.out / args.row).glob("*/result.json")):
        result = json.loads(path.read_text())
        other = result["rate"] != best["rate"] or result["trial"]
        if other or result.get("test", 0) is not None:
            continue
        model = axial.load(path.parent / "run", device=args.device)
        test = axial.open_packed(args.data / "test.npy")
        result["test"] = axial.evaluate(model, test).to_json()
        if result["seed"] == 0:
            dtype = torch.bfloat16 if _on_gpu(args) else torch.float32
            result["draw"] = drawing(model.to(dtype), args.pictures)
        write_json(path, result)
    found = best_of(args.out / args.row)
    print(f"{args.row}: {found['held_out']:.4f} bits/dim held out, rate {found['rate']:g}")


def drawing(model: Any, pictures: int) -> dict[str, Any]:
    """Seconds to draw pictures, the second time."""
    spent = 0.0
    for seed in range(2):
        begun = time.perf_counter()
        axial.draw(model, pictures, seed=seed).cpu()
        spent = time.perf_counter() - begun
    return {"pictures": pictures, "seconds": spent}


def _on_gpu(args: argparse.Namespace) -> bool:
    return args.device != "cpu" and torch.cuda.is_available()


def show_rows(args: argparse.Namespace) -> None:
    """Print every row."""
    for name, row in ROWS.items():
        config: FamilyConfig = PRESETS[row.equal]().model
        print(
            f"{name:<16}{row.equal:<28}{config.parameters() / 1e6:6.1f}M "
            f"{forward_flops(config) / 1e9:6.1f} GFLOP to score, "
            f"{training_flops(config) / 1e9:6.1f} to train on one picture"
        )


def show_hours(args: argparse.Namespace) -> None:
    """Print how long training to the published figures takes at a rate of operations."""
    lines = [
        "| command | published | operations, 1e18 | hours on one GPU |",
        "| --- | --- | --- | --- |",
    ]
    for run in PUBLISHED:
        recipe = PRESETS[run.preset]()
        how: dict[str, Any] = {"steps": run.steps, "batch": run.batch}
        given: dict[str, Any] = {name: n for name, n in how.items() if n is not None}
        training = replace(recipe.training, **given)
        total = training_flops(recipe.model) * training.steps * training.batch
        flags = "".join(f" --{name} {value}" for name, value in given.items())
        hours = total / (args.tflops * 1e12) / 3600
        lines.append(
            f"| `axial train {run.preset}{flags} --data train.npy --out RUN` | {run.figure} "
            f"| {total / 1e18:,.1f} | {hours:,.0f} |"
        )
    print("\n".join(lines))


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("rows", help="print every row")
    step.set_defaults(do=show_rows)
    step = steps.add_parser("hours", help="estimate the time to reach published figures")
    step.add_argument("--tflops", type=float, default=240.0, help="1e12 operations a second")
    step.set_defaults(do=show_hours)
    step = steps.add_parser("run", help="train what is missing of a row")
    step.add_argument("row", choices=ROWS, metavar="ROW", help="one of those that `rows` prints")
    step.add_argument("--data", type=Path, required=True, help="holds train.npy and test.npy")
    step.add_argument("--out", type=Path, required=True, help="folder for all rows")
    step.add_argument("--minutes", type=float, default=4.0, help="of each training")
    step.add_argument(
        "--trial-minutes", type=float, metavar="M", help="of trying a rate; default: as --minutes"
    )
    step.add_argument("--seeds", type=int, default=1, help="so many in all, at the best rate")
    step.add_argument("--most", type=int, help="end after so many trainings; default: all")
    step.add_argument("--steps", type=int, help="end a training after so many instead")
    step.add_argument("--pictures", type=int, default=64, help="to draw, for the time it takes")
    step.add_argument("--device", help="cpu or cuda; default: a GPU where there is one")
    for name in ("width", "batch", "warmup"):
        step.add_argument(f"--{name}", type=int, help="to try things out: in place of the preset's")
    step.set_defaults(do=run)
    step = steps.add_parser("table", help="print what was found; draw it")
    step.add_argument("folder", type=Path, metavar="OUT")
    step.add_argument("--out", type=Path, metavar="FILE.md", help="write it, and draw FILE.png")
    step.set_defaults(do=table)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
