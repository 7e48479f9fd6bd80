"""Watching a run: a JSON line for each record, a live display on a terminal, plain lines else."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from axial.system.progress import LINE_SECONDS
from axial.training.tensorboard import EventFile


class RunLogger:
    """Writes the log and tells a person how a run is doing; the quiet ranks have a silent one."""

    def __init__(
        self, log: Path | None, *, steps: int | None, first: int, events: EventFile | None = None
    ) -> None:
        self._log = log.open("a", buffering=1) if log else None
        self._events = events
        self.steps = steps
        """Of the whole run, as planned; None while that is not known."""
        self._first = first
        self._began = time.monotonic()
        self._spoken = -LINE_SECONDS
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._silent = log is None
        if log and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("starting", total=steps, completed=first)

    def __enter__(self) -> "RunLogger":
        if self._bar:
            with self._speaking():
                self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._bar:
            with self._speaking():
                self._bar.stop()
        if self._events:
            self._events.close()
        if self._log:
            # Of two errors the first is the one to tell.
            with suppress(OSError) if error else nullcontext():
                self._log.close()

    def record(self, step: int, **facts: Any) -> None:
        """Put a line into the log."""
        if self._log:
            finite = {name: None if fact != fact else fact for name, fact in facts.items()}
            self._log.write(json.dumps({"step": step, **finite}) + "\n")
        if self._events:
            numbers = {name: fact for name, fact in facts.items() if isinstance(fact, float)}
            self._events.scalars(step, numbers)

    def progress(self, step: int, text: str) -> None:
        """Show how far the run has come; on a pipe, a line now and then and at the end."""
        text = f"step {step:,}{f' of {self.steps:,}' if self.steps else ''}  {text}"
        if self._bar:
            self._bar.update(self._task, completed=step, total=self.steps, description=text)
        elif time.monotonic() - self._spoken >= LINE_SECONDS or step == self.steps:
            self._spoken = time.monotonic()
            each = (self._spoken - self._began) / max(1, step - self._first)
            left = timedelta(seconds=round(each * ((self.steps or step) - step)))
            self.say(f"{text}  {left} left" if left else text)

    def say(self, text: str) -> None:
        """Tell something that stays on the screen."""
        if self._silent:
            return
        with self._speaking():
            if self._bar:
                self._bar.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Fall silent for good where nobody listens any more; training continues."""
        try:
            yield
        except OSError:
            self._silent = True

    def picture(self, step: int, path: Path) -> None:
        """Note a picture that was drawn."""
        self.record(step, picture=path.name)
        if self._events:
            self._events.picture(step, "samples", path)
