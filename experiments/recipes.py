"""Which recipe learns CIFAR-10 fastest: one change at a time, each for the same time on one GPU.

    python experiments/recipes.py rows                             what can be run
    python experiments/recipes.py run ROW --data FOLDER --out OUT  [--minutes 4 --seed 0 --test]
    python experiments/recipes.py table OUT ... [--out FILE.md]    and FILE.png, the curves

`FOLDER` holds train.npy and test.npy as `axial data` writes them. A row is a `Recipe`, trained by
`axial.train` in OUT/run; OUT/result.json and OUT/log.jsonl hold what the table needs. The last
5,000 training images are never trained on: rows are compared on them, by the last averaged weights.
`--test` scores the test images once, in float32.
"""

import argparse
import json
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from recipe_rows import ROWS, changes_of, setting_of
from recipe_table import table, table_of

import axial
from axial.checkpoints.run_folder import Run
from axial.evaluation.result import write_json
from axial.shape import DataShape

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
    folder = args.out / "run"
    axial.train(recipe, data=packed.path, out=folder, device=args.device, **limit)
    log = Run(folder).log()
    scores = [record for record in log if "validation" in record]
    paces = [record for record in log if "examples_per_second" in record][1:] or log[:1]
    used = [record["mfu"] for record in paces if "mfu" in record]
    steps, model = scores[-1]["step"], axial.load(folder, device=args.device)
    result: dict[str, Any] = {
        "row": args.row,
        "tried": tried | ({} if args.steps is None else {"steps": args.steps}),
        "seed": args.seed,
        "seconds_allowed": 60 * args.minutes,
        "conditional": setting.labels,
        "setting": asdict(setting),
        "model": recipe.model.to_json(),
        "parameters": recipe.model.parameters(),
        "training": recipe.training.to_json() | limit,
        "steps": steps,
        "examples": steps * setting.batch,
        "seconds": Run(folder).newest()[0]["seconds"],  # type: ignore[index]
        "seconds_each_step": statistics.median(
            setting.batch / record["examples_per_second"] for record in paces
        ),
        "peak_share": statistics.median(used) if used else None,
        "validation": {
            "bits_per_dim": scores[-1]["validation"],
            "standard_error": scores[-1]["standard_error"],
        },
        "looks": [record["validation"] for record in scores],
        "test": None,
        "device": torch.cuda.get_device_name() if used else "CPU",
        "torch": torch.__version__,
    }
    if args.test:
        test = axial.open_packed(args.data / "test.npy")
        result["test"] = axial.evaluate(model, test).to_json()
    seconds = {record["step"]: record["seconds"] for record in log if "seconds" in record}
    lines = [{"step": 0, "seconds": 0, **result}]
    lines += [{**record, "seconds": seconds[record["step"]]} for record in scores]
    (args.out / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(args.out / "result.json", result)
    print(table_of([result]), flush=True)


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
