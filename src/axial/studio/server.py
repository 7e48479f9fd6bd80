"""The server itself: where it listens, how long it waits for requests, and how it ends."""

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
import webbrowser
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from axial.errors import ConfigError
from axial.studio.app import Studio, application
from axial.studio.config import StudioConfig
from axial.studio.guard import Guard, is_loopback
from axial.system.openmp import wait_asleep
from axial.system.terminal import printable

_CONNECTIONS = 800
_LAST_SECONDS = 1.0
"""How long answers, and then workers, may take to end."""


def serve(config: StudioConfig, *, browser: bool = False) -> None:
    """Serve until a signal comes."""
    wait_asleep()
    if config.token is None and not is_loopback(config.host):
        config = replace(config, token=secrets.token_urlsafe(18))
    with bound(config) as listening:
        studio = Studio(config)
        server = Server(studio, address(config, listening), browser=browser)
        try:
            server.run(sockets=[listening])
        finally:
            _end(studio, server)


def address(config: StudioConfig, listening: socket.socket) -> str:
    """What to open in a browser."""
    port, host = listening.getsockname()[1], config.host
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={config.token}" if config.token else "")


def bound(config: StudioConfig) -> socket.socket:
    """A socket at the address that was asked for, or why there is none."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((config.host.strip("[]"), config.port))
    except OSError as error:
        found.close()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port} ({error.strerror or error}); choose "
            f"another --port or --host"
        ) from error
    return found


class Server(uvicorn.Server):
    """Says where it is once it answers, and tells jobs to end before it waits for them."""

    def __init__(self, studio: Studio, url: str, *, browser: bool) -> None:
        self.studio, self.url, self._browser = studio, url, browser
        self.signals: list[int] = []
        config = studio.config
        guarded = Guard(
            application(studio), host=config.host, token=config.token, limits=config.limits
        )
        logging.getLogger("python_multipart").setLevel(logging.ERROR)  # strangers' requests
        patient = type("Protocol", (_Protocol,), {"seconds": config.limits.header_seconds})
        super().__init__(
            uvicorn.Config(
                guarded,
                http=patient,
                ws="none",
                lifespan="on",
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_CONNECTIONS,
                timeout_keep_alive=int(config.limits.header_seconds),
                timeout_graceful_shutdown=int(_LAST_SECONDS),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so."""
        await super().startup(sockets)
        print(printable(f"axial studio: {self.url}  (Ctrl-C ends it)"), flush=True)
        if self._browser:
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take note of a signal; the loop ends soon after."""
        self.signals.append(sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the jobs first: answers wait for them."""
        self.studio.stop()
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """HTTP with a limit on how long the head of a request may take to arrive."""

    seconds = 10.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(self.seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _end(studio: Studio, server: Server) -> None:
    """Wait for the workers, each at most in the middle of a line; after a signal, end at once."""
    studio.stop()
    until = time.monotonic() + _LAST_SECONDS / 2
    for worker in studio.workers.values():
        if worker.is_alive():
            worker.join(max(0.0, until - time.monotonic()))
    if server.signals:
        # A thread inside torch cannot be ended, and to unload torch takes a second or two.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + server.signals[-1])
