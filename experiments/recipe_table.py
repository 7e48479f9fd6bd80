"""What runs of the comparison of recipes found, as a table and as curves."""

import argparse
import json
import statistics
from collections.abc import Sized
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from recipe_rows import ROWS, Setting, changes_of, setting_of

FIRST = next(iter(ROWS))
WORSE = 0.005
"""Bits/dim by which the last weights are so much worse than earlier ones that it is told."""


def table(args: argparse.Namespace) -> None:
    """Print what the runs found; draw their curves."""
    results = [result_of(path) for path in args.runs]
    parts = [table_of(results)]
    if args.out:
        picture = args.out.with_suffix(".png")
        draw_curves(picture, args.runs)
        parts.append(f"![Bits/dim over minutes]({picture.name})")
    text = "\n\n".join([*parts, told_apart(results)])
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def result_of(run: Path) -> dict[str, Any]:
    """What a run found; refused if its row is another one by now."""
    if not (run / "result.json").exists():
        raise SystemExit(
            f"{run}: has no result; `axial train --resume {run / 'run'}` may bring one"
        )
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    row, then = result["row"], Setting.from_json(result["setting"])
    tried = {name: value for name, value in result["tried"].items() if hasattr(then, name)}
    if row not in ROWS or replace(setting_of(row), **tried) != then:
        raise SystemExit(f"{run}: row {row} is not what it was when this was run")
    return result


class Repeated:
    """The runs of one row that had the same time, with one seed or several."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = sorted(runs, key=lambda run: run["seed"])
        self.first = self.runs[0]
        self.seconds: float = self.first["seconds_allowed"]
        self.tried: dict[str, Any] = self.first["tried"]
        bits = [run["validation"]["bits_per_dim"] for run in runs]
        self.bits, self.spread = statistics.fmean(bits), max(bits) - min(bits)

    @property
    def name(self) -> str:
        """That of the row, and what was changed on the command line."""
        return _name(self.first)

    @property
    def label(self) -> str:
        """The name, the minutes given, and whether it was told more than the others."""
        told = ", conditional" if self.first["conditional"] else ""
        return f"{self.name}, {self.seconds / 60:.0f} min{told}"

    @property
    def unaveraged(self) -> float | None:
        """Bits/dim that the weights of the last step need more than the averaged ones."""
        both = [(run["unaveraged"], run["validation"]) for run in self.runs if "unaveraged" in run]
        more = [last["bits_per_dim"] - averaged["bits_per_dim"] for last, averaged in both]
        return statistics.fmean(more) if more else None

    @property
    def seeds(self) -> str:
        """Those of the runs."""
        return ", ".join(str(run["seed"]) for run in self.runs)

    def mean(self, name: str) -> float:
        """Of a figure over the runs."""
        return statistics.fmean(run[name] for run in self.runs)

    @property
    def key(self) -> tuple[str, float, str]:
        """What a run must share with another to be repeated by it, but for the seed."""
        return self.first["row"], self.seconds, json.dumps(self.tried)

    @property
    def parent(self) -> str | None:
        """The row it is a change of."""
        return ROWS[self.first["row"]].parent

    def beside(self, row: str | None, groups: list["Repeated"]) -> "Repeated | None":
        """The runs of another row that had the same time, if there are any."""
        return next((group for group in groups if group.key == (row, *self.key[1:])), None)

    def cells(
        self, other: "Repeated | None", first: "Repeated | None", spread: float
    ) -> dict[str, str]:
        """A line of the table, beside the row it changes and the first if run as long."""
        peak = None if self.first["peak_share"] is None else self.mean("peak_share")
        return {
            "row": self.name,
            "changes": changes_of(self.first["row"]),
            "against": self.parent or "",
            "parameters": f"{self.first['parameters']:,}",
            "steps": f"{self.mean('steps'):,.0f}",
            "images seen": f"{self.mean('examples'):,.0f}",
            "ms/step": f"{1e3 * self.mean('seconds_each_step'):.1f}",
            "of peak": "" if peak is None else f"{peak:.1%}",
            "minutes": f"{self.mean('seconds') / 60:.2f}",
            "compiling": self._compiling(),
            "trained on, bits/dim": self._beside("learned"),
            "held out, not averaged": self._beside("unaveraged"),
            "held out, bits/dim": self._held_out(),
            "difference": "" if other is None else self._difference(other, spread),
            "to the first row": "" if first in (None, self) else f"{self.bits - first.bits:+.4f}",
            "test, bits/dim": self._tested(),
            "seed": self.seeds,
            "conditional": "yes" if self.first["conditional"] else "no",
        }

    def _compiling(self) -> str:
        told = [run["seconds_compiling"] for run in self.runs if "seconds_compiling" in run]
        return f"{statistics.fmean(told):.0f} s" if told else ""

    def _beside(self, name: str) -> str:
        scored = [run[name]["bits_per_dim"] for run in self.runs if name in run]
        return f"{statistics.fmean(scored):.4f}{_of(scored)}" if scored else ""

    def _held_out(self) -> str:
        error = statistics.fmean(run["validation"]["standard_error"] for run in self.runs)
        said = [f"{self.bits:.4f} +- {error:.4f}"]
        if len(self.runs) > 1:
            said[0] += f"{_of(self.runs)}, spread {self.spread:.4f}"
        lost = max(run["looks"][-1] - min(run["looks"]) for run in self.runs)
        if lost > WORSE:
            said.append(f"{lost:.4f} above its best look")
        return ", ".join(said)

    def _difference(self, other: "Repeated", spread: float) -> str:
        found = self.bits - other.bits
        return f"{found:+.4f}" + (", within the spread" if abs(found) <= spread else "")

    def _tested(self) -> str:
        tests = [run["test"] for run in self.runs if run["test"]]
        if not tests:
            return ""
        bits, error = (
            statistics.fmean(test[name] for test in tests)
            for name in ("bits_per_dim", "standard_error")
        )
        return f"{bits:.4f} +- {error:.4f}{_of(tests)}"


def _name(run: dict[str, Any]) -> str:
    return ", ".join([run["row"], *(f"{key} {value}" for key, value in run["tried"].items())])


def _of(several: Sized) -> str:
    return f", mean of {len(several)}" if len(several) > 1 else ""


def repeated(results: list[dict[str, Any]]) -> list[Repeated]:
    """The runs by time and row, in the order of the rows."""
    order = list(ROWS)

    def key(run: dict[str, Any]) -> tuple[Any, ...]:
        return run["seconds_allowed"], order.index(run["row"]), json.dumps(run["tried"])

    return [Repeated(list(runs)) for _, runs in groupby(sorted(results, key=key), key)]


def table_of(results: list[dict[str, Any]]) -> str:
    """The runs as Markdown, repeated ones in one line."""
    groups = repeated(results)
    spread = max((group.spread for group in groups), default=0.0)
    lines = [
        group.cells(group.beside(group.parent, groups), group.beside(FIRST, groups), spread)
        for group in groups
    ]
    rows = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def told_apart(results: list[dict[str, Any]]) -> str:
    """What the same row gives with other seeds, and what of the changes is more than that."""
    groups = repeated(results)
    most = max(groups, key=lambda group: (len(group.runs) > 1, group.spread), default=None)
    if most is None or len(most.runs) == 1:
        return "No row was repeated with other seeds: no difference is called an improvement."
    changed = {
        group.label: group.bits - other.bits
        for group in groups
        if (other := group.beside(group.parent, groups))
    }
    helped = {name: found for name, found in changed.items() if found < -most.spread}
    rest = {name: found for name, found in changed.items() if name not in helped}
    last = {group.label: found for group in groups if (found := group.unaveraged) is not None}
    return "\n".join(
        [
            f"The largest minus the smallest of {most.name} with seeds {most.seeds} is "
            f"{most.spread:.4f} bits/dim: a smaller difference is not called an improvement.",
            f"- What helped: {_listed(helped)}.",
            f"- What did not: {_listed(rest)}.",
            f"- The weights of the last step in place of the averaged ones: {_listed(last)}.",
        ]
    )


def _listed(found: dict[str, float]) -> str:
    best_first = sorted(found.items(), key=lambda item: item[1])
    return ", ".join(f"`{name}` {bits:+.4f}" for name, bits in best_first) or "nothing"


def log_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; the first says what was run."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def draw_curves(path: Path, runs: list[Path]) -> None:
    """Bits/dim on held-out images over the minutes, a panel for each time given."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    curves = sorted((Curve(run) for run in runs), key=lambda curve: curve.order)
    panels = [list(group) for _, group in groupby(curves, lambda curve: curve.seconds)]
    figure = Figure(figsize=(2 + 5.5 * len(panels), 8), layout="constrained")
    figure.suptitle("Averaged weights on held-out images")
    spaces = figure.subplots(1, len(panels), squeeze=False)[0]
    for space, group in zip(spaces, panels, strict=True):
        colours = colormaps["turbo"].resampled(len(group) + 2)
        for number, curve in enumerate(group, 1):
            marker = ("o", "s", "^")[number % 3]
            space.plot(
                *curve.looks, color=colours(number), marker=marker, markersize=3, label=curve.label
            )
        settled = [bits for curve in group for bits in curve.settled]
        if settled:  # the first looks would flatten all the rest
            space.set_ylim(min(settled) - 0.02, max(settled) + 0.02)
        title = f"at most {group[0].seconds / 60:.1f} minutes"
        space.set(xlabel="minutes", ylabel="bits/dim", title=title)
        space.grid(alpha=0.3)
        space.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    figure.savefig(path, dpi=120)


class Curve:
    """What a run's log says of its way."""

    def __init__(self, run: Path) -> None:
        about, *rest = log_of(run)
        scored = [record for record in rest if "validation" in record]
        self.seconds: float = about["seconds_allowed"]
        self.label = f"{_name(about)}, seed {about['seed']}"
        self.looks = (
            [record["seconds"] / 60 for record in scored],
            [record["validation"] for record in scored],
        )

    @property
    def order(self) -> tuple[float, float]:
        """By time given, and the worst first in each, as they lie in the picture."""
        return self.seconds, -self.looks[1][-1] if self.looks[1] else 0.0

    @property
    def settled(self) -> list[float]:
        """What was found after the steep beginning."""
        return self.looks[1][len(self.looks[1]) // 4 :]
