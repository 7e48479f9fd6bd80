"""How a job is answered: as a stream of events, or as one object when it is done.

Either way the job ends with its connection: whoever closes it has cancelled the job.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import numpy as np
from starlette.responses import Response

from axial.data.packed import dtype_for
from axial.studio.errors import RequestError
from axial.studio.guard import Message, Receive, Scope, Send, answer
from axial.studio.jobs import Job
from axial.studio.wire import as_json, event, packed

_ALIVE_SECONDS = 10.0
"""After so long without an event a comment is sent."""
_LINE_SECONDS, _EVENTS = 0.03, 400
"""Lines that come faster are sent together; and no more than so many events a second in all."""


class JobAnswer(Response):
    """The answer to a request for work."""

    streams = 0
    """How many are open that tell of each line."""

    def __init__(
        self, job: Job, cancel: Callable[[Job], None], *, stream: bool, values: int, patience: float
    ) -> None:
        super().__init__()
        self.job, self.cancel, self.stream = job, cancel, stream
        self.dtype, self.patience = dtype_for(values), patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until the job ends or nobody listens."""
        changed = asyncio.Event()
        self.job.watch(changed, end_only=not self.stream)
        gone = asyncio.create_task(_disconnect(receive))
        pump = asyncio.create_task((self._events if self.stream else self._whole)(send, changed))
        try:
            await asyncio.wait({gone, pump}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                with suppress(TimeoutError, OSError):
                    pump.result()
        finally:
            self.cancel(self.job)  # unless it has ended
            self.job.canvas = None
            for task in (gone, pump):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _whole(self, send: Send, changed: asyncio.Event) -> None:
        while not self.job.ended:
            changed.clear()
            self.job.seen()
            if not self.job.ended:
                await changed.wait()
        if self.job.state == "done":
            body = as_json(self.job.result).encode()
            headers = [(b"content-type", b"application/json")]
            headers.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send(send, {"type": "http.response.body", "body": body})
        else:
            cancelled = RequestError(409, "cancelled", "the job was cancelled")
            await answer(send, self.job.error or cancelled)

    async def _events(self, send: Send, changed: asyncio.Event) -> None:
        JobAnswer.streams += 1
        try:
            await self._all_events(send, changed)
        finally:
            JobAnswer.streams -= 1

    async def _all_events(self, send: Send, changed: asyncio.Event) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in self._parts(changed):
            more = {"type": "http.response.body", "body": part, "more_body": True}
            await self._send(send, more)
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, message: Message) -> None:
        """Send, but wait for a client that does not read only so long."""
        async with asyncio.timeout(self.patience):
            await send(message)

    async def _parts(self, changed: asyncio.Event) -> AsyncIterator[bytes]:
        job, place, started = self.job, -1, False
        while True:
            changed.clear()
            job.seen()
            ended = job.ended
            if (now := job.place) is not None and now != place:
                place = now
                yield event("queued", {"job": job.id, "place": now})
            if not started and job.started is not None:
                started = True
                yield event("started", job.started)
            for part in self._news():
                yield part
            if ended:
                yield self._last()
                return
            try:
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield b": still there\n\n"
            if not job.ended:
                await asyncio.sleep(max(_LINE_SECONDS, JobAnswer.streams / _EVENTS))

    def _news(self) -> list[bytes]:
        """What is new in the pictures, or how far the work is."""
        job, parts = self.job, []
        done, of = job.progress
        if job.canvas is not None:
            while (change := job.canvas.take(job.rows)) is not None:
                told: dict[str, Any] = {"done": done, "of": of, "first": change.first}
                told |= {"count": change.count, "places": packed(change.places, np.uint32)}
                parts.append(event("lines", told | {"values": packed(change.values, self.dtype)}))
        elif of and not job.ended:
            parts.append(event("progress", {"done": done, "of": of}))
        return parts

    def _last(self) -> bytes:
        if self.job.state == "done":
            return event("done", self.job.result)
        if self.job.error is not None:
            return event("error", self.job.error.to_json())
        return event("cancelled", {"job": self.job.id})


async def _disconnect(receive: Receive) -> None:
    """Come back when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
