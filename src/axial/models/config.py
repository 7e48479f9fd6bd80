"""The configuration of a model, and what is not possible: checked here, without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from axial.errors import ConfigError
from axial.shape import MOST_VALUES, DataShape
from axial.validation import as_float, as_integer, as_lengths, check_choices, from_json

Inner = Literal["attention", "lstm"]
ChannelMode = Literal["encode", "rows", "columns"]
_LEAST = {
    "channels": 1,
    "values": 2,
    "width": 1,
    "heads": 1,
    "encoder_layers": 0,
    "mlp_ratio": 1,
    "classes": 0,
    "given_channels": 0,
    "given_steps": 0,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """An Axial Transformer: the shape of its data, its sizes, its variants."""

    axes: tuple[int, ...]
    """Lengths of the grid, slowest first: height and width for an image."""
    channels: int = 1
    """Channels of each element; 3 for RGB, 3 * frames for a channel-stacked video."""
    values: int = 256
    """Number of values an element can take: x is in [0, values)."""
    width: int
    """Features per position, everywhere in the model."""
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
    classes: int = 0
    """Number of classes the model is conditioned on; 0 for an unconditional model."""
    dropout: float = 0.0
    """Dropout rate of the residual branches of the decoder."""
    encoder_dropout: float = 0.0
    """Dropout rate of the channel encoder, where it does harm: docs/training.md."""
    given_channels: int = 0
    """Leading channels that are always known: the model is p(the others | these)."""
    given_steps: int = 0
    """Leading steps of axis 0 that are always known, in every channel."""
    plane_scale: float | None = None
    """Divisor of the input planes of the encoder. Default: values - 1."""
    frames: int | None = None
    """Frames stacked in the channels, if the data says so; it changes no prediction."""

    def __post_init__(self) -> None:
        for name in ("axes", "decoder_layers"):
            object.__setattr__(self, name, as_lengths(name, getattr(self, name)))
        for name, least in _LEAST.items():
            object.__setattr__(self, name, as_integer(name, getattr(self, name), at_least=least))
        if self.frames is not None:
            object.__setattr__(self, "frames", as_integer("frames", self.frames, at_least=1))
        for name in ("dropout", "encoder_dropout"):
            object.__setattr__(self, name, as_float(name, getattr(self, name)))
        if self.plane_scale is not None:
            object.__setattr__(self, "plane_scale", as_float("plane_scale", self.plane_scale))
        self._check_numbers()
        self._check_layers()
        self._check_given()

    @property
    def data(self) -> DataShape:
        """The shape of what is modelled."""
        names = (field.name for field in fields(DataShape))
        return DataShape(**{name: getattr(self, name) for name in names})

    @property
    def plane_axes(self) -> tuple[int, ...]:
        """The grid the decoder works on: `axes`, grown by the channels where they are stacked."""
        if self.channel_mode == "rows":
            return (self.channels * self.axes[0], *self.axes[1:])
        if self.channel_mode == "columns":
            return (*self.axes[:-1], self.axes[-1] * self.channels)
        return self.axes

    @property
    def planes(self) -> int:
        """How many passes of the decoder score one example: 1 where channels are stacked."""
        return self.channels if self.channel_mode == "encode" else 1

    @property
    def encoder_axes(self) -> tuple[int, ...]:
        """The axis each block of the encoder attends along: all in turn, fastest first."""
        return _cycle(range(len(self.axes) - 1, -1, -1), self.encoder_layers)

    def decoder_axes(self, level: int) -> tuple[int, ...]:
        """The axis each block of a decoder level attends along; masked if it is `level` itself."""
        return _cycle(range(len(self.axes) - 1, level - 1, -1), self.decoder_layers[level])

    @property
    def plane_divisor(self) -> float:
        """What the encoder divides its input by."""
        return self.values - 1.0 if self.plane_scale is None else self.plane_scale

    @property
    def elements(self) -> int:
        """Elements of one example that carry bits: all but the given ones."""
        steps = (self.axes[0] - self.given_steps) * math.prod(self.axes[1:])
        return steps * (self.channels - self.given_channels)

    def to_json(self) -> dict[str, Any]:
        """Describe this configuration in plain JSON values.

        Fields that came later stand there only where they say something: fingerprints older than
        them stay valid.
        """
        found = asdict(self)
        for name in ("frames", "encoder_dropout"):
            if not found[name]:
                del found[name]
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The configuration `to_json` described; unknown names are refused."""
        return from_json(cls, values, "model config")

    def _check_numbers(self) -> None:
        if not self.axes:
            raise ConfigError("axes is empty: name the length of at least one axis, as in (32, 32)")
        check_choices(self, inner=get_args(Inner), channel_mode=get_args(ChannelMode))
        check_heads(self.width, self.heads)
        if self.values > MOST_VALUES:
            raise ConfigError(f"values is {self.values}: use at most {MOST_VALUES}")
        for name in ("dropout", "encoder_dropout"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {rate!r}: use a number from 0 up to below 1")
        if self.frames is not None and self.channels % self.frames:
            raise ConfigError(
                f"frames is {self.frames}, but {self.channels} channels do not split into as "
                f"many: use a number that divides them, or None"
            )
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

    def _check_given(self) -> None:
        if self.given_channels >= self.channels:
            raise ConfigError(
                f"given_channels is {self.given_channels} of {self.channels}: leave at least one "
                f"channel to model"
            )
        if self.given_steps >= self.axes[0]:
            raise ConfigError(
                f"given_steps is {self.given_steps} of {self.axes[0]} along axis 0: leave at "
                f"least one step to model"
            )
        # Without an encoder only a prefix of the prediction order can be known to all the rest.
        stacked = self.channel_mode != "encode" and self.channels > 1
        name = "given_channels" if self.channel_mode == "columns" else "given_steps"
        if stacked and getattr(self, name):
            raise ConfigError(
                f"{name} is {getattr(self, name)}, which channel_mode={self.channel_mode!r} cannot "
                f'show to the elements predicted before them: use channel_mode="encode"'
            )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Changes to the model of a preset. Default, for each: that of the preset."""

    width: int | None = None
    """Features per position."""
    heads: int | None = None
    """Attention heads."""
    encoder_layers: int | None = None
    """Blocks of the channel encoder."""
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
    given_channels: int | None = None
    """Leading channels that are always known."""
    given_steps: int | None = None
    """Leading steps of axis 0 that are always known."""

    @property
    def given(self) -> dict[str, Any]:
        """What was asked for, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def applied(self, model: ModelConfig) -> ModelConfig:
        """The model with these sizes; layers that a variant does not have are left out."""
        wanted = dict(self.given)
        if wanted.get("channel_mode", "encode") != "encode":
            wanted.setdefault("encoder_layers", 0)
        if wanted.get("inner") == "lstm":
            wanted.setdefault("decoder_layers", (*model.decoder_layers[:-1], 1))
        return replace(model, **wanted)


def check_heads(width: int, heads: int) -> None:
    """Refuse heads that do not split the width evenly."""
    if heads < 1 or width % heads:
        fits = [count for count in range(1, min(width, 64) + 1) if width % count == 0]
        raise ConfigError(f"width {width} does not split into {heads} heads: use one of {fits}")


def _cycle(axes: range, layers: int) -> tuple[int, ...]:
    return tuple(axes[layer % len(axes)] for layer in range(layers))
