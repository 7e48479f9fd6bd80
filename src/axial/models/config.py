"""The configuration of an Axial Transformer, and what is not possible: checked without torch."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig, Places, check_heads, check_most
from axial.shape import MOST_LAYERS
from axial.validation import as_float, as_lengths, check_choices
from axial.variants import Augment, as_augment, check_augment, variant_count

Inner = Literal["attention", "lstm"]
ChannelMode = Literal["encode", "rows", "columns"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(FamilyConfig):
    """An Axial Transformer: the shape of its data, its sizes, its variants."""

    least: ClassVar = {"heads": 1, "encoder_layers": 0, "mlp_ratio": 1}
    rates: ClassVar = ("dropout", "encoder_dropout", "stochastic_depth")
    later: ClassVar = ("frames", "encoder_dropout", "stochastic_depth", "augment")
    slice_name: ClassVar = "channel"

    heads: int
    """Attention heads: equal consecutive slices of the width."""
    encoder_layers: int
    """Unmasked blocks of the channel encoder; 0 for no encoder."""
    decoder_layers: tuple[int, ...]
    """Blocks of each decoder level, one level per axis, slowest first."""
    mlp_ratio: int = 1
    """Hidden features of the feed-forward layers, in multiples of the width."""
    inner: Inner = "attention"
    """The inner decoder: masked attention blocks, or a single LSTM layer."""
    channel_mode: ChannelMode = "encode"
    """Channels predicted one by one behind an encoder, or stacked into one larger grid."""
    encoder_dropout: float = 0.0
    """Dropout rate of the channel encoder, where it does harm: docs/training.md."""
    stochastic_depth: float = 0.0
    """Rate at which the last residual branches of the decoder are dropped, whole; linearly lower
    for earlier ones."""
    augment: tuple[Augment, ...] = ()
    """Transformed copies that it was trained on and told of: a label is variant * max(classes, 1) +
    class, and variant 0 is the example itself."""
    plane_scale: float | None = None
    """Divisor of the input planes of the encoder. Default: values - 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = as_lengths("decoder_layers", self.decoder_layers)
        object.__setattr__(self, "decoder_layers", layers)
        check_most("number of layers", self.encoder_layers + sum(layers), MOST_LAYERS)
        if self.plane_scale is not None:
            object.__setattr__(self, "plane_scale", as_float("plane_scale", self.plane_scale))
        object.__setattr__(self, "augment", as_augment(self.augment))
        check_augment(self.augment, self.data)
        self._check_numbers()
        self._check_layers()
        # Without an encoder only a prefix of the prediction order can be known to all the rest.
        if self.channel_mode != "encode":
            self.check_given_is_prefix(
                f"channel_mode={self.channel_mode!r}", 'use channel_mode="encode"'
            )

    def order(self) -> Places:
        """Channel by channel, each in raster order, or raster order with the channels innermost."""
        places = super().order().reshape(*self.axes, self.channels)
        return (places if self.channel_mode == "columns" else np.moveaxis(places, -1, 0)).ravel()

    @property
    def variants(self) -> int:
        """Variants of an example, itself included."""
        return variant_count(self.augment)

    @property
    def line(self) -> int:
        """Elements of the last axis of the grid."""
        return self.plane_axes[-1]

    @property
    def channels_in_turn(self) -> bool:
        """Whether a channel is predicted as a whole before the next one."""
        return self.channel_mode != "columns"

    @property
    def plane_axes(self) -> tuple[int, ...]:
        """The grid the decoder works on: `axes`, grown by the channels where they are stacked."""
        if self.channel_mode == "rows":
            return (self.channels * self.axes[0], *self.axes[1:])
        if self.channel_mode == "columns":
            return (*self.axes[:-1], self.axes[-1] * self.channels)
        return self.axes

    @property
    def slices(self) -> range:
        """The channels that are predicted; where they are stacked, one slice is everything."""
        if self.channel_mode == "encode":
            return range(self.given_channels, self.channels)
        return super().slices

    @property
    def positions(self) -> int:
        """Elements of the grid."""
        return math.prod(self.plane_axes)

    @property
    def position_floats(self) -> int:
        """Those of a block, roughly."""
        return self.width * (12 + 2 * self.mlp_ratio)

    @property
    def input_bytes(self) -> int:
        """The planes that the encoder reads."""
        encoded = self.channel_mode == "encode"
        return 32 * self.channels * math.prod(self.axes) if encoded else 0

    @property
    def encoder_axes(self) -> tuple[int, ...]:
        """The axis each block of the encoder attends along: all in turn, fastest first."""
        return _cycle(range(len(self.axes) - 1, -1, -1), self.encoder_layers)

    def decoder_axes(self, level: int) -> tuple[int, ...]:
        """The axis each block of a decoder level attends along; masked if it is `level` itself."""
        return _cycle(range(len(self.axes) - 1, level - 1, -1), self.decoder_layers[level])

    def branch_rates(self, level: int) -> tuple[float, ...]:
        """How often the branches of each block of a decoder level are dropped in training."""
        before, every = sum(self.decoder_layers[:level]), sum(self.decoder_layers)
        depths = range(before + 1, before + self.decoder_layers[level] + 1)
        return tuple(self.stochastic_depth * depth / every for depth in depths)

    @property
    def plane_divisor(self) -> float:
        """What the encoder divides its input by."""
        return self.values - 1.0 if self.plane_scale is None else self.plane_scale

    def pass_flops(self) -> int:
        """One channel, or all of them where they are stacked."""
        width, count = self.width, len(self.axes)
        blocks = list(self.encoder_axes)
        each = width * self.values
        if self.encoder_layers:
            each += 3**count * 2 * self.channels * width
        for level in range(count):
            blocks += self.decoder_axes(level)
        if self.inner == "lstm":
            blocks.pop()
            each += 8 * width**2
        for axis in blocks:
            attended = 2 * self.plane_axes[axis] * width
            each += (4 + 2 * self.mlp_ratio) * width**2 + attended
        return 2 * math.prod(self.plane_axes) * each

    def parameters(self) -> int:
        width, hidden = self.width, self.mlp_ratio * self.width
        norm = 2 * width
        dense = 4 * width * (width + 1)
        feed_forward = hidden * (width + 1) + width * (hidden + 1)
        blocks = self.encoder_layers + sum(self.decoder_layers) - (self.inner == "lstm")
        total = blocks * (2 * norm + dense + feed_forward)
        total += (self.values + self.classes + self.variants - 1 + sum(self.plane_axes)) * width
        total += norm + self.values * (width + 1)
        if self.inner == "lstm":
            total += 8 * width * (width + 1)
        if self.encoder_layers:
            inputs = 3 ** len(self.axes) * 2 * self.channels
            total += width * (inputs + 1 + sum(self.axes))
        return total

    def _check_numbers(self) -> None:
        check_choices(self, inner=get_args(Inner), channel_mode=get_args(ChannelMode))
        check_heads(self.width, self.heads)
        scale = self.plane_scale
        if scale is not None and not 0 < scale < math.inf:
            raise ConfigError(f"plane_scale is {scale!r}: use a positive number, or None")

    def _check_layers(self) -> None:
        count = len(self.axes)
        if len(self.decoder_layers) != count:
            raise ConfigError(
                f"decoder_layers {self.decoder_layers} has {len(self.decoder_layers)} levels, but "
                f"axes {self.axes} need one per axis: give {count} numbers"
            )
        for level, layers in enumerate(self.decoder_layers[:-1]):
            if layers < count - level:
                raise ConfigError(
                    f"decoder_layers[{level}] is {layers}, fewer than one full cycle over "
                    f"{count - level} axes: use at least {count - level}"
                )
        if self.inner == "lstm" and self.decoder_layers[-1] != 1:
            raise ConfigError(
                f"the last of decoder_layers is {self.decoder_layers[-1]}, but an LSTM inner "
                f"decoder is a single layer: use 1"
            )
        if self.channel_mode != "encode" and self.encoder_layers:
            raise ConfigError(
                f"encoder_layers is {self.encoder_layers}, but channel_mode={self.channel_mode!r} "
                f"has no encoder: use 0"
            )
        if self.channel_mode == "encode" and self.channels > 1 and not self.encoder_layers:
            raise ConfigError(
                f"encoder_layers is 0, but {self.channels} channels one after another need an "
                f'encoder: use at least {count}, or channel_mode="rows" or "columns"'
            )
        if 0 < self.encoder_layers < count:
            raise ConfigError(
                f"encoder_layers is {self.encoder_layers}, fewer than one full cycle over "
                f"{count} axes: use at least {count}"
            )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Changes to the model of a preset. Default, for each: that of the preset."""

    width: int | None = None
    """Features per position."""
    heads: int | None = None
    """Attention heads."""
    layers: int | None = None
    """Blocks of a family that is one stack of them, such as full; of a slice decoder."""
    encoder_layers: int | None = None
    """Blocks of the channel encoder, or of a slice encoder."""
    decoder_layers: tuple[int, ...] | None = None
    """Blocks of each decoder level, one level per axis, slowest first."""
    mlp_ratio: int | None = None
    """Hidden features of the feed-forward layers, in multiples of the width."""
    inner: Inner | None = None
    """The inner decoder: attention blocks, or a single LSTM layer."""
    channel_mode: ChannelMode | None = None
    """Channels predicted one by one behind an encoder, or stacked into one larger grid."""
    dropout: float | None = None
    """Dropout rate of the residual branches of the decoder."""
    encoder_dropout: float | None = None
    """Dropout rate of the channel encoder, where it does harm: docs/training.md."""
    stochastic_depth: float | None = None
    """Rate at which the last residual branches of the decoder are dropped, whole; linearly lower
    for earlier ones."""
    augment: tuple[Augment, ...] | None = None
    """Train on transformed copies as well, each told to the model (conditional augmentation);
    scores and samples are of the examples themselves."""
    given_channels: int | None = None
    """Leading channels that are always known."""
    given_steps: int | None = None
    """Leading steps of axis 0 that are always known."""

    def __post_init__(self) -> None:
        if self.augment is not None:
            object.__setattr__(self, "augment", as_augment(self.augment))

    @property
    def given(self) -> dict[str, Any]:
        """What was asked for, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def applied(self, model: FamilyConfig) -> FamilyConfig:
        """The model with these sizes; layers that a variant does not have are left out."""
        wanted = dict(self.given)
        for name in wanted:
            if not hasattr(model, name):
                raise ConfigError(f"{name} is {wanted[name]}: this family of models has none")
        if not isinstance(model, ModelConfig):
            return replace(model, **wanted)
        if wanted.get("channel_mode", "encode") != "encode":
            wanted.setdefault("encoder_layers", 0)
        if wanted.get("inner") == "lstm":
            wanted.setdefault("decoder_layers", (*model.decoder_layers[:-1], 1))
        return replace(model, **wanted)


def _cycle(axes: range, layers: int) -> tuple[int, ...]:
    return tuple(axes[layer % len(axes)] for layer in range(layers))
