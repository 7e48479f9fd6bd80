"""The rows of the comparison of recipes: each one change of another.

Those that `trapezoid` is the parent of vary what was the best when they were run; those of
`combined` ask what keeps longer runs and larger models from learning images by heart.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from axial.models.config import ModelConfig
from axial.shape import DataShape
from axial.training.config import Embeddings, Recipe, Schedule, TrainConfig
from axial.variants import Augment

HELD_OUT = 5000
"""Training images that rows are compared on: the last ones."""
VALIDATE_EVERY = 4000
"""Steps: scoring all of them takes as long as some 200."""
FINAL = "combined"
"""The best of them: the preset `cifar10`, and the recipe of the model that ships."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that rows vary; the defaults are the preset `cifar10` as it was before this comparison.

    They are written out, as the preset follows what is found here.
    """

    width: int = 512
    heads: int = 8
    layers: tuple[int, int, int] = (4, 4, 4)
    """Of the encoder, the outer and the inner decoder."""
    inner: Literal["attention", "lstm"] = "attention"
    mlp_ratio: int = 2
    norm: Literal["layer", "rms"] = "layer"
    embeddings: Embeddings = "random"
    dropout: float = 0.0
    """In the encoder too."""
    decoder_dropout: float = 0.0
    stochastic_depth: float = 0.0
    labels: bool = False
    flip: bool = True
    augment: tuple[Augment, ...] = ()
    untransformed: float = 0.5
    batch: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup: int = 300
    schedule: Schedule = "cosine"
    beta2: float = 0.95
    weight_decay: float = 0.01
    averaged_over: float = 0.1
    """What share of the run the averaged weights reach back."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Setting":
        """What a run wrote of its own, without what no row varies any more."""
        known = {field.name for field in fields(cls)} & found.keys()
        values: dict[str, Any] = {name: found[name] for name in known}
        values |= {name: tuple(values[name]) for name in ("layers", "augment") if name in values}
        return cls(**values)

    def model(self, shape: DataShape) -> ModelConfig:
        """The model for CIFAR-10, or for pictures of any other shape."""
        told = shape if self.labels else replace(shape, classes=0)
        return ModelConfig(
            **asdict(told),
            width=self.width,
            heads=self.heads,
            encoder_layers=self.layers[0],
            decoder_layers=self.layers[1:],
            inner=self.inner,
            mlp_ratio=self.mlp_ratio,
            dropout=self.decoder_dropout or self.dropout,
            encoder_dropout=self.dropout,
            stochastic_depth=self.stochastic_depth,
            augment=self.augment,
        )

    def recipe(self, shape: DataShape, *, seed: int) -> Recipe:
        """What `axial.train` takes."""
        kept = {field.name for field in fields(TrainConfig)} & asdict(self).keys()
        values: dict[str, Any] = {name: getattr(self, name) for name in kept}
        values |= {"steps": 1, "ema_horizon": self.averaged_over, "seed": seed}
        values |= {"validation": HELD_OUT, "hold_out": "last", "sample_every": 0}
        values |= {"validate_every": VALIDATE_EVERY, "save_every": VALIDATE_EVERY}
        return Recipe(model=self.model(shape), training=TrainConfig(**values))


@dataclass(frozen=True)
class Row:
    """One run of the comparison: what it changes, and against which other row."""

    changes: dict[str, Any]
    parent: str | None = "trapezoid"
    about: str = ""


ROWS = {
    # Half the authors' 8/8/4 layers, with heads of 128 as theirs. Their warm-up and averaging reach
    # over 5,000 and 20,000 of 200,000 steps; here it is as large a share of some 8,000.
    "paper": Row(
        {
            "width": 640,
            "heads": 5,
            "layers": (4, 4, 2),
            "mlp_ratio": 1,
            "dropout": 0.04,
            "flip": False,
            "optimizer": "adam",
            "learning_rate": 1e-4,
            "warmup": 200,
            "schedule": "constant",
            "beta2": 0.999,
            "weight_decay": 0.0,
        },
        parent=None,
        about="the paper's ImageNet32 recipe at the size of the others (it never trained CIFAR-10)",
    ),
    "base": Row({}, parent=None, about="the preset cifar10 before this comparison"),
    "muon": Row({"optimizer": "muon", "learning_rate": 2e-3}, parent="base"),
    "muon-rate-2x": Row({"learning_rate": 4e-3}, parent="muon"),
    "small": Row({"width": 384, "heads": 6}, parent="muon", about="at most 30 MB in bfloat16"),
    "trapezoid": Row({"schedule": "trapezoid"}, parent="small"),
    "batch-32": Row({"batch": 32}),
    "deep": Row({"width": 320, "heads": 5, "layers": (6, 6, 5)}),
    "deep-outer": Row({"layers": (4, 9, 4)}, parent="deep"),
    "deepest": Row({"width": 256, "heads": 4, "layers": (9, 9, 9)}),
    "more-outer": Row({"layers": (3, 6, 3)}),
    "more-inner": Row({"layers": (3, 3, 6)}),
    "mlp-1": Row({"mlp_ratio": 1, "layers": (5, 6, 5)}),
    "mlp-4": Row({"mlp_ratio": 4, "layers": (3, 3, 2)}),
    "rms-norm": Row({"norm": "rms"}),
    "smooth": Row({"embeddings": "smooth"}),
    "combined": Row(
        {"embeddings": "smooth", "averaged_over": 0.01},
        parent="deep-outer",
        about="what helped, together, and a shorter average",
    ),
    "lstm": Row({"inner": "lstm", "layers": (4, 4, 1)}, about="the paper's other inner decoder"),
    "no-flip": Row({"flip": False}),
    "labels": Row({"labels": True}),
    "dropout-0.05": Row({"decoder_dropout": 0.05}, parent=FINAL),
    "dropout-0.1": Row({"decoder_dropout": 0.1}, parent=FINAL),
    "decay-10x": Row({"weight_decay": 0.1}, parent=FINAL),
    "stochastic-depth-0.1": Row({"stochastic_depth": 0.1}, parent=FINAL),
    "stochastic-depth-0.2": Row({"stochastic_depth": 0.2}, parent=FINAL),
    "rotate": Row({"augment": ("rotate",)}, parent=FINAL),
    "colours": Row({"augment": ("colours",)}, parent=FINAL),
    "rotate-transpose": Row({"augment": ("rotate", "transpose")}, parent=FINAL),
    "told-mirror": Row(
        {"flip": False}, parent="rotate-transpose", about="mirrored copies are told as well"
    ),
    "augment-all": Row({"augment": ("rotate", "transpose", "colours")}, parent=FINAL),
    "augment-quarter": Row({"untransformed": 0.25}, parent="augment-all"),
    "augment-most": Row({"untransformed": 0.75}, parent="augment-all"),
    "augment-dropout": Row({"decoder_dropout": 0.05}, parent="augment-all"),
    "wide": Row({"width": 512, "heads": 8}, parent=FINAL, about="more than what ships may weigh"),
    "wide-dropout-0.1": Row({"decoder_dropout": 0.1}, parent="wide"),
    "wide-dropout-0.2": Row({"decoder_dropout": 0.2}, parent="wide"),
    "wide-augment": Row({"augment": ("rotate", "transpose", "colours")}, parent="wide"),
    "wide-augment-dropout": Row({"decoder_dropout": 0.1}, parent="wide-augment"),
    "combined-labels": Row({"labels": True}, parent=FINAL),
    "labels-augment": Row(
        {"augment": ("rotate", "transpose", "colours")}, parent="combined-labels"
    ),
}


def setting_of(name: str) -> Setting:
    """What a row trains: its parent's setting with its own changes."""
    row = ROWS[name]
    return replace(setting_of(row.parent) if row.parent else Setting(), **row.changes)


def changes_of(name: str) -> str:
    """What a row changes, in words, and from what."""
    row = ROWS[name]
    parent = asdict(setting_of(row.parent)) if row.parent else {}
    words = [
        f"{_word(key)} {_shown(value)}" + (f" ({_shown(parent[key])})" if parent else "")
        for key, value in row.changes.items()
    ]
    return ": ".join(filter(None, [row.about, ", ".join(words)]))


def _word(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)
