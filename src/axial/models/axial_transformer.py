"""The Axial Transformer: a channel encoder, one decoder level per axis, logits.

b batch, *axes the data axes (slowest first), c channels, d model width, v values. Where channels
are stacked, the decoder works on the larger grid `*plane`; causal.py holds what makes it
autoregressive.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from axial.models.causal import shift, stack, stack_context, unstack, visible
from axial.models.config import ModelConfig
from axial.models.dense import dense
from axial.models.layers import (
    LSTM,
    NORM_EPS,
    Block,
    Blocks,
    PlaneConvolution,
    Positions,
    init_linear,
    normalize,
    waves,
)
from axial.models.protocol import (
    Context,
    Examples,
    Label,
    LevelModel,
    SliceScorer,
)

EMBEDDING_SCALE = 5.0
"""Embeddings and position tables start as normals of this standard deviation over sqrt(width)."""
FINAL_SCALE = 1e-10
"""Variance scale of each residual branch's last dense layer and of the logits at the start."""
VALUE_PERIOD, POSITION_PERIOD = 8, 4
"""Rows of the shortest waves that embeddings and position tables may start as."""


class ChannelEncoder(nn.Module):
    """What conditions the decoder on the channels already known (paper 3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        count = len(config.axes)
        self.convolution = PlaneConvolution(count, 2 * config.channels, config.width)
        self.positions = Positions(config.axes, config.width)
        self.blocks = Blocks(replace(config, dropout=config.encoder_dropout), config.encoder_axes)

    def forward(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"],
        condition: Float[Tensor, "b *ones_or_axes d"] | None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, "b *axes d"]:
        dtype = self.convolution.bias.dtype
        planes = x.to(torch.promote_types(dtype, torch.float32)) / self.config.plane_divisor
        planes = planes.to(dtype) * visible(channel, self.config)
        names = F.one_hot(channel, self.config.channels).to(dtype)
        names = names.view(-1, *(1,) * len(self.config.axes), self.config.channels)
        u = self.convolution(torch.cat([planes, names.expand_as(planes)], dim=-1))
        u = u + self.positions()
        if condition is not None:
            u = u + condition
        return self.blocks(u, checkpointing=checkpointing)


class AxialTransformer(LevelModel):
    """The paper's model: p(x) is a product over channels, and within one over its elements.

    `order` of causal.py has the exact order of every channel mode.
    """

    family = "axial"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.graphable = config.inner != "lstm"  # not known whether torch's can be
        width, axes = config.width, config.plane_axes
        last = len(axes) - 1
        self.encoder = ChannelEncoder(config) if config.encoder_layers else None
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        # Variant 0 has no row: it adds nothing.
        several = config.variants > 1
        self.variant_embedding = nn.Embedding(config.variants - 1, width) if several else None
        self.embedding = nn.Embedding(config.values, width)
        self.positions = Positions(axes, width)
        self.outer_decoders = nn.ModuleList(self._level(config, level) for level in range(last))
        self.inner_decoder: Blocks | LSTM
        if config.inner == "lstm":
            self.inner_decoder = LSTM(config)
        else:
            self.inner_decoder = self._level(config, last)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.to_logits = nn.Linear(width, config.values)
        self.reset_parameters()

    @staticmethod
    def _level(config: ModelConfig, level: int) -> Blocks:
        return Blocks(config, config.decoder_axes(level), level, config.branch_rates(level))

    def reset_parameters(self, *, final_scale: float = FINAL_SCALE) -> None:
        """Draw new weights as the authors do: at the default scale, the uniform distribution.

        `final_scale=1` lets every layer speak at once, which is what a test of causality needs.
        """
        std = self._embedding_std
        for module in self.modules():
            if isinstance(module, Block):
                module.reset_parameters(final_scale=final_scale)
            elif isinstance(module, nn.LayerNorm | PlaneConvolution | LSTM):
                module.reset_parameters()
            elif isinstance(module, Positions):
                module.reset_parameters(std=std)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        init_linear(self.to_logits, scale=final_scale)

    def smooth_embeddings(self) -> None:
        """Each table of positions has its waves in an order of features of its own, drawn."""
        std, values = self._embedding_std, self.embedding.weight.detach()
        values.copy_(waves(values.shape, VALUE_PERIOD, std=std))
        for positions in self.modules():
            for table in positions.tables if isinstance(positions, Positions) else ():
                smooth = waves(table.shape, POSITION_PERIOD, std=std)
                table.detach().copy_(smooth[:, torch.randperm(self.config.width)])

    @property
    def _embedding_std(self) -> float:
        return EMBEDDING_SCALE / self.config.width**0.5

    def all_logits(
        self, x: Int[Tensor, "b *axes c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes c v"]:
        if self.config.channel_mode != "encode":
            return self._logits(x, None, label, context, checkpointing=checkpointing)
        first = self.config.given_channels
        each = self.config.channels - first
        x = x.repeat_interleave(each, 0)
        label, context = (
            None if t is None else t.repeat_interleave(each, 0) for t in (label, context)
        )
        channel = first + torch.arange(x.shape[0], device=x.device) % each
        logits = self._logits(x, channel, label, context, checkpointing=checkpointing)
        return F.pad(rearrange(logits, "(b c) ... v -> b ... c v", c=each), (0, 0, first, 0))

    def _one_channel(
        self, x: Tensor, channel: Tensor, label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes v"]:
        """At the cost of one channel; where they are stacked there is no such saving."""
        if self.config.channel_mode != "encode":
            return super()._one_channel(x, channel, label, context, checkpointing=checkpointing)
        logits = self._logits(x, channel, label, context, checkpointing=checkpointing)
        if self.config.given_steps:  # the last channel is given at these alone
            logits = logits.masked_fill(self.given(logits.device)[..., -1:], 0.0)
        return logits

    def slice_of(self, x: Examples, number: Int[Tensor, " b"]) -> Tensor:
        return plane_of(x, number) if self.config.channel_mode == "encode" else x

    def slice_logits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        context: Context = None,
        **how: bool,
    ) -> Float[Tensor, "b *part v"]:
        if self.config.channel_mode == "encode":
            return self.channel_logits(x, number, label, context, **how)
        return super().slice_logits(x, number, label, context, **how)

    def slice_scorer(self, number: int) -> SliceScorer:
        usual = super().slice_scorer(number)
        alike: Tensor | None = None

        def logits(x: Examples, label: Label, context: Context) -> Tensor:
            nonlocal alike
            stacked = self.config.channel_mode != "encode"
            if stacked or not self.starts_alike(number, label, context):
                return usual(x, label, context)
            x = x.long()
            if alike is None and self.encoder is not None:
                alike = self.condition(x[:1], x.new_zeros(len(x[:1])), None, None)
            condition = None if alike is None else alike.expand(len(x), *alike.shape[1:])
            return self._decode(x[..., 0], condition, checkpointing=False)

        return logits

    def blocks(self) -> Iterator[Block]:
        return (module for module in self.modules() if isinstance(module, Block))

    def matrices(self) -> dict[str, int | None]:
        """Those of the blocks.

        All else is no map between features: tables and vectors, and the convolution and the logits
        are the model's ends; of the LSTM's gates nothing of the kind is known.
        """
        kinds = ("to_qkv.weight", "to_out.weight", "mlp_in.weight", "mlp_out.weight")
        names = [name for name, _ in self.named_parameters() if name.endswith(kinds)]
        heads = self.config.heads
        return {name: heads if name.endswith("to_qkv.weight") else None for name in names}

    def condition(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"] | None,
        label: Label,
        context: Context,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, "b *ones_or_plane d"] | None:
        """The encoder's output if there is one, else label and context."""
        condition = None if context is None else context.to(self.embedding.weight.dtype)
        if condition is not None and self.config.channel_mode != "encode":
            condition = stack_context(condition, self.config)
        for embedded in () if label is None else self._embedded(label):
            ones = (1,) * len(self.config.axes)
            added = embedded.view(embedded.shape[0], *ones, self.config.width)
            condition = added if condition is None else added + condition
        if self.encoder is None:
            return condition
        return self.encoder(x, channel, condition, checkpointing=checkpointing)

    def _embedded(self, label: Int[Tensor, " b"]) -> list[Float[Tensor, "b d"]]:
        """Its class and its variant, as far as the model knows of them."""
        found, classes = [], max(self.config.classes, 1)
        if self.label_embedding is not None:
            found.append(self.label_embedding(label % classes))
        if self.variant_embedding is not None:
            rows = F.pad(self.variant_embedding.weight, (0, 0, 1, 0))
            found.append(F.embedding(label // classes, rows))
        return found

    def _logits(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"] | None,
        label: Label,
        context: Context,
        *,
        checkpointing: bool,
    ) -> Float[Tensor, "b *part v"]:
        """One pass: a channel of each example, or all of them where they are stacked."""
        condition = self.condition(x, channel, label, context, checkpointing=checkpointing)
        if channel is not None:
            return self._decode(plane_of(x, channel), condition, checkpointing=checkpointing)
        logits = self._decode(stack(x, self.config), condition, checkpointing=checkpointing)
        return unstack(logits, self.config)

    def _decode(
        self,
        plane: Int[Tensor, " b *plane"],
        condition: Float[Tensor, "b *ones_or_plane d"] | None,
        *,
        checkpointing: bool,
    ) -> Float[Tensor, "b *plane v"]:
        """One level per axis; each hands what it saw, shifted, to all levels after it."""
        h = self.embedding(plane)
        before = self.positions() if condition is None else self.positions() + condition
        for axis, outer_decoder in enumerate(self.outer_decoders):
            u = outer_decoder(h + before, checkpointing=checkpointing)
            before = before + shift(u, axis)
        r = shift(h, plane.ndim - 2) + before
        r = self.inner_decoder(r, checkpointing=checkpointing)
        return dense(self.to_logits, normalize(self.norm, r))


def plane_of(x: Examples, channel: Int[Tensor, " b"]) -> Shaped[Tensor, " b *axes"]:
    """One channel of each example."""
    index = channel.view(-1, *(1,) * (x.ndim - 1)).expand(*x.shape[:-1], 1)
    return x.gather(-1, index).squeeze(-1)
