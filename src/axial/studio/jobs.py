"""Jobs: what a request asked a model for, how far it is, and what came of it."""

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

from axial.data.packed import Array
from axial.studio.canvas import Canvas
from axial.studio.config import Limits
from axial.studio.errors import RequestError, not_found

State = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED = ("done", "failed", "cancelled")


class Job:
    """A piece of work for one model; its worker changes it, a connection watches it."""

    def __init__(self, kind: str, model: str, task: Any) -> None:
        """`task` is what a worker needs to know."""
        self.id, self.kind, self.model, self.task = secrets.token_hex(8), kind, model, task
        self.state: State = "waiting"
        self.began = time.monotonic()
        self.started: dict[str, Any] | None = None
        """What the event `started` says."""
        self.progress: tuple[int, int] = (0, 0)
        self.canvas: Canvas | None = None
        self.rows = slice(0)
        """Which pictures of the canvas are this job's."""
        self.result: dict[str, Any] = {}
        self.error: RequestError | None = None
        self.pictures: list[Array] = []
        """What came of it, each (*axes, c)."""
        self.names: list[str] = []
        self.file: bytes = b""
        self.before = 0
        """Jobs that come before it, while it waits."""
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None
        self._awake = self._end_only = False

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED

    @property
    def place(self) -> int | None:
        """How many jobs wait before it; None once it runs."""
        return self.before if self.state == "waiting" else None

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        texts = sum(len(text) for text in self.result.values() if isinstance(text, str))
        return sum(x.nbytes for x in self.pictures) + len(self.file) + texts + 4096

    def watch(self, changed: asyncio.Event, *, end_only: bool) -> None:
        """Have an event set, in the loop of the caller, when something changes or it ends."""
        self._end_only = end_only
        loop = asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(changed.set)

    def seen(self) -> None:
        """Ask to be told of the next change."""
        self._awake = False

    def touch(self) -> None:
        """Tell whoever watches that something changed; once until they look."""
        if self._end_only and not self.ended:
            return
        if self._wake is not None and not self._awake:
            self._awake = True
            try:
                self._wake()
            except RuntimeError:  # the loop has ended
                self._wake = None

    def start(self, told: dict[str, Any]) -> bool:
        """Begin, unless it was cancelled in the meantime."""
        with self._lock:
            if self.ended:
                return False
            self.state, self.started = "running", {"job": self.id, **told}
        self.touch()
        return True

    def advance(self, done: int, of: int) -> None:
        """Tell how far it is."""
        self.progress = (done, of)
        self.touch()

    def finish(self, result: dict[str, Any]) -> None:
        """End with a result."""
        seconds = round(time.monotonic() - self.began, 3)
        self._end("done", result={"job": self.id, "seconds": seconds, **result})

    def fail(self, error: RequestError) -> None:
        """End with an error."""
        self._end("failed", error=error)

    def cancel(self) -> None:
        """End without either; who works at it stops after the next line."""
        self._end("cancelled")

    def _end(
        self, state: State, result: dict[str, Any] | None = None, error: RequestError | None = None
    ) -> None:
        with self._lock:
            if self.ended:
                return
            self.result, self.error = result or {}, error
            self.task = None
            self.state = state
        self.touch()

    def to_json(self) -> dict[str, Any]:
        """What it is, and how far."""
        told = {"job": self.id, "kind": self.kind, "model": self.model}
        return told | {"state": self.state, "place": self.place}


class JobStore:
    """Jobs by their ids; those that ended are forgotten when newer ones need the room."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, job: Job) -> None:
        """Keep a job, and forget some that ended."""
        with self._lock:
            self._jobs[job.id] = job
            ended = [kept for kept in self._jobs.values() if kept.ended]
            size, count = sum(kept.size for kept in ended), len(ended)
            for old in ended:
                if count <= self._limits.kept_jobs and size <= self._limits.kept_bytes:
                    break
                del self._jobs[old.id]
                size, count = size - old.size, count - 1

    def __getitem__(self, name: str) -> Job:
        """The job of this id, or a refusal."""
        with self._lock:
            if (job := self._jobs.get(name)) is None:
                raise not_found("no such job, or it is forgotten by now; ask for the work again")
            return job

    def all(self) -> list[Job]:
        """Every job that is not forgotten."""
        with self._lock:
            return list(self._jobs.values())
