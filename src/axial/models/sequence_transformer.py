"""Transformers over the sequence of all elements: full attention, or strided and local (sparse).

The Strided Sparse Transformer (Child et al. 2019) and the full-attention Transformer that its
authors trained beside it: one model but for who attends to whom. An element is a position of the
sequence, channels innermost; position i carries element i - 1, so every mask includes i itself.

b batch, n length of the sequence, d width, h heads, e width of a head, v values.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.dropout import Dropout
from axial.models.layers import NORM_EPS, Positions, nonlinearity, waves
from axial.models.line_attention import dense_dtype
from axial.models.one_pass import OnePassModel
from axial.models.protocol import Context, Label
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.models.stepping import Place, Stepper, hidden_after, put, take

FINAL_NORM_EPS = 1e-6
WEIGHT_SCALE = 0.125
"""Variance of a weight at the start, times its inputs."""
TABLE_STD = 0.01
"""Standard deviation of embeddings at the start."""
STRETCHES = 16
"""A recorded step looks at the keys of whole stretches of the sequence: so many graphs."""


class SequenceAttention(nn.Module):
    """Masked attention over a sequence, by one of the patterns."""

    def __init__(self, config: FullConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.pattern = config.heads, config.pattern(layer)
        self.stride = config.stride if isinstance(config, StridedConfig) else None
        self.to_queries = nn.Linear(config.width, config.query_width)
        self.to_keys = nn.Linear(config.width, config.query_width)
        self.to_values = nn.Linear(config.width, config.width)
        self.to_out = nn.Linear(config.width, config.width)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        q, k, v = self.project(x)
        if self.pattern == "full":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.pattern == "strided":
            out = self._strided(q, k, v)
        else:
            out = self._local(q, k, v)
        return self.to_out(rearrange(out, "b h n e -> b n (h e)"))

    def project(self, x: Float[Tensor, "b n d"]) -> list[Float[Tensor, "b h n e"]]:
        """Queries, keys and values."""
        layers = (self.to_queries, self.to_keys, self.to_values)
        return [rearrange(layer(x), "b n (h e) -> b h n e", h=self.heads) for layer in layers]

    def _strided(self, *qkv: Tensor) -> Tensor:
        """Positions of equal residue lie in a column of the grid (n / stride, stride)."""
        q, k, v = (rearrange(t, "b h (m l) e -> (b l) h m e", l=self.stride) for t in qkv)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return rearrange(out, "(b l) h m e -> b h (m l) e", l=self.stride)

    def _local(self, *qkv: Tensor) -> Tensor:
        """Blocks of a stride, each against itself and the block before; the first has none."""
        stride = self.stride or 0
        q, k, v = (t[:, :, :stride] for t in qkv)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if qkv[0].shape[2] == stride:
            return out
        fold = "b h (m l) e -> (b m) h l e"
        q, *now = (rearrange(t[:, :, stride:], fold, l=stride) for t in qkv)
        before = [rearrange(t[:, :, :-stride], fold, l=stride) for t in qkv[1:]]
        k, v = (torch.cat(pair, 2) for pair in zip(before, now, strict=True))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        seen = seen.tril(q.shape[2]).triu(1)  # the last `stride` positions, itself among them
        later = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        later = rearrange(later, "(b m) h l e -> b h (m l) e", b=len(out))
        return torch.cat([out, later], 2)

    def cache(self, batch: int, length: int) -> list[Float[Tensor, "b h m s e"]]:
        """Room for keys and values, laid out so that what a step reads lies side by side."""
        slots = {"full": (1, length), "local": (1, self.stride or 0)}
        room = slots.get(self.pattern, (self.stride or 0, length // (self.stride or 1)))
        weights = (self.to_keys.weight, self.to_values.weight)
        return [w.new_zeros(batch, self.heads, *room, len(w) // self.heads) for w in weights]

    def advance(
        self, x: Float[Tensor, "b d"], cache: list[Tensor], i: Place, reach: int
    ) -> Float[Tensor, "b d"]:
        """The same at position i alone, given those before it in the cache.

        `reach` positions are looked at: i + 1, or more where what comes later is to be hidden.
        """
        q, *new = self.project(x.unsqueeze(1))
        line, place, newest, stop = self._slot(i, reach)
        spot = line * cache[0].shape[3] + place
        for kept, one in zip(cache, new, strict=True):
            put(kept.flatten(2, 3), 2, spot, one[:, :, 0])
        k, v = (take(kept, 2, line)[:, :, :stop] for kept in cache)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden_after(newest, stop, q))
        return self.to_out(rearrange(out, "b h 1 e -> b (h e)"))

    def _slot(self, i: Place, reach: int) -> tuple[Place, Place, Place, int]:
        """Where position i is kept: in which line, and at which of its places.

        Then the last place of the line that is filled, and at how many of them to look.
        """
        if self.pattern == "full":
            return 0, i, i, reach
        stride = self.stride or 1
        if self.pattern == "strided":
            return i % stride, i // stride, i // stride, -(-reach // stride)
        return 0, i % stride, i, min(reach, stride)


class SequenceBlock(nn.Module):
    """A pre-norm block: attention over the sequence, then a feed-forward layer."""

    def __init__(self, config: FullConfig, layer: int) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.attention_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.attention = SequenceAttention(config, layer)
        self.mlp_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp_in = nn.Linear(width, hidden)
        self.mlp_out = nn.Linear(hidden, width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return self._mlp(x)

    def advance(
        self, x: Float[Tensor, "b d"], cache: list[Tensor], i: Place, reach: int
    ) -> Float[Tensor, "b d"]:
        """The same at position i alone."""
        attended = self.attention.advance(self.attention_norm(x), cache, i, reach)
        return self._mlp(x + self.dropout(attended))

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp_out(nonlinearity(self.mlp_in(self.mlp_norm(x)))))


class FullTransformer(OnePassModel):
    """Every element attends to all before it: the reference that sparse attention approximates."""

    family = "full"
    config: FullConfig

    def __init__(self, config: FullConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embedding = nn.Embedding(config.values, width)
        self.positions = Positions((*config.axes, config.channels), width)
        self.start = nn.Parameter(torch.empty(width))
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.layers = nn.ModuleList(SequenceBlock(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(width, eps=FINAL_NORM_EPS)
        self.to_logits = nn.Linear(width, config.values, bias=False)
        self.reset_parameters()

    def reset_parameters(self, *, final_std: float = 0.0) -> None:
        """Draw new weights as the authors do; logits start at zero, so all values alike."""
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear) and module is not self.to_logits:
                std = (WEIGHT_SCALE / module.in_features) ** 0.5
                if name.endswith(("to_out", "mlp_out")):
                    std /= (2 * self.config.layers) ** 0.5
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=TABLE_STD)
        self.positions.reset_parameters(std=TABLE_STD / len(self.positions.tables) ** 0.5)
        nn.init.normal_(self.start, std=TABLE_STD)
        nn.init.normal_(self.to_logits.weight, std=final_std)

    def smooth_embeddings(self) -> None:
        values = self.embedding.weight.detach()
        values.copy_(waves(values.shape, 8, std=TABLE_STD))
        for table in self.positions.tables:
            smooth = waves(table.shape, 4, std=TABLE_STD / len(self.positions.tables) ** 0.5)
            table.detach().copy_(smooth[:, torch.randperm(self.config.width)])

    def all_logits(
        self, x: Int[Tensor, "b *axes c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes c v"]:
        embedded = (self.embedding(x) + self.positions()).flatten(1, -2)
        start = self.start.expand(len(x), 1, -1)
        h = torch.cat([start, embedded[:, :-1]], 1)
        condition = self._condition(label, context)
        h = h if condition is None else h + condition
        h = h.to(dense_dtype(h))
        for block in self.layers:
            h = checkpoint(block, h, use_reentrant=False) if checkpointing else block(h)
        return self.to_logits(self.norm(h)).unflatten(1, x.shape[1:])

    def _condition(
        self, label: Tensor | None, context: Tensor | None
    ) -> Float[Tensor, "b one_or_n d"] | None:
        """What is added at every position."""
        found = None
        if context is not None:
            found = context.to(self.start.dtype).flatten(1, -2)
            found = repeat(found, "b n d -> b (n c) d", c=self.config.channels)
        if label is not None and self.label_embedding is not None:
            embedded = self.label_embedding(label).unsqueeze(1)
            found = embedded if found is None else embedded + found
        return found

    def steps(
        self, x: Int[Tensor, "b *axes c"], label: Label = None, context: Context = None
    ) -> "SequenceSteps":
        return SequenceSteps(self, x, self._condition(label, context))


class StridedTransformer(FullTransformer):
    """The Strided Sparse Transformer."""

    family = "strided"
    config: StridedConfig


class SequenceSteps:
    """Position after position of a batch, keys and values of every layer in its cache."""

    def __init__(self, model: FullTransformer, x: Tensor, condition: Tensor | None) -> None:
        self.model, self.x, self.condition = model, x.view(len(x), -1), condition
        self.positions = model.positions().flatten(0, -2)
        layers: list[Any] = list(model.layers)
        self.length = model.config.length
        self.layers = [(layer, layer.attention.cache(len(x), self.length)) for layer in layers]
        self.call = Stepper(x.device, self.length)
        whole = any(layer.attention.pattern == "full" for layer in layers)
        self.stretch = -(-self.length // STRETCHES) if whole else self.length

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        reach = rank + 1
        if self.call.records:
            reach = min(self.length, -(-reach // self.stretch) * self.stretch)
        return self.call(self._at, rank, fixed=(reach,)) if rank else self._at(0, 1)

    def _at(self, rank: Place, reach: int) -> Float[Tensor, "b v"]:
        if isinstance(rank, int) and not rank:
            h = self.model.start.expand(len(self.x), -1)
        else:
            before = rank - 1
            h = self.model.embedding(take(self.x, 1, before)) + take(self.positions, 0, before)
        if self.condition is not None:
            h = h + take(self.condition, 1, rank if self.condition.shape[1] > 1 else 0)
        for layer, cache in self.layers:
            h = layer.advance(h, cache, rank, reach)
        return self.model.to_logits(self.model.norm(h))
