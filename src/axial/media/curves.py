"""The curve of a run: bits/dim over its steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axial.system.files import errors_of, replacing


def write_curve(path: Path | str, log: Sequence[Mapping[str, Any]]) -> bool:
    """Draw a run's bits/dim over its steps from its log; False where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in (("loss", "#b0b8c4"), ("validation", "#c03020")):
        points = [(record["step"], record[name]) for record in log if _is_number(record.get(name))]
        if points:
            shown = "training, raw weights" if name == "loss" else "held out, EMA weights"
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=shown,
                marker="." * (name == "validation"),
            )
    settled = sorted(record["loss"] for record in log if _is_number(record.get("loss")))
    if len(settled) > 20:  # the first steps would flatten all the rest
        axes.set_ylim(settled[0] - 0.1, settled[int(len(settled) * 0.95)] + 0.1)
    axes.set(xlabel="step", ylabel="bits/dim")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    with errors_of(path), replacing(Path(path)) as scratch:
        figure.savefig(scratch, format="png", dpi=120)
    return True


def _is_number(value: object) -> bool:
    """A log may have been damaged, and a curve shows what is left of it."""
    return isinstance(value, int | float) and abs(value) < 1e30
