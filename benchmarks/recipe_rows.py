"""The rows of the comparison of recipes: each one change of another.

Those that `trapezoid` is the parent of vary the best recipe so far.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from axial.config import DataShape, ModelConfig, Schedule, TrainConfig

HELD_OUT = 5000
"""Training images that rows are compared on: the last ones."""
FINAL = "trapezoid"
"""The best so far: the preset `cifar10`, and the recipe of the model that ships."""


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
    embedding: Literal["random", "smooth"] = "random"
    """How the embeddings of values start out."""
    positions: Literal["random", "smooth"] = "random"
    residual: Literal["float32", "bfloat16"] = "bfloat16"
    """What blocks add to, while training in bfloat16."""
    dropout: float = 0.0
    labels: bool = False
    flip: bool = True
    batch: int = 64
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup: int = 300
    schedule: Schedule = "cosine"
    beta2: float = 0.95
    weight_decay: float = 0.01
    averaged_over: float = 0.1
    """What share of the run the averaged weights reach back; 0 for those of the last step."""
    ema: float | None = None
    """Their decay, where it does not follow from that share: then it is so from the first step."""

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
            dropout=self.dropout,
        )

    def training(self, steps: int, *, seed: int) -> TrainConfig:
        """How it is trained, once it is known for how many steps."""
        kept = {field.name for field in fields(TrainConfig)} & asdict(self).keys()
        values: dict[str, Any] = {name: getattr(self, name) for name in kept}
        if self.ema is None:
            values["ema"] = 1 - 1 / max(1.0, self.averaged_over * steps)
        values |= {"ema_warmup": self.ema is None, "validation": HELD_OUT, "hold_out": "last"}
        return TrainConfig(**values, steps=steps, seed=seed)


@dataclass(frozen=True)
class Row:
    """One run of the comparison: what it changes, and against which other row."""

    changes: dict[str, Any]
    parent: str | None = FINAL
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
    "paper-rate-10x": Row({"learning_rate": 1e-3}, parent="paper"),
    "paper-to-the-letter": Row(
        {"warmup": 5000, "ema": 0.99995},
        parent="paper",
        about="as many steps as the authors': the average is still mostly the starting weights",
    ),
    "base": Row({}, parent=None, about="the preset cifar10 before this comparison"),
    "base-rate-half": Row({"learning_rate": 5e-4}, parent="base"),
    "base-rate-2x": Row({"learning_rate": 2e-3}, parent="base"),
    "base-both-smooth": Row({"embedding": "smooth", "positions": "smooth"}, parent="base"),
    "muon": Row({"optimizer": "muon", "learning_rate": 2e-3}, parent="base"),
    "muon-rate-half": Row({"learning_rate": 1e-3}, parent="muon"),
    "muon-rate-2x": Row({"learning_rate": 4e-3}, parent="muon"),
    "small": Row({"width": 384, "heads": 6}, parent="muon", about="at most 30 MB in bfloat16"),
    "trapezoid": Row({"schedule": "trapezoid"}, parent="small"),
    "rate-2x": Row({"learning_rate": 4e-3}),
    "batch-32": Row({"batch": 32}),
    "batch-32-rate-half": Row({"learning_rate": 1e-3}, parent="batch-32"),
    "batch-128": Row({"batch": 128}),
    "batch-128-rate-2x": Row({"learning_rate": 4e-3}, parent="batch-128"),
    "deep": Row({"width": 320, "heads": 5, "layers": (6, 6, 5)}),
    "deep-outer": Row({"layers": (4, 9, 4)}, parent="deep"),
    "deepest": Row({"width": 256, "heads": 4, "layers": (9, 9, 9)}),
    "wide": Row({"width": 448, "heads": 7, "layers": (3, 3, 3)}),
    "more-encoder": Row({"layers": (6, 3, 3)}),
    "more-outer": Row({"layers": (3, 6, 3)}),
    "more-inner": Row({"layers": (3, 3, 6)}),
    "mlp-1": Row({"mlp_ratio": 1, "layers": (5, 6, 5)}),
    "mlp-4": Row({"mlp_ratio": 4, "layers": (3, 3, 2)}),
    "heads-3": Row({"heads": 3}),
    "heads-12": Row({"heads": 12}),
    "rms-norm": Row({"norm": "rms"}),
    "both-smooth": Row({"embedding": "smooth", "positions": "smooth"}),
    "residual-float32": Row({"residual": "float32"}),
    "lstm": Row({"inner": "lstm", "layers": (4, 4, 1)}, about="the paper's other inner decoder"),
    "no-flip": Row({"flip": False}),
    "dropout-0.1": Row({"dropout": 0.1}),
    "decay-0": Row({"weight_decay": 0.0}),
    "decay-0.1": Row({"weight_decay": 0.1}),
    "average-short": Row({"averaged_over": 0.03}),
    "average-none": Row({"averaged_over": 0.0}),
    "labels": Row({"labels": True}),
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
