"""What the runs of rivals.py found, as a table and as pictures."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rival_rows import ROWS

Result = dict[str, Any]


def results_of(folder: Path) -> list[Result]:
    """All runs of a row that ended, each with the curve of its training.

    Those that diverged have none, and no figures.
    """
    found = []
    for path in sorted(folder.glob("*/result.json")):
        result: Result = json.loads(path.read_text())
        if "held_out" in result:
            lines = (path.parent / "log.jsonl").read_text().splitlines()
            result["curve"] = [json.loads(line) for line in lines]
        found.append(result)
    return found


def best_of(folder: Path, *, trial: bool = False) -> Result:
    """The run, or the trial, of seed 0 whose rate was best on the held-out images."""
    ended = [r for r in results_of(folder) if "held_out" in r and r["trial"] is trial]
    first = [r for r in ended if r["seed"] == 0]
    if not first:
        raise SystemExit(f"{folder}: has no result; `rivals.py run {folder.name}` brings one")
    return min(first, key=lambda result: result["held_out"])


class Found:
    """A row: the trials of its rate, and the runs with the best."""

    def __init__(self, name: str, folder: Path) -> None:
        results = results_of(folder)
        self.name, self.best = name, best_of(folder)
        self.shorter = [r for r in results if r["trial"]]
        tried = self.shorter or [r for r in results if r["seed"] == 0]
        self.trials = {r["rate"]: r.get("held_out") for r in tried}
        whole = (r for r in results if "held_out" in r and not r["trial"])
        same = (r for r in whole if r["rate"] == self.best["rate"])
        self.runs = sorted(same, key=lambda run: run["seed"])
        bits = [run["held_out"] for run in self.runs]
        self.bits, self.spread = statistics.fmean(bits), max(bits) - min(bits)

    @property
    def at_border(self) -> bool:
        """Whether a rate that was not tried may be better still."""
        return len(self.trials) > 1 and self.best["rate"] in (min(self.trials), max(self.trials))

    @property
    def petaflops(self) -> float:
        """Operations of a training, in 1e15."""
        return statistics.fmean(run["steps"] * run["flops_a_step"] for run in self.runs) / 1e15

    def cells(self) -> dict[str, str]:
        """A line of the table."""
        best, draw = self.best, self.best["draw"]
        test = [run["test"]["bits_per_dim"] for run in self.runs if run["test"]]
        held = f"{self.bits:.4f} +- {best['standard_error']:.4f}"
        if len(self.runs) > 1:
            held += f", mean of {len(self.runs)}, spread {self.spread:.4f}"
        rates = ", ".join(
            f"{rate:g}: {'diverged' if bits is None else f'{bits:.4f}'}"
            for rate, bits in sorted(self.trials.items())
        )
        minutes = {r["minutes"] for r in self.shorter if r.get("minutes")}
        rates += "".join(f" (tried for {m:g} min)" for m in minutes)
        return {
            "row": self.name,
            "preset": f"`{best['preset']}`",
            "parameters": f"{best['parameters'] / 1e6:.1f}M",
            "GFLOP to score": f"{best['flops_to_score'] / 1e9:.1f}",
            "minutes": f"{statistics.fmean(run['seconds'] for run in self.runs) / 60:.2f}",
            "steps": f"{statistics.fmean(run['steps'] for run in self.runs):,.0f}",
            "PFLOP": f"{self.petaflops:,.1f}",
            "held out, bits/dim": held,
            "test, bits/dim": f"{statistics.fmean(test):.4f}" if test else "",
            "to draw": f"{draw['seconds']:.2f} s for {draw['pictures']}" if draw else "",
            "held out by rate": rates + (" (at the border)" if self.at_border else ""),
            "published, longer": ROWS[self.name].figures[0],
        }


def all_found(folder: Path) -> list[Found]:
    """The rows that have a result, not trials alone, best first."""
    names = [n for n in ROWS if any(not r["trial"] for r in results_of(folder / n))]
    rows = [Found(name, folder / name) for name in names]
    if not rows:
        raise SystemExit(
            f"{folder}: has no results; `rivals.py run ROW --out {folder}` brings some"
        )
    return sorted(rows, key=lambda row: row.bits)


def table(args: argparse.Namespace) -> None:
    """Print what the runs found; draw it."""
    rows = all_found(args.folder)
    lines = [row.cells() for row in rows]
    shown = [list(lines[0]), ["---"] * len(lines[0]), *(list(line.values()) for line in lines)]
    parts = ["\n".join(f"| {' | '.join(row)} |" for row in shown), verdict(rows)]
    if args.out:
        picture = args.out.with_suffix(".png")
        draw_picture(picture, rows)
        parts.insert(1, f"![Bits/dim over time, operations and sizes]({picture.name})")
    text = "\n\n".join(parts)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def verdict(rows: list[Found]) -> str:
    """Which row wins, and whether by more than seeds make."""
    ours = next((row for row in rows if row.name == "axial"), None)
    rivals = [row for row in rows if row.name != "axial"]
    if ours is None or not rivals:
        return "There is no axial row and rival to compare yet."
    rival, spread = rivals[0], max(row.spread for row in rows)
    apart = rival.bits - ours.bits
    said = [
        f"The axial model needs {ours.bits:.4f} bits/dim, the best rival, {rival.name}, "
        f"{rival.bits:.4f}: {abs(apart):.4f} {'more' if apart >= 0 else 'less'}."
    ]
    if min(len(row.runs) for row in (ours, rival)) < 3:
        said.append("They have not been run with three seeds each: nothing is called ahead.")
    elif abs(apart) <= spread:
        said.append(f"Seeds make {spread:.4f}: neither is ahead.")
    else:
        said.append(f"Seeds make {spread:.4f}: {'axial' if apart > 0 else rival.name} is ahead.")
    if borders := [row.name for row in rows if row.at_border]:
        said.append(f"Of {', '.join(borders)} the best rate is at the border of those tried.")
    return " ".join(said)


def draw_picture(path: Path, rows: list[Found]) -> None:
    """Bits/dim against minutes, operations, parameters and the time to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    minutes, flops, sizes, draws = figure.subplots(2, 2).flat
    marks = dict(zip(ROWS, "os^vDPXd", strict=True))
    for row in rows:
        how: dict[str, Any] = {"marker": marks[row.name], "label": row.name, "alpha": 0.8}
        curve = row.best["curve"]
        bits = [look["held_out"] for look in curve]
        each = row.best["flops_a_step"] / 1e15
        minutes.plot([look["seconds"] / 60 for look in curve], bits, **how)
        flops.plot([look["step"] * each for look in curve], bits, **how)
        sizes.plot([row.best["parameters"] / 1e6], [row.bits], linestyle="", **how)
        if draw := row.best["draw"]:
            draws.plot([draw["seconds"]], [row.bits], linestyle="", **how)
    minutes.set(xlabel="minutes of training")
    flops.set(xlabel="operations of training, 1e15")
    sizes.set(xlabel="parameters, millions")
    draws.set(xlabel="seconds to draw")
    settled = [look["held_out"] for row in rows for look in row.best["curve"][-3:]]
    for panel in (minutes, flops, sizes, draws):
        panel.set_ylabel("held out, bits/dim")
        panel.grid(alpha=0.3)
    for panel in (minutes, flops):  # the first looks would flatten all the rest
        panel.set_ylim(min(settled) - 0.03, max(settled) + 0.1)
    minutes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
