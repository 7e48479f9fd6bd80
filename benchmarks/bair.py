"""The paper's BAIR size on one GPU: a step of training, its memory, and drawing 15 frames.

    python benchmarks/bair.py [--device cuda] [--parts step channels draw activation_checkpointing]

Width 2048, 16 frames of 64 x 64 x 3 stacked as 48 channels, the first frame given: the preset
`bair` in bfloat16, compiled as `axial train` does, on random clips. `step` and
`activation_checkpointing` measure a step at a small batch, from its memory compute the largest
that should fit, and measure that;
where it does not fit after all, a smaller one. `channels` compares 48 channels with 3: a step
trains one channel. `draw` times the 15 frames; beyond batch 1 from the last one alone, marked ~.
"""

import argparse
import functools
import gc
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from axial import AxialTransformer, ModelConfig, draw
from axial.data.batches import Batch
from axial.models.causal import given
from axial.models.cost import training_flops
from axial.presets import bair
from axial.system.ranks import Ranks, ranks
from axial.training.metrics import matrix_peak
from axial.training.trainer import Trainer

FIRST_BATCH, MULTIPLE = 8, 4
"""Where to begin, and of what a larger batch is a multiple."""
WARM_UP, STEPS = 6, 10
"""The first ones compile, and record."""
HEADROOM = 0.96
"""Share of the device's memory that a step may be expected to take."""
BATCHES = [1, 8]
"""Drawn together."""


@dataclass(frozen=True)
class Step:
    """What a step of training takes."""

    batch: int
    seconds: float
    compiling: float
    memory: int
    """Most bytes in use."""
    resting: int
    """Bytes in use between steps: weights, averages, moments."""


@functools.cache
def measure(
    config: ModelConfig, batch: int, team: Ranks, *, activation_checkpointing: bool
) -> Step | None:
    """Time some steps of training; None where memory does not suffice."""
    gpu = team.device.type == "cuda"
    training = replace(
        bair().training, batch=batch, activation_checkpointing=activation_checkpointing
    )
    torch._dynamo.reset()
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        with team.device:
            model = AxialTransformer(config)
        trainer = Trainer(model, training, team)
        x = torch.randint(config.values, (batch, *config.axes, config.channels), dtype=torch.uint8)
        index = np.arange(batch)
        example = Batch(x=x.pin_memory() if gpu else x, label=None, index=index, epoch=index)
        begun = time.perf_counter()
        trainer.step(0, example).tolist()
        compiling = time.perf_counter() - begun
        for number in range(1, WARM_UP):
            trainer.step(number, example)
        times = []
        for number in range(STEPS):
            _finish(team)
            begun = time.perf_counter()
            trainer.step(number, example).tolist()
            times.append(time.perf_counter() - begun)
        memory, resting = 0, 0
        if gpu:
            memory, resting = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        return Step(batch, sorted(times)[STEPS // 2], compiling, memory, resting)
    except torch.OutOfMemoryError:
        return None


def _finish(team: Ranks) -> None:
    if team.device.type == "cuda":
        torch.cuda.synchronize()


def largest(small: Step, config: ModelConfig, total: int) -> int:
    """The batch that should just fit, from what a small one takes.

    A step keeps a copy of the weights in bfloat16; all else it takes grows with the batch.
    """
    kept = small.resting + 2 * config.parameters()
    each = max(1, (small.memory - kept) // small.batch)
    return (int(HEADROOM * total) - kept) // each // MULTIPLE * MULTIPLE


def report_steps(
    config: ModelConfig,
    team: Ranks,
    peak: float | None,
    *,
    activation_checkpointing: bool,
    batch: int,
) -> None:
    """A small batch, then the largest."""
    print(f"training{', recomputing activations' * activation_checkpointing}", flush=True)
    small = measure(config, batch, team, activation_checkpointing=activation_checkpointing)
    if small is None:
        print(f"  batch {batch}: does not fit memory")
        return
    report_step(config, small, peak)
    if not peak:
        return
    total = torch.cuda.get_device_properties(team.device).total_memory
    wanted = largest(small, config, total)
    while wanted > batch:
        found = measure(config, wanted, team, activation_checkpointing=activation_checkpointing)
        if found is not None:
            report_step(config, found, peak)
            return
        print(f"  batch {wanted}: does not fit memory", flush=True)
        wanted -= MULTIPLE


def report_step(config: ModelConfig, step: Step, peak: float | None) -> None:
    """One line."""
    flops = step.batch * training_flops(config) / step.seconds
    share = f", {flops / 1e12:.0f} TFLOP/s, {flops / peak:.1%} of peak" if peak else ""
    memory = f", {step.memory / 2**30:.1f} GiB at most" if step.memory else ""
    print(
        f"  batch {step.batch}: {1e3 * step.seconds:.1f} ms a step, "
        f"{step.batch / step.seconds:.2f} clips/s{share}{memory} "
        f"({step.resting / 2**30:.1f} between steps; first step {step.compiling:.0f} s)",
        flush=True,
    )


def report_channels(config: ModelConfig, team: Ranks, peak: float | None, *, batch: int) -> None:
    """The same step with 48 channels and with 3."""
    print("training one channel of many", flush=True)
    seconds = []
    few = replace(config, channels=3, frames=None, given_channels=0)
    for small in (config, few):
        found = measure(small, batch, team, activation_checkpointing=False)
        if found is None:
            print(f"  {small.channels} channels: does not fit memory")
            return
        print(f"  {small.channels} channels, {training_flops(small) / 1e12:.3f} TFLOP an example:")
        report_step(small, found, peak)
        seconds.append(found.seconds)
    print(f"  {config.channels} channels take {seconds[0] / seconds[1]:.3f} of the time of 3")


def report_drawing(config: ModelConfig, team: Ranks, batches: list[int]) -> None:
    """Seconds to continue clips by 15 frames; all at batch 1, else from the last frame."""
    gc.collect()
    dtype = torch.bfloat16 if team.device.type == "cuda" else torch.float32
    with team.device:
        model = AxialTransformer(config)
        model.reset_parameters(final_scale=1.0)
    model = model.to(dtype).eval()
    print(f"drawing, {str(dtype).removeprefix('torch.')}", flush=True)
    frame = config.given_channels
    frames = config.channels // frame - 1
    for batch in batches:
        x = torch.randint(config.values, (batch, *config.axes, config.channels))
        missing = ~given(config)
        last = missing.clone()
        last[..., :-frame] = False
        each = _seconds(model, x.masked_fill(last, -1), team)
        line = f"  batch {batch}: {frames} frames in ~{frames * each:.1f} s, from one frame"
        if batch == 1:
            spent = _seconds(model, x.masked_fill(missing, -1), team, warm=False)
            line += f"; all of them drawn: {spent:.1f} s, {1e6 * spent / config.elements:.0f} us "
            line += "an element"
        print(line, flush=True)


def _seconds(
    model: AxialTransformer, known: torch.Tensor, team: Ranks, *, warm: bool = True
) -> float:
    """The time of a drawing, after one that does not count where that is asked for."""
    spent = 0.0
    for _ in range(2 if warm else 1):
        _finish(team)
        begun = time.perf_counter()
        draw(model, len(known), given=known, batch=len(known))
        _finish(team)
        spent = time.perf_counter() - begun
    return spent


def main() -> None:
    """Print one table for each part."""
    parts = ["step", "channels", "draw", "activation_checkpointing"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", help="cpu or cuda; a GPU where there is one unless told")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--batch", type=int, default=FIRST_BATCH, help="the small one")
    parser.add_argument("--draw-batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--width", type=int, default=2048, help="to try the script out")
    parser.add_argument("--side", type=int, default=64, help="likewise")
    args = parser.parse_args()
    usual = bair().model
    assert isinstance(usual, ModelConfig)
    config = replace(usual, width=args.width, axes=(args.side, args.side))
    with ranks(args.device) as team:
        peak = matrix_peak(team.device)
        name = torch.cuda.get_device_name() if peak else "CPU"
        print(f"{name}, torch {torch.__version__}")
        if peak:
            print(f"peak, a large bfloat16 product: {peak / 1e12:.0f} TFLOP/s")
        print(
            f"{config.parameters():,} parameters, {config.channels} channels of {args.side} x "
            f"{args.side}, {training_flops(config) / 1e12:.2f} TFLOP to train on one clip",
            flush=True,
        )
        for part in args.parts:
            if part in ("step", "activation_checkpointing"):
                report_steps(
                    config,
                    team,
                    peak,
                    activation_checkpointing=part == "activation_checkpointing",
                    batch=args.batch,
                )
            elif part == "channels":
                report_channels(config, team, peak, batch=args.batch)
            else:
                report_drawing(config, team, args.draw_batches)


if __name__ == "__main__":
    main()
