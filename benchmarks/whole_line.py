"""A line of the inner level as one kernel: does it win? A prototype beside the kernels of axial.

    python benchmarks/whole_line.py [--width 320] [--heads 5] [--layers 4] [--batch 1024]

The inner level of axial takes an element through some forty kernels, one after another, whatever
the batch. Here one kernel takes whole lines: its programs stay on the GPU, and groups of them
share out pictures and wait for nobody but their own group. A member of a group has some heads, and
some columns of each dense layer; between the parts of a step the members meet. A group of one
meets nobody, and reads all weights itself.

Each way of sharing out is timed as it runs in a drawing, in bf16, and compared with the plain
path. Nothing in the package calls this: it is here to find out which way is worth building.

b batch, l length, d width, v values, m pictures of a group, n columns, k inputs at a time, e width
of a head, r rows of a choice.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import torch
import triton
from torch import Tensor
from whole_line_triton import lines

from axial import AxialTransformer, ModelConfig
from axial.models.layers import NORM_EPS, Blocks
from axial.sampling.folded import Folded, FoldedBlock, fold
from axial.sampling.levels_triton import TritonInnerLevel
from axial.system.cuda_graph import CudaGraph

PARTS = 4
"""Of a block: heads, sums, hidden features, sums. Then come the logits and the choice."""
EVERYTHING = -1
LOGITS, CHOICE = PARTS, PARTS + 1


@dataclass(frozen=True)
class Sharing:
    """How pictures and columns are shared out."""

    pictures: int = 16
    """Of a group."""
    members: int = 1
    """Programs of a group."""
    columns: int = 64
    """Of a dense layer, at a time."""
    depth: int = 64
    """Inputs of a dense layer, at a time."""
    steps: int = 4
    """Keys at a time."""
    warps: int = 4
    stages: int = 4

    def __str__(self) -> str:
        return (
            f"{self.members} x {self.pictures} pictures, {self.columns} x {self.depth}, "
            f"{self.warps} warps, {self.stages} stages"
        )


class Line(Protocol):
    """An inner level."""

    length: int

    def draw(self, line: Tensor, base: Tensor, start: int, noise: Tensor) -> Tensor:
        """Fill `line` where it is -1; whether all logits were finite numbers."""


class WholeLine:
    """The inner level of a model for one batch size: what `InnerLevel.draw` does, in one kernel."""

    def __init__(self, model: AxialTransformer, batch: int, sharing: Sharing) -> None:
        assert isinstance(model.inner_decoder, Blocks)
        config, table = model.config, model.embedding.weight.detach()
        self.config, self.table, self.batch, self.sharing = config, table, batch, sharing
        self.length, self.layers = config.plane_axes[-1], len(model.inner_decoder)
        blocks = [FoldedBlock(block) for block in model.inner_decoder]
        self.weights: list[Tensor] = []
        for name in ("to_qkv", "to_out", "mlp_in", "mlp_out"):
            self.weights += _stacked(getattr(block, name) for block in blocks)
        self.weights += _stacked([fold(model.to_logits, model.norm)])
        self.hidden = self.weights[4].shape[1]
        self.groups = triton.cdiv(batch, sharing.pictures)
        self.grid = (self.groups * sharing.members,)
        self.x, self.seen = table.new_zeros(2, batch, config.width)
        self.between = table.new_zeros(batch, self.hidden)
        room = (2, self.layers, batch, self.length, config.width)
        self.keys, self.values = table.new_zeros(room)
        self.logits = table.new_zeros(batch, config.values, dtype=torch.float32)
        self.broken = torch.zeros((), dtype=torch.int32, device=table.device)
        self.counters = torch.zeros(self.groups, 32, dtype=torch.int32, device=table.device)
        self.cuda_graph: CudaGraph | None = None

    def draw(self, line: Tensor, base: Tensor, start: int, noise: Tensor) -> Tensor:
        """Fill `line` where it is -1; whether all logits were finite numbers."""
        if self.cuda_graph is None:
            self._check_room(self.compile(line, base, noise))
            self.cuda_graph = CudaGraph(self.fill, line, base, noise)
        self.cuda_graph.replay(line, base, noise)
        line.copy_(self.cuda_graph.buffers[0])
        return self.broken == 0

    def fill(self, line: Tensor, base: Tensor, noise: Tensor) -> None:
        """The same, launched."""
        self._begin(base)
        self._launch(line, base, noise, EVERYTHING, (0, self.length), (0, self.layers))

    def fill_by_parts(self, line: Tensor, base: Tensor, noise: Tensor) -> None:
        """The same, with a launch for each part of each step: no member waits for another."""
        self._begin(base)
        for j in range(self.length):
            step = j, j + 1
            for layer, part in product(range(self.layers), range(PARTS)):
                self._launch(line, base, noise, part, step, (layer, layer + 1))
            for part in (LOGITS, CHOICE):
                self._launch(line, base, noise, part, step, (0, 0))

    def _begin(self, base: Tensor) -> None:
        self.x.copy_(base[:, 0])
        self.broken.zero_()
        self.counters.zero_()

    def _launch(
        self,
        line: Tensor,
        base: Tensor,
        noise: Tensor,
        part: int,
        steps: tuple[int, int],
        layers: tuple[int, int],
    ) -> None:
        arguments = self._arguments(line, base, noise, steps, layers)
        lines[self.grid](*arguments, **self._settings(part))

    def compile(self, line: Tensor, base: Tensor, noise: Tensor) -> Any:
        """Compile the kernel, and leave it in Triton's cache on disk."""
        arguments = self._arguments(line, base, noise, (0, self.length), (0, self.layers))
        return lines.warmup(*arguments, grid=self.grid, **self._settings(EVERYTHING))

    def _check_room(self, kernel: Any) -> None:
        """Refuse to wait for members that have no room on the GPU until others end."""
        kernel._init_handles()
        gpu: Any = torch.cuda.get_device_properties(0)
        registers = kernel.n_regs * 32 * self.sharing.warps
        memory = kernel.metadata.shared + 1024  # which CUDA adds for itself
        each = min(
            gpu.regs_per_multiprocessor // registers,
            gpu.shared_memory_per_multiprocessor // memory,
            gpu.max_threads_per_multi_processor // (32 * self.sharing.warps),
        )
        if self.sharing.members > 1 and self.grid[0] > each * gpu.multi_processor_count:
            raise RuntimeError(f"room for {each} programs on a multiprocessor, of {self.grid[0]}")

    def _arguments(
        self,
        line: Tensor,
        base: Tensor,
        noise: Tensor,
        steps: tuple[int, int],
        layers: tuple[int, int],
    ) -> list[Tensor | int]:
        return [
            self.x,
            self.seen,
            self.between,
            self.keys,
            self.values,
            self.logits,
            line,
            base,
            noise,
            self.table,
            self.broken,
            self.counters,
            *self.weights,
            self.batch,
            *steps,
            *layers,
        ]

    def _settings(self, part: int) -> dict[str, int | float | bool]:
        config, sharing = self.config, self.sharing
        return {
            "LENGTH": self.length,
            "WIDTH": config.width,
            "HIDDEN": self.hidden,
            "HEADS": config.heads,
            "VALUES": config.values,
            "EPS": NORM_EPS,
            "PART": part,
            "MEMBERS": sharing.members,
            "MEETING": part == EVERYTHING,
            "M": sharing.pictures,
            "N": sharing.columns,
            "K": sharing.depth,
            "E": max(16, triton.next_power_of_2(config.width // config.heads)),
            "V": triton.next_power_of_2(config.values),
            "R": triton.next_power_of_2(triton.cdiv(sharing.pictures, sharing.members)),
            "STEPS": sharing.steps,
            "num_warps": sharing.warps,
            "num_stages": sharing.stages,
        }


def _stacked(layers: Iterable[Folded]) -> list[Tensor]:
    """Weights (layers, outputs, inputs) and biases of dense layers."""
    found = list(layers)
    weights = torch.stack([layer.matrix.t() for layer in found]).contiguous()
    return [weights, torch.stack([layer.bias for layer in found])]


def sharings(heads: int, batch: int, width: int, programs: int) -> list[Sharing]:
    """Ways worth trying, all of whose programs are on the GPU at once."""
    depth = max(depth for depth in (16, 32, 64, 128) if width % depth == 0)
    found = []
    for pictures, members in product((16, 32, 64), (1, 2, 4, heads, 2 * heads, 4 * heads)):
        groups = triton.cdiv(batch, pictures)
        if groups * members > programs or (pictures > 16 and groups * members < 64):
            continue
        fitting = [columns for columns in (16, 32, 64, 128) if members * columns <= width]
        for columns, warps in product(fitting[-2:], (4, 8)):
            steps = max(1, 64 // pictures)
            found.append(Sharing(pictures, members, columns, depth, steps, warps))
    return found


def example(sizes: argparse.Namespace, batch: int) -> tuple[AxialTransformer, list[Tensor]]:
    """A model of one axis, and a line of each picture to be drawn."""
    config = ModelConfig(
        axes=(sizes.length,),
        width=sizes.width,
        heads=sizes.heads,
        encoder_layers=0,
        decoder_layers=(sizes.layers,),
    )
    torch.manual_seed(0)
    model = AxialTransformer(config).to("cuda", torch.bfloat16).eval().requires_grad_(False)
    for parameter in model.parameters():  # a new model is the uniform distribution
        parameter.add_(0.02 * torch.randn_like(parameter))
    values = torch.full((batch, sizes.length), -1, device="cuda")
    base = torch.randn(batch, sizes.length, sizes.width, device="cuda").bfloat16()
    noise = torch.randn(*values.shape, config.values, device="cuda", dtype=torch.float64)
    return model, [values, base, noise]


def compile_one(sizes: argparse.Namespace, batch: int, sharing: Sharing) -> str | None:
    """In a process of its own; what is wrong with it, if it cannot be compiled."""
    model, inputs = example(sizes, batch)
    try:
        WholeLine(model, batch, sharing).compile(*inputs)
    except Exception as error:  # one way of many: the others are tried all the same
        return f"{type(error).__name__}: {error}"
    return None


def microseconds(line: Line, inputs: list[Tensor], repeats: int = 3) -> float:
    """For each element of a line, the best of some lines."""
    values, base, noise = inputs
    spent = []
    for _ in range(1 + repeats):
        own = values.clone()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        line.draw(own, base, 0, noise)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - begun)
    return 1e6 * min(spent[1:]) / line.length


def compare(sizes: argparse.Namespace, batch: int, workers: Executor) -> None:
    """Time each way of sharing out beside the kernels of axial, the best last."""
    from axial.sampling import inner_step_triton as kernels

    programs = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    ways = sharings(sizes.heads, batch, sizes.width, programs)
    model, inputs = example(sizes, batch)
    values, base, noise = inputs
    now, wanted = TritonInnerLevel(model, batch, kernels), values.clone()
    now.draw(wanted, base, 0, noise)
    print(f"\nbatch {batch}: now {microseconds(now, inputs):.1f} us an element", flush=True)
    compiled = [workers.submit(compile_one, sizes, batch, sharing) for sharing in ways]
    found, end = [], time.monotonic() + sizes.seconds
    for sharing, attempt in zip(ways, compiled, strict=True):
        if time.monotonic() > end:
            print("  not all were tried: time is over")
            break
        if wrong := attempt.result():
            print(f"  {sharing}: {wrong[:120]}")
            continue
        line, drawn = WholeLine(model, batch, sharing), values.clone()
        try:
            finite = bool(line.draw(drawn, base, 0, noise))
        except RuntimeError as error:
            print(f"  {sharing}: {error}")
            continue
        equal = float((drawn == wanted).float().mean())
        found.append((microseconds(line, inputs), str(sharing), equal, finite))
    for attempt in compiled:
        attempt.cancel()
    for spent, how, equal, finite in sorted(found, reverse=True)[-12:]:
        print(f"  {spent:.1f} us, {how}: {equal:.2%} of values equal, finite {finite}", flush=True)


def main() -> None:
    """Compare for each batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("width", 320), ("heads", 5), ("layers", 4), ("length", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 256, 1024])
    parser.add_argument("--seconds", type=float, default=60, help="for each batch")
    sizes = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, {vars(sizes)}")
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2), mp_context=spawned) as workers:
        for batch in sizes.batch:
            compare(sizes, batch, workers)


if __name__ == "__main__":
    main()
