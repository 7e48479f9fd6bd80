"""`AxialAttention` beside what people use today: forward and backward, time and memory.

    python benchmarks/layer.py [--device cuda]

On one tensor, 256 wide, 8 heads, unmasked: one layer per axis, all of the same input, and their
outputs summed, which is what the package axial_attention computes (`pip install axial_attention`;
without it, it is left out). "Plain" is what one writes oneself: movedim, a dense layer for
queries, keys and values, `scaled_dot_product_attention`, a dense layer, movedim. All have weights
of the same shapes; axial_attention has no bias on its projections. The runs alternate, and the
fastest of each counts; memory is the peak above inputs and weights. float32 on a CPU, bf16 on a
GPU.
"""

import argparse
import importlib
import platform
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from attention_cost import peak_bytes
from torch import Tensor, nn

from axial import AxialAttention

WIDTH, HEADS = 256, 8
GRIDS = {(1024,): 4, (32, 32): 8, (64, 64): 2, (8, 16, 16): 4}
"""Axes, and how many examples of each; a GPU takes 16 times as many."""


class PlainAttention(nn.Module):
    """Attention along one axis as one writes it oneself."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.dim = 1 + axis
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Bring the axis to the end and back."""
        lines = x.movedim(self.dim, -2)
        qkv = self.to_qkv(lines).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
        seen = F.scaled_dot_product_attention(*qkv).transpose(-2, -3).flatten(-2)
        return self.to_out(seen).movedim(-2, self.dim)


class Summed(nn.ModuleList):
    """Layers along every axis, added."""

    def forward(self, x: Tensor) -> Tensor:
        """Give each the same input."""
        first, *others = self
        out: Tensor = first(x)
        for layer in others:
            out = out + layer(x)
        return out


def rivals(axes: int) -> dict[str, nn.Module]:
    """The same computation by each."""
    found: dict[str, nn.Module] = {
        "axial": Summed(AxialAttention(WIDTH, HEADS, axis, causal=False) for axis in range(axes)),
        "plain": Summed(PlainAttention(axis) for axis in range(axes)),
    }
    try:
        theirs = importlib.import_module("axial_attention")
    except ImportError:
        return found
    return found | {"axial_attention": theirs.AxialAttention(WIDTH, axes, HEADS)}


def step_of(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward, and backward to the input and all weights."""
    towards = torch.ones_like(x)

    def step() -> None:
        out = layer(x)
        torch.autograd.grad(out, [x, *layer.parameters()], towards)

    return step


def seconds(steps: dict[str, Callable[[], None]], device: str, repeats: int) -> dict[str, float]:
    """The fastest run of each, after one that does not count; in turn."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            found[name].append(time.perf_counter() - start)
    return {name: min(times[1:]) for name, times in found.items()}


def report(axes: tuple[int, ...], batch: int, device: str, *, repeats: int) -> None:
    """One line of time and one of memory for each grid."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(batch, *axes, WIDTH, device=device, dtype=dtype, requires_grad=True)
    steps = {name: step_of(layer.to(device, dtype), x) for name, layer in rivals(len(axes)).items()}
    spent = seconds(steps, device, repeats)
    held = {name: peak_bytes(step, device) for name, step in steps.items()}
    grid = " x ".join(map(str, axes))
    for what, of, unit in (("time", spent, 1e-3), ("memory", held, 1e6)):
        cells = [
            f"{name} {amount / unit:.1f} ({amount / of['axial']:.2f})"
            for name, amount in of.items()
        ]
        name = f"{grid}, batch {batch}, {what} in {'ms' if what == 'time' else 'MB'} (over axial)"
        print(f"{name}: " + ", ".join(cells), flush=True)


def main() -> None:
    """Print where it runs, then each grid."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    gpu = args.device == "cuda"
    name = torch.cuda.get_device_name() if gpu else platform.machine() + " CPU"
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    for axes, batch in GRIDS.items():
        report(axes, 16 * batch if gpu else batch, args.device, repeats=args.repeats)


if __name__ == "__main__":
    main()
