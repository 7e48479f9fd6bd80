"""How far a long count has come, on standard error: a bar on a terminal, else lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from axial.system.terminal import printable

LINE_SECONDS = 10.0
"""From one line to the next, where there is no terminal to draw on."""


@contextmanager
def counting(
    what: str, total: int | None, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the count; what is done within seconds needs no line."""
    of = "" if total is None else f" of {total:,}"
    with Display(what, total, shown=shown) as display:
        yield lambda count: display.show(count, f"{what}: {count:,}{of}")


class Display:
    """A bar that says how far it is, or a line now and then; text that stays goes between."""

    def __init__(
        self,
        text: str,
        total: int | None,
        *,
        first: int = 0,
        shown: bool = True,
        stays: bool = False,
    ) -> None:
        self.total = total
        """Where the count ends; None while that is not known."""
        self._first = first
        self._began = self._spoken = time.monotonic()
        self._silent = not shown
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=not stays)
            self._bar.add_task(text, total=total, completed=first)

    def __enter__(self) -> "Display":
        if self._bar:
            with self._speaking():
                self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            with self._speaking():
                self._bar.stop()

    def show(self, count: int, text: str, *, now: bool = False) -> None:
        """Say how far it is: on a pipe with the time left, and not often unless `now`."""
        text = printable(text)
        if self._bar:
            self._bar.update(0, completed=count, total=self.total, description=text)
        elif now or time.monotonic() - self._spoken >= LINE_SECONDS:
            self._spoken = time.monotonic()
            each = (self._spoken - self._began) / max(1, count - self._first)
            left = timedelta(seconds=round(each * ((self.total or count) - count)))
            self.say(f"{text}  {left} left" if left else text)

    def say(self, text: str) -> None:
        """Tell something that stays on the screen."""
        if self._silent:
            return
        text = printable(text)
        with self._speaking():
            if self._bar:
                self._bar.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Fall silent for good where nobody listens any more; the work continues."""
        try:
            yield
        except OSError:
            self._silent = True
