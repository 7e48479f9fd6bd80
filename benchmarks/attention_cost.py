"""What one axial attention layer costs beside full attention on the same tensor.

    python benchmarks/attention_cost.py [--device cuda] [--picture FILE.png] [--quick]

Forward and backward, as the side of the grid grows, in one run. "Attention" is
`scaled_dot_product_attention` alone, "layer" the whole `AxialAttention` with its dense layers; full
attention is the same layer on the flattened grid. Time is per example, at a fixed number of
positions in all; memory is the peak above inputs and weights, one example. Both with the fused
backend and with the plain one, which keeps the attention weights. The paper's claim is that
axial attention saves a factor N ** ((d - 1) / d) of N = side ** d positions.
"""

import argparse
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from axial import AxialAttention

SIDES = {2: [16, 32, 64, 128], 3: [8, 16, 32]}
KINDS = ["axial", "full"]
MEASURES = {
    "attention, seconds, plain": "time of attention proper, plain backend",
    "attention, seconds, fused": "time of attention proper, fused backend",
    "layer, seconds, plain": "time of the whole layer, plain backend",
    "layer, seconds, fused": "time of the whole layer, fused backend",
    "attention, bytes, plain": "memory of attention proper, plain backend",
    "attention, bytes, fused": "memory of attention proper, fused backend",
    "layer, bytes, plain": "memory of the whole layer, plain backend",
    "layer, bytes, fused": "memory of the whole layer, fused backend",
}


@dataclass(frozen=True)
class Setting:
    """Where and at what size to measure."""

    device: str
    dtype: torch.dtype
    width: int
    heads: int
    positions: int
    """Positions in all while measuring time: the batch shrinks as the grid grows."""
    most_bytes: float
    """Plain attention whose weights would take more than this is left out."""


CPU = Setting("cpu", torch.float32, 64, 2, 1 << 15, 2.5e9)
GPU = Setting("cuda", torch.bfloat16, 256, 4, 1 << 17, 20e9)


def layer_step(
    setting: Setting, axes: tuple[int, ...], kind: str, batch: int
) -> Callable[[], None]:
    """Forward and backward of a whole layer along axis 0, or over the flattened grid."""
    shape = axes if kind == "axial" else (math.prod(axes),)
    layer = AxialAttention(setting.width, setting.heads, 0, causal=False)
    layer = layer.to(setting.device, setting.dtype)
    x = torch.randn(batch, *shape, setting.width, device=setting.device, dtype=setting.dtype)
    x.requires_grad_()
    grad = torch.randn_like(x)

    def step() -> None:
        torch.autograd.backward(layer(x), grad)
        x.grad = None
        layer.zero_grad()

    return step


def attention_step(
    setting: Setting, axes: tuple[int, ...], kind: str, batch: int
) -> Callable[[], None]:
    """Forward and backward of attention proper, on tensors that lie as those in the layer."""
    length = axes[0] if kind == "axial" else math.prod(axes)
    lines = math.prod(axes) // length * setting.heads
    head = setting.width // setting.heads

    shape = (batch, length, lines, 3, head)
    qkv = torch.randn(shape, device=setting.device, dtype=setting.dtype).transpose(1, 2)
    q, k, v = (part.requires_grad_() for part in qkv.detach().unbind(-2))
    grad = torch.randn_like(q)

    def step() -> None:
        torch.autograd.backward(F.scaled_dot_product_attention(q, k, v), grad)
        q.grad = k.grad = v.grad = None

    return step


def seconds(step: Callable[[], None], device: str, *, repeats: int) -> float:
    """Median time of a step."""
    found = []
    for repeat in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        if repeat:  # the first one warms up
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """Most memory held during a step beyond what was held before it."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        step()
    events = profile.profiler.kineto_results.events()
    moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, size in moves:
        held += size
        peak = max(peak, held)
    return peak


def backend(name: str, device: str) -> AbstractContextManager[None]:
    """The plain backend keeps the weights; on a CPU the fused one is chosen by itself."""
    if name == "plain":
        return sdpa_kernel(SDPBackend.MATH)
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if device == "cuda" else nullcontext()


def measure(
    setting: Setting, axes: tuple[int, ...], kind: str, *, repeats: int
) -> dict[str, float]:
    """Every measure of one layer on one grid."""
    found: dict[str, float] = {}
    positions = math.prod(axes)
    weights = 4 * setting.heads * positions * (axes[0] if kind == "axial" else positions)
    for what, make in (("attention", attention_step), ("layer", layer_step)):
        for name in ("fused", "plain"):
            batch = max(1, setting.positions // positions)
            if name == "plain":
                batch = min(batch, int(setting.most_bytes // weights))
            if not batch:
                continue
            with backend(name, setting.device):
                step = make(setting, axes, kind, batch)
                spent = seconds(step, setting.device, repeats=repeats)
                found[f"{what}, seconds, {name}"] = spent / batch
                step = make(setting, axes, kind, 1)
                found[f"{what}, bytes, {name}"] = peak_bytes(step, setting.device)
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of log(value) over log(size), least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


Results = dict[int, dict[str, dict[int, dict[str, float]]]]
"""By number of axes, kind, side and measure."""


def report(results: Results) -> None:
    """Print what was measured, then how it grows."""
    for axes, kinds in results.items():
        print(f"\n{axes}-D grids: axial / full, and the factor saved (of what the paper claims)")
        for measure in MEASURES:
            for side in SIDES[axes]:
                a, f = (kinds[kind].get(side, {}).get(measure) for kind in KINDS)
                if a is None or f is None:
                    continue
                unit, scale = ("ms", 1e3) if "seconds" in measure else ("MB", 1e-6)
                cells = f"{a * scale:12.3f} / {f * scale:12.3f} {unit}"
                claim = "" if _grows_alike(measure) else f" of {side ** (axes - 1)}"
                print(f"  {measure:<26}{side:>4} ^ {axes} {cells}   {f / a:8.1f}x{claim}")
    print("\nGrowth with N, fitted exponents: axial, full, and of the factor saved")
    for axes, kinds in results.items():
        for measure, words in MEASURES.items():
            sides = [
                side
                for side in SIDES[axes]
                if all(measure in kinds[kind].get(side, {}) for kind in KINDS)
            ]
            if len(sides) < 2:
                continue
            sizes = [side**axes for side in sides]
            fits = [exponent(sizes, [kinds[k][s][measure] for s in sides]) for k in KINDS]
            claim = "" if _grows_alike(measure) else f"(paper: {(axes - 1) / axes:.2f})"
            numbers = "".join(f"{fit:6.2f}" for fit in (*fits, fits[1] - fits[0]))
            print(f"  {axes}-D {words:<46}{numbers} {claim}")


def _grows_alike(measure: str) -> bool:
    """Fused attention keeps no weights, so its memory is linear in N, axial or full."""
    return "bytes" in measure and "fused" in measure


def draw_picture(results: Results, path: Path, title: str) -> None:
    """Time and memory over the number of positions, one column for each number of axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, len(results), figsize=(11, 8), squeeze=False)
    lines = {"attention": "-", "layer": "--"}
    colours = {"axial": "tab:blue", "full": "tab:red"}
    for column, (axes, kinds) in enumerate(results.items()):
        for row, unit in enumerate(("seconds", "bytes")):
            panel = grid[row][column]
            for kind, what, name in itertools.product(KINDS, lines, ("plain", "fused")):
                found = {s**axes: m.get(f"{what}, {unit}, {name}") for s, m in kinds[kind].items()}
                found = {size: value for size, value in found.items() if value is not None}
                panel.loglog(
                    list(found),
                    list(found.values()),
                    lines[what],
                    color=colours[kind],
                    marker="s" if name == "plain" else "o",
                    alpha=1.0 if name == "plain" else 0.45,
                    label=f"{kind} {what}, {name}",
                )
            panel.set_xlabel("positions N")
            panel.set_ylabel(("seconds per example", "peak bytes, one example")[row])
            panel.set_title(f"{axes}-D grid")
            panel.legend(fontsize=7)
            panel.grid(alpha=0.3)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure everything, print it, draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true", help="the two smallest grids only")
    args = parser.parse_args()
    setting = GPU if args.device == "cuda" else CPU
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine() + " CPU"
    title = (
        f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {setting.dtype}, "
        f"width {setting.width}, {setting.heads} heads, forward and backward"
    )
    print(title)
    torch.manual_seed(0)
    results: Results = {axes: {kind: {} for kind in KINDS} for axes in SIDES}
    for axes, sides in SIDES.items():
        for side in sides[: 2 if args.quick else None]:
            for kind in KINDS:
                repeats = 20 if args.device == "cuda" else 3
                found = measure(setting, (side,) * axes, kind, repeats=repeats)
                results[axes][kind][side] = found
    report(results)
    if args.picture:
        draw_picture(results, args.picture, title)
        print(f"\npicture: {args.picture}")


if __name__ == "__main__":
    main()
