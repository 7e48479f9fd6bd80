"""The Axial Transformer: a channel encoder, one decoder level per axis, logits.

b batch, *axes the data axes (slowest first), c channels, d model width, v values. Where channels
are stacked, the decoder works on the larger grid `*plane`; causal.py holds what makes it
autoregressive. Inputs a caller can get wrong are annotated Shaped, so that the mistake reaches
our own check and its message.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from axial.models.attention import check_tensors
from axial.models.causal import given, shift, stack, stack_context, unstack, visible
from axial.models.config import ModelConfig
from axial.errors import CheckpointError, InputError
from axial.models.layers import (
    LSTM,
    NORM_EPS,
    Block,
    Blocks,
    PlaneConvolution,
    Positions,
    init_linear,
    waves,
)

EMBEDDING_SCALE = 5.0
"""Embeddings and position tables start as normals of this standard deviation over sqrt(width)."""
FINAL_SCALE = 1e-10
"""Variance scale of each residual branch's last dense layer and of the logits at the start."""
VALUE_PERIOD, POSITION_PERIOD = 8, 4
"""Rows of the shortest waves that embeddings and position tables may start as."""
# Types for which torch has no minimum.
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def plain_name(name: str) -> str:
    """That of a layer or a weight, without the wrappers that `torch.compile` puts around layers."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class ChannelEncoder(nn.Module):
    """What the decoder is told of the channels already known (paper 3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        count = len(config.axes)
        self.convolution = PlaneConvolution(count, 2 * config.channels, config.width)
        self.positions = Positions(config.axes, config.width)
        self.blocks = Blocks(config, config.encoder_axes)

    def forward(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"],
        condition: Float[Tensor, "b *ones_or_axes d"] | None,
        *,
        recompute: bool = False,
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
        return self.blocks(u, recompute=recompute)


class AxialTransformer(nn.Module):
    """An exact-likelihood autoregressive model of integer arrays (b, *axes, c).

    p(x) is a product over channels, and within a channel over the elements in raster order
    (`order` of causal.py has the exact order of every channel mode). A model takes tensors
    and returns tensors; it keeps nothing between calls.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, axes = config.width, config.plane_axes
        last = len(axes) - 1
        self.encoder = ChannelEncoder(config) if config.encoder_layers else None
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.embedding = nn.Embedding(config.values, width)
        self.positions = Positions(axes, width)
        self.outer_decoders = nn.ModuleList(
            Blocks(config, config.decoder_axes(level), causal_axis=level) for level in range(last)
        )
        self.inner_decoder: Blocks | LSTM
        if config.inner == "lstm":
            self.inner_decoder = LSTM(config)
        else:
            self.inner_decoder = Blocks(config, config.decoder_axes(last), causal_axis=last)
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.to_logits = nn.Linear(width, config.values)
        self.reset_parameters()

    @classmethod
    def from_weights(cls, config: ModelConfig, weights: Mapping[str, Tensor]) -> "AxialTransformer":
        """The model that holds exactly these tensors; no random weights are drawn first."""
        model = cls.of_shapes(config)
        model.check_weights(weights)
        model.load_state_dict(dict(weights), assign=True)
        return model.eval()

    @classmethod
    def of_shapes(cls, config: ModelConfig) -> "AxialTransformer":
        """The model without its numbers: all its layers, and tensors that have no memory."""
        with torch.device("meta"):
            return cls(config)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are not those of this model, by name, shape and type."""
        wanted = self.state_dict()
        for name in sorted(wanted.keys() | weights.keys()):
            if name not in weights:
                raise CheckpointError(f"weight {name!r} is missing")
            if name not in wanted:
                raise CheckpointError(f"weight {name!r} does not belong to this configuration")
            if weights[name].shape != wanted[name].shape:
                raise CheckpointError(
                    f"weight {name!r} has shape {tuple(weights[name].shape)} instead of "
                    f"{tuple(wanted[name].shape)}"
                )
        usual = weights["embedding.weight"].dtype
        for name, dtype in ((name, value.dtype) for name, value in weights.items()):
            if dtype != usual or not dtype.is_floating_point:
                raise CheckpointError(
                    f"weight {name!r} is {dtype}: weights are floating point numbers of one type"
                )

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
        """Let those of values and positions start as waves, by which near ones look alike.

        Each table of positions has its waves in an order of features of its own, drawn.
        """
        std, values = self._embedding_std, self.embedding.weight.detach()
        values.copy_(waves(values.shape, VALUE_PERIOD, std=std))
        for positions in self.modules():
            for table in positions.tables if isinstance(positions, Positions) else ():
                smooth = waves(table.shape, POSITION_PERIOD, std=std)
                table.detach().copy_(smooth[:, torch.randperm(self.config.width)])

    @property
    def _embedding_std(self) -> float:
        return EMBEDDING_SCALE / self.config.width**0.5

    def forward(
        self,
        x: Shaped[Tensor, "b *axes c"],
        label: Shaped[Tensor, " n"] | None = None,
        context: Shaped[Tensor, "m *grid d"] | None = None,
        *,
        recompute: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes c v"]:
        """Logits of every element, all channels at once.

        Given elements are not predicted: their logits are zero. `recompute` trades time for
        memory: activations inside a block are computed again in the backward pass. `checked`
        says that the input fits; to look at its values makes a GPU wait.
        """
        if not checked:
            self.check(x, label, context)
        x, label = x.long(), None if label is None else label.long()
        if self.config.channel_mode != "encode":
            return self._hide_given(self._stacked_logits(x, label, context, recompute=recompute))

        batch, channels = x.shape[0], self.config.channels
        first = self.config.given_channels
        each = channels - first
        logits = self._channel_logits(
            x.repeat_interleave(each, 0),
            torch.arange(first, channels, device=x.device).repeat(batch),
            None if label is None else label.repeat_interleave(each, 0),
            None if context is None else context.repeat_interleave(each, 0),
            recompute=recompute,
        )
        logits = rearrange(logits, "(b c) ... v -> b ... c v", c=each)
        return self._hide_given(F.pad(logits, (0, 0, first, 0)))

    def channel_logits(
        self,
        x: Shaped[Tensor, "b *axes c"],
        channel: Shaped[Tensor, " k"],
        label: Shaped[Tensor, " n"] | None = None,
        context: Shaped[Tensor, "m *grid d"] | None = None,
        *,
        recompute: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes v"]:
        """Logits of one channel of each example, at the cost of one channel.

        Where channels are stacked there is no such saving: the whole grid is scored and the
        channel selected. `recompute` and `checked` are those of `forward`.
        """
        if not checked:
            self.check(x, label, context)
            check_tensors(channel=channel)
            _check_one_each("channel", channel, x)
            first = self.config.given_channels
            check_integers("channel", channel, at_least=first, below=self.config.channels)
        x, channel, label = x.long(), channel.long(), None if label is None else label.long()
        if self.config.channel_mode == "encode":
            logits = self._channel_logits(x, channel, label, context, recompute=recompute)
        else:
            every = self._stacked_logits(x, label, context, recompute=recompute)
            logits = every[torch.arange(x.shape[0], device=x.device), ..., channel, :]
        if self.config.given_steps:
            logits = F.pad(
                logits[:, self.config.given_steps :],
                (0, 0) * len(self.config.axes) + (self.config.given_steps, 0),
            )
        return logits

    def check(
        self,
        x: Shaped[Tensor, "..."],
        label: Shaped[Tensor, "..."] | None = None,
        context: Shaped[Tensor, "..."] | None = None,
    ) -> None:
        """Refuse what does not fit this model.

        Ranges are not checked inside `torch.compile`, where looking at values would break it.
        """
        config = self.config
        shape = (*config.axes, config.channels)
        check_tensors(x=x, label=label, context=context)
        if x.shape[1:] != shape:
            raise InputError(
                f"x has shape {tuple(x.shape)}, but this model takes (batch, "
                f"{', '.join(map(str, shape))}): its axes, then {config.channels} channels"
            )
        check_integers("x", x, at_least=0, below=config.values)
        if (label is None) != (config.classes == 0):
            wanted = f"is conditioned on {config.classes} classes: give label="
            unwanted = "is unconditional: leave label out"
            raise InputError(f"this model {wanted if label is None else unwanted}")
        if label is not None:
            _check_one_each("label", label, x)
            check_integers("label", label, at_least=0, below=config.classes)
        wide = (x.shape[0], *config.axes, config.width)
        if context is not None and (context.shape != wide or not context.is_floating_point()):
            raise InputError(
                f"context has shape {tuple(context.shape)} and type {context.dtype}, but this "
                f"model takes floating point numbers of shape {wide}"
            )

    def _hide_given(self, logits: Float[Tensor, "b *axes c v"]) -> Float[Tensor, "b *axes c v"]:
        if not (self.config.given_channels or self.config.given_steps):
            return logits
        return logits.masked_fill(given(self.config, logits.device).unsqueeze(-1), 0.0)

    def condition(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"] | None,
        label: Int[Tensor, " b"] | None,
        context: Float[Tensor, "b *axes d"] | None,
        *,
        recompute: bool = False,
    ) -> Float[Tensor, "b *ones_or_plane d"] | None:
        """What every decoder level is told beside the plane itself; None if nothing.

        The encoder's output if there is one, else label and context. `channel` is the one to be
        predicted, None where channels are stacked.
        """
        told = None if context is None else context.to(self.embedding.weight.dtype)
        if told is not None and self.config.channel_mode != "encode":
            told = stack_context(told, self.config)
        if label is not None and self.label_embedding is not None:
            embedded = self.label_embedding(label)
            ones = (1,) * len(self.config.axes)
            embedded = embedded.view(label.shape[0], *ones, self.config.width)
            told = embedded if told is None else embedded + told
        if self.encoder is None:
            return told
        return self.encoder(x, channel, told, recompute=recompute)

    def _channel_logits(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"],
        label: Int[Tensor, " b"] | None,
        context: Float[Tensor, "b *axes d"] | None,
        *,
        recompute: bool,
    ) -> Float[Tensor, "b *axes v"]:
        condition = self.condition(x, channel, label, context, recompute=recompute)
        return self._decode(plane_of(x, channel), condition, recompute=recompute)

    def _stacked_logits(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Int[Tensor, " b"] | None,
        context: Float[Tensor, "b *axes d"] | None,
        *,
        recompute: bool,
    ) -> Float[Tensor, "b *axes c v"]:
        condition = self.condition(x, None, label, context, recompute=recompute)
        logits = self._decode(stack(x, self.config), condition, recompute=recompute)
        return unstack(logits, self.config)

    def _decode(
        self,
        plane: Int[Tensor, " b *plane"],
        condition: Float[Tensor, "b *ones_or_plane d"] | None,
        *,
        recompute: bool,
    ) -> Float[Tensor, "b *plane v"]:
        """One level per axis; each hands what it saw, shifted, to all levels after it."""
        h = self.embedding(plane)
        before = self.positions() if condition is None else self.positions() + condition
        for axis, outer_decoder in enumerate(self.outer_decoders):
            u = outer_decoder(h + before, recompute=recompute)
            before = before + shift(u, axis)
        r = shift(h, plane.ndim - 2) + before
        r = self.inner_decoder(r, recompute=recompute)
        return self.to_logits(self.norm(r))


def plane_of(x: Int[Tensor, "b *axes c"], channel: Int[Tensor, " b"]) -> Int[Tensor, " b *axes"]:
    """One channel of each example."""
    index = channel.view(-1, *(1,) * (x.ndim - 1)).expand(*x.shape[:-1], 1)
    return x.gather(-1, index).squeeze(-1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients, whatever mode the model is in and returns to."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def check_integers(name: str, x: Tensor, *, at_least: int, below: int) -> None:
    """Refuse anything but integers of the range [at_least, below)."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise InputError(f"{name} is {x.dtype}: give integers from {at_least} to {below - 1}")
    if torch.compiler.is_compiling() or not x.numel():
        return
    low, high = map(int, (x.long() if x.dtype in _WIDE_UNSIGNED else x).aminmax())
    if x.dtype == torch.uint64 and low < 0:  # what int64 cannot hold comes out negative
        high = max(high, low + (1 << 64))
        low = 0
    wrong = low if low < at_least else high
    if not at_least <= wrong < below:
        raise InputError(f"{name} holds {wrong}: its values must be {at_least} to {below - 1}")


def _check_one_each(name: str, values: Tensor, x: Tensor) -> None:
    if values.shape != x.shape[:1]:
        raise InputError(f"{name} has shape {tuple(values.shape)}: give ({len(x)},), one each")
