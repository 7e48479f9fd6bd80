"""Watching a run: a JSON line for each record, a live display on a terminal, plain lines else."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from axial.system.progress import Display
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
        self._display = Display("starting", steps, first=first, shown=log is not None, stays=True)
        self._started = False

    def __enter__(self) -> "RunLogger":
        self._display.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._display.__exit__()
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
        self._display.total = self.steps
        self._display.show(step, text, now=not self._started or step == self.steps)
        self._started = True

    def say(self, text: str) -> None:
        """Tell something that stays on the screen."""
        self._display.say(text)

    def picture(self, step: int, path: Path) -> None:
        """Note a picture that was drawn."""
        self.record(step, picture=path.name)
        if self._events:
            self._events.picture(step, "samples", path)
