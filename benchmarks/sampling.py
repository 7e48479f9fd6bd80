"""What drawing costs: naive, semi-parallel and cached beside one scoring pass, in one run.

    python benchmarks/sampling.py [--device cuda] [--out FOLDER]

The same model on grids of growing side, the same pictures by each method. "Semi-parallel" is the
paper's sampler, "cached" ours; "scoring" is one forward pass over all channels, whose arithmetic is
what a cached drawing costs. Where a method would take too long, its last row alone is drawn and
the rest is extrapolated: each row and each channel costs the same; such figures carry a ~. On a
GPU, also the shipped `cifar10` in bf16: seconds, and how much of them the inner level takes; the
authors' ImageNet32 size and one of 25.6M parameters: bytes a second, the floor, and where the time
goes.
"""

import argparse
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest.mock import patch

import torch
from kernel_times import kernel_times, print_kernels
from torch import Tensor

import axial
from axial import AxialTransformer, ModelConfig, bits, draw
from axial.models.protocol import evaluating
from axial.sampling.kv_cache import DecoderState, cache_bytes
from axial.sampling.levels_triton import TritonInnerLevel

METHODS = ["scoring", "cached", "semi-parallel", "naive"]
WHOLE_UP_TO = {"naive": 8, "semi-parallel": 32}
"""Beyond this side a method is extrapolated from one row; on a GPU always."""


@dataclass(frozen=True)
class Setting:
    """A model, and how many pictures to draw at once."""

    name: str
    channels: int
    width: int
    heads: int
    layers: int
    batch: int
    dtype: torch.dtype = torch.float32
    mlp_ratio: int = 1

    def model(self, side: int, device: str) -> AxialTransformer:
        """The model for a square picture, with weights that make every layer speak."""
        config = ModelConfig(
            axes=(side, side),
            channels=self.channels,
            width=self.width,
            heads=self.heads,
            encoder_layers=self.layers if self.channels > 1 else 0,
            decoder_layers=(self.layers, self.layers),
            mlp_ratio=self.mlp_ratio,
        )
        torch.manual_seed(0)
        with torch.device(device):
            model = AxialTransformer(config)
            model.reset_parameters(final_scale=1.0)
        return model.to(self.dtype).eval()


CPU = [
    Setting("grey, width 128, 4/4 layers, batch 16", 1, 128, 4, 4, 16),
    Setting("colour, width 64, 4/4/4 layers, batch 4", 3, 64, 4, 4, 4),
]
GPU = [Setting("colour, width 512, 4/4/4 layers, batch 16", 3, 512, 8, 4, 16, torch.bfloat16)]
LARGE = [
    *(
        Setting("authors' ImageNet32 size, 8/8/8 layers", 3, 1536, 16, 8, batch, torch.bfloat16)
        for batch in (1, 64, 256)
    ),
    Setting("25.6M parameters: width 512, 4/4/4 layers", 3, 512, 8, 4, 256, torch.bfloat16, 2),
]
"""At 32 x 32, with where the time goes; one row by the paper's sampler."""
SHIPPED = (1, 16, 256, 1024)
"""Batch sizes."""


def seconds(run: Callable[[], object], *, repeats: int) -> float:
    """The fastest of some runs, after one that does not count."""
    return in_turn({"": run}, repeats=repeats)[""]


def in_turn(runs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """The fastest of some runs of each, one after another: a machine's moods befall all of them."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            _finish()
            start = time.perf_counter()
            run()
            _finish()
            found[name].append(time.perf_counter() - start)
    return {name: min(times[1:] or times) for name, times in found.items()}


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(setting: Setting, sides: list[int], device: str) -> dict[str, dict[int, float]]:
    """Seconds by method and side."""
    found: dict[str, dict[int, float]] = {method: {} for method in METHODS}
    for side in sides:
        model = setting.model(side, device)
        shape = (setting.batch, side, side, setting.channels)
        x = torch.randint(model.config.values, shape, device=device)
        runs: dict[str, Callable[[], object]] = {"scoring": lambda: bits(model, x)}  # noqa: B023
        for method in METHODS[1:]:
            if _is_extrapolated(method, side, device):
                found[method][side] = extrapolated(model, x, method)
            else:
                runs[method] = _drawing(model, setting.batch, method)
        for method, spent in in_turn(runs, repeats=3).items():
            found[method][side] = spent
    return found


def _is_extrapolated(method: str, side: int, device: str) -> bool:
    return method in WHOLE_UP_TO and (side > WHOLE_UP_TO[method] or device == "cuda")


def _drawing(
    model: AxialTransformer, batch: int, method: str, given: Tensor | None = None
) -> Callable[[], object]:
    return lambda: draw(model, batch, method=method, given=given, batch=batch)


def extrapolated(model: AxialTransformer, x: Tensor, method: str) -> float:
    """Seconds for all rows of all channels, from drawing the last row and encoding once."""
    given = x.clone()
    given[:, -1, :, -1] = -1
    row = seconds(_drawing(model, len(x), method, given), repeats=1)
    if method == "naive":
        return row * x.shape[1] * x.shape[-1]
    encoding = seconds(lambda: encode(model, x), repeats=1)
    return x.shape[-1] * (encoding + x.shape[1] * (row - encoding))


def encode(model: AxialTransformer, x: Tensor) -> None:
    """What the walk does once per channel."""
    with evaluating(model):
        model.condition(x, torch.zeros(len(x), dtype=torch.long, device=x.device), None, None)


def report(setting: Setting, found: dict[str, dict[int, float]], device: str) -> None:
    """Seconds, ratios to cached, and how each grows with the side."""
    print(f"\n{setting.name}: seconds (over cached)")
    for side in found["cached"]:
        cells = []
        for method in METHODS:
            spent, mark = found[method][side], "~" * _is_extrapolated(method, side, device)
            cells.append(f"{method} {mark}{spent:.3f} ({spent / found['cached'][side]:.2f})")
        print(f"  {side:>3} x {side:<3} " + ", ".join(cells))
    for method in METHODS:
        (first, early), (last, late) = list(found[method].items())[:: len(found[method]) - 1 or 1]
        power = math.log(late / early) / math.log(last / first)
        print(f"  {method} grows as side ** {power:.2f} from {first} to {last}")


def report_shipped(batch: int) -> None:
    """Seconds of the whole, and without the inner level."""
    model = cast(AxialTransformer, axial.load("cifar10", device="cuda").bfloat16())
    run = _drawing(model, batch, "cached")
    whole = seconds(run, repeats=3)
    with patch.object(TritonInnerLevel, "draw", _fill_at_once):
        rest = seconds(run, repeats=3)
    each = 1e6 * (whole - rest) / model.config.elements
    print(
        f"cifar10, bf16, batch {batch}: {whole:.4f} s, {batch / whole:,.1f} images/s; without the "
        f"inner level {rest:.4f} s, so that takes {each:.1f} us an element",
        flush=True,
    )


def _fill_at_once(
    level: TritonInnerLevel, line: Tensor, base: Tensor, start: int, noise: Tensor
) -> Tensor:
    line.clamp_(min=0)
    return level.broken == 0


def report_memory(model: AxialTransformer, batch: int) -> None:
    """Bytes of the caches as computed, and as the allocator counts them."""
    before = torch.cuda.memory_allocated()
    state = DecoderState(model, batch)
    inner = state.inner
    owners = [inner if isinstance(inner, TritonInnerLevel) else inner.decoder, *state.outer_steps]
    blocks = [block for owner in owners for block in getattr(owner, "blocks", [])]
    folded = [t for block in blocks for t in block.tensors()]
    weights = sum(t.nbytes for t in [*folded, *inner.to_logits])
    measured = torch.cuda.memory_allocated() - before - weights
    computed = batch * cache_bytes(model)
    print(
        f"  caches {computed / 1e6:.1f} MB computed, {measured / 1e6:.1f} MB measured with the "
        "buffers of a line"
    )


def report_large(setting: Setting) -> None:
    """Time, bytes, floor, and where the time goes."""
    model = setting.model(32, "cuda")
    config, batch = model.config, setting.batch
    run = _drawing(model, batch, "cached")
    first, spent = seconds(run, repeats=0), seconds(run, repeats=2)
    x = torch.randint(config.values, (batch, 32, 32, 3), device="cuda")
    paper = extrapolated(model, x, "semi-parallel")
    elements = config.elements
    inner = sum(
        p.nbytes for p in [*model.inner_decoder.parameters(), *model.to_logits.parameters()]
    )
    moved = elements * (inner + batch * _inner_cache_bytes(config) / 2)
    flops = 2 * elements * batch * 3 * setting.layers * (4 + 2 * setting.mlp_ratio)
    flops *= config.width**2
    floor = moved / BANDWIDTH + flops / ARITHMETIC
    print(f"\n{setting.name}, 32 x 32 x 3, bf16, batch {batch}")
    print(f"  cached {spent:.3f} s, {batch / spent:.1f} images/s (first call {first:.1f} s)")
    print(f"  semi-parallel ~{paper:.1f} s from one row: {paper / spent:.1f} times as long")
    print(
        f"  inner weights and caches {moved / 1e9:.0f} GB at {moved / spent / 1e9:.0f} GB/s; with "
        f"the arithmetic the floor is {floor:.3f} s, {floor / spent:.0%} of the time"
    )
    report_memory(model, batch)
    x[..., -1] = -1
    torch.cuda.reset_peak_memory_stats()
    report_profile(_drawing(model, batch, "cached", x))
    print(f"  most memory in use {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


def _inner_cache_bytes(config: ModelConfig) -> int:
    """Keys and values of a whole line, all layers, one picture, bf16."""
    return 2 * 2 * config.decoder_layers[-1] * config.axes[-1] * config.width


BANDWIDTH, ARITHMETIC = 4.3e12, 790e12
"""Bytes and operations a second that an H200 reaches: a large copy, a large bf16 product."""


def report_profile(run: Callable[[], object]) -> None:
    """The kernels that take most of the time of drawing the last channel, and what is left.

    Kernels run one after another here, because where they overlap each counts its waiting too.
    """
    from axial.sampling import overlap_triton as ours

    whole = seconds(run, repeats=1)
    overlapping, ours.overlapping = ours.overlapping, lambda: False  # type: ignore[assignment]
    apart = seconds(run, repeats=1)
    kernels = kernel_times(run)
    ours.overlapping = overlapping
    busy, launched = sum(k.seconds for k in kernels), sum(k.launches for k in kernels)
    print(
        f"  the last channel takes {whole:.3f} s, where kernels do not overlap {apart:.3f} s, of "
        f"which {launched:,} kernels run {busy:.3f} s:"
    )
    print_kernels(kernels, apart)


def draw_picture(results: dict[str, dict[str, dict[int, float]]], path: Path, title: str) -> None:
    """Seconds over the side, one panel for each setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(1, len(results), figsize=(5.2 * len(results), 4.4), squeeze=False)
    for panel, (name, found) in zip(grid[0], results.items(), strict=True):
        for method, values in found.items():
            panel.loglog(list(values), list(values.values()), marker="o", label=method)
        sides = list(found["cached"])
        panel.minorticks_off()
        panel.set_xticks(sides, list(map(str, sides)))
        panel.set(title=name, xlabel="side", ylabel="seconds for the batch")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    print(f"\npicture: {path}")


def main() -> None:
    """Measure everything, print it, draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="folder for the picture")
    parser.add_argument("--large", action="store_true", help="on a GPU: the large models alone")
    parser.add_argument("--sides", type=int, nargs="+", help="two or more, in growing order")
    args = parser.parse_args()
    gpu = args.device == "cuda"
    if args.large and not gpu:
        parser.error("--large is for a GPU")
    name = torch.cuda.get_device_name() if gpu else platform.machine() + " CPU"
    title = f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(title, flush=True)
    if gpu:
        for batch in SHIPPED:
            report_shipped(batch)
        for setting in LARGE:
            report_large(setting)
    if args.large:
        return
    results = {}
    for setting in GPU if gpu else CPU:
        found = measure(setting, args.sides or ([32, 64] if gpu else [8, 16, 32]), args.device)
        results[setting.name] = found
        report(setting, found, args.device)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        draw_picture(results, args.out / f"sampling_{args.device}.png", title)


if __name__ == "__main__":
    main()
