"""The Image Transformer (Parmar et al. 2018): attention inside blocks and what lies around them.

Elements stand in the order of prediction, so that a query block is a stretch of the sequence. The
1-D form sees the stretch before; the 2-D form rectangles, and a flange above and to their left.

b batch, n length of the sequence, m query blocks, q elements of one, k keys around it, d width,
h heads, e width of a head, v values.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.dropout import Dropout
from axial.models.family_config import FamilyConfig
from axial.models.layers import waves
from axial.models.line_attention import dense_dtype
from axial.models.local_config import Local1dConfig, Local2dConfig, LocalConfig
from axial.models.one_pass import OnePassModel
from axial.models.protocol import Context, Label
from axial.models.stepping import Place, Stepper, hidden_after, put, span, take

NORM_EPS = 1e-6
GAIN = 0.2
"""Variance of a weight at the start, times the mean of its inputs and outputs."""
LONGEST = 1e4
"""Ratio of the longest to the shortest time scale of the positions."""


class LocalAttention(nn.Module):
    """Multi-head attention of each query block to itself, masked, and to the keys around it."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.before_alone = isinstance(config, Local1dConfig)
        layers = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))
        self.to_queries, self.to_keys, self.to_values, self.to_out = layers

    def forward(
        self, x: Float[Tensor, "b n d"], around: Int[Tensor, "m k"], query: int
    ) -> Float[Tensor, "b n d"]:
        """`around` are the places of the keys around each block; negative where there is none."""
        blocks, length = len(around), x.shape[1]
        x = F.pad(x, (0, 0, 0, blocks * query - length))  # padded keys come after all queries
        q, k, v = (
            rearrange(layer(x), "b (m q) (h e) -> b m h q e", m=blocks, h=self.heads)
            for layer in (self.to_queries, self.to_keys, self.to_values)
        )
        k, v = (torch.cat([self._gather(t, around), t], 3) for t in (k, v))
        own = torch.ones(query, query, dtype=torch.bool, device=x.device).tril()
        seen = repeat(around >= 0, "m k -> m q k", q=query)
        seen = torch.cat([seen, own.expand(blocks, -1, -1)], 2)
        seen = repeat(seen, "m q k -> (b m) 1 q k", b=len(x))
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out = rearrange(out, "(b m) h q e -> b (m q) (h e)", m=blocks)
        return self.to_out(out[:, :length])

    def _gather(self, t: Tensor, around: Int[Tensor, "m k"]) -> Tensor:
        """What stands at the places around each block."""
        if self.before_alone:  # moved on as a whole: cheaper both ways than by places
            return F.pad(t[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))[
                :, :, :, t.shape[3] - around.shape[1] :
            ]
        flat = rearrange(t, "b m h q e -> b (m q) h e")
        return rearrange(flat[:, around.clamp(min=0)], "b m k h e -> b m h k e")


class LocalBlock(nn.Module):
    """Attention and a feed-forward layer, with layer norms after or before each."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.post = config.norm == "post"
        self.attention = LocalAttention(config)
        self.attention_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp_in = nn.Linear(width, hidden)
        self.mlp_out = nn.Linear(hidden, width)
        self.mlp_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], around: Int[Tensor, "m k"], query: int
    ) -> Float[Tensor, "b n d"]:
        return self.mlp(self.add(x, self.attention(self.before(x), around, query)))

    def before(self, x: Tensor) -> Tensor:
        """What attention is given."""
        return x if self.post else self.attention_norm(x)

    def add(self, x: Tensor, attended: Tensor) -> Tensor:
        """The end of the attention branch."""
        x = x + self.dropout(attended)
        return self.attention_norm(x) if self.post else x

    def mlp(self, x: Tensor) -> Tensor:
        """The feed-forward branch."""
        inside = x if self.post else self.mlp_norm(x)
        x = x + self.dropout(self.mlp_out(F.relu(self.mlp_in(inside))))
        return self.mlp_norm(x) if self.post else x


class ImageTransformer(OnePassModel):
    """What the 1-D and the 2-D form share; they differ in the keys around a block."""

    config: LocalConfig

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embedding = nn.Embedding(config.channels * config.values, width)
        self.positions = nn.ParameterList(
            torch.empty(length, width)
            for length in (config.grid if config.position_kind == "learned" else ())
        )
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(LocalBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width, eps=NORM_EPS) if config.norm == "pre" else None
        self.to_logits = nn.Linear(width, config.values)
        self.reset_parameters()

    def places(self, device: torch.device) -> Int[Tensor, " n"]:
        """`order`, made on the device: a CUDA graph cannot copy it from the host."""
        return torch.arange(self.config.length, device=device)

    def around(self, device: torch.device) -> Int[Tensor, "m k"]:
        """The places of the keys around each block, in the order of prediction; negative: none."""
        raise NotImplementedError

    def shifted(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Each position carries the element before it."""
        return F.pad(x[:, :-1], (0, 0, 1, 0))

    def carries(self, rank: int) -> bool:
        """Whether a position carries the element before it, and not zeros."""
        return rank > 0

    def reset_parameters(self) -> None:
        """Draw new weights as the authors do."""
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                bound = (6 * GAIN / sum(module.weight.shape)) ** 0.5
                nn.init.uniform_(module.weight, -bound, bound)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        for table in self.positions:
            nn.init.normal_(table, std=self.config.width**-0.5)

    def smooth_embeddings(self) -> None:
        config, table = self.config, self.embedding.weight.detach()
        std = (2 * GAIN / sum(table.shape)) ** 0.5
        table.copy_(waves((config.values, config.width), 8, std=std).repeat(config.channels, 1))
        for learned in self.positions:
            smooth = waves(learned.shape, 4, std=config.width**-0.5)
            learned.detach().copy_(smooth[:, torch.randperm(config.width)])

    def all_logits(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Label,
        context: Context,
        *,
        checkpointing: bool,
    ) -> Float[Tensor, "b *axes c v"]:
        order = self.places(x.device)
        h = self.shifted(self.embed(x, order)) + self.added(label, context, order)
        h = self.dropout(h)
        h = h.to(dense_dtype(h))
        around, query = self.around(x.device), self.config.query
        for block in self.layers:
            if checkpointing:
                h = checkpoint(block, h, around, query, use_reentrant=False)
            else:
                h = block(h, around, query)
        logits = self.to_logits(h if self.norm is None else self.norm(h))
        return logits[:, order.argsort()].unflatten(1, x.shape[1:])

    def embed(
        self, x: Int[Tensor, "b *axes c"], order: Int[Tensor, " r"]
    ) -> Float[Tensor, "b r d"]:
        """Elements by their places; every channel has rows of its own."""
        values, channel = x.flatten(1)[:, order], order % self.config.channels
        return self.config.width**0.5 * self.embedding(values + self.config.values * channel)

    def added(
        self, label: Tensor | None, context: Tensor | None, order: Int[Tensor, " n"]
    ) -> Float[Tensor, "b_or_1 n d"]:
        """What is added to the elements: positions, class and context, in order of prediction."""
        found = self._positions(order.device).flatten(0, -2)[order].unsqueeze(0)
        if label is not None and self.label_embedding is not None:
            found = found + self.label_embedding(label).unsqueeze(1)
        if context is not None:
            every = repeat(context, "b ... d -> b ... c d", c=self.config.channels)
            found = found + every.flatten(1, -2)[:, order].to(found.dtype)
        return found

    def _positions(self, device: torch.device) -> Float[Tensor, "*grid d"]:
        config, weight = self.config, self.embedding.weight
        tables = [table * config.width**0.5 for table in self.positions]
        if config.position_kind == "timing":
            tables = timing(config, weight.dtype, device)
        last = len(tables) - 1
        grids = [
            table.view(-1, *(1,) * (last - axis), config.width) for axis, table in enumerate(tables)
        ]
        return sum(grids[1:], grids[0])

    def steps(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Label = None,
        context: Context = None,
    ) -> "LocalSteps":
        return LocalSteps(self, x, label, context)


class ImageTransformer1d(ImageTransformer):
    """Blocks of the raster sequence; each sees the block before."""

    family = "local-1d"
    config: Local1dConfig

    def around(self, device: torch.device) -> Int[Tensor, "m k"]:
        config = self.config
        blocks = -(-config.length // config.query)
        places = torch.arange(-config.memory, 0, device=device)
        return places + config.query * torch.arange(blocks, device=device).unsqueeze(1)


class ImageTransformer2d(ImageTransformer):
    """Rectangles of the picture; each sees a flange above and to the left."""

    family = "local-2d"
    config: Local2dConfig

    def places(self, device: torch.device) -> Int[Tensor, " n"]:
        across, (high, wide) = self.config.grid[1] // self.config.block[1], self.config.block
        raster = super().places(device)
        return rearrange(raster, "(m h a w) -> (m a h w)", h=high, a=across, w=wide)

    def around(self, device: torch.device) -> Int[Tensor, "m k"]:
        (rows, columns), (high, wide) = self.config.grid, self.config.block
        above, beside = self.config.flange

        def pairs(down: Tensor, right: Tensor) -> Tensor:
            grids = torch.meshgrid(down, right, indexing="ij")
            return torch.stack([grid.flatten() for grid in grids])

        def span(start: int, stop: int) -> Tensor:
            return torch.arange(start, stop, device=device)

        row, column = torch.cat(
            [
                pairs(span(-above, 0), span(-beside, wide + beside)),
                pairs(span(0, high), span(-beside, 0)),
            ],
            1,
        )
        top, left = pairs(high * span(0, rows // high), wide * span(0, columns // wide))
        row, column = row + top.unsqueeze(1), column + left.unsqueeze(1)
        inside = (row >= 0) & (column >= 0) & (column < columns)
        block = (row // high) * (columns // wide) + column // wide
        rank = block * high * wide + (row % high) * wide + column % wide
        return torch.where(inside, rank, -1)

    def shifted(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if self.config.shift == "order":
            return super().shifted(x)
        inside = rearrange(x, "b (m q) d -> b m q d", q=self.config.query)
        return F.pad(inside[:, :, :-1], (0, 0, 1, 0)).flatten(1, 2)

    def carries(self, rank: int) -> bool:
        return bool(rank % self.config.query if self.config.shift == "block" else rank)


def timing(
    config: LocalConfig, dtype: torch.dtype, device: torch.device
) -> list[Float[Tensor, "l d"]]:
    """Sines and cosines of the place along each axis, in features of its own."""
    axes = len(config.grid)
    scales = config.width // (2 * axes)
    exponent = torch.arange(scales, dtype=torch.float64, device=device) / max(1, scales - 1)
    tables = []
    for axis, length in enumerate(config.grid):
        place = torch.arange(length, dtype=torch.float64, device=device).unsqueeze(1)
        angle = place * LONGEST**-exponent
        before = 2 * scales * axis
        room = (before, config.width - before - 2 * scales)
        tables.append(F.pad(torch.cat([angle.sin(), angle.cos()], 1), room).to(dtype))
    return tables


class LocalSteps:
    """Element after element of a batch; what a block sees is side by side in each layer.

    First what is around the block, then its own elements; where nothing is around it is hidden.
    """

    def __init__(
        self, model: ImageTransformer, x: Tensor, label: Tensor | None, context: Tensor | None
    ) -> None:
        config: FamilyConfig = model.config
        self.model, self.x, self.heads = model, x, model.config.heads
        self.order = model.places(x.device)
        self.added = model.added(label, context, self.order)
        self.around = model.around(x.device)
        self.memory, self.query = self.around.shape[1], model.config.query
        weight = model.embedding.weight
        room = (len(model.layers), 2, len(x), len(self.order), config.width)
        self.kept = weight.new_zeros(room)
        self.seen = weight.new_zeros(*room[:3], self.memory + self.query, config.width)
        self.hidden = weight.new_zeros(1, self.memory + self.query)
        self.complete = (self.around >= 0).all(1).tolist()
        self.call = Stepper(x.device, len(self.order))

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        block, place = divmod(rank, self.query)
        if not place:
            self._open(block)
        fixed = bool(self.model.carries(rank)), self.complete[block]
        return self.call(self._at, rank, place, fixed=fixed)

    def _open(self, block: int) -> None:
        """Put the keys and values around a block side by side."""
        places = self.around[block]
        self.seen[:, :, :, : self.memory] = self.kept[:, :, :, places.clamp(min=0)]
        self.hidden[:, : self.memory].zero_().masked_fill_(places < 0, -torch.inf)

    def _at(self, rank: Place, place: Place, carries: bool, complete: bool) -> Float[Tensor, "b v"]:
        """One element; whether it carries the one before, and whether all around it is there."""
        model, h = self.model, take(self.added, 1, rank)
        if carries:
            before = span(self.order, 0, rank - 1, 1)
            h = h + model.embed(self.x, before)[:, 0]
        else:
            h = h.expand(len(self.x), -1)
        own = self.memory + place
        stop = own + 1 if isinstance(own, int) else self.memory + self.query
        hidden = hidden_after(own, stop, h)
        if not complete:
            hidden = self.hidden[:, :stop] if hidden is None else hidden + self.hidden
        for number, layer in enumerate(model.layers):
            assert isinstance(layer, LocalBlock)
            kept, seen = self.kept[number], self.seen[number]
            x = layer.before(h)
            for at, project in enumerate((layer.attention.to_keys, layer.attention.to_values)):
                new = project(x)
                put(kept[at], 1, rank, new)
                put(seen[at], 1, own, new)
            h = layer.mlp(layer.add(h, self._attend(layer.attention, x, seen[:, :, :stop], hidden)))
        return model.to_logits(h if model.norm is None else model.norm(h))

    def _attend(
        self,
        attention: LocalAttention,
        x: Float[Tensor, "b d"],
        seen: Float[Tensor, "two b k d"],
        hidden: Float[Tensor, "1 k"] | None,
    ) -> Float[Tensor, "b d"]:
        k, v = (rearrange(t, "b k (h e) -> b h k e", h=self.heads) for t in seen)
        q = rearrange(attention.to_queries(x), "b (h e) -> b h 1 e", h=self.heads)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        return attention.to_out(rearrange(out, "b h 1 e -> b (h e)"))
