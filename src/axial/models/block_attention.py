"""Attention inside blocks: a grid is cut into boxes, and the places of each attend to each other.

b batch, *axes a grid, d width, r blocks of all examples, n heads, l places of a block, e width of a
head, m places of the blocks that are open at once.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from axial.models.attention import MOST_LINES
from axial.models.blocks_config import BlocksConfig
from axial.models.dropout import Dropout
from axial.models.layers import NORM_EPS
from axial.models.stepping import Place, put, span, take


def split_axes(x: Shaped[Tensor, "b ..."], sizes: Sequence[int]) -> Tensor:
    """Cut each axis into parts of a size: (b, *axes, ...) -> (b, *parts, *places, ...)."""
    count = len(sizes)
    pairs = [
        n for size, length in zip(sizes, x.shape[1:], strict=False) for n in (length // size, size)
    ]
    cut = x.reshape(len(x), *pairs, *x.shape[1 + count :])
    return cut.permute(0, *_split(count), *range(1 + 2 * count, cut.ndim))


def join_axes(x: Shaped[Tensor, "b ..."], count: int) -> Tensor:
    """Undo `split_axes` of so many axes."""
    back = sorted(range(2 * count), key=_split(count).__getitem__)
    moved = x.permute(0, *(1 + at for at in back), *range(1 + 2 * count, x.ndim))
    axes = [moved.shape[1 + 2 * at] * moved.shape[2 + 2 * at] for at in range(count)]
    return moved.reshape(len(x), *axes, *x.shape[1 + 2 * count :])


def _split(count: int) -> list[int]:
    """Of pairs (part, place) of each axis, first all parts, then all places."""
    return [*range(1, 1 + 2 * count, 2), *range(2, 2 + 2 * count, 2)]


class BlockAttention(nn.Module):
    """Multi-head attention inside blocks of a shape, with a learned bias by relative place.

    `causal=True` hides what comes later in the raster order of the block, but not a place itself.
    """

    def __init__(self, config: BlocksConfig, shape: Sequence[int], *, causal: bool) -> None:
        super().__init__()
        self.heads, self.shape, self.causal = config.heads, tuple(shape), causal
        width, inside = config.width, config.attention_width
        layers = (nn.Linear(width, inside, bias=False) for _ in range(3))
        self.to_queries, self.to_keys, self.to_values = layers
        self.to_out = nn.Linear(inside, width, bias=False)
        self.relative_positions = nn.ParameterList(
            torch.empty(config.heads, 2 * side - 1) for side in shape
        )

    def forward(self, x: Float[Tensor, "b *axes d"]) -> Float[Tensor, "b *axes d"]:
        cut = split_axes(x, self.shape)
        q, k, v = self.project(cut.reshape(-1, math.prod(self.shape), x.shape[-1]))
        bias = self.bias().to(q.dtype).unsqueeze(0)
        parts = zip(*(torch.split(t, MOST_LINES) for t in (q, k, v)), strict=True)
        seen = [F.scaled_dot_product_attention(q, k, v, attn_mask=bias) for q, k, v in parts]
        out = torch.cat(seen) if len(seen) > 1 else seen[0]
        out = self.to_out(rearrange(out, "r n l e -> r l (n e)"))
        return join_axes(out.view(cut.shape), len(self.shape))

    def project(self, x: Float[Tensor, "r l d"]) -> list[Float[Tensor, "r n l e"]]:
        """Queries, keys and values."""
        layers = (self.to_queries, self.to_keys, self.to_values)
        return [rearrange(layer(x), "r l (n e) -> r n l e", n=self.heads) for layer in layers]

    def bias(self) -> Float[Tensor, "n l l"]:
        """What is added to the score of a query (rows) and a key: a number for each axis.

        It belongs to the place of the query less that of the key, counted from the least.
        """
        count, size = len(self.shape), math.prod(self.shape)
        grids = []
        for axis, table in enumerate(self.relative_positions):
            place = torch.arange(self.shape[axis], device=table.device)
            apart = place.unsqueeze(1) - place + self.shape[axis] - 1
            view = [1] * (2 * count)
            view[axis] = view[count + axis] = self.shape[axis]
            grids.append(table[:, apart].view(self.heads, *view))
        found = sum(grids[1:], grids[0]).reshape(self.heads, size, size)
        if not self.causal:
            return found
        later = torch.ones(size, size, dtype=torch.bool, device=found.device).triu(1)
        return found.masked_fill(later, -math.inf)

    def cache(self, batch: int, places: int) -> Float[Tensor, "2 b n m e"]:
        """Room for the keys and values of blocks that have so many places together."""
        weight = self.to_keys.weight
        return weight.new_zeros(2, batch, self.heads, places, len(weight) // self.heads)

    def advance(
        self,
        x: Float[Tensor, "b d"],
        cache: Float[Tensor, "2 b n m e"],
        bias: Float[Tensor, "n l l"],
        block: Place,
        place: Place,
    ) -> Float[Tensor, "b d"]:
        """The same at one place of an open block, given those before it in the cache."""
        q, *new = self.project(x.unsqueeze(1))
        size = bias.shape[1]
        first = block * size
        for at, one in enumerate(new):
            put(cache[at], 2, first + place, one[:, :, 0])
        seen = place + 1 if isinstance(place, int) else size  # the bias hides what comes later
        k, v = (span(kept, 2, first, seen) for kept in cache)
        bias = take(bias, 1, place)[:, :seen].unsqueeze(1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return self.to_out(rearrange(out, "b n 1 e -> b (n e)"))


class BlockLayer(nn.Module):
    """A pre-norm layer: attention inside blocks, then a feed-forward layer."""

    def __init__(self, config: BlocksConfig, layer: int, *, causal: bool) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.attention_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.attention = BlockAttention(config, config.block(layer), causal=causal)
        self.mlp_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp_in = nn.Linear(width, hidden)
        self.mlp_out = nn.Linear(hidden, width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b *axes d"]) -> Float[Tensor, "b *axes d"]:
        return self._mlp(x + self.dropout(self.attention(self.attention_norm(x))))

    def advance(
        self, x: Float[Tensor, "b d"], cache: Tensor, bias: Tensor, block: Place, place: Place
    ) -> Float[Tensor, "b d"]:
        """The same at one place alone."""
        normed = self.attention_norm(x)
        return self._mlp(
            x + self.dropout(self.attention.advance(normed, cache, bias, block, place))
        )

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp_out(F.relu(self.mlp_in(self.mlp_norm(x)))))
