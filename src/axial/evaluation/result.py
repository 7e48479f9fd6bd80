"""What a model makes of a data set: the figures, the line that is printed, the JSON, the table."""

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from axial.data.batches import Indices
from axial.data.description import Description
from axial.data.packed import spread
from axial.system.files import errors_of, write_text
from axial.validation import Weights, counted


class Tiling(NamedTuple):
    """How pictures were cut into the examples that a model takes."""

    size: tuple[int, int]
    """Height and width of a tile."""
    tiles: int
    """How many there are, all disjoint."""
    pictures: int
    """Pictures they are of: those that are not smaller than a tile."""
    left_out: float
    """The share of all pixels that lie in no whole tile, so are not scored."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """What a model makes of a data set."""

    data: Description
    """What was scored: data set, version, split, hash."""
    index: Indices
    """Which of its examples."""
    bits: NDArray[np.float64]
    """Bits of each of these."""
    elements: int
    """Elements of one example that carry bits: all but the given ones."""
    per_channel: tuple[float | None, ...]
    """Bits/dim of each channel; None for a given one."""
    per_row: tuple[float | None, ...]
    """Bits/dim of each step of axis 0; None for a given one."""
    kind: str
    """What an example is called."""
    labels: bool
    """Whether the model was conditioned on the labels."""
    given: str | None
    """What the model was given of each example, in words."""
    precision: str
    """In what the model computed; sums are in float64 always."""
    batch: int
    """Examples scored together, on all ranks."""
    fingerprint: str | None
    """That of the model, where it was asked for."""
    weights: Weights = "ema"
    """Which of a run's weights were scored."""
    trained_on: str | None = None
    """The version of the data set that a run was trained on, where it is not that of the data."""
    label: int | str | None = None
    """The one class that every example was scored as, by number or by name."""
    summed: int = 0
    """Classes that were summed over, each as likely as any other, where none was known."""
    codecs: Mapping[str, float] = field(default_factory=dict)
    """Bits/dim that classical lossless codecs need for the same examples, where they were asked; of
    tiles, for the pictures they are of."""
    tiling: Tiling | None = None
    """How pictures were cut into these examples, where they were."""

    @property
    def bits_per_dim(self) -> float:
        """Mean over examples of the bits of an element that is not given."""
        return float(self.bits.mean()) / self.elements

    @property
    def standard_error(self) -> float | None:
        """Of `bits_per_dim`, over examples; None for a single one."""
        count = len(self.bits)
        if count < 2:
            return None
        return float(self.bits.std(ddof=1)) / math.sqrt(count) / self.elements

    def to_json(self) -> dict[str, Any]:
        """Every figure at full precision, but for those of single examples."""
        labels = self.data.labels if self.labels else None
        return {
            "bits_per_dim": self.bits_per_dim,
            "standard_error": self.standard_error,
            "bits": float(self.bits.sum()),
            "examples": len(self.bits),
            "elements": len(self.bits) * self.elements,
            "per_channel": self.per_channel,
            "per_row": self.per_row,
            "data": {
                "title": self.data.title,
                "split": self.data.split,
                "sha256": self.data.sha256,
                "examples": self.data.count,
                "beginning": self.data.beginning,
                "labels": labels.sha256 if labels else None,
            },
            "given_labels": self.labels,
            "label": self.label,
            "summed_classes": self.summed,
            "codecs": dict(self.codecs),
            "tiles": None if self.tiling is None else self.tiling._asdict(),
            "given": self.given,
            "precision": self.precision,
            "batch": self.batch,
            "fingerprint": self.fingerprint,
            "weights": self.weights,
            "trained_on": self.trained_on,
        }

    def __str__(self) -> str:
        error = self.standard_error
        given = f", {self.given}{',' * (error is not None)}" if self.given else ""
        spread = "" if error is None else f" +- {error:.4f}"
        about = [f"{self._examples()}, {self.data.title}"]
        about += [f"trained on {self.trained_on}"] if self.trained_on else []
        about += ["given labels"] if self.labels else []
        about += [] if self.label is None else [f"as class {self.label}"]
        about += [f"summed over {self.summed} classes"] if self.summed else []
        about += ["raw weights"] if self.weights == "raw" else []
        about += [] if self.precision == "float32" else [self.precision]
        return f"{self.bits_per_dim:.4f} bits/dim{given}{spread} ({', '.join(about)})"

    @property
    def comparison(self) -> str:
        """What codecs need for the same examples, in words; nothing where they were not asked."""
        if not self.codecs:
            return ""
        texts = ", ".join(f"{name} {bits:.4f}" for name, bits in self.codecs.items())
        if self.tiling is not None:
            return f"{texts} bits/dim on the whole pictures that the tiles are of, a file for each"
        same = f"the same {len(self.bits):,} {self.kind}s" if len(self.bits) > 1 else "the same one"
        return (
            f"{texts} bits/dim on {same}, {'a file for each' if len(self.bits) > 1 else 'a file'}"
        )

    def _repr_html_(self) -> str:
        """The same as a table, which a notebook shows."""
        rows = {"this model": (self.bits_per_dim, self.standard_error)}
        rows |= {name: (bits, None) for name, bits in self.codecs.items()}
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{bits:.4f}</td>"
            f"<td>{'' if error is None else f'&plusmn; {error:.4f}'}</td></tr>"
            for name, (bits, error) in rows.items()
        )
        head = "<tr><th></th><th>bits/dim</th><th></th></tr>"
        return f"<table><caption>{html.escape(str(self))}</caption>{head}{cells}</table>"

    def _examples(self) -> str:
        count, available = len(self.bits), self.data.count
        if self.tiling is not None:
            return self._tiles()
        cut = "first " * self.data.beginning
        every = counted(available, self.kind)
        if np.array_equal(np.sort(self.index), np.arange(available)):
            return f"{cut}{every}"
        first = "first " if np.array_equal(self.index, np.arange(count)) else ""
        even = ", evenly spread" if np.array_equal(self.index, spread(available, count)) else ""
        even *= count > 1 and not first
        return f"{first}{count:,} of {'the ' * bool(cut)}{cut}{every}{even}"

    def _tiles(self) -> str:
        """Which tiles of how many pictures, and how much of these is not scored."""
        assert self.tiling is not None
        (height, width), available, pictures, left_out = self.tiling
        count = len(self.bits)
        text = f"{counted(available, 'tile')} of {height} x {width}"
        of = f"{'the first ' * self.data.beginning}{counted(pictures, 'picture')}"
        if count < available:
            even = np.array_equal(self.index, spread(available, count))
            some = f" of {of}" * self.data.beginning
            return f"{count:,} of {text}{some}{', evenly spread' * even}"
        small = self.data.count - pictures
        smaller = f" and in {counted(small, 'smaller one')}" if small else ""
        return f"{text}, all of {of} but {left_out:.1%} at their edges{smaller}"


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Write a result in one step."""
    with errors_of(path):
        write_text(path, json.dumps(found, indent=2) + "\n")
