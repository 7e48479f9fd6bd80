"""Video in two forms at equal time on one GPU: frames stacked as channels, and the 3-D grid.

    python benchmarks/video.py train DATA --form stacked --out RUN [--dropout 0.2 --turn]
    python benchmarks/video.py train DATA --form grid --out RUN [--dropout 0.2 --turn]
    python benchmarks/video.py table RUN ...              what the runs found, side by side
    python benchmarks/video.py where RUN ... --data DATA  bits where it moves, and not
    python benchmarks/video.py join RUN --out CHECKPOINT  what `axial.load` takes

`DATA` is what benchmarks/video_clips.py writes. Both forms have as many blocks, the same width and
as many positions in a step, are given the first frame, and take the same seconds: scoring the
validation clips counted, compiling the first step and the test at the end not. The averaged
weights that were best on the validation clips are tested. Codecs on the same clips:
benchmarks/video_codecs.py.
"""

import argparse
import json
import math
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timed import UNKNOWN_STEPS, HeldOut, Timed, join_parts, joined, write_parts

import axial
from axial.data.batches import Batch, TrainingBatches
from axial.models.causal import given
from axial.models.config import DataShape, ModelConfig, TrainConfig
from axial.models.cost import forward_flops, parameters, training_flops
from axial.data.packed import Packed, open_packed
from axial.evaluation.scoring import Evaluation, evaluate, write_json
from axial.models.axial_transformer import AxialTransformer
from axial.media.tiles import write_sheet
from axial.system.ranks import Ranks, ranks
from axial.training.metrics import matrix_peak
from axial.training.trainer import Trainer

GIVEN = 1
"""Frames that are known."""
WIDTH, HEADS, MLP_RATIO = 256, 4, 2
LAYERS = {"stacked": (6, (6, 4)), "grid": (3, (6, 4, 3)), "grey grid": (0, (6, 6, 4))}
"""Of the encoder and of each decoder level: 16 in all. One channel needs no encoder."""
POSITIONS = 81_920
"""In one step: one channel of 20 examples of 64 x 64, or of 1 of 20 x 64 x 64."""
RATE, WARM_UP = 1e-3, 200
CONTINUATIONS = 3
LAST = 40
"""Looks whose training loss is averaged."""
MOVED = 8
"""A place that changes by more from one frame to the next is not just noise."""


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
        steps=UNKNOWN_STEPS,
        batch=batch,
        learning_rate=args.rate,
        warmup=args.warm_up,
        seed=args.seed,
    )
    every = np.arange(len(parts["validation"]))
    held_out = HeldOut(packed=parts["validation"], along=every, at_end=every, keep="best")

    def change(step: int, batch: Batch) -> None:
        random = np.random.default_rng(step)
        vary(batch.x.numpy(), random, turn=args.turn, shift=args.shift)

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
        timed = Timed(
            trainer,
            held_out,
            args.out / "log.jsonl",
            seconds=args.seconds,
            plan=lambda steps: replace(training, steps=steps),
            vary=change,
        )
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
    join_parts(args.run, args.out)


def table(args: argparse.Namespace) -> None:
    """Print what the runs found."""
    for run in args.runs:
        print(describe(json.loads((run / "result.json").read_text())))
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        last = [record["loss"] for record in log if "loss" in record][-LAST:]
        print(f"  loss on the training clips, mean of the last {LAST} looks: {np.mean(last):.3f}")


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
        f"{found['training']['batch']}: the first {found['seconds_compiling']:.0f} s, then "
        f"{found['seconds']:.0f} s, {1e3 * found['seconds_each_step']:.1f} ms each",
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
