"""What to score, and what to write: the options of `axial evaluate`; imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from axial.errors import ConfigError
from axial.validation import Precision, Weights, as_integer


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What to score, how, and what to write."""

    data: str | None = None
    """A packed .npy file, or any source that `axial data` takes; default: the test split of what
    the run was trained on."""
    weights: Weights = "ema"
    """The EMA weights of a run, or the raw weights."""
    json: Path | None = None
    """Write all figures at full precision, also by channel and by row. Progress is kept beside
    this file, and repeating an interrupted command resumes it."""
    map: Path | None = None
    """Write a .png of a few examples and of where their bits go."""
    per_example: Path | None = None
    """Write the bits of each example to this .npy file."""
    resume: Path | None = None
    """Keep the progress in this file; default: beside the --json file."""
    batch: int | None = None
    """Examples scored together, over all ranks; default: what fits memory."""
    precision: Precision = "float32"
    """Precision of the model. Sums are always in float64."""
    limit: int | None = None
    """Score only N examples, evenly spread over the data, and say so."""
    first: int | None = None
    """Score only the first N examples, and say so; no more of a source is read."""
    label: str | None = None
    """Score every example as this class, by name or number; `all` sums over the classes. Default:
    the labels of the data, or where it has none the exact sum over the classes, each as likely."""
    compare: bool = True
    """Whether to measure PNG, WebP and, where imagecodecs is installed, JPEG XL on the same
    examples; --no-compare leaves them out."""
    overwrite: bool = False
    """Replace files that exist already."""

    def __post_init__(self) -> None:
        for name in ("batch", "limit", "first"):
            if (value := getattr(self, name)) is not None:
                as_integer(name, value, at_least=1)
        if self.limit is not None and self.first is not None:
            raise ConfigError("give --limit or --first, but not both")

    @property
    def partial(self) -> Path | None:
        """Where progress is kept, if anywhere."""
        if self.resume is None and self.json is not None:
            return self.json.with_name(f"{self.json.name}.partial")
        return self.resume
