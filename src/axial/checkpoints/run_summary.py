"""Runs in words: how far one has come, all beneath a folder as a table, what two have apart."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from axial.checkpoints.run_folder import Run
from axial.checkpoints.trained_on import are_numbers
from axial.errors import AxialError
from axial.models.families import read_config

_DEEP = 4
"""Folders below one another that are looked through for runs."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How far a run has come, as its own files say; its weights are not read."""

    run: Run
    parameters: int
    """Of its model."""
    step: int
    """Updates that the log knows of."""
    seconds: float | None
    """Of training."""
    best: float | None
    """Fewest bits/dim on the held-out examples."""
    best_step: int | None
    """The update after which that was found."""

    @classmethod
    def of(cls, run: Run) -> "RunSummary":
        """Read the log of a run."""
        log = run.log()
        scores = [
            (score, record["step"])
            for record in log
            if isinstance(score := record.get("validation"), float)
        ]
        best, best_step = min(scores, default=(None, None))
        times = [record["seconds"] for record in log if isinstance(record.get("seconds"), float)]
        return cls(
            run=run,
            parameters=read_config(run.about).parameters(),
            step=max((record["step"] for record in log), default=0),
            seconds=times[-1] if times else None,
            best=best,
            best_step=best_step,
        )

    @property
    def length(self) -> str:
        """How many steps are done, of how many."""
        training = self.run.about["training"]
        if isinstance(minutes := training.get("max_minutes"), int | float):
            return f"{self.step:,}, of {minutes:g} minutes"
        steps = training.get("steps")
        return f"{self.step:,}" + (f" of {steps:,}" if isinstance(steps, int) else "")

    @property
    def time(self) -> str:
        """Hours, minutes and seconds of training."""
        return "-" if self.seconds is None else str(timedelta(seconds=round(self.seconds)))

    @property
    def score(self) -> str:
        """Bits/dim held out."""
        return "-" if self.best is None else f"{self.best:.4f}"

    @property
    def data(self) -> str:
        """What it is trained on, and how much of it there is."""
        data, crop = self.run.about["data"], self.run.about["training"].get("crop")
        kind = f"pictures, in crops of {' x '.join(map(str, crop))}" if crop else "examples"
        return f"{data['title']}, {data['examples']:,} {kind}"

    @property
    def scored_on(self) -> str:
        """What the score is of: runs are comparable where this is the same."""
        data, training = self.run.about["data"], self.run.about["training"]
        names = ("validation", "hold_out", "batch" if training.get("validation") is None else "")
        own = [data["sha256"], data["stack_frames"], *(training.get(name) for name in names)]
        own += [data["sizes"]] if data.get("sizes") else []
        own += [training["crop"]] if training.get("crop") else []
        return json.dumps([*own, self.run.about["model"].get("classes", 0) > 0])

    def __str__(self) -> str:
        about = self.run.about
        at = f" (best, at step {self.best_step:,})" if self.best_step is not None else ""
        lines = {
            "run": f"{self.run.folder}, preset {about['preset']}",
            "trained on": self.data,
            "steps": f"{self.length}, {self.time} of training",
            "held out": "not scored yet" if self.best is None else f"{self.score} bits/dim{at}",
        }
        if names := about["data"].get("names"):
            number = about["model"].get("classes", 0)
            words = ", ".join(f"{i} {name}" for i, name in enumerate(names))
            words = f"0 to {len(names) - 1}" if are_numbers(names) else words
            lines["classes"] = words if number else f"{words}; the model is not told which"
        return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def runs_beneath(folder: Path) -> list[RunSummary]:
    """Every run in a folder and those below it, but for damaged ones."""
    found: list[RunSummary] = []
    for place in run_folders(folder):
        with suppress(AxialError, OSError):
            found.append(RunSummary.of(Run(place)))
    return found


def run_folders(folder: Path) -> Iterator[Path]:
    """Every folder of a run in a folder and those below it, damaged ones too."""
    places = [(folder, 0)]
    while places:
        place, depth = places.pop()
        with suppress(AxialError, OSError):  # not ours to read
            if Run.exists(place):
                yield place
            elif depth < _DEEP:
                inside = sorted(place.iterdir(), reverse=True)
                places += [(path, depth + 1) for path in inside if _is_folder(path)]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not path.name.startswith(".")


def table(runs: list[RunSummary], folder: Path) -> str:
    """Runs line by line, best first; a table for each set of examples they were scored on."""
    groups: dict[str, list[RunSummary]] = {}
    for run in sorted(runs, key=lambda run: (run.best is None, run.best or 0.0)):
        groups.setdefault(run.scored_on, []).append(run)
    parts = []
    for group in groups.values():
        rows = [("run", "preset", "parameters", "steps", "time", "bits/dim held out")]
        for one in group:
            name = str(one.run.folder.relative_to(folder))
            facts = (f"{one.parameters / 1e6:,.1f} M", one.length, one.time, one.score)
            rows.append((name, one.run.about["preset"], *facts))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, wide)).rstrip() for row in rows]
        parts.append("\n".join([group[0].data, *lines]))
    if len(parts) > 1:
        parts.append("Scores of one table are of the same examples, and of others are not.")
    return "\n\n".join(parts)


def differences(one: RunSummary, other: RunSummary) -> str:
    """Two runs beside each other: how far each has come, then the settings that differ."""
    facts: list[tuple[str, Any, Any]] = [
        ("", one.run.folder, other.run.folder),
        ("held out", one.score, other.score),
        ("steps", one.length, other.length),
        ("time", one.time, other.time),
        ("parameters", f"{one.parameters:,}", f"{other.parameters:,}"),
    ]
    own, others = settings(one.run), settings(other.run)
    same = [name for name in own if name in others and own[name] == others[name]]
    for name in dict.fromkeys([*own, *others]):
        if name not in same:
            facts.append((name, own.get(name, "-"), others.get(name, "-")))
    rows = [tuple(map(str, row)) for row in facts]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, wide)).rstrip() for row in rows]
    lines.append(f"{len(same)} other settings are the same.")
    if one.scored_on != other.scored_on:
        lines.append("The scores are of different held-out examples, and not comparable.")
    return "\n".join(lines)


def settings(run: Run) -> dict[str, Any]:
    """All that was chosen for a run, by name."""
    about, data = run.about, run.about["data"]
    plain = {"preset": about["preset"], "family": about.get("family", "axial")}
    plain |= {"init": (about["init"] or {}).get("folder")}
    plain |= {f"data {name}": data.get(name) for name in ("title", "examples")}
    for name in ("sha256", "labels"):  # hashes, of which the beginning is enough
        plain[f"data {name}"] = str(data[name])[:12] if data.get(name) else None
    return plain | about["model"] | about["training"] | dict(about.get("versions", {}))
