"""`axial presets`: every preset, its size, and what training it costs."""

from axial.models.cost import training_flops
from axial.presets import PRESETS

_H200_FLOPS = 240e12
"""What training `cifar10` reaches on one H200 in bfloat16: docs/performance.md."""


_NOTE = """
For data of the shape shown; `axial train` fits a preset to yours. The time is that of the FLOPs at
240 TFLOP/s, which cifar10 reaches on one H200 in bfloat16: smaller models reach less, larger ones
up to twice that."""


def presets() -> None:
    """List every preset with its parameters and what it costs to train.

    Examples:
        axial presets
        axial info cifar10
    """
    rows = [("preset", "parameters", "data", "steps", "batch", "FLOPs", "one H200")]
    for name, preset in PRESETS.items():
        recipe = preset()
        config, training = recipe.model, recipe.training
        total = training_flops(config) * training.batch * training.steps
        data = f"{' x '.join(map(str, config.axes))} x {config.channels}"
        sizes = (f"{config.parameters() / 1e6:,.1f} M", data)
        length = (f"{training.steps:,}", f"{training.batch:,}")
        rows.append((name, *sizes, *length, f"{total:.1e}", _time(total / _H200_FLOPS)))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, wide)).rstrip())
    print(_NOTE)


def _time(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return "under a minute"
