"""Who may ask: host names, tokens, other sites, the size and the pace of requests.

An ASGI layer around the application: what it refuses reaches no other code.
"""

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from axial.studio.config import Limits
from axial.studio.errors import RETRY_SECONDS, RequestError
from axial.studio.wire import as_json

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "axial_studio"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_METHODS = ("GET", "HEAD", "POST", "DELETE")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Lets requests pass that are meant for this server, in bounded size and time."""

    def __init__(self, app: App, *, host: str, token: str | None, limits: Limits) -> None:
        self.app, self.token, self.limits = app, token, limits
        self._held = 0
        """Bytes of all requests that are being answered."""
        self.local = is_loopback(host)
        self.names = {"localhost"}
        if not self.local:
            self.names |= {host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then hand it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        guarded = _with_headers(send)
        headers = _Headers(scope)
        try:
            self._check(scope, headers)
            if self._is_login(scope):
                await self._log_in(guarded)
                return
            self._check_token(headers)
        except RequestError as error:
            await answer(guarded, error)
            return
        try:
            body = await self._body(receive)
        except RequestError as error:
            await answer(guarded, error)
            return
        if body is not None:
            with self._holding(len(body)):
                await self.app(scope, _replayed(body, receive), guarded)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body of a request, of bounded size and in bounded time; None if it is cut."""
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    part, more = message.get("body", b""), message.get("more_body", False)
                    parts.append(part)
                    size += len(part)
                    if size > self.limits.upload_bytes:
                        raise too_large(self.limits)
                    if more and self._held + size > self.limits.bodies_bytes:
                        raise RequestError(
                            503, "busy", "too many uploads at once; try again", retry=RETRY_SECONDS
                        )
        except TimeoutError:
            slow = "the request came too slowly; send it again"
            raise RequestError(408, "timeout", slow) from None
        return b"".join(parts)

    @contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        self._held += size
        try:
            yield
        finally:
            self._held -= size

    def _check(self, scope: Scope, headers: "_Headers") -> None:
        host = headers.one("host")
        if host is None or not self._is_ours(host):
            raise RequestError(403, "forbidden", "this server does not answer to that host name")
        if scope["method"] not in _METHODS:
            raise RequestError(405, "method", f"{scope['method'][:20]} is not known here")
        site, origin = headers.one("sec-fetch-site"), headers.one("origin")
        foreign = site not in (None, "same-origin", "none")
        navigating = scope["method"] == "GET" and headers.one("sec-fetch-mode") == "navigate"
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            foreign = True
        if foreign and not navigating:
            raise RequestError(403, "forbidden", "requests from pages of other sites are refused")
        length = headers.one("content-length")
        if length is not None and length.isdecimal() and int(length) > self.limits.upload_bytes:
            raise too_large(self.limits)

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this server: a name that a stranger chose may lead here."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self.names
        return address.is_loopback or not self.local

    def _is_login(self, scope: Scope) -> bool:
        if self.token is None or scope["path"] != "/" or scope["method"] != "GET":
            return False
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        return asked is not None and self._matches(asked[0])

    async def _log_in(self, send: Send) -> None:
        cookie = f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        headers.append((b"content-length", b"0"))
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _check_token(self, headers: "_Headers") -> None:
        if self.token is None:
            return
        kind, _, told = (headers.one("authorization") or "").partition(" ")
        if kind.lower() == "bearer" and self._matches(told.strip()):
            return
        try:
            cookie = SimpleCookie(headers.one("cookie") or "").get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is None or not self._matches(cookie.value):
            raise RequestError(
                401, "token", "open the address with the token that the start printed"
            )

    def _matches(self, told: str) -> bool:
        return hmac.compare_digest(told.encode(), (self.token or "").encode())


class _Headers:
    """The headers of a request; one that stands twice counts as wrong."""

    def __init__(self, scope: Scope) -> None:
        self._all = scope["headers"]

    def one(self, name: str) -> str | None:
        found = [value for key, value in self._all if key == name.encode()]
        if len(found) > 1 and name in ("host", "content-length", "authorization"):
            raise RequestError(400, "bad_request", f"the header {name} is there {len(found)} times")
        return found[0].decode("latin-1") if found else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What the application receives: the body, and later that the client has gone."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def too_large(limits: Limits) -> RequestError:
    """More bytes than a request may have."""
    return RequestError(
        413, "too_large", f"a request has up to {limits.upload_bytes:,} bytes; send less"
    )


async def answer(send: Send, error: RequestError) -> None:
    """Send an error; the connection is closed, for the rest of a body may still come."""
    body = as_json(error.to_json()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {"connection": "close"} | error.headers
    coded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": coded})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    """Add to every answer what keeps a browser strict."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message["headers"]}
            more = {name.encode(): value.encode() for name, value in _HEADERS.items()}
            more.setdefault(b"cache-control", b"no-store")
            extra = [(name, value) for name, value in more.items() if name not in own]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return guarded
