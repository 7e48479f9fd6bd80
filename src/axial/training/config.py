"""The configuration of a training run, and a recipe: a model and its training. No torch here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig
from axial.validation import (
    Precision,
    as_float,
    as_integer,
    as_lengths,
    check_choices,
    from_json,
    shown,
)

Optimizer = Literal["adam", "adamw", "muon"]
Schedule = Literal["constant", "cosine", "trapezoid"]
HoldOut = Literal["spread", "last"]
Embeddings = Literal["random", "smooth"]
_RENAMED = {
    "clip": "grad_clip",
    "accumulate": "grad_accum",
    "recompute": "activation_checkpointing",
    "record": "cuda_graph",
    "keep": "keep_checkpoints",
}
"""What fields were called in runs that were started before they had these names."""
_LEAST_TRAINING = {
    "steps": 1,
    "batch": 1,
    "seed": 0,
    "warmup": 0,
    "grad_accum": 1,
    "validation": 0,
    "log_every": 1,
    "save_every": 1,
    "validate_every": 1,
    "sample_every": 0,
    "keep_checkpoints": 1,
    "bad_steps": 0,
}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the defaults are the modern recipe, for a GPU or a CPU."""

    steps: int
    """Number of updates, unless --max-minutes ends the run."""
    batch: int
    """Examples per update, over all ranks."""
    learning_rate: float
    """Peak learning rate."""
    max_minutes: float | None = None
    """Stop after this much training time instead of after --steps; the schedule follows the clock.
    Validation and checkpoints count; compilation (the first step) and samples do not."""
    seed: int = 0
    """Seed of the weights, the order of the data, flips, variants, channels and dropout."""
    embeddings: Embeddings = "random"
    """Initial embeddings of values and positions: random as the authors', or smooth waves, so that
    near values look alike."""
    optimizer: Optimizer = "adamw"
    """The authors' Adam; AdamW, which decays matrices; or Muon in blocks and AdamW elsewhere."""
    beta2: float = 0.95
    """Decay of Adam's second moment; the authors use 0.999."""
    weight_decay: float = 0.01
    """Weight decay of matrices, times the learning rate; not used by adam."""
    schedule: Schedule = "cosine"
    """Learning rate after the warm-up: constant, a cosine to zero, or constant for half of the run
    and then linear to zero."""
    warmup: int = 200
    """Updates of linear warm-up."""
    grad_clip: float = 1.0
    """Gradient norm is clipped to this; the loss is in bits/dim."""
    ema: float | None = None
    """Decay of the EMA of the weights; default: set by --ema-horizon."""
    ema_horizon: float = 0.1
    """Horizon of the EMA as a share of the run; ignored with --ema."""
    ema_warmup: bool = True
    """Shorter EMA at the start: the decay is at most (1 + t) / (10 + t) at step t."""
    grad_accum: int = 1
    """Number of micro-batches a batch is split into (gradient accumulation)."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    flip: bool = False
    """Flip examples at random along the last axis."""
    untransformed: float = 0.5
    """With --augment, the share of examples that stay as they are; all other variants are alike."""
    crop: tuple[int, ...] | None = None
    """Train on random crops of larger pictures: N x N, or height and width. Default: on whole
    examples; on crops of 64 x 64 where sizes differ."""
    skip_small: bool = False
    """Leave out pictures that are smaller than --crop."""
    labels: bool = True
    """Condition on labels where the data has them."""
    validation: int | None = None
    """Number of held-out examples; default: a twentieth, at most 16 batches. With --crop a
    twentieth of the pictures is held out, and so many of their tiles are scored."""
    hold_out: HoldOut = "spread"
    """Which examples to hold out: evenly spread over the file, or the last ones."""
    precision: Precision | None = None
    """Default: bfloat16 autocast on a GPU, float32 on a CPU."""
    compile: bool | None = None
    """Use torch.compile; default: on a GPU only."""
    cuda_graph: bool = True
    """Replay each step as a CUDA graph: on one GPU, if memory allows, without an LSTM."""
    log_every: int = 10
    """Updates between lines of the log."""
    save_every: int = 500
    """Updates between checkpoints: the most a crash can cost."""
    validate_every: int = 500
    """Updates between evaluations on the held-out examples."""
    sample_every: int = 2000
    """Updates between sheets of samples; 0 draws only at the end."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep; the best weights are kept anyway."""
    bad_steps: int = 1
    """Non-finite updates in a row that are skipped and counted; one more stops the run."""

    def __post_init__(self) -> None:
        for name, least in _LEAST_TRAINING.items():
            value = getattr(self, name)
            if value is not None or name != "validation":
                below = 1 << 64 if name == "seed" else 1 << 31
                value = as_integer(name, value, at_least=least, below=below)
                object.__setattr__(self, name, value)
        for name in (
            "ema_warmup",
            "activation_checkpointing",
            "flip",
            "skip_small",
            "labels",
            "compile",
            "cuda_graph",
        ):
            allowed = (bool, type(None)) if name == "compile" else (bool,)
            if not isinstance(getattr(self, name), allowed):
                raise ConfigError(f"{name} is {getattr(self, name)!r}: use True or False")
        optional = ("ema", "max_minutes")
        for name in (
            "learning_rate",
            "beta2",
            "weight_decay",
            "grad_clip",
            "ema_horizon",
            "untransformed",
            *optional,
        ):
            value = getattr(self, name)
            if value is not None or name not in optional:
                object.__setattr__(self, name, as_float(name, value))
        check_choices(self, optimizer=get_args(Optimizer), schedule=get_args(Schedule))
        check_choices(self, precision=(None, *get_args(Precision)), hold_out=get_args(HoldOut))
        check_choices(self, embeddings=get_args(Embeddings))
        if self.crop is not None:
            object.__setattr__(self, "crop", _height_and_width(self.crop))
        for name in ("learning_rate", "grad_clip", "ema_horizon", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}: use a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}: use 0 or a positive number")
        if not 0 < self.untransformed <= 1:
            raise ConfigError(
                f"untransformed is {self.untransformed}: use a number above 0 up to 1"
            )
        for name in ("beta2", "ema"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name} is {value}: use a number from 0 up to below 1")

    def held_out(self, examples: int) -> int:
        """How many of the data's examples are kept for validation."""
        if self.validation is None:
            return min(examples // 20, 16 * self.batch)
        if self.validation >= examples:
            raise ConfigError(
                f"validation is {self.validation} of {examples} examples: leave some to train on"
            )
        return self.validation

    def held_out_pictures(self, pictures: int) -> int:
        """How many of the pictures that crops are cut from are kept for validation, whole."""
        if self.validation == 0 or (self.validation is None and pictures == 1):
            return 0
        if pictures == 1:
            raise ConfigError(
                f"validation is {self.validation}, but crops are cut from one picture: use 0"
            )
        return min(max(1, pictures // 20), self.held_out_tiles)

    @property
    def held_out_tiles(self) -> int:
        """How many tiles of held-out pictures are scored at most."""
        return 16 * self.batch if self.validation is None else self.validation

    def to_json(self) -> dict[str, Any]:
        """Describe this configuration in plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The configuration `to_json` described; unknown names are refused, older ones known."""
        values = {_RENAMED.get(name, name): value for name, value in values.items()}
        return from_json(cls, values, "training config")


def _height_and_width(crop: Any) -> tuple[int, int]:
    """The size of a crop: one number for a square, or two."""
    sides = as_lengths("crop", crop if isinstance(crop, tuple | list) else (crop,))
    if len(sides) not in (1, 2):
        raise ConfigError(f"crop is {shown(crop)}: give one number, or a height and a width")
    return sides[0], sides[-1]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a preset returns: a model for the data, and how to train it."""

    model: FamilyConfig
    """Sizes and variants."""
    training: TrainConfig
    """Optimizer, schedule, and how often to log, validate and save."""
    source: str | None = None
    """Data that comes with the package; None: the user names the data."""
    stack_frames: bool = False
    """Fold the time of clips into their channels, as the paper does."""


Preset = Callable[..., Recipe]
"""From the shape of the data to a recipe for it; without one, for the data it is made for."""
