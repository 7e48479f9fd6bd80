"""How to draw and to complete: what a user may ask for, checked here, without torch."""

from dataclasses import dataclass
from typing import Literal

from axial.validation import Precision, as_integer, as_temperature

Method = Literal["cached", "semi-parallel", "naive"]


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How to draw."""

    count: int = 16
    """Number of samples; where examples are completed, of each example."""
    seed: int = 0
    """Random seed; the same seed, checkpoint, precision and batch size give the same pictures."""
    temperature: float = 1.0
    """Temperature: 1 samples the model itself; lower values favour likely values, 0 takes the
    likeliest."""
    method: Method = "cached"
    """Algorithm; all give the same pictures, but semi-parallel (the paper's) and naive are slow."""
    batch: int | None = None
    """Batch size, lowered if memory is short; default: 16 on a CPU, 64 on a GPU."""
    label: int | None = None
    """Class to draw, if the model has classes; default: the example's own, or each in turn."""
    precision: Precision | None = None
    """Precision of the model; default: float32 on a CPU, bfloat16 on a GPU."""

    overwrite: bool = False
    """Replace files that exist already."""

    def __post_init__(self) -> None:
        as_integer("count", self.count, at_least=1)
        for name, least in (("batch", 1), ("label", 0)):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, at_least=least)
        as_temperature(self.temperature)


@dataclass(frozen=True, kw_only=True)
class CompleteConfig:
    """What to keep, and how to continue it."""

    keep: int | None = None
    """Number of leading rows to keep, or of frames of a video."""
    keep_channels: int | None = None
    """Number of leading channels to keep: 1 draws green and blue given red."""
    particles: int = 1
    """Number of particles for each continuation; more come nearer to the exact conditional."""
    examples: int = 4
    """Number of examples of the source to continue."""
    frames: int | None = None
    """Number of frames of the result; default: the model's window. Beyond it, the window slides
    over what was drawn."""
    overlap: int | None = None
    """Number of frames that each further window keeps; default: half a window."""

    def __post_init__(self) -> None:
        for name in ("particles", "examples", "frames", "overlap"):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, at_least=1)
