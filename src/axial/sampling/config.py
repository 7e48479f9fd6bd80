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
    """Logits are divided by it: 1 samples the model itself, lower values prefer the likeliest
    value of each element, 0 takes it. What is likely may be dull: below 1, models of dark pictures
    draw darker ones."""
    method: Method = "cached"
    """Algorithm; all give the same pictures, but semi-parallel (the paper's) and naive are slow."""
    batch: int | None = None
    """Batch size, lowered if memory is short; default: up to 16 on a CPU and 64 on a GPU, as few as
    are drawn in float32, and always that many in bfloat16, where a picture depends on it."""
    label: tuple[str, ...] | None = None
    """Classes to draw, in turn, by name or number; `all` is every one; default: the example's own,
    or all."""
    precision: Precision | None = None
    """Precision of the model; default: float32 on a CPU, bfloat16 on a GPU."""

    overwrite: bool = False
    """Replace files that exist already."""

    def __post_init__(self) -> None:
        as_integer("count", self.count, at_least=1)
        if self.batch is not None:
            as_integer("batch", self.batch, at_least=1)
        as_temperature(self.temperature)


@dataclass(frozen=True, kw_only=True)
class CompleteConfig:
    """What to keep, and how to continue it."""

    keep: int | None = None
    """Number of leading rows to keep, or of frames of a video."""
    keep_channels: int | None = None
    """Number of leading channels to keep: of RGB, 1 keeps red and draws green and blue. To
    colourise grey pictures, train a model of grey and colour: docs/sampling.md."""
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
