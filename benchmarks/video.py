"""Video in two forms at equal time on one GPU: frames stacked as channels, and the 3-D grid.

    python benchmarks/video.py train DATA --form stacked --out RUN [--dropout 0.2 --turn]
    python benchmarks/video.py train DATA --form grid --out RUN [--dropout 0.2 --turn]
    python benchmarks/video.py table RUN ...              what the runs found, side by side
    python benchmarks/video.py where RUN ... --data DATA  bits where it moves, and not
    python benchmarks/video.py join RUN --out CHECKPOINT  what `axial.load` takes

`DATA` is what benchmarks/video_clips.py writes. Both forms have as many blocks, the same width and
as many positions in a step, are given the first frame, and take the same seconds: compiling and
scoring the validation clips counted, the test at the end not. The averaged weights that were best
on the validation clips are tested. Codecs on the same clips: benchmarks/video_codecs.py.
"""

import argparse
import json
import math
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

import axial
from axial.batches import TrainingBatches
from axial.causal import given
from axial.config import DataShape, ModelConfig, TrainConfig
from axial.cost import forward_flops, parameters, training_flops
from axial.data import Packed, open_packed
from axial.evaluation import Evaluation, evaluate, write_json
from axial.model import AxialTransformer
from axial.pictures import write_sheet
from axial.ranks import Ranks, ranks
from axial.readings import matrix_peak
from axial.trainer import State, Trainer

GIVEN = 1
"""Frames that are known."""
WIDTH, HEADS, MLP_RATIO = 256, 4, 2
LAYERS = {"stacked": (6, (6, 4)), "grid": (3, (6, 4, 3)), "grey grid": (0, (6, 6, 4))}
"""Of the encoder and of each decoder level: 16 in all. One channel needs no encoder."""
POSITIONS = 81_920
"""In one step: one channel of 20 examples of 64 x 64, or of 1 of 20 x 64 x 64."""
RATE, WARM_UP = 1e-3, 200
SCORES, SCORING_SHARE = 10, 0.05
"""How often the validation clips are scored in a run, and what of the time that may take."""
LOOK_SECONDS, MOST_STEPS = 2.0, 50
"""From one look at the clock to the next."""
CONTINUATIONS = 3
MOVED = 8
"""A place that changes by more from one frame to the next is not just noise."""
PART_BYTES = 14 << 20


def model_config(shape: DataShape, form: str, args: argparse.Namespace) -> ModelConfig:
    """The model of a form, for the data as that form reads it."""
    grey = form == "grid" and shape.channels == 1
    encoder, decoder = LAYERS["grey grid" if grey else form]
    return ModelConfig(
        axes=shape.axes,
        channels=shape.channels,
        frames=shape.frames,
        values=shape.values,
        width=args.width,
        heads=args.heads,
        encoder_layers=encoder,
        decoder_layers=decoder,
        mlp_ratio=MLP_RATIO,
        dropout=args.dropout,
        given_channels=GIVEN * shape.frame_channels if form == "stacked" else 0,
        given_steps=GIVEN if form == "grid" else 0,
    )


class Timed:
    """Training that ends on time: its number of steps is estimated anew at every look.

    So the learning rate, a cosine over the steps, comes to zero as the time does.
    """

    def __init__(
        self, trainer: Trainer, validation: Packed, log: Path, args: argparse.Namespace
    ) -> None:
        self.trainer, self.validation, self.seconds = trainer, validation, args.seconds
        self.turn, self.shift, self.log = args.turn, args.shift, log
        self.log.write_text("")
        self.best, self.weights = math.inf, State()
        self.compiling = self.scoring = 0.0
        self.due = self.seconds / SCORES
        self.step = self.memory = 0
        self.pace: list[float] = []

    def run(self, batches: TrainingBatches) -> None:
        """Train and score until the time is over; the best weights are kept."""
        self.began = seen = time.monotonic()
        first, look = 0, 1
        with closing(batches.stream()) as stream:
            while self.step < self.trainer.config.steps:
                batch, random = next(stream), np.random.default_rng(self.step)
                vary(batch.x.numpy(), random, turn=self.turn, shift=self.shift)
                reading = self.trainer.step(self.step, batch)
                self.step += 1
                if self.step < look:
                    continue
                loss, norm = reading.tolist()  # waits for the device
                each = (time.monotonic() - seen) / (self.step - first)
                if self.step == 1:
                    self.compiling = each
                else:
                    self.pace.append(each)
                self._write(loss=loss, norm=norm, seconds_each=each)
                look = self.step + self._plan()
                if self.elapsed >= self.due or look == self.step:
                    self._score()
                first, seen = self.step, time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def _interval(self) -> float:
        """Seconds from one scoring to the next."""
        return max(self.seconds / SCORES, self.scoring / SCORING_SHARE)

    def _plan(self) -> int:
        """Set the number of steps; return how many to do until the next look."""
        if not self.pace:
            return 1
        each = statistics.median(self.pace[-9:])
        scores = 1 + max(0.0, self.seconds - self.due) // self._interval
        left = max(0, int((self.seconds - self.elapsed - scores * self.scoring) / each))
        self.trainer.config = replace(self.trainer.config, steps=self.step + left)
        return min(left, max(1, min(int(LOOK_SECONDS / each), MOST_STEPS)))

    def _score(self) -> None:
        begun = time.monotonic()
        if self.trainer.ranks.device.type == "cuda":  # of the steps: scoring takes what is free
            self.memory = self.memory or torch.cuda.max_memory_allocated()
        model = self.trainer.averaged()
        found = evaluate(
            model,
            self.validation,
            ranks=self.trainer.ranks,
            precision=self.trainer.precision,
            identify=False,
        )
        if found.bits_per_dim < self.best:
            self.best = found.bits_per_dim
            self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.scoring = time.monotonic() - begun
        self.due = self.elapsed + self._interval
        self._write(validation=found.bits_per_dim, standard_error=found.standard_error)
        print(f"{self.elapsed:6.0f} s, step {self.step:,}: {found}", flush=True)

    def _write(self, **facts: Any) -> None:
        record = {"step": self.step, "seconds": round(self.elapsed, 3), **facts}
        with self.log.open("a") as file:
            file.write(json.dumps(record) + "\n")


def vary(
    x: NDArray[np.unsignedinteger[Any]], random: np.random.Generator, *, turn: bool, shift: int
) -> None:
    """Change square clips (b, [t,] h, w, c) in place: turn and mirror them, move them about.

    Where a clip moves away from an edge, that edge is repeated.
    """
    for clip in x:
        changed = clip
        if turn:
            down, right, over = (1 - 2 * random.integers(2, size=3)).tolist()
            changed = changed[..., ::down, ::right, :]
            changed = changed.swapaxes(-3, -2) if over < 0 else changed
        if shift:
            places = np.arange(clip.shape[-2])
            rows, columns = (
                np.clip(places + random.integers(-shift, shift + 1), 0, places[-1])
                for _ in range(2)
            )
            changed = changed[..., rows[:, None], columns, :]
        clip[...] = changed.copy()


def train(args: argparse.Namespace) -> None:
    """Train one form for some seconds, test it, draw continuations, write what was found."""
    stacked = args.form == "stacked"
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {
        split: open_packed(args.data / f"{split}.npy", stack_frames=stacked)
        for split in ("train", "validation", "test")
    }
    shape = parts["train"].shape
    config = model_config(shape, args.form, args)
    batch = args.batch or max(1, POSITIONS // math.prod(shape.axes))
    training = TrainConfig(
        steps=1 << 30, batch=batch, learning_rate=args.rate, warmup=args.warm_up, seed=args.seed
    )
    print(
        f"{args.form}: {parameters(config):,} parameters, batch {batch}: "
        f"{batch * math.prod(shape.axes):,} positions and "
        f"{batch * training_flops(config) / 1e12:.1f} TFLOP a step; a clip is scored in "
        f"{forward_flops(config) / 1e12:.2f} TFLOP",
        flush=True,
    )
    with ranks(args.device) as team:
        peak = matrix_peak(team.device)
        torch.manual_seed(args.seed)
        with team.device:
            model = AxialTransformer(config)
        trainer = Trainer(model, training, team)
        timed = Timed(trainer, parts["validation"], args.out / "log.jsonl", args)
        timed.run(TrainingBatches(parts["train"], batch, seed=args.seed, flip=args.flip))
        best = AxialTransformer.from_weights(config, timed.weights)
        each, spent = statistics.median(timed.pace), timed.elapsed
        del model, trainer, timed.trainer
        write_parts(args.out, best)  # before anything else can fail
        tested = np.arange(len(parts["test"]))[: args.limit]
        found = evaluate(best, parts["test"], ranks=team, subset=tested)
        flops = batch * training_flops(config) / each
        result = {
            "form": args.form,
            **found.to_json(),
            "by_frame": by_frame(found, config),
            "validation": timed.best,
            "model": config.to_json(),
            "parameters": parameters(config),
            "training": training.to_json() | {"steps": timed.step},
            "changes": {"flip": args.flip, "turn": args.turn, "shift": args.shift},
            "seconds": spent,
            "seconds_compiling": timed.compiling,
            "seconds_each_step": each,
            "positions_per_second": batch * math.prod(shape.axes) / each,
            "teraflops": flops / 1e12,
            "peak_share": flops / peak if peak else None,
            "most_memory": timed.memory,
            "device": torch.cuda.get_device_name() if peak else "CPU",
        }
        write_json(args.out / "result.json", result)
        print(describe(result), found, sep="\n", flush=True)
        begun = time.monotonic()
        continue_clips(best, parts["test"], args, team)
        print(f"{args.draw} clips continued {CONTINUATIONS} times in ", end="")
        print(f"{time.monotonic() - begun:.1f} s")


def by_frame(found: Evaluation, config: ModelConfig) -> list[float]:
    """Bits/dim of each frame that is not given."""
    values = found.per_row if config.given_steps else found.per_channel
    scored = np.array([value for value in values if value is not None])
    each = 1 if config.given_steps else config.data.frame_channels
    return scored.reshape(-1, each).mean(1).tolist()


def continue_clips(
    model: AxialTransformer, packed: Packed, args: argparse.Namespace, team: Ranks
) -> None:
    """Draw several continuations of some clips; a sheet with each original above its own."""
    chosen = np.arange(args.draw) * len(packed) // max(1, args.draw)
    if not len(chosen):
        return
    x = packed.rows(chosen).astype(np.int64)
    known = torch.from_numpy(x).masked_fill(~given(model.config), -1)
    known = known.repeat_interleave(CONTINUATIONS, 0)
    if team.device.type == "cuda":
        model = model.to(torch.bfloat16)
    drawn = axial.draw(model, len(known), given=known, seed=args.seed, batch=len(known))
    rows = drawn.cpu().numpy().reshape(len(x), CONTINUATIONS, *x.shape[1:])
    both = np.concatenate([x[:, None], rows], 1).reshape(-1, *x.shape[1:])
    kept = given(model.config).numpy()
    how = {"frames": model.config.frames, "kept": kept, "group": 1 + CONTINUATIONS}
    write_sheet(args.out / "continuations.png", both, **how)


def write_parts(folder: Path, model: AxialTransformer) -> None:
    """Weights in bfloat16, in files small enough to be sent."""
    parts: list[State] = [{}]
    size = 0
    for name, value in model.state_dict().items():
        kept = value.to("cpu", torch.bfloat16).contiguous()
        size += kept.nbytes
        if size > PART_BYTES:
            parts.append({})
            size = kept.nbytes
        parts[-1][name] = kept
    for number, part in enumerate(parts, 1):
        save_file(part, folder / f"weights-{number}.safetensors")


def joined(run: Path) -> AxialTransformer:
    """The model of a run, from the parts of its weights."""
    config = json.loads((run / "result.json").read_text())["model"]
    weights: State = {}
    for path in sorted(run.glob("weights-*.safetensors")):
        weights |= {name: value.float() for name, value in load_file(path).items()}
    return AxialTransformer.from_weights(ModelConfig.from_json(config), weights)


def where(args: argparse.Namespace) -> None:
    """Print the bits of elements that changed since the frame before, and of those that did not."""
    for run in args.runs:
        model = joined(run)
        stacked = model.config.given_channels > 0
        packed = open_packed(args.data / "test.npy", stack_frames=stacked)
        chosen = np.arange(args.limit) * len(packed) // args.limit
        x = torch.from_numpy(packed.rows(chosen).astype(np.int64))
        found = axial.element_bits(model, x)
        if stacked:  # (b, h, w, t c) -> (b, t, h, w, c)
            size = model.config.data.frame_channels
            x, found = (t.view(*t.shape[:3], -1, size).movedim(3, 1) for t in (x, found))
        change = (x[:, 1:] - x[:, :-1]).abs().amax(-1, keepdim=True)
        moved = (change > MOVED).expand_as(x[:, 1:])
        scored = found[:, 1:]
        by_channel = ", ".join(f"{bits:.3f}" for bits in scored.mean((0, 1, 2, 3)).tolist())
        print(
            f"{run.name}, {len(x)} clips: {scored.mean():.4f} bits/dim; by colour {by_channel}; "
            f"{scored[moved].mean():.3f} where a place changed by more than {MOVED} "
            f"({moved.double().mean():.1%} of them), {scored[~moved].mean():.3f} elsewhere",
            flush=True,
        )


def join(args: argparse.Namespace) -> None:
    """Put the parts of a run's weights together."""
    axial.save(joined(args.run), args.out)
    print(f"{args.out}: {args.run}'s weights, rounded to bfloat16")


def table(args: argparse.Namespace) -> None:
    """Print what the runs found."""
    for run in args.runs:
        print(describe(json.loads((run / "result.json").read_text())))


def describe(found: dict[str, Any]) -> str:
    """What a run found, what it took, and where the bits go."""
    share = f" ({found['peak_share']:.0%} of peak)" if found["peak_share"] else ""
    memory = f", {found['most_memory'] / 2**30:.1f} GiB" if found["most_memory"] else ""
    frames = " ".join(f"{bits:.3f}" for bits in found["by_frame"])
    lines = [
        f"{found['data']['title']}, {found['form']}: {found['bits_per_dim']:.4f} bits/dim +- "
        f"{found['standard_error'] or math.nan:.4f} on {found['examples']} clips; validation "
        f"{found['validation']:.4f}",
        f"{found['parameters']:,} parameters, {found['training']['steps']:,} steps of "
        f"{found['training']['batch']} in {found['seconds']:.0f} s, "
        f"{found['seconds_compiling']:.0f} s of it until the first was done, then "
        f"{1e3 * found['seconds_each_step']:.1f} ms each",
        f"{found['positions_per_second']:,.0f} positions/s, {found['teraflops']:.1f} "
        f"TFLOP/s{share}{memory}",
        f"by frame: {frames}",
    ]
    return "\n  ".join(lines)


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("train", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    step.add_argument("data", type=Path)
    step.add_argument("--form", choices=["stacked", "grid"], required=True)
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--seconds", type=float, default=300)
    step.add_argument("--device", help="cpu or cuda; a GPU where there is one unless told")
    step.add_argument("--width", type=int, default=WIDTH)
    step.add_argument("--heads", type=int, default=HEADS)
    step.add_argument("--batch", type=int, help=f"{POSITIONS:,} positions unless told")
    step.add_argument("--rate", type=float, default=RATE)
    step.add_argument("--warm-up", type=int, default=WARM_UP, help="steps")
    step.add_argument("--dropout", type=float, default=0.0)
    step.add_argument("--flip", action="store_true", help="mirror clips at random")
    step.add_argument("--turn", action="store_true", help="turn and mirror clips all ways")
    step.add_argument("--shift", type=int, default=0, help="move clips by up to so many places")
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--limit", type=int, help="test only the first so many clips")
    step.add_argument("--draw", type=int, default=4, help="clips to continue")
    step.set_defaults(do=train)
    step = steps.add_parser("table")
    step.add_argument("runs", type=Path, nargs="+")
    step.set_defaults(do=table)
    step = steps.add_parser("where")
    step.add_argument("runs", type=Path, nargs="+")
    step.add_argument("--data", type=Path, required=True)
    step.add_argument("--limit", type=int, default=6, help="clips, spread over the test")
    step.set_defaults(do=where)
    step = steps.add_parser("join")
    step.add_argument("run", type=Path)
    step.add_argument("--out", type=Path, required=True)
    step.set_defaults(do=join)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
