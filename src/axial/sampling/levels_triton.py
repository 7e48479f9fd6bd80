"""The levels of a decoder on the kernels of inner_step_triton.py, step by step.

A step is recorded once as a CUDA graph. Which step it is, a number on the device says, so that the
same graph is replayed for every step of its axis.

b batch, l length of a line, d width, v values, *slab the faster axes of an outer level.
"""

from collections.abc import Callable
from types import ModuleType
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int, Int32
from torch import Tensor

from axial.models.attention import KVCache
from axial.models.layers import Blocks
from axial.models.line_attention import is_supported
from axial.models.protocol import LevelModel
from axial.sampling.folded import Folded, FoldedBlock, fold
from axial.system.cuda_graph import CudaGraph
from axial.system.devices import runs_triton


def fast_kernels(model: LevelModel) -> ModuleType | None:
    """Those of inner_step_triton.py, where they support this model."""
    weight, config = model.embedding.weight, model.config
    if runs_triton(weight.device):
        from axial.sampling import inner_step_triton as kernels

        if kernels.usable(weight.dtype, config.width, config.mlp_ratio * config.width):
            return kernels
    return None


class TritonOuterStep:
    """One step of an outer level: its masked axis in the caches, its faster axes all there."""

    def __init__(self, decoder: Blocks, caches: list[KVCache | None], kernels: ModuleType) -> None:
        self.caches, self.kernels = caches, kernels
        self.blocks = [FoldedBlock(block) for block in decoder]
        self.cuda_graph: CudaGraph | None = None

    def advance(self, x: Float[Tensor, "b *slab d"], start: int) -> Float[Tensor, "b *slab d"]:
        """What `Blocks.advance` does with one step."""
        place = torch.full((), start, dtype=torch.int32, device=x.device)
        if self.cuda_graph is None:
            self.cuda_graph = CudaGraph(self._pass, x, place)
        return cast(Tensor, self.cuda_graph.replay(x, place))

    def _pass(
        self, x: Float[Tensor, "b *slab d"], place: Int32[Tensor, ""]
    ) -> Float[Tensor, "b *slab d"]:
        kernels, grid = self.kernels, x.shape[:-1]
        x = x.view(-1, x.shape[-1])
        normed = kernels.normalize(x)
        for block, cache in zip(self.blocks, self.caches, strict=True):
            qkv = _dense(normed, block.to_qkv).view(*grid, -1)
            seen = self._attend(block, qkv, cache, place).view(x.shape)
            x, normed = kernels.add_and_normalize(x, _dense(seen, block.to_out))
            hidden = F.silu(_dense(normed, block.mlp_in), inplace=True)
            x, normed = kernels.add_and_normalize(x, _dense(hidden, block.mlp_out))
        return x.view(*grid, -1)

    def _attend(
        self,
        block: FoldedBlock,
        qkv: Float[Tensor, "b *slab nse"],
        cache: KVCache | None,
        place: Int32[Tensor, ""],
    ) -> Float[Tensor, "r l f n e"]:
        lines = block.attention.lines(qkv)
        if cache is not None:
            return cast(Tensor, self.kernels.attend_next(*lines.unbind(-2), cache, place))
        if is_supported(qkv, lines.shape[1], lines.shape[-1]):
            from axial.models import line_attention_triton as line_kernels

            return line_kernels.attend(lines, causal=False, scale=1.0)
        return block.attention.attend(*lines.unbind(-2), causal=False, scale=1.0).contiguous()


def _dense(x: Tensor, layer: Folded) -> Tensor:
    return torch.addmm(layer.bias, x, layer.weight)


class TritonInnerLevel:
    """What `levels.InnerLevel` is, for masked attention blocks on a CUDA device."""

    def __init__(self, model: LevelModel, batch: int, kernels: ModuleType) -> None:
        assert isinstance(model.inner_decoder, Blocks)
        config, table = model.config, model.embedding.weight.detach()
        self.kernels, self.table, self.length = kernels, table, config.plane_axes[-1]
        self.to_logits = fold(model.to_logits, model.norm)
        self.blocks = [FoldedBlock(block) for block in model.inner_decoder]
        room = (batch, self.length, 1, config.heads, config.width // config.heads)
        self.caches = [KVCache(table.new_empty(room), table.new_empty(room)) for _ in self.blocks]
        self.line = torch.zeros(batch, self.length, dtype=torch.long, device=table.device)
        self.base = table.new_zeros(batch, self.length, config.width)
        self.noise = table.new_zeros(batch, self.length, config.values, dtype=torch.float64)
        self.x = table.new_zeros(batch, config.width)
        self.moments = table.new_zeros(batch, 1, 2, dtype=torch.float32)
        self.measured = kernels.measures(batch, config.width)
        self.logits = table.new_zeros(batch, config.values, dtype=torch.float32)
        self.place = torch.zeros((), dtype=torch.int32, device=table.device)
        self.chosen = torch.zeros((), dtype=torch.int32, device=table.device)
        self.broken = torch.zeros((), dtype=torch.int32, device=table.device)
        self.cuda_graph: CudaGraph | None = None

    def draw(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        noise: Float64[Tensor, "b l v"],
    ) -> Bool[Tensor, ""]:
        """Fill `line` where it is -1 with argmax(logits + noise).

        Returns whether all logits were finite numbers. What is known is stepped through too.
        """
        if self.cuda_graph is None:
            self.place.zero_()  # after `ask` it is beyond the line, and recording writes there
            self.cuda_graph = CudaGraph(self._choose_next)
        self._begin(line, base)
        self.noise.copy_(noise)
        for _ in range(self.length):
            self.cuda_graph.replay()
        line.copy_(self.line)
        return self.broken == 0

    def ask(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        answer: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Fill `line` where it is -1 with what `answer(j, logits)` says, from `start` on."""
        self._begin(line, base)
        for j in range(self.length):
            self._pass()
            if j >= start:
                line[:, j] = torch.where(line[:, j] < 0, answer(j, self.logits.clone()), line[:, j])
            self._take(self.table[line[:, j]] + base[:, min(j + 1, self.length - 1)])
            self.place += 1

    def _begin(self, line: Tensor, base: Tensor) -> None:
        self.line.copy_(line)
        self.base.copy_(base)
        self._take(base[:, 0])
        self.place.zero_()
        self.broken.zero_()

    def _take(self, x: Float[Tensor, "b d"]) -> None:
        """Make it the input of the next place."""
        self.x.copy_(x)
        if self.measured:
            exact = self.x.float()
            torch.stack([exact.sum(1), exact.square().sum(1)], 1, out=self.moments[:, 0])

    def _pass(self) -> None:
        """The logits of the element at `place`."""
        rows = self.kernels.Rows(self.x, self.moments if self.measured else None)
        for block, cache in zip(self.blocks, self.caches, strict=True):
            rows = self.kernels.pass_block(rows, block, cache, self.place)
        self.kernels.normed_dense(rows, self.to_logits, out=self.logits)

    def _choose_next(self) -> None:
        self._pass()
        self.kernels.choose(self)
