"""Training runs as they are shown: found by looking through a folder, read as they grow.

A request names a run by a number that the list has told it; none of its words becomes a path.
"""

import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from axial.errors import AxialError
from axial.studio.errors import not_found

_MOST_RUNS, _FRESH_SECONDS = 1000, 1.0
_LINES = 5000
"""Of a log, in one answer."""
_LARGEST_SHEET = 1 << 26
_SUMMARY: tuple[str, ...] = ("preset", "data", "family", "parameters", "step", "steps", "loss")
_SUMMARY += ("validation", "updated", "samples")
"""What the list says of each."""


@dataclass
class _Found:
    """A run that was found, and the last that its log said."""

    id: str
    name: str
    folder: Path
    read: int = 0
    """Bytes of the log that were looked at."""
    step: int = 0
    last: dict[str, float | None] = field(default_factory=dict)


class Runs:
    """The runs below a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._found: dict[str, _Found] = {}
        self._looked = 0.0
        self._lock = threading.Lock()

    def listing(self) -> dict[str, Any]:
        """All runs, each with how far it is."""
        runs = [self._summary(run) for run in self._all()]
        return {"folder": self.folder and self.folder.name, "runs": runs}

    def about(self, name: str) -> dict[str, Any]:
        """The settings of a run, and its sheets of samples."""
        found = self._one(name)
        run = self._open(found)
        self._catch_up(found, run)
        about = run.about
        samples = [
            {"step": step, "png": f"/api/runs/{found.id}/samples/{step}.png"}
            for step in sorted(self._samples(found))
        ]
        return {"id": found.id, "name": found.name, "about": about, "samples": samples}

    def log(self, name: str, after: int) -> dict[str, Any]:
        """What the log of a run says after a position."""
        run = self._open(self._one(name))
        restarted = after > _size(run.log_path)
        records, position = run.log_after(0 if restarted else after, most=_LINES)
        more = len(records) == _LINES
        return {"records": records, "next": position, "restarted": restarted, "more": more}

    def sample(self, name: str, step: int) -> bytes:
        """The sheet of samples of a step."""
        found = self._one(name)
        path = self._samples(found).get(step)
        if path is None:
            raise not_found(f"{found.name} has no samples of step {step}")
        with path.open("rb") as file:
            return file.read(_LARGEST_SHEET)

    def compare(self, names: list[str]) -> dict[str, Any]:
        """The settings of some runs side by side, with what differs marked."""
        found = [self._one(name) for name in names]
        each = [self._settings(run) for run in found]
        rows = []
        for name in dict.fromkeys(key for own in each for key in own):
            values = [own.get(name) for own in each]
            differs = any(value != values[0] for value in values)
            rows.append({"name": name, "values": values, "differs": differs})
        return {"runs": [{"id": run.id, "name": run.name} for run in found], "settings": rows}

    def _settings(self, found: _Found) -> dict[str, Any]:
        from axial.checkpoints.run_summary import settings

        return settings(self._open(found))

    def _one(self, name: str) -> _Found:
        if name not in self._found:
            self._all()
        if (found := self._found.get(name)) is None:
            raise not_found("no such run; the list of runs has the numbers of all")
        return found

    def _all(self) -> list[_Found]:
        """The runs there are; looked for again now and then."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH_SECONDS or not self._found:
                folders = list(islice(_search(self.folder), _MOST_RUNS))
                names = {os.fspath(f.relative_to(self.folder or f)): f for f in folders}
                runs = {}
                for name, folder in names.items():
                    key = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
                    shown = name if name != "." else folder.resolve().name
                    runs[key] = self._found.get(key) or _Found(key, shown, folder)
                self._found, self._looked = runs, time.monotonic()
            return list(self._found.values())

    def _open(self, found: _Found) -> Any:
        from axial.checkpoints.run_folder import Run

        try:
            return Run(found.folder)
        except AxialError as error:
            raise not_found(str(error)) from error

    def _summary(self, found: _Found) -> dict[str, Any]:
        told: dict[str, Any] = {"id": found.id, "name": found.name}
        told |= dict.fromkeys(_SUMMARY)
        try:
            from axial.checkpoints.run_folder import Run
            from axial.models.families import read_config

            run = Run(found.folder)
            self._catch_up(found, run)
            about = run.about
            return told | {
                "preset": about["preset"],
                "data": about["data"]["title"],
                "family": about.get("family", "axial"),
                "parameters": read_config(about).parameters(),
                "step": found.step,
                "steps": about["training"].get("steps"),
                "loss": found.last.get("loss"),
                "validation": found.last.get("validation"),
                "updated": _updated(run.log_path),
                "samples": len(self._samples(found)),
                "error": None,
            }
        except (AxialError, OSError) as error:
            return told | {"error": str(error)}

    def _samples(self, found: _Found) -> dict[int, Path]:
        """The sheets of a run by their steps; regular files, no links."""
        sheets = {}
        for folder in (found.folder / "samples", found.folder):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    last = entry.name == "samples.png" and folder == found.folder
                    match = re.fullmatch(r"step-(\d{1,12})\.png", entry.name)
                    if (match or last) and entry.is_file(follow_symlinks=False):
                        sheets[int(match[1]) if match else found.step] = Path(entry.path)
        return sheets

    def _catch_up(self, found: _Found, run: Any) -> None:
        """Read what the log of a run says since the last time."""
        with self._lock:
            if found.read > _size(run.log_path):
                found.read, found.step, found.last = 0, 0, {}
            records, found.read = run.log_after(found.read, most=1 << 20)
            for record in records:
                found.step = record["step"]
                for name in ("loss", "validation"):
                    if isinstance(record.get(name), int | float):
                        found.last[name] = float(record[name])


def _search(folder: Path | None) -> Iterator[Path]:
    """Folders that hold a run, the folder itself included; links are not followed."""
    from axial.checkpoints.run_summary import run_folders

    return iter(()) if folder is None else run_folders(folder)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _updated(path: Path) -> float | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None
