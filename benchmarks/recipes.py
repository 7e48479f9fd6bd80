"""Which recipe learns CIFAR-10 fastest: one change at a time, each for the same time on one GPU.

    python benchmarks/recipes.py rows                             what can be run
    python benchmarks/recipes.py run ROW --data FOLDER --out RUN  [--seconds 240 --seed 0 --test]
    python benchmarks/recipes.py table RUN ... [--out FILE.md]    and FILE.png, the curves
    python benchmarks/recipes.py join RUN --out CHECKPOINT        what `axial.load` takes

`FOLDER` holds train.npy and test.npy as `axial data` writes them. The last 5,000 training images
are never trained on: rows are compared on them, by the last averaged weights. Compiling and scoring
them count in the seconds; `--test` scores the test images once, in float32, after the time is over.
"""

import argparse
import json
import math
import statistics
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from timed import UNKNOWN_STEPS, HeldOut, Timed, join_parts, write_parts
from torch import Tensor, nn

from axial.batches import TrainingBatches, split
from axial.config import DataShape, ModelConfig, TrainConfig
from axial.cost import parameters, training_flops
from axial.data import Packed, open_packed
from axial.evaluation import evaluate, write_json
from axial.layers import Blocks
from axial.model import AxialTransformer
from axial.ranks import Ranks, ranks
from axial.readings import matrix_peak
from axial.trainer import State, Trainer

HELD_OUT, LOOKED_AT = 5000, 1000
"""Training images that rows are compared on, and how many of these are scored along the way."""
SCORING_SHARE = 0.1
"""Of the time, what scoring along the way may take."""
WORSE = 0.005
"""Bits/dim by which the last weights are so much worse than earlier ones that it is told."""
VALUE_OCTAVES, POSITION_OCTAVES = 6, 4
"""Of the waves that embeddings and positions may start with."""
TRIED = ("width", "batch", "warmup")
"""What may be changed on the command line, to try things out."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that rows vary; the defaults are the preset `cifar10` as it was before this comparison.

    They are written out, as the preset follows what is found here.
    """

    width: int = 512
    heads: int = 8
    layers: tuple[int, int, int] = (4, 4, 4)
    """Of the encoder, the outer and the inner decoder."""
    inner: Literal["attention", "lstm"] = "attention"
    mlp_ratio: int = 2
    norm: Literal["layer", "rms"] = "layer"
    embedding: Literal["random", "smooth"] = "random"
    """How the embeddings of values start out."""
    positions: Literal["random", "smooth"] = "random"
    residual: Literal["float32", "bfloat16"] = "bfloat16"
    """What blocks add to, while training in bfloat16."""
    dropout: float = 0.0
    labels: bool = False
    flip: bool = True
    batch: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup: int = 300
    schedule: Literal["constant", "cosine"] = "cosine"
    beta2: float = 0.95
    weight_decay: float = 0.01
    averaged_over: float = 0.1
    """What share of the run the averaged weights reach back; 0 for those of the last step."""
    ema: float | None = None
    """Their decay, where it does not follow from that share: then it is so from the first step."""

    def model(self, shape: DataShape) -> ModelConfig:
        """The model for CIFAR-10, or for pictures of any other shape."""
        told = shape if self.labels else replace(shape, classes=0)
        return ModelConfig(
            **asdict(told),
            width=self.width,
            heads=self.heads,
            encoder_layers=self.layers[0],
            decoder_layers=self.layers[1:],
            inner=self.inner,
            mlp_ratio=self.mlp_ratio,
            dropout=self.dropout,
        )

    def training(self, steps: int, *, seed: int) -> TrainConfig:
        """How it is trained, once it is known for how many steps."""
        kept = {field.name for field in fields(TrainConfig)} & asdict(self).keys()
        values: dict[str, Any] = {name: getattr(self, name) for name in kept}
        if self.ema is None:
            values["ema"] = 1 - 1 / max(1.0, self.averaged_over * steps)
        values |= {"ema_warmup": self.ema is None, "validation": HELD_OUT, "hold_out": "last"}
        return TrainConfig(**values, steps=steps, seed=seed)

    def with_norms(self, model: AxialTransformer) -> AxialTransformer:
        """The same model with this setting's norms."""
        return with_rms_norms(model) if self.norm == "rms" else model


@dataclass(frozen=True)
class Row:
    """One run of the comparison: what it changes, and against which other row."""

    changes: dict[str, Any]
    parent: str | None = "base"
    about: str = ""


ROWS = {
    # Half the authors' 8/8/4 layers, with heads of 128 as theirs. Their warm-up and averaging reach
    # over 5,000 and 20,000 of 200,000 steps; here it is as large a share of some 8,000.
    "paper": Row(
        {
            "width": 640,
            "heads": 5,
            "layers": (4, 4, 2),
            "mlp_ratio": 1,
            "dropout": 0.04,
            "flip": False,
            "optimizer": "adam",
            "learning_rate": 1e-4,
            "warmup": 200,
            "schedule": "constant",
            "beta2": 0.999,
            "weight_decay": 0.0,
        },
        parent=None,
        about="the paper's ImageNet32 recipe at the size of the others (it never trained CIFAR-10)",
    ),
    "paper-rate-4x": Row({"learning_rate": 4e-4}, parent="paper"),
    "paper-rate-10x": Row({"learning_rate": 1e-3}, parent="paper"),
    "paper-to-the-letter": Row(
        {"warmup": 5000, "ema": 0.99995},
        parent="paper",
        about="as many steps as the authors': the average is still mostly the starting weights",
    ),
    "base": Row({}, parent=None, about="the preset cifar10 before this comparison"),
    "batch-32": Row({"batch": 32}),
    "batch-32-rate-half": Row({"learning_rate": 5e-4}, parent="batch-32"),
    "batch-128": Row({"batch": 128}),
    "batch-128-rate-2x": Row({"learning_rate": 2e-3}, parent="batch-128"),
    "batch-256": Row({"batch": 256}),
    "batch-256-rate-2x": Row({"learning_rate": 2e-3}, parent="batch-256"),
    "rate-half": Row({"learning_rate": 5e-4}),
    "rate-2x": Row({"learning_rate": 2e-3}),
    "warmup-1000": Row({"warmup": 1000}),
    "no-flip": Row({"flip": False}),
    "width-768": Row({"width": 768, "heads": 12, "layers": (2, 2, 1)}),
    "width-640": Row({"width": 640, "heads": 10, "layers": (3, 3, 2)}),
    "width-384": Row({"width": 384, "heads": 6, "layers": (7, 7, 7)}),
    "more-encoder": Row({"layers": (6, 3, 3)}),
    "more-outer": Row({"layers": (3, 6, 3)}),
    "more-inner": Row({"layers": (3, 3, 6)}),
    "layers-as-paper": Row({"layers": (5, 5, 2)}),
    "mlp-1": Row({"mlp_ratio": 1, "layers": (5, 6, 5)}),
    "mlp-4": Row({"mlp_ratio": 4, "layers": (3, 3, 2)}),
    "beta2-0.999": Row({"beta2": 0.999}),
    "decay-0": Row({"weight_decay": 0.0}),
    "decay-0.1": Row({"weight_decay": 0.1}),
    "constant": Row({"schedule": "constant"}),
    "average-short": Row({"averaged_over": 0.03}),
    "average-long": Row({"averaged_over": 0.3}),
    "average-none": Row({"averaged_over": 0.0}),
    "dropout-0.1": Row({"dropout": 0.1}),
    "heads-4": Row({"heads": 4}),
    "heads-16": Row({"heads": 16}),
    "rms-norm": Row({"norm": "rms"}),
    "embedding-smooth": Row({"embedding": "smooth"}),
    "both-smooth": Row({"positions": "smooth"}, parent="embedding-smooth"),
    "lstm": Row({"inner": "lstm", "layers": (4, 4, 1)}, about="the paper's other inner decoder"),
    "residual-float32": Row({"residual": "float32"}),
    "labels": Row({"labels": True}),
    "muon": Row({"optimizer": "muon"}),
    "muon-rate-half": Row({"learning_rate": 5e-4}, parent="muon"),
    "muon-rate-2x": Row({"learning_rate": 2e-3}, parent="muon"),
    "muon-rate-4x": Row({"learning_rate": 4e-3}, parent="muon"),
    "muon-rate-20x": Row({"learning_rate": 2e-2}, parent="muon"),
    "small": Row({"width": 384, "heads": 6}, about="at most 30 MB in bfloat16"),
    "small-deep": Row({"width": 320, "heads": 5, "layers": (6, 6, 5)}, parent="small"),
    "small-deepest": Row({"width": 256, "heads": 4, "layers": (9, 9, 9)}, parent="small"),
    "small-wide": Row({"width": 448, "heads": 7, "layers": (3, 3, 3)}, parent="small"),
}


def setting_of(name: str) -> Setting:
    """What a row trains: its parent's setting with its own changes."""
    row = ROWS[name]
    return replace(setting_of(row.parent) if row.parent else Setting(), **row.changes)


def changes_of(name: str) -> str:
    """What a row changes, in words, and from what."""
    row = ROWS[name]
    parent = asdict(setting_of(row.parent)) if row.parent else {}
    words = [
        f"{_word(key)} {_shown(value)}" + (f" ({_shown(parent[key])})" if parent else "")
        for key, value in row.changes.items()
    ]
    return ": ".join(filter(None, [row.about, ", ".join(words)]))


def _word(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


class RMSNorm(nn.LayerNorm):
    """No mean is taken off and no bias added.

    The bias stays, unused, so that the weights keep the names that the model gives them.
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


def with_rms_norms(model: AxialTransformer) -> AxialTransformer:
    """Put RMSNorm in the place of every LayerNorm, on the same weights.

    Only here: it is no part of a model's configuration unless it helps.
    """
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if isinstance(norm, nn.LayerNorm):
                with torch.device("meta"):
                    other = RMSNorm(norm.normalized_shape, eps=norm.eps)
                other.weight, other.bias = norm.weight, norm.bias
                setattr(parent, name, other)
    return model


def smooth_embedding(model: AxialTransformer) -> None:
    """Let the embeddings of values start as waves: values near each other then look alike.

    Only here, as above.
    """
    weight = model.embedding.weight.detach()
    weight.copy_(waves_like(weight, VALUE_OCTAVES))


def smooth_positions(model: AxialTransformer) -> None:
    """The same for positions; each table has its waves in an order of features of its own."""
    encoder = [] if model.encoder is None else [*model.encoder.positions.tables]
    for table in [*model.positions.tables, *encoder]:
        weight = table.detach()
        order = torch.randperm(weight.shape[1])
        weight.copy_(waves_like(weight, POSITION_OCTAVES)[:, order])


def waves_like(table: Tensor, octaves: int) -> Tensor:
    """Sines and cosines over its rows, from half a period to so many octaves above it."""
    count, width = table.shape
    pitch = 2 ** torch.linspace(0, octaves, (width + 1) // 2) * math.pi
    angle = torch.arange(count).unsqueeze(1) / count * pitch
    found = torch.cat([angle.sin(), angle.cos()], 1)[:, :width]
    return found * (2**0.5 * table.std().cpu())


class WideBlocks(Blocks):
    """Blocks that add to float32 numbers, as their first input is, whatever they compute in."""

    def forward(self, x: Tensor, *, recompute: bool = False) -> Tensor:
        for block in self:
            x = block(x)
        return x


def widen_residual(model: AxialTransformer) -> None:
    """Let blocks add to float32 numbers: twice the bytes. Only here, as above."""
    for module in model.modules():
        if isinstance(module, Blocks):
            module.__class__ = WideBlocks


class RMSTrainer(Trainer):
    """Training of a model with RMSNorm."""

    def averaged(self) -> AxialTransformer:
        """The model with the averaged weights."""
        return with_rms_norms(super().averaged())


def start(config: ModelConfig, seed: int, device: torch.device) -> AxialTransformer:
    """A new model: from one seed the same in every row of its sizes, told labels or not."""
    torch.manual_seed(seed)
    with device:
        model = AxialTransformer(replace(config, classes=0))
        if not config.classes:
            return model
        told = AxialTransformer(config)
    told.load_state_dict(model.state_dict(), strict=False)  # labels are drawn, all else is equal
    return told


def run(args: argparse.Namespace) -> None:
    """Train one row for some seconds, score it, write what was found."""
    tried = {name: getattr(args, name) for name in TRIED if getattr(args, name) is not None}
    setting = replace(setting_of(args.row), **tried)
    packed = open_packed(args.data / "train.npy")
    test = open_packed(args.data / "test.npy") if args.test else None
    config = setting.model(packed.shape)
    setting.training(UNKNOWN_STEPS, seed=args.seed)  # what cannot be trained is refused here
    result: dict[str, Any] = {
        "row": args.row,
        "parent": ROWS[args.row].parent,
        "changes": changes_of(args.row),
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
        weights, found = train(setting, packed, team, result, args)
        model = setting.with_norms(AxialTransformer.from_weights(config, weights))
        if args.weights:
            write_parts(args.out, model)  # before anything else can fail
        result |= found | {"test": None}
        if test is not None:
            scored = np.arange(len(test))[: args.limit]
            result["test"] = evaluate(model, test, ranks=team, subset=scored).to_json()
    write_json(args.out / "result.json", result)
    print(table_of([result]), flush=True)


def train(
    setting: Setting, packed: Packed, team: Ranks, about: dict[str, Any], args: argparse.Namespace
) -> tuple[State, dict[str, Any]]:
    """The last averaged weights, and what was found on the way there."""

    def plan(steps: int) -> TrainConfig:
        return setting.training(min(steps, args.steps or steps), seed=args.seed)

    config = setting.model(packed.shape)
    peak = matrix_peak(team.device)
    used, held_out = (part[: args.limit] for part in split(len(packed), HELD_OUT, "last"))
    model = setting.with_norms(start(config, args.seed, team.device))
    if setting.embedding == "smooth":
        smooth_embedding(model)
    if setting.positions == "smooth":
        smooth_positions(model)
    if setting.residual == "float32":
        widen_residual(model)
    trainer = (RMSTrainer if setting.norm == "rms" else Trainer)(model, plan(UNKNOWN_STEPS), team)
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
    return timed.weights, {
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


def clear(folder: Path) -> None:
    """Make a folder for a run, without what an earlier one left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [folder / "result.json", *folder.glob("weights-*.safetensors")]:
        path.unlink(missing_ok=True)


class Repeated:
    """The runs of one row that had the same time, with one seed or several."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = sorted(runs, key=lambda run: run["seed"])
        self.first = self.runs[0]
        self.seconds: float = self.first["seconds_allowed"]
        self.tried: dict[str, Any] = self.first["tried"]
        bits = [run["validation"]["bits_per_dim"] for run in runs]
        self.bits, self.spread = statistics.fmean(bits), max(bits) - min(bits)

    @property
    def name(self) -> str:
        """That of the row, and what was changed on the command line."""
        return ", ".join([self.first["row"], *(f"{k} {v}" for k, v in self.tried.items())])

    @property
    def seeds(self) -> str:
        """Those of the runs."""
        return ", ".join(str(run["seed"]) for run in self.runs)

    def mean(self, name: str) -> float:
        """Of a figure over the runs."""
        return statistics.fmean(run[name] for run in self.runs)

    def cells(self, base: "Repeated | None") -> dict[str, str]:
        """A line of the table."""
        peak = None if self.first["peak_share"] is None else self.mean("peak_share")
        return {
            "row": self.name,
            "changes": self.first["changes"],
            "against": self.first["parent"] or "",
            "parameters": f"{self.first['parameters']:,}",
            "steps": f"{self.mean('steps'):,.0f}",
            "images seen": f"{self.mean('examples'):,.0f}",
            "ms/step": f"{1e3 * self.mean('seconds_each_step'):.1f}",
            "of peak": "" if peak is None else f"{peak:.1%}",
            "minutes": f"{self.mean('seconds') / 60:.2f}",
            "held out, bits/dim": self._held_out(),
            "to base": "" if base is None or base is self else f"{self.bits - base.bits:+.4f}",
            "test, bits/dim": self._tested(),
            "seed": self.seeds,
            "conditional": "yes" if self.first["conditional"] else "no",
        }

    def _held_out(self) -> str:
        error = statistics.fmean(run["validation"]["standard_error"] for run in self.runs)
        said = [f"{self.bits:.4f} +- {error:.4f}"]
        if len(self.runs) > 1:
            said.append(f"mean of {len(self.runs)}, spread {self.spread:.4f}")
        lost = max(run["looks"][-1] - min(run["looks"]) for run in self.runs)
        if lost > WORSE:
            said.append(f"{lost:.4f} above its best look")
        return ", ".join(said)

    def _tested(self) -> str:
        tests = [run["test"] for run in self.runs if run["test"]]
        if not tests:
            return ""
        bits, error = (
            statistics.fmean(test[name] for test in tests)
            for name in ("bits_per_dim", "standard_error")
        )
        few = f", mean of {len(tests)}" if len(tests) > 1 else ""
        return f"{bits:.4f} +- {error:.4f}{few}"


def repeated(results: list[dict[str, Any]]) -> list[Repeated]:
    """The runs by time and row, in the order of the rows."""
    order = list(ROWS)

    def key(run: dict[str, Any]) -> tuple[Any, ...]:
        place = order.index(run["row"]) if run["row"] in ROWS else len(order)
        return run["seconds_allowed"], place, run["row"], json.dumps(run["tried"])

    return [Repeated(list(runs)) for _, runs in groupby(sorted(results, key=key), key)]


def table_of(results: list[dict[str, Any]]) -> str:
    """The runs as Markdown, repeated ones in one line."""
    groups = repeated(results)
    bases = {
        (group.seconds, json.dumps(group.tried)): group
        for group in groups
        if group.first["row"] == "base"
    }
    lines = [group.cells(bases.get((group.seconds, json.dumps(group.tried)))) for group in groups]
    rows = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def told_apart(results: list[dict[str, Any]]) -> str:
    """What the same row gives with other seeds, and what follows."""
    several = [group for group in repeated(results) if len(group.runs) > 1]
    if not several:
        return "No row was repeated with other seeds: no difference is called an improvement."
    most = max(several, key=lambda group: group.spread)
    return (
        f"The largest minus the smallest of {most.name} with seeds {most.seeds} is "
        f"{most.spread:.4f} bits/dim: a smaller difference is not called an improvement."
    )


def table(args: argparse.Namespace) -> None:
    """Print what the runs found, and what those that did not end had found; draw their curves."""
    ended = [path for path in args.runs if (path / "result.json").exists()]
    results = [json.loads((path / "result.json").read_text()) for path in ended]
    parts = [table_of(results)] if results else []
    parts += [unfinished(path) for path in args.runs if path not in ended]
    if args.out:
        picture = args.out.with_suffix(".png")
        draw_curves(picture, args.runs)
        parts.append(f"![Bits/dim over minutes]({picture.name})")
    text = "\n\n".join([*parts, told_apart(results)])
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def log_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; the first says what was run."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def unfinished(run: Path) -> str:
    """What a run had found when it broke off."""
    about, *rest = log_of(run)
    last = rest[-1] if rest else about
    scored = [record["validation"] for record in rest if "validation" in record]
    found = f"{scored[-1]:.4f} bits/dim on the first {LOOKED_AT:,}" if scored else "nothing scored"
    return (
        f"{run}: {about['row']}, seed {about['seed']}, broke off at step {last['step']:,} after "
        f"{last['seconds'] / 60:.2f} of {about['seconds_allowed'] / 60:.2f} minutes; {found}"
    )


def draw_curves(path: Path, runs: list[Path]) -> None:
    """Bits/dim on the images scored along the way over the minutes, a line for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    panel = figure.add_subplot()
    settled = []
    for number, run in enumerate(runs):
        about, *rest = log_of(run)
        looks = [(r["seconds"] / 60, r["validation"]) for r in rest if "validation" in r]
        panel.plot(
            [at for at, _ in looks],
            [bits for _, bits in looks],
            label=f"{about['row']}, seed {about['seed']}",
            linestyle=("-", "--", ":")[number // 10 % 3],
            marker=".",
        )
        settled += [bits for _, bits in looks[len(looks) // 4 :]]
    if settled:  # the first looks would flatten all the rest
        panel.set_ylim(min(settled) - 0.02, max(settled) + 0.02)
    title = f"averaged weights on the first {LOOKED_AT:,} held-out images"
    panel.set(xlabel="minutes", ylabel="bits/dim", title=title)
    panel.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=120)


def show_rows(args: argparse.Namespace) -> None:
    """Print every row and what it changes."""
    shape = DataShape(axes=(32, 32), channels=3, classes=10)
    for name, row in ROWS.items():
        size = parameters(setting_of(name).model(shape)) / 1e6
        against = f"{row.parent}: " if row.parent else ""
        print(f"{name:<20} {size:4.1f}M  {against}{changes_of(name)}")


def join(args: argparse.Namespace) -> None:
    """Put the parts of a run's weights together."""
    result = json.loads((args.run / "result.json").read_text())
    if result["setting"]["norm"] != "layer":
        raise SystemExit(f"{args.run}: {result['row']} is no model that `axial.load` knows")
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
    step.add_argument("--steps", type=int, help="end after so many, for rows at equal steps")
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
