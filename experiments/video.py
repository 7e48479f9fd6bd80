"""Video in two forms at equal time on one GPU: frames stacked as channels, and the 3-D grid.

    python experiments/video.py train DATA --form stacked --out RUN [--dropout 0.2 --flip]
    python experiments/video.py train DATA --form grid --out RUN [--dropout 0.2 --flip]
    python experiments/video.py table RUN ...              what the runs found, side by side
    python experiments/video.py where RUN ... --data DATA  bits where it moves, and not

`DATA` is what experiments/video_clips.py writes, `RUN` a run of `axial.train`. Both forms have as
many blocks, the same width and as many positions in a step, are given the first frame, and take the
same minutes. The averaged weights that were best on the validation clips are tested. Codecs on the
same clips: experiments/video_codecs.py.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import axial
from axial.checkpoints.run_folder import Run
from axial.data.packed import Packed, open_packed
from axial.evaluation.result import Evaluation, write_json
from axial.media.sheets import write_sheet
from axial.models.causal import given
from axial.models.config import ModelConfig
from axial.models.cost import forward_flops, training_flops
from axial.models.protocol import Model
from axial.shape import DataShape
from axial.training.config import Recipe, TrainConfig

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
"""Lines of the log whose training loss is averaged."""
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
        encoder_dropout=args.dropout,  # as the recorded rows were trained
        given_channels=GIVEN * shape.frame_channels if form == "stacked" else 0,
        given_steps=GIVEN if form == "grid" else 0,
    )


def train(args: argparse.Namespace) -> None:
    """Train one form for some minutes, test it, draw continuations, write what was found."""
    stacked = args.form == "stacked"
    parts = {
        split: open_packed(args.data / f"{split}.npy", stack_frames=stacked)
        for split in ("train", "validation", "test")
    }
    shape = parts["train"].shape
    config = model_config(shape, args.form, args)
    batch = args.batch or max(1, POSITIONS // math.prod(shape.axes))
    training = TrainConfig(
        steps=1,
        batch=batch,
        learning_rate=args.rate,
        warmup=args.warm_up,
        seed=args.seed,
        flip=args.flip,
        validation=len(parts["validation"]),
        hold_out="last",
        sample_every=0,
    )
    print(
        f"{args.form}: {config.parameters():,} parameters, batch {batch}: "
        f"{batch * math.prod(shape.axes):,} positions and "
        f"{batch * training_flops(config) / 1e12:.1f} TFLOP a step; a clip is scored in "
        f"{forward_flops(config) / 1e12:.2f} TFLOP",
        flush=True,
    )
    recipe = Recipe(model=config, training=training, stack_frames=stacked)
    data, how = parts["train"].path, {"max_minutes": args.minutes, "device": args.device}
    outcome = axial.train(recipe, data=data, out=args.out, **how)
    best = axial.load(args.out, device=args.device)
    tested = np.arange(len(parts["test"]))[: args.limit]
    found = axial.evaluate(best, parts["test"], subset=tested)
    log = [record for record in Run(args.out).log() if "examples_per_second" in record]
    pace, used = (
        [record[name] for record in log if name in record]
        for name in ("examples_per_second", "mfu")
    )
    each = batch / statistics.median(pace)
    result = {
        "form": args.form,
        **found.to_json(),
        "by_frame": by_frame(found, config),
        "validation": outcome.best,
        "model": config.to_json(),
        "parameters": config.parameters(),
        "training": training.to_json() | {"steps": outcome.step},
        "seconds": log[-1]["seconds"],
        "seconds_each_step": each,
        "positions_per_second": batch * math.prod(shape.axes) / each,
        "teraflops": batch * training_flops(config) / each / 1e12,
        "mfu": statistics.median(used) if used else None,
    }
    write_json(args.out / "result.json", result)
    print(describe(result), found, sep="\n", flush=True)
    begun = time.monotonic()
    continue_clips(best, parts["test"], args)
    print(f"{args.draw} clips continued {CONTINUATIONS} times in {time.monotonic() - begun:.1f} s")


def by_frame(found: Evaluation, config: ModelConfig) -> list[float]:
    """Bits/dim of each frame that is not given."""
    values = found.per_row if config.given_steps else found.per_channel
    scored = np.array([value for value in values if value is not None])
    each = 1 if config.given_steps else config.data.frame_channels
    return scored.reshape(-1, each).mean(1).tolist()


def continue_clips(model: Model, packed: Packed, args: argparse.Namespace) -> None:
    """Draw several continuations of some clips; a sheet with each original above its own."""
    chosen = np.arange(args.draw) * len(packed) // max(1, args.draw)
    if not len(chosen):
        return
    x = packed.rows(chosen).astype(np.int64)
    known = torch.from_numpy(x).masked_fill(~given(model.config), -1)
    known = known.repeat_interleave(CONTINUATIONS, 0)
    if next(model.parameters()).is_cuda:
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
        model = axial.load(run)
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


def table(args: argparse.Namespace) -> None:
    """Print what the runs found."""
    for run in args.runs:
        print(describe(json.loads((run / "result.json").read_text())))
        last = [record["loss"] for record in Run(run).log() if record.get("loss")][-LAST:]
        print(f"  loss on the training clips, mean of the last {LAST} lines: {np.mean(last):.3f}")


def describe(found: dict[str, Any]) -> str:
    """What a run found, what it took, and where the bits go."""
    share = f" ({found['mfu']:.0%} of peak)" if found["mfu"] else ""
    frames = " ".join(f"{bits:.3f}" for bits in found["by_frame"])
    lines = [
        f"{found['data']['title']}, {found['form']}: {found['bits_per_dim']:.4f} bits/dim +- "
        f"{found['standard_error'] or math.nan:.4f} on {found['examples']} clips; validation "
        f"{found['validation']:.4f}",
        f"{found['parameters']:,} parameters, {found['training']['steps']:,} steps of "
        f"{found['training']['batch']}: {found['seconds']:.0f} s after the first, "
        f"{1e3 * found['seconds_each_step']:.1f} ms each",
        f"{found['positions_per_second']:,.0f} positions/s, {found['teraflops']:.1f} "
        f"TFLOP/s{share}",
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
    step.add_argument("--minutes", type=float, default=5.0)
    step.add_argument("--device", help="cpu or cuda; default: a GPU where there is one")
    step.add_argument("--width", type=int, default=WIDTH)
    step.add_argument("--heads", type=int, default=HEADS)
    step.add_argument("--batch", type=int, help=f"default: {POSITIONS:,} positions")
    step.add_argument("--rate", type=float, default=RATE)
    step.add_argument("--warm-up", type=int, default=WARM_UP, help="steps")
    step.add_argument("--dropout", type=float, default=0.0)
    step.add_argument("--flip", action="store_true", help="mirror clips at random")
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
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
