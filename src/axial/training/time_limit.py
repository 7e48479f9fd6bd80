"""Training time, and its limit: how many steps a run will have done when its time is over."""

import statistics
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from axial.training.config import TrainConfig

UNKNOWN_STEPS = 1 << 30
"""Planned until a step was timed."""
_MEDIAN_OF = 9
_PLAN_SECONDS, _PLAN_STEPS = 2.0, 50
"""At most so long, and so many steps, from one plan to the next."""


class Clock:
    """Counts training time; with a `limit` in seconds, plans the number of steps at intervals.

    A learning rate that falls over the planned steps reaches zero as the time ends. Validation and
    checkpoints take of the time as well: what each took last is reserved for every one to come.
    Until one was measured, a validation counts as long as `validation` steps.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        used: float = 0.0,
        kept: Mapping[str, Any] | None = None,
        validation: float = 0.0,
    ) -> None:
        kept = kept or {"steps": UNKNOWN_STEPS, "seconds_each": None, "costs": {}}
        self.limit, self.used, self.validation = limit, used, validation
        self.steps: int = kept["steps"]
        self.due = 0
        each = [] if kept["seconds_each"] is None else [float(kept["seconds_each"])]
        self._each = deque(each, _MEDIAN_OF)
        self._costs: dict[str, float] = dict(kept["costs"])
        self._since: tuple[int, float] | None = None
        self.start()

    def start(self) -> None:
        """Count from now on, beyond what the run had used before."""
        self._began = time.monotonic() - self.used

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, without samples and the first step of each process."""
        return time.monotonic() - self._began

    @property
    def kept(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of the plan, and a resumed run starts from."""
        if self.limit is None:
            return None
        return {"steps": self.steps, "seconds_each": self._median, "costs": dict(self._costs)}

    @property
    def _median(self) -> float | None:
        return statistics.median(self._each) if self._each else None

    def restart(self, step: int) -> None:
        """Time the steps from this one on: what came before was not all stepping."""
        self._since = (step, time.monotonic())

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Note how long something takes that is done every so many steps; `name` is the setting."""
        start = time.monotonic()
        yield
        self._costs[name] = time.monotonic() - start

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Do not count what is done inside."""
        start = time.monotonic()
        yield
        self._began += time.monotonic() - start

    def plan(self, config: TrainConfig, step: int) -> None:
        """Set `steps`, and `due`: the step after which to plan again. The device is done."""
        assert self.limit is not None
        if self._since is not None and step > self._since[0]:
            first, start = self._since
            self._each.append(max(1e-6, (time.monotonic() - start) / (step - first)))
        self.restart(step)
        self.due = step + 1
        if (each := self._median) is None:
            return
        left = self.limit - self.elapsed
        costs = {"validate_every": each * self.validation} | self._costs

        def needed(steps: int) -> float:
            """Seconds to the end of a run of so many steps, with all that is due on the way."""
            seconds = (steps - step) * each
            for name, cost in costs.items():
                every = getattr(config, name)
                seconds += cost * ((steps - 1) // every - (step - 1) // every)
            return seconds + sum(costs.values())  # once more after the last step

        most = min(UNKNOWN_STEPS, step + max(0, int(left / each)))
        self.steps = step + max(0, bisect_right(range(step, most + 1), left, key=needed) - 1)
        self.due += min(int(_PLAN_SECONDS / each), _PLAN_STEPS)
