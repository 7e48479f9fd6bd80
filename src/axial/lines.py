"""The inner level along one line, element by element: folded weights, a cache, the choice.

On a CUDA device a whole line, choices included, is recorded once and then replayed for every
line: nothing inside it waits for the host. Where Triton is there, bf16 models run on the kernels
of kernels.py, which do the same in fewer launches.

b batch, l length of a line, s its first steps, d width, v values, n heads, e width of a head.
"""

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from axial.layers import LSTM, NORM_EPS, Block, Blocks, Folded, fold, nonlinearity
from axial.model import AxialTransformer


def dense(
    x: Float[Tensor, "*b i"],
    layer: Folded,
    *,
    normed: bool = False,
    activated: bool = False,
    added: Float[Tensor, "*b o"] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*b o"]:
    """A dense layer; the norm before it, the nonlinearity and the sum after it."""
    if normed:
        x = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
    x = F.linear(x, layer.weight, layer.bias)
    if activated:
        x = nonlinearity(x)
    if added is not None:
        x = x + added
    return x if dtype is None else x.to(dtype)


def attend(
    qkv: Float[Tensor, "b nse"],
    keys: Float[Tensor, "b n l e"],
    values: Float[Tensor, "b n l e"],
    j: int,
) -> Float[Tensor, "b d"]:
    """Attention of element j to itself and to the cached ones before it.

    The query is scaled already; the caches take in the new key and value.
    """
    batch, heads, _, size = keys.shape
    q, k, v = qkv.view(batch, heads, 3, size).unbind(2)
    keys[:, :, j] = k
    values[:, :, j] = v
    scores = torch.matmul(keys[:, :, : j + 1], q.unsqueeze(-1))
    return torch.matmul(scores.softmax(2).transpose(2, 3), values[:, :, : j + 1]).flatten(1)


def choose(
    logits: Float[Tensor, "b v"],
    noise: Float64[Tensor, "b l v"],
    line: Int[Tensor, "b l"],
    damage: Float[Tensor, " b"],
    table: Float[Tensor, "v d"],
    base: Float[Tensor, "b l d"],
    j: int,
) -> Float[Tensor, "b d"]:
    """Fill place j of `line` where it is -1, and return the input of the next place.

    `damage` becomes not a number where a logit is none, or infinite.
    """
    damage += (logits * 0.0).sum(-1)
    drawn = (logits.double() + noise[:, j]).argmax(-1)
    line[:, j] = torch.where(line[:, j] < 0, drawn, line[:, j])
    following = min(j + 1, line.shape[1] - 1)
    return table[line[:, j]] + base[:, following]


class Operations(NamedTuple):
    """What a step is made of."""

    dense: Callable[..., Tensor] = dense
    attend: Callable[..., Tensor] = attend
    choose: Callable[..., Tensor] = choose


def _operations(model: AxialTransformer) -> Operations:
    """The kernels where they serve, else plain torch."""
    weight, config = model.embedding.weight, model.config
    if weight.device.type == "cuda" and importlib.util.find_spec("triton"):
        from axial import kernels

        if kernels.usable(weight.dtype, config.width, config.mlp_ratio * config.width):
            return Operations(kernels.dense, kernels.attend, kernels.choose)
    return Operations()


class Line:
    """The inner level of a model for one batch size: a line at a time, whatever was before it."""

    def __init__(
        self, model: AxialTransformer, batch: int, operations: Operations | None = None
    ) -> None:
        config, weight = model.config, model.embedding.weight.detach()
        self.batch, self.length, self.values = batch, config.plane_axes[-1], config.values
        self.table = weight
        self.operations = operations or _operations(model)
        self.to_logits = fold(model.to_logits, model.norm)
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        self.damage = weight.new_zeros(batch, dtype=self.wide)
        decoder = model.inner_decoder
        self.decoder: _Attending | _Recurrent
        if isinstance(decoder, LSTM):
            self.decoder = _Recurrent(decoder)
        else:
            self.decoder = _Attending(decoder, batch, self.length, self.operations)
        self.recording: _Recording | None = None

    def draw(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        noise: Float64[Tensor, "b l v"],
    ) -> Bool[Tensor, ""]:
        """Fill `line` where it is -1 with argmax(logits + noise); before `start` all is known.

        `base` is the input of each place but for the element before it. Returns whether all
        logits so far were finite numbers.
        """
        if line.device.type == "cuda":
            if self.recording is None:
                self.recording = _Recording(self)
            self.recording.replay(line, base, noise)
        else:
            self.choose_along(line, base, start, noise)
        return self.damage.isfinite().all()

    def choose_along(self, line: Tensor, base: Tensor, start: int, noise: Tensor) -> None:
        """Draw without recording."""

        def put(j: int, logits: Tensor) -> Tensor:
            state = (line, self.damage, self.table, base)
            return self.operations.choose(logits, noise, *state, j)

        self._pass_along(line, base, start, put)

    def ask(
        self,
        line: Int[Tensor, "b l"],
        base: Float[Tensor, "b l d"],
        start: int,
        answer: Callable[[int, Tensor], Tensor],
    ) -> None:
        """Fill `line` where it is -1 with what `answer(j, logits)` says."""

        def put(j: int, logits: Tensor) -> Tensor:
            line[:, j] = torch.where(line[:, j] < 0, answer(j, logits), line[:, j])
            return self.table[line[:, j]] + base[:, min(j + 1, self.length - 1)]

        self._pass_along(line, base, start, put)

    def _pass_along(
        self, line: Tensor, base: Tensor, start: int, put: Callable[[int, Tensor], Tensor]
    ) -> None:
        """Step from `start` on, what is before it taken in at once.

        `put` settles place j by its logits and returns the input of the next.
        """
        x = base[:, 0].contiguous()
        if start:
            before = self.table[line[:, :start]]
            self.decoder.fill(base[:, :start] + F.pad(before[:, :-1], (0, 0, 1, 0)))
            x = base[:, start] + before[:, -1]
        for j in range(start, self.length):
            out = self.decoder.step(x, j)
            logits = self.operations.dense(out, self.to_logits, normed=True, dtype=self.wide)
            x = put(j, logits)


class _Attending:
    """Masked attention blocks along the line."""

    def __init__(self, blocks: Blocks, batch: int, length: int, operations: Operations) -> None:
        self.operations = operations
        self.blocks = [_FoldedBlock(block) for block in blocks]
        self.caches = [_room(block, batch, length) for block in blocks]

    def step(self, x: Tensor, j: int) -> Tensor:
        operations = self.operations
        for block, (keys, values) in zip(self.blocks, self.caches, strict=True):
            qkv = operations.dense(x, block.to_qkv, normed=True)
            seen = operations.attend(qkv, keys, values, j)
            x = operations.dense(seen, block.to_out, added=x)
            hidden = operations.dense(x, block.mlp_in, normed=True, activated=True)
            x = operations.dense(hidden, block.mlp_out, added=x)
        return x

    def fill(self, x: Tensor) -> None:
        steps = x.shape[1]
        for block, (keys, values) in zip(self.blocks, self.caches, strict=True):
            batch, heads, _, size = keys.shape
            qkv = dense(x, block.to_qkv, normed=True).view(batch, steps, heads, 3, size)
            q, k, v = qkv.permute(3, 0, 2, 1, 4)
            keys[:, :, :steps] = k
            values[:, :, :steps] = v
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
            x = dense(seen.transpose(1, 2).flatten(2), block.to_out, added=x)
            hidden = dense(x, block.mlp_in, normed=True, activated=True)
            x = dense(hidden, block.mlp_out, added=x)


def _room(block: Block, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a line; what lies beyond the element being drawn is never read."""
    heads, weight = block.attention.heads, block.attention.to_out.weight
    shape = (batch, heads, length, len(weight) // heads)
    return weight.new_empty(shape), weight.new_empty(shape)


class _FoldedBlock:
    """The dense layers of a block, with norms and attention's scale in them."""

    def __init__(self, block: Block) -> None:
        attention = block.attention
        size = attention.to_out.in_features // attention.heads
        scale = attention.to_qkv.weight.new_ones(attention.heads, 3, size, dtype=torch.float64)
        scale[:, 0] = size**-0.5
        self.to_qkv = fold(attention.to_qkv, block.attention_norm, scale.flatten())
        self.to_out = fold(attention.to_out)
        self.mlp_in = fold(block.mlp_in, block.mlp_norm)
        self.mlp_out = fold(block.mlp_out)

    def tensors(self) -> list[Tensor]:
        """All weights, as they lie in memory."""
        return [*self.to_qkv, *self.to_out, *self.mlp_in, *self.mlp_out]


class _Recurrent:
    """An LSTM along the line."""

    def __init__(self, decoder: LSTM) -> None:
        self.lstm = decoder.lstm
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        of_input, of_state, bias, other = (self.lstm.get_parameter(name) for name in names)
        self.weight = torch.cat([of_input, of_state], 1).detach()
        self.bias = (bias + other).detach()
        self.states: tuple[Tensor, Tensor]

    def step(self, x: Tensor, j: int) -> Tensor:
        hidden, memory = self.states if j else (torch.zeros_like(x), torch.zeros_like(x))
        gates = F.linear(torch.cat([x, hidden], 1), self.weight, self.bias)
        take, keep, new, show = gates.chunk(4, 1)
        memory = keep.sigmoid() * memory + take.sigmoid() * new.tanh()
        hidden = show.sigmoid() * memory.tanh()
        self.states = hidden, memory
        return hidden

    def fill(self, x: Tensor) -> None:
        _, (hidden, memory) = self.lstm(x)
        self.states = hidden[0], memory[0]


class _Recording:
    """A CUDA graph of a whole line, between buffers that stay where they are."""

    def __init__(self, line: Line) -> None:
        shape, table = (line.batch, line.length), line.table
        self.line = torch.zeros(shape, dtype=torch.long, device=table.device)
        self.base = table.new_zeros(*shape, table.shape[1])
        self.noise = table.new_zeros(*shape, line.values, dtype=torch.float64)
        self.graph = torch.cuda.CUDAGraph()
        # What is compiled, loaded or set up at first use must not be while recording.
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            line.choose_along(self.line, self.base, 0, self.noise)
        here.wait_stream(aside)
        line.damage.zero_()
        with torch.cuda.graph(self.graph):
            line.choose_along(self.line, self.base, 0, self.noise)

    def replay(self, line: Tensor, base: Tensor, noise: Tensor) -> None:
        self.line.copy_(line)
        self.base.copy_(base)
        self.noise.copy_(noise)
        self.graph.replay()
        line.copy_(self.line)
