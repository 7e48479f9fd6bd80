"""Steps of the decoder's levels: folded weights, a cache, and on the last level the choice.

A CPU takes one step of an outer level on folded weights, and small steps on one thread. On a CUDA
device a whole line, choices included, is recorded once and then replayed for every line: nothing
inside it waits for the host. Where Triton is there, bf16 models take levels_triton.py instead.

b batch, l length of a line, s its first steps, d width, v values, n heads, e width of a head, *slab
the faster axes of an outer level, r lines, f faster axes folded, m known steps.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from axial.models.attention import KVCache
from axial.models.kernel_choice import fused, served
from axial.models.layers import LSTM, NORM_EPS, Blocks
from axial.models.protocol import LevelModel
from axial.sampling.folded import Folded, FoldedBlock, InnerKVCache, fold
from axial.system.cuda_graph import CudaGraph

_WORTH_THREADS = 3e6
"""Products of a call below which a second thread costs more than it brings: it must be waited
for, and on a busy machine that takes a thousand times as long as the call."""

_FEW_KEYS = 1 << 20
"""Numbers below which attention from one step is faster by sums than by products."""


def pass_block(
    x: Float[Tensor, "b d"], block: FoldedBlock, cache: InnerKVCache, j: int
) -> Float[Tensor, "b d"]:
    """Take element j through a block; `x` may be overwritten, the cache takes the element in."""
    row, mask, q, k, v = cache.until(j)
    block.to_qkv.apply(_normalized(x), out=row)
    if served(x):
        from axial.models import float64_triton as kernels

        last = q[:, :, None, None]
        keys, values = (t[:, : j + 1, None, None] for t in (k.transpose(1, 2), v))
        if kernels.can_attend(last, keys, values):
            seen = kernels.attend(last, keys, values, causal=False, scale=1.0)
            return _add_mlp(block.to_out.add_to(x, seen.view(x.shape)), block)
    scores = torch.bmm(q, k) if mask is None else torch.baddbmm(mask, q, k)
    torch.bmm(scores.softmax(-1), v, out=cache.seen_rle)
    return _add_mlp(block.to_out.add_to(x, cache.seen), block)


def _add_mlp(x: Tensor, block: FoldedBlock) -> Tensor:
    """The second half of a block; `x` may be overwritten."""
    return block.mlp_out.add_to(x, block.mlp_in.silu(_normalized(x)))


def to_logits(x: Float[Tensor, "b d"], layer: Folded, out: Float[Tensor, "b v"]) -> None:
    """The last norm and dense layer."""
    layer.apply(_normalized(x), out=out)


def _normalized(x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
    """The norm, but for its gain and bias, which are folded."""
    if fused(x):
        from axial.models import elementwise_triton as kernels

        return kernels.normalize(x, None, None, NORM_EPS)
    return torch.layer_norm(x, x.shape[-1:], None, None, NORM_EPS, False)


def choose(
    logits: Float[Tensor, "b v"],
    noise: Float64[Tensor, "b l v"],
    line: Int[Tensor, "b l"],
    table: Float[Tensor, "v d"],
    base: Float[Tensor, "b l d"],
    j: int,
) -> Float[Tensor, "b d"]:
    """Fill place j of `line` where it is -1, and return the input of the next place."""
    drawn = (noise[:, j] + logits).argmax(-1)
    place = line[:, j]
    torch.where(place < 0, drawn, place, out=place)
    return table.index_select(0, place).add_(base[:, min(j + 1, line.shape[1] - 1)])


class OuterStep:
    """One step of an outer level on a CPU: its masked axis in the caches, its faster ones there."""

    def __init__(self, decoder: Blocks, caches: list[KVCache | None], rows: int) -> None:
        self.caches = caches
        self.blocks = [FoldedBlock(block, rows) for block in decoder]

    def advance(self, x: Float[Tensor, "b *slab d"], start: int) -> Float[Tensor, "b *slab d"]:
        """What `Blocks.advance` does with one step."""
        grid = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1]).clone()
        for block, cache in zip(self.blocks, self.caches, strict=True):
            q, k, v = block.attention.parts(block.to_qkv.apply(_normalized(x)).view(*grid, -1))
            if cache is not None:
                k, v = cache.add(k, v, start)
            if cache is not None and k.numel() < _FEW_KEYS:
                seen = _attend_by_sums(q, k, v)
            else:
                seen = block.attention.attend(q, k, v, causal=False, scale=1.0)
            x = _add_mlp(block.to_out.add_to(x, seen.reshape(x.shape)), block)
        return x.view(*grid, -1)


def _attend_by_sums(
    q: Float[Tensor, "r 1 f n e"], k: Float[Tensor, "r m f n e"], v: Float[Tensor, "r m f n e"]
) -> Float[Tensor, "r f n e"]:
    """Attention of one step, the scale in its query: for few keys faster than tiny products."""
    weights = (q * k).sum(-1).softmax(1)
    return (weights.unsqueeze(-1) * v).sum(1)


def all_finite(logits: Float[Tensor, "..."]) -> Bool[Tensor, ""]:
    """One that is not makes the sum so, at less cost; that of many float16 numbers is none."""
    return logits.sum(dtype=torch.promote_types(logits.dtype, torch.float32)).isfinite()


class InnerLevel:
    """The inner level of a model for one batch size: a line at a time, whatever was before it."""

    def __init__(self, model: LevelModel, batch: int) -> None:
        config, weight = model.config, model.embedding.weight.detach()
        self.length, self.table = config.plane_axes[-1], weight
        self.to_logits = fold(model.to_logits, model.norm).packed(batch)
        self.logits = weight.new_zeros(self.length, batch, config.values)
        decoder = model.inner_decoder
        self.decoder: _InnerBlocks | _InnerLSTM
        if isinstance(decoder, LSTM):
            self.decoder = _InnerLSTM(decoder)
        else:
            self.decoder = _InnerBlocks(decoder, batch, self.length)
        self.cuda_graph: CudaGraph | None = None
        self.settle_graph: tuple[Callable[..., Tensor], CudaGraph] | None = None

    def draw(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        noise: Float64[Tensor, "b l v"],
    ) -> Bool[Tensor, ""]:
        """Fill `line` where it is -1 with argmax(logits + noise); before `start` all is known.

        `base` is the input of each place but for the element before it. Returns whether all
        logits were finite numbers.
        """
        if line.device.type == "cuda":
            if self.cuda_graph is None:
                self.cuda_graph = CudaGraph(self._choose_along, line, base, noise)
            self.cuda_graph.replay(line, base, noise)
            line.copy_(self.cuda_graph.buffers[0])
        else:
            with torch.inference_mode():  # calls are cheaper in it than without gradients
                self._choose_on_cpu(line, base, start, noise)
        return all_finite(self.logits)

    def _choose_on_cpu(self, line: Tensor, base: Tensor, start: int, noise: Tensor) -> None:
        """As `_choose_along`, but all that can be is done once for the line."""
        known = line >= 0
        if known.any():  # a value is certain where the noise of all others is minus infinity
            certain = F.one_hot(line.clamp(min=0), noise.shape[-1]).double().log()
            noise = torch.where(known.unsqueeze(-1), certain, noise)
        noises, places, bases = noise.unbind(1), line.unbind(1), base.unbind(1)
        scores = torch.empty_like(noises[0], memory_format=torch.contiguous_format)
        argmax = scores.numpy().argmax  # for a few rows much faster than torch's
        chosen = [place.numpy() for place in places]
        table, length = self.table, self.length  # an error that is kept must not keep the caches

        def put(j: int, logits: Tensor) -> Tensor:
            torch.add(noises[j], logits, out=scores)
            argmax(-1, chosen[j])
            x = table.index_select(0, places[j])
            return x.add_(bases[j + 1]) if j + 1 < length else x

        self._pass_along(line, base, start, put)

    def _choose_along(self, line: Tensor, base: Tensor, noise: Tensor) -> None:
        """Draw without asking the host for anything."""
        table = self.table

        def put(j: int, logits: Tensor) -> Tensor:
            return choose(logits, noise, line, table, base, j)

        self._pass_along(line, base, 0, put)

    def settle(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        work_out: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
    ) -> tuple[Bool[Tensor, ""], tuple[Tensor, ...]]:
        """Fill `line` where it is -1 with `work_out(j, logits, line, *inputs)`, on the device.

        Returns whether all logits were finite numbers, and what has become of the inputs.
        """
        if line.device.type != "cuda":
            self._settle_along(work_out, start, line, base, *inputs)
            return all_finite(self.logits), inputs
        recorded = self.settle_graph
        if (
            recorded is None
            or recorded[0] is not work_out
            or not recorded[1].takes(line, base, *inputs)
        ):
            run = functools.partial(self._settle_along, work_out, 0)
            self.settle_graph = recorded = work_out, CudaGraph(run, line, base, *inputs)
        graph = recorded[1]
        graph.replay(line, base, *inputs)
        line.copy_(graph.buffers[0])
        return all_finite(self.logits), tuple(graph.buffers[2:])

    def _settle_along(
        self,
        work_out: Callable[..., Tensor],
        start: int,
        line: Tensor,
        base: Tensor,
        *inputs: Tensor,
    ) -> None:
        table, last = self.table, self.length - 1

        def put(j: int, logits: Tensor) -> Tensor:
            place = line[:, j]
            place.copy_(torch.where(place < 0, work_out(j, logits, line, *inputs), place))
            return table.index_select(0, place).add_(base[:, min(j + 1, last)])

        self._pass_along(line, base, start, put)

    def ask(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        answer: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Fill `line` where it is -1 with what `answer(j, logits)` says."""
        table, last = self.table, self.length - 1

        def put(j: int, logits: Tensor) -> Tensor:
            line[:, j] = torch.where(line[:, j] < 0, answer(j, logits.clone()), line[:, j])
            return table[line[:, j]] + base[:, min(j + 1, last)]

        self._pass_along(line, base, start, put)

    def _pass_along(
        self, line: Tensor, base: Tensor, start: int, put: Callable[[int, Tensor], Tensor]
    ) -> None:
        """Step through the places from `start` on, what is before them taken in at once.

        `put` settles place j by its logits and returns the input of the next.
        """
        x, logits = base[:, 0].clone(), self.logits.unbind()
        with sensible_threads(x.numel() * x.shape[1]):
            if start:
                before = self.table[line[:, :start]]
                self.decoder.fill(base[:, :start] + F.pad(before[:, :-1], (0, 0, 1, 0)))
                x = base[:, start] + before[:, -1]
            for j in range(start, self.length):
                to_logits(self.decoder.step(x, j), self.to_logits, logits[j])
                x = put(j, logits[j])


@contextmanager
def sensible_threads(work: int) -> Iterator[None]:
    """On a CPU, one thread while calls do no more than this many products each."""
    usual = torch.get_num_threads()
    if usual == 1 or work > _WORTH_THREADS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class _InnerBlocks:
    """Masked attention blocks along the line."""

    def __init__(self, blocks: Blocks, batch: int, length: int) -> None:
        self.blocks = [FoldedBlock(block, batch) for block in blocks]
        self.caches = [InnerKVCache(block, batch, length) for block in self.blocks]

    def step(self, x: Tensor, j: int) -> Tensor:
        for block, cache in zip(self.blocks, self.caches, strict=True):
            x = pass_block(x, block, cache, j)
        return x

    def fill(self, x: Tensor) -> None:
        for block, cache in zip(self.blocks, self.caches, strict=True):
            x = _pass_several(x, block, cache)


def _pass_several(x: Tensor, block: FoldedBlock, cache: InnerKVCache) -> Tensor:
    """Take the first elements (b, s, d) of a line through a block at once."""
    batch, steps, width = x.shape
    normed = F.layer_norm(x, (width,), eps=NORM_EPS)
    rows = normed @ block.to_qkv.matrix + block.to_qkv.bias
    cache.rows[:steps] = rows.transpose(0, 1)
    q, k, v = rows.view(batch, steps, block.heads, 3, -1).permute(3, 0, 2, 1, 4)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    x = x + seen.transpose(1, 2).flatten(2) @ block.to_out.matrix + block.to_out.bias
    hidden = F.layer_norm(x, (width,), eps=NORM_EPS) @ block.mlp_in.matrix + block.mlp_in.bias
    return x + F.silu(hidden) @ block.mlp_out.matrix + block.mlp_out.bias


class _InnerLSTM:
    """An LSTM along the line."""

    def __init__(self, decoder: LSTM) -> None:
        self.lstm = decoder.lstm
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        of_input, of_state, bias, other = (self.lstm.get_parameter(name) for name in names)
        self.weight = torch.cat([of_input, of_state], 1).detach()
        self.bias = (bias + other).detach()
        self.states: tuple[Tensor, Tensor]

    def step(self, x: Tensor, j: int) -> Tensor:
        hidden, cell = self.states if j else (torch.zeros_like(x), torch.zeros_like(x))
        gates = F.linear(torch.cat([x, hidden], 1), self.weight, self.bias)
        take, keep, new, show = gates.chunk(4, 1)
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        hidden = show.sigmoid() * cell.tanh()
        self.states = hidden, cell
        return hidden

    def fill(self, x: Tensor) -> None:
        _, (hidden, cell) = self.lstm(x)
        self.states = hidden[0], cell[0]
