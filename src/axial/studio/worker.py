"""The one thread that owns a model: it loads it, takes jobs in turn, and draws alike ones as one.

Between two lines of a drawing it looks after short jobs, and whether anyone still waits for it.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from axial.errors import AxialError
from axial.studio.catalogue import Entry
from axial.studio.config import Limits
from axial.studio.errors import RETRY_SECONDS, RequestError, failed
from axial.studio.jobs import Job

Pause = Callable[[], bool]
"""To be called after each line: looks after other things, and tells whether to go on."""

_QUICK = 4
"""Short jobs that are done between two lines, at most."""


class Task(Protocol):
    """What a job asks for; `worker` does not know what."""

    quick: bool
    """Whether it is short enough to be done between two lines of a drawing."""

    def batch_key(self) -> object:
        """Equal for those that can be done together; None for one that stands alone."""

    def size(self) -> int:
        """How many pictures it asks for."""

    def run(self, model: Any, jobs: Sequence[Job], pause: Pause) -> None:
        """Do the work of some jobs with equal keys, this one's among them."""


class Alone:
    """A task that is done by itself, not in one batch with others."""

    def batch_key(self) -> object:
        """No other task has one like it."""
        return None

    def size(self) -> int:
        """One picture, or as good as one."""
        return 1


class Worker(threading.Thread):
    """Loads a model, then works at the jobs that wait for it."""

    def __init__(self, entry: Entry, device: str | None, limits: Limits) -> None:
        super().__init__(name=f"axial-studio-{entry.id}", daemon=True)
        self.entry, self._device, self._limits = entry, device, limits
        self._waiting: deque[Job] = deque()
        self._running = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._model: Any = None
        self._room = 1
        """Pictures that are drawn in one batch."""

    def submit(self, kind: str, task: Task) -> Job:
        """Let a job wait its turn; refused where too many do."""
        with self._changed:
            if self._stopping:
                raise _stopping()
            if len(self._waiting) >= self._limits.queue:
                raise RequestError(
                    503,
                    "busy",
                    f"{len(self._waiting)} jobs wait for {self.entry.id} already; try again in "
                    f"{RETRY_SECONDS} seconds",
                    retry=RETRY_SECONDS,
                )
            job = Job(kind, self.entry.id, task)
            job.before = len(self._waiting) + self._running
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """End a job, wherever it is."""
        job.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
        self._tell_places()

    def stop(self) -> None:
        """End all jobs, and this thread after the next line."""
        with self._changed:
            self._stopping = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify()
        self._fail(waiting, _stopping())

    def to_json(self) -> dict[str, Any]:
        """What the model is, and how many jobs run and wait."""
        return self.entry.to_json({"running": self._running, "waiting": len(self._waiting)})

    @property
    def device(self) -> str | None:
        """Where the model is, once it is loaded."""
        return None if self._model is None else str(next(self._model.parameters()).device)

    def _tell_places(self) -> None:
        """Tell those that wait how many come before them."""
        with self._changed:
            for number, job in enumerate(self._waiting):
                if (before := number + self._running) != job.before:
                    job.before = before
                    job.touch()

    def run(self) -> None:
        """Load the model; then one group of jobs after another."""
        try:
            self._model = self.entry.load(self._device)
            from axial.sampling.draw import draws_at_once

            self._room = min(self._limits.pictures, draws_at_once(self._model))
        except Exception as error:
            if not isinstance(error, AxialError):
                traceback.print_exc()
            self.entry.fail(failed(error).message)
            return
        while jobs := self._next():
            self._work(jobs, self._pause_for(jobs))
            self._running = 0

    def _next(self) -> list[Job]:
        """The job whose turn it is, with others that can be done together; none at the end."""
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return []
            first = self._waiting.popleft()
            jobs, task = [first], first.task
            key = None if task is None else task.batch_key()
            if task is not None and key is not None:
                room = self._room - task.size()
                for job in list(self._waiting):
                    other = job.task
                    if other is not None and other.batch_key() == key and other.size() <= room:
                        room -= other.size()
                        self._waiting.remove(job)
                        jobs.append(job)
            self._running = len(jobs)
        self._tell_places()
        return jobs

    def _work(self, jobs: Sequence[Job], pause: Pause) -> None:
        """Do the work of a group; whatever goes wrong ends these jobs, and nothing else."""
        live = [job for job in jobs if not job.ended]
        task = next((task for job in live if (task := job.task) is not None), None)
        if task is None:
            return
        try:
            task.run(self._model, live, pause)
        except RequestError as error:
            self._fail(live, error)
        except Exception as error:
            if not isinstance(error, AxialError):
                print(traceback.format_exc(), file=sys.stderr)
            self._fail(live, failed(error))
            # A traceback keeps the frames of a drawing, and they its caches.
            traceback.clear_frames(error.__traceback__)
        finally:
            if self._stopping:
                self._fail(live, _stopping())
            for job in live:
                job.cancel()  # unless it has ended

    def _fail(self, jobs: Sequence[Job], error: RequestError) -> None:
        for job in jobs:
            job.fail(error)

    def _pause_for(self, jobs: Sequence[Job]) -> Pause:
        def pause() -> bool:
            for _ in range(_QUICK):
                if self._stopping or (job := self._next_quick()) is None:
                    break
                self._work([job], lambda: not self._stopping)
            return not self._stopping and not all(job.ended for job in jobs)

        return pause

    def _next_quick(self) -> Job | None:
        with self._changed:
            for job in self._waiting:
                if job.task is not None and job.task.quick:
                    self._waiting.remove(job)
                    return job
        return None


def _stopping() -> RequestError:
    return RequestError(503, "stopping", "the studio is ending", retry=RETRY_SECONDS)
