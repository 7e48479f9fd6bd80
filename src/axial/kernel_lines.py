"""The inner level along one line where the kernels of kernels.py serve it.

A few elements are recorded as one CUDA graph. Which elements they are, a counter on the device
says, so that the same graph is replayed along the line, and for every line.

b batch, l length of a line, d width, v values.
"""

import importlib.util
import math
from collections.abc import Callable
from types import ModuleType

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from axial.attention import LineCache
from axial.folded import FoldedBlock, fold
from axial.layers import Blocks
from axial.model import AxialTransformer
from axial.recording import Recording

_TOGETHER = 4
"""Elements of a recording, where they divide the line: more take longer to record."""


def fast_kernels(model: AxialTransformer) -> ModuleType | None:
    """Those of kernels.py, where they serve this model."""
    weight, config = model.embedding.weight, model.config
    if weight.device.type == "cuda" and importlib.util.find_spec("triton"):
        from axial import kernels

        if kernels.usable(weight.dtype, config.width, config.mlp_ratio * config.width):
            return kernels
    return None


class KernelLine:
    """What `lines.Line` is, for masked attention blocks on a CUDA device."""

    def __init__(self, model: AxialTransformer, batch: int, kernels: ModuleType) -> None:
        assert isinstance(model.inner_decoder, Blocks)
        config, table = model.config, model.embedding.weight.detach()
        self.kernels, self.table, self.length = kernels, table, config.plane_axes[-1]
        self.to_logits = fold(model.to_logits, model.norm)
        self.blocks = [FoldedBlock(block) for block in model.inner_decoder]
        room = (batch, self.length, 1, config.heads, config.width // config.heads)
        self.caches = [LineCache(table.new_empty(room), table.new_empty(room)) for _ in self.blocks]
        self.line = torch.zeros(batch, self.length, dtype=torch.long, device=table.device)
        self.base = table.new_zeros(batch, self.length, config.width)
        self.noise = table.new_zeros(batch, self.length, config.values, dtype=torch.float64)
        self.x = table.new_zeros(batch, config.width)
        self.logits = table.new_zeros(batch, config.values, dtype=torch.float32)
        self.place = torch.zeros((), dtype=torch.int32, device=table.device)
        self.broken = torch.zeros((), dtype=torch.int32, device=table.device)
        self.recording: Recording | None = None

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
        together = math.gcd(self.length, _TOGETHER)
        if self.recording is None:
            self.recording = Recording(lambda: self._choose_next(together))
        self._begin(line, base)
        self.noise.copy_(noise)
        for _ in range(0, self.length, together):
            self.recording.replay()
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
            self.x.copy_(self.table[line[:, j]] + base[:, min(j + 1, self.length - 1)])
            self.place += 1

    def _begin(self, line: Tensor, base: Tensor) -> None:
        self.line.copy_(line)
        self.base.copy_(base)
        self.x.copy_(base[:, 0])
        self.place.zero_()
        self.broken.zero_()

    def _pass(self) -> None:
        """The logits of the element at `place`."""
        x = self.x
        for block, cache in zip(self.blocks, self.caches, strict=True):
            x = self.kernels.pass_block(x, block, cache, self.place)
        self.kernels.dense(x, self.to_logits, normed=True, out=self.logits)

    def _choose_next(self, count: int) -> None:
        for _ in range(count):
            self._pass()
            self.kernels.choose(self)
            self.kernels.count(self.place)
