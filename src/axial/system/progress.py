"""Progress of a long count, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 10.0
"""From one line to the next, where there is no terminal to draw on."""


@contextmanager
def counting(
    what: str, total: int | None, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the count: a bar on a terminal, else a line now and then."""
    if not shown:
        yield lambda count: None
    elif sys.stderr.isatty():
        with _bar(what, total) as tell:
            yield tell
    else:
        yield _lines(what, total)


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, completed=count)


def _lines(what: str, total: int | None) -> Callable[[int], None]:
    """Plain lines for a pipe; what is done within seconds needs none."""
    of = "" if total is None else f" of {total:,}"
    last = time.monotonic()

    def tell(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            print(f"{what}: {count:,}{of}", file=sys.stderr, flush=True)

    return tell
