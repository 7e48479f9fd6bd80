"""What a model and its training are made of, and what cannot be: checked here, without torch."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from axial.errors import ConfigError

Inner = Literal["attention", "lstm"]
ChannelMode = Literal["encode", "rows", "columns"]
Optimizer = Literal["adam", "adamw", "muon"]
Schedule = Literal["constant", "cosine", "trapezoid"]
Precision = Literal["float32", "bfloat16"]
HoldOut = Literal["spread", "last"]
Embeddings = Literal["random", "smooth"]
_Config = TypeVar("_Config", "ModelConfig", "TrainConfig")

MOST_VALUES = 1 << 16
"""More than that many values no model tells apart."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a preset has to know about the data it will model."""

    axes: tuple[int, ...]
    """Lengths of the grid, slowest first: height and width for an image."""
    channels: int = 1
    """Channels of each element; 3 for RGB, 3 * frames for a channel-stacked video."""
    values: int = 256
    """How many values an element can take."""
    classes: int = 0
    """How many labels there are; 0 for unlabelled data."""
    frames: int | None = None
    """Frames that lie in the channels; unless told, 6, 9, 12 ... of a picture are RGB frames."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", _as_lengths("axes", self.axes))

    @property
    def stacked_frames(self) -> int:
        """Frames that lie in the channels, one after another; 1 where they hold no video."""
        if self.frames is not None:
            return self.frames
        rgb = len(self.axes) == 2 and self.channels > 3 and self.channels % 3 == 0
        return self.channels // 3 if rgb else 1

    @property
    def window(self) -> int | None:
        """Frames of a clip, or steps of a volume's slowest axis; None for pictures and lines."""
        if self.stacked_frames > 1:
            return self.stacked_frames
        return self.axes[0] if len(self.axes) > 2 else None

    @property
    def frame_channels(self) -> int:
        """Channels of one frame."""
        return self.channels // self.stacked_frames

    def lasting(self, frames: int) -> "DataShape":
        """The same with clips of another length."""
        if self.stacked_frames > 1:
            return replace(self, channels=frames * self.frame_channels, frames=frames)
        return replace(self, axes=(frames, *self.axes[1:]))

    def frames_at(self, start: int, stop: int) -> tuple[Any, ...]:
        """Where frames `start` to `stop` lie in clips (b, *axes, c) of any length: an index."""
        if self.stacked_frames > 1:
            return (..., slice(start * self.frame_channels, stop * self.frame_channels))
        return (slice(None), slice(start, stop))

    def frames_in(self, clips: Sequence[int]) -> int:
        """How many frames clips of a shape (b, *axes, c) have."""
        return clips[-1] // self.frame_channels if self.stacked_frames > 1 else clips[1]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """An Axial Transformer: the data it models, its sizes, its variants."""

    axes: tuple[int, ...]
    """Lengths of the grid, slowest first: height and width for an image."""
    channels: int = 1
    """Channels of each element; 3 for RGB, 3 * frames for a channel-stacked video."""
    values: int = 256
    """How many values an element can take: x is in [0, values)."""
    width: int
    """Features of each position, everywhere in the model."""
    heads: int
    """Attention heads; they split the width into equal consecutive slices."""
    encoder_layers: int
    """Unmasked blocks over the channels already known; 0 leaves the encoder out."""
    decoder_layers: tuple[int, ...]
    """Blocks of each decoder level, one level per axis, slowest first."""
    mlp_ratio: int = 1
    """Hidden features of the feed-forward layers, in multiples of the width."""
    inner: Inner = "attention"
    """What runs along the last axis: masked attention blocks, or a single LSTM layer."""
    channel_mode: ChannelMode = "encode"
    """Channels one after another behind an encoder, or stacked into one larger grid."""
    classes: int = 0
    """Labels the model is conditioned on; 0 for an unconditional model."""
    dropout: float = 0.0
    """Share of each residual branch dropped in training."""
    given_channels: int = 0
    """Leading channels that are always known: the model is p(the others | these)."""
    given_steps: int = 0
    """Leading steps of axis 0 that are always known, in every channel."""
    plane_scale: float | None = None
    """Divisor of the encoder's input planes; None means values - 1."""
    frames: int | None = None
    """Frames that lie in the channels, where the data told; it changes no prediction."""

    def __post_init__(self) -> None:
        for name in ("axes", "decoder_layers"):
            object.__setattr__(self, name, _as_lengths(name, getattr(self, name)))
        for name, least in _LEAST.items():
            object.__setattr__(self, name, as_integer(name, getattr(self, name), at_least=least))
        if self.frames is not None:
            object.__setattr__(self, "frames", as_integer("frames", self.frames, at_least=1))
        object.__setattr__(self, "dropout", as_float("dropout", self.dropout))
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

        Frames stand there only where they are told: fingerprints older than the field stay valid.
        """
        found = asdict(self)
        if self.frames is None:
            del found["frames"]
        return found

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The configuration `to_json` described; unknown names are refused."""
        return _from_json(cls, values, "model config")

    def _check_numbers(self) -> None:
        if not self.axes:
            raise ConfigError("axes is empty: name the length of at least one axis, as in (32, 32)")
        _check_choices(self, inner=get_args(Inner), channel_mode=get_args(ChannelMode))
        check_heads(self.width, self.heads)
        if self.values > MOST_VALUES:
            raise ConfigError(f"values is {self.values}: use at most {MOST_VALUES}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout!r}: use a number from 0 up to below 1")
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
class TrainConfig:
    """How a model is trained; the defaults are the modern recipe, for a GPU or a CPU."""

    steps: int
    """Updates of the weights in the whole run."""
    batch: int
    """Examples of one update, over all ranks together."""
    learning_rate: float
    """Step size at its highest."""
    seed: int = 0
    """Starts the weights, the order of the data, its flips, the channels and the dropout."""
    embeddings: Embeddings = "random"
    """How those of values and positions start: drawn as the authors do, or as waves, by which
    near ones look alike."""
    optimizer: Optimizer = "adamw"
    """Adam as the authors use it; AdamW, which decays matrices; Muon in blocks, AdamW elsewhere."""
    beta2: float = 0.95
    """Decay of the second moment; the authors' Adam has 0.999."""
    weight_decay: float = 0.01
    """What AdamW and Muon take off the matrices, times the learning rate; Adam takes nothing."""
    schedule: Schedule = "cosine"
    """After the warm-up: constant as the authors, down to zero along a cosine, or constant for half
    of the time and then straight to zero."""
    warmup: int = 200
    """Updates over which the learning rate rises linearly."""
    clip: float = 1.0
    """Longest gradient, of a loss in bits/dim; a longer one is shortened to it."""
    ema: float | None = None
    """Decay of the averaged weights; unless told, their horizon is a tenth of the run."""
    ema_warmup: bool = True
    """Average over fewer steps in the beginning: the decay is at most (1 + t) / (10 + t)."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after another, to fit memory."""
    recompute: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    flip: bool = False
    """Mirror examples at random along the last axis."""
    labels: bool = True
    """Condition the model on labels where the data has them."""
    validation: int | None = None
    """Examples held out of the data; unless told a twentieth, at most 16 batches."""
    hold_out: HoldOut = "spread"
    """Which: spread evenly over the file, as it may be sorted, or its last ones."""
    precision: Precision | None = None
    """Unless told, bfloat16 autocast on a GPU and float32 on a CPU."""
    compile: bool | None = None
    """Unless told, torch.compile on a GPU and not on a CPU."""
    record: bool = True
    """On one GPU, if memory allows and there is no LSTM: replay a recorded step."""
    log_every: int = 10
    """Updates from one line of the log to the next."""
    save_every: int = 500
    """Updates from one checkpoint to the next: what a crash can cost at most."""
    validate_every: int = 500
    """Updates from one scoring of the held-out examples to the next."""
    sample_every: int = 2000
    """Updates from one sheet of samples to the next; 0 draws only at the end."""
    keep: int = 2
    """Checkpoints that stay; the best weights stay anyway."""
    bad_steps: int = 1
    """Updates in a row that may be not finite: each is skipped and counted, one more ends it."""

    def __post_init__(self) -> None:
        for name, least in _LEAST_TRAINING.items():
            value = getattr(self, name)
            if value is not None or name != "validation":
                below = 1 << 64 if name == "seed" else 1 << 31
                value = as_integer(name, value, at_least=least, below=below)
                object.__setattr__(self, name, value)
        for name in ("ema_warmup", "recompute", "flip", "labels", "compile", "record"):
            allowed = (bool, type(None)) if name == "compile" else (bool,)
            if not isinstance(getattr(self, name), allowed):
                raise ConfigError(f"{name} is {getattr(self, name)!r}: use True or False")
        for name in ("learning_rate", "beta2", "weight_decay", "clip", "ema"):
            value = getattr(self, name)
            if value is not None or name != "ema":
                object.__setattr__(self, name, as_float(name, value))
        _check_choices(self, optimizer=get_args(Optimizer), schedule=get_args(Schedule))
        _check_choices(self, precision=(None, *get_args(Precision)), hold_out=get_args(HoldOut))
        _check_choices(self, embeddings=get_args(Embeddings))
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: use a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}: use 0 or a positive number")
        for name in ("beta2", "ema"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name} is {value}: use a number from 0 up to below 1")

    def rate_at(self, step: int) -> float:
        """The learning rate of an update, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        share = {
            "constant": 1.0,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "trapezoid": min(1.0, 2 * (1 - done)),
        }
        return self.learning_rate * share[self.schedule]

    def ema_at(self, step: int) -> float:
        """How much of the averaged weights stays at an update, counted from 0."""
        decay = max(0.0, 1 - 10 / self.steps) if self.ema is None else self.ema
        return min(decay, (1 + step) / (10 + step)) if self.ema_warmup else decay

    def held_out(self, examples: int) -> int:
        """How many of the data's examples are kept for validation."""
        if self.validation is None:
            return min(examples // 20, 16 * self.batch)
        if self.validation >= examples:
            raise ConfigError(
                f"validation is {self.validation} of {examples} examples: leave some to train on"
            )
        return self.validation

    def to_json(self) -> dict[str, Any]:
        """Describe this configuration in plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The configuration `to_json` described; unknown names are refused."""
        return _from_json(cls, values, "training config")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a user may change of a preset's model."""

    width: int | None = None
    """Features of each position."""
    heads: int | None = None
    """Attention heads."""
    encoder_layers: int | None = None
    """Blocks of the channel encoder."""
    decoder_layers: tuple[int, ...] | None = None
    """Blocks of each decoder level, one level per axis, slowest first."""
    mlp_ratio: int | None = None
    """Hidden features of the feed-forward layers, in multiples of the width."""
    inner: Inner | None = None
    """What runs along the last axis: attention blocks, or a single LSTM layer."""
    channel_mode: ChannelMode | None = None
    """Channels one after another behind an encoder, or stacked into one larger grid."""
    dropout: float | None = None
    """Share of each residual branch dropped in training."""
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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a preset says: a model fitted to the data, and how to train it."""

    model: ModelConfig
    """Sizes and variants."""
    training: TrainConfig
    """Optimizer, schedule, and how often to look."""
    source: str | None = None
    """Data that comes with the package; without it the user names some."""


Method = Literal["cached", "semi-parallel", "naive"]


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How to draw."""

    count: int = 16
    """How many to draw; of each example, where examples are completed."""
    seed: int = 0
    """The same seed, checkpoint, precision and batch size give the same pictures."""
    temperature: float = 1.0
    """1 draws from the model itself; lower is safer and less varied, 0 the likeliest value."""
    method: Method = "cached"
    """All give the same pictures; the paper's semi-parallel and the naive one are slow."""
    batch: int | None = None
    """How many to draw at a time, if memory allows; 16 on a CPU and 64 on a GPU unless told."""
    label: int | None = None
    """Of a model with classes, draw this one; unless told, an example's own, or each in turn."""
    precision: Precision | None = None
    """What the model computes in; float32 on a CPU and bfloat16 on a GPU unless told."""

    def __post_init__(self) -> None:
        as_integer("count", self.count, at_least=1)
        if self.batch is not None:
            as_integer("batch", self.batch, at_least=1)
        as_temperature(self.temperature)


@dataclass(frozen=True, kw_only=True)
class CompleteConfig:
    """What to keep, and how to continue it."""

    keep: int | None = None
    """Leading rows to keep, or frames of a video."""
    keep_channels: int | None = None
    """Leading channels to keep: 1 draws green and blue from red."""
    candidates: int = 1
    """Versions of each continuation to carry through the channels."""
    examples: int = 4
    """How many examples of the source to continue."""
    frames: int | None = None
    """Frames a clip is to have in the end, as many as the model's window unless told; beyond
    it, the window slides over what was drawn."""
    overlap: int | None = None
    """Frames that each further window keeps of what there is; half of it unless told."""

    def __post_init__(self) -> None:
        for name in ("candidates", "examples", "frames", "overlap"):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, at_least=1)


_HOTTEST = 1e300
"""Times the noise of a value, a higher temperature would be no number."""
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


_LEAST_TRAINING = {
    "steps": 1,
    "batch": 1,
    "seed": 0,
    "warmup": 0,
    "accumulate": 1,
    "validation": 0,
    "log_every": 1,
    "save_every": 1,
    "validate_every": 1,
    "sample_every": 0,
    "keep": 1,
    "bad_steps": 0,
}


def check_heads(width: int, heads: int) -> None:
    """Refuse heads that do not split the width evenly."""
    if heads < 1 or width % heads:
        fits = [count for count in range(1, min(width, 64) + 1) if width % count == 0]
        raise ConfigError(f"width {width} does not split into {heads} heads: use one of {fits}")


def _cycle(axes: range, layers: int) -> tuple[int, ...]:
    return tuple(axes[layer % len(axes)] for layer in range(layers))


def as_integer(name: str, value: Any, *, at_least: int, below: int = 1 << 31) -> int:
    """The value as a plain int, numpy's included; refused unless whole and within its range."""
    try:
        number = operator.index(value)
    except TypeError:
        number = at_least - 1
    if isinstance(value, bool) or not at_least <= number < below:
        shown = repr(value) if len(repr(value)) < 40 else f"{repr(value)[:36]} ..."
        what = f"of at least {at_least}" if number < at_least else f"below {below}"
        raise ConfigError(f"{name} is {shown}: use whole numbers {what}")
    return number


def _as_lengths(name: str, lengths: Any) -> tuple[int, ...]:
    if not isinstance(lengths, tuple | list):
        raise ConfigError(f"{name} is {lengths!r}: give one whole number for each axis")
    return tuple(as_integer(name, length, at_least=1) for length in lengths)


def as_float(name: str, value: Any) -> float:
    """The value as a plain float, numpy's included; refused unless it is one number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(operator.mul(value, 1.0))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"{name} is {value!r}: use a number") from error


def as_temperature(value: Any) -> float:
    """What logits are divided by; 0 for the likeliest value."""
    temperature = as_float("temperature", value)
    if not 0 <= temperature <= _HOTTEST:
        raise ConfigError(
            f"temperature is {temperature}: use 0 (argmax) or a positive number up to {_HOTTEST}"
        )
    return temperature


def _check_choices(config: object, **choices: tuple[str | None, ...]) -> None:
    for name, known in choices.items():
        check_choice(name, getattr(config, name), known)


def check_choice(name: str, value: object, known: Sequence[str | None]) -> None:
    """Refuse what is none of some words."""
    if value not in known:
        shown = ", ".join(choice for choice in known if choice)
        raise ConfigError(f"{name} is {value!r}: use one of {shown}")


def _from_json(kind: type[_Config], values: Mapping[str, Any], what: str) -> _Config:
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"{what}: {unknown[0]!r} is not a setting of this version; upgrade axial-transformers"
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error
