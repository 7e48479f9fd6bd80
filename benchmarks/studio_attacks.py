"""Requests that mean no good, each with the statuses that answer it; raw bytes over a socket.

`benchmarks/studio.py --attack` prints the table; tests/studio/test_attacks.py runs the same ones.
"""

import io
import json
import random
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image

CLOSED = 0
"""The status of a connection that was closed without an answer."""


@dataclass(frozen=True)
class Target:
    """Where the server is, and what it expects."""

    port: int
    model: str
    """A model of 8 x 8 RGB pictures."""
    header_seconds: float
    body_seconds: float
    upload_bytes: int
    token: str | None = None

    def exchange(self, data: bytes, *, seconds: float = 20.0, half: bool = False) -> bytes:
        """Send bytes and read all that comes back; `half` keeps our side open and silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as to:
            with suppress(OSError):  # refused in the middle of it
                to.sendall(data)
            found = b""
            try:
                while part := to.recv(1 << 16):
                    found += part
                    if not half and _is_complete(found):
                        break
            except OSError:
                pass
            return found

    def status(self, data: bytes, **how: float | bool) -> int:
        """The status that answers some bytes."""
        return status_of(self.exchange(data, **how))  # type: ignore[arg-type]

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """A well-formed request, but for what is asked."""
        told = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if self.token:
            told["Authorization"] = f"Bearer {self.token}"
        if body:
            told["Content-Length"] = str(len(body))
        told |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items() if v)]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    def upload(self, what: str, data: bytes, name: str = "x.png", **fields: str) -> bytes:
        """A form with one file."""
        field = "file" if what == "decompress" else "picture"
        body, mark = io.BytesIO(), "mark"
        for key, value in fields.items():
            body.write(f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n'.encode())
            body.write(f"\r\n{value}\r\n".encode())
        body.write(f"--{mark}\r\nContent-Disposition: form-data; name=".encode())
        body.write(f'"{field}"; filename="{name}"\r\n\r\n'.encode() + data)
        body.write(f"\r\n--{mark}--\r\n".encode())
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        return self.request("POST", f"/api/models/{self.model}/{what}", body.getvalue(), kind)

    def draw(self, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        """A drawing."""
        kind = {"Content-Type": "application/json"} | (headers or {})
        return self.request("POST", f"/api/models/{self.model}/draw", body, kind)


@dataclass(frozen=True)
class Attack:
    """Something that a stranger may try."""

    name: str
    run: Callable[[Target], int]
    expected: tuple[int, ...]


def status_of(answer: bytes) -> int:
    """The status of an answer, 0 where there is none."""
    if not answer.startswith(b"HTTP/1."):
        return CLOSED
    return int(answer.split(b" ", 2)[1])


def _is_complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return body.endswith(b"0\r\n\r\n")  # of a stream


def attacks() -> list[Attack]:
    """All of them."""
    return [*_uploads(), *_paths(), *_strangers(), *_malformed(), *_slow()]


def _uploads() -> Iterator[Attack]:
    def upload(data: bytes, what: str = "bits", **how: str) -> Callable[[Target], int]:
        return lambda to: to.status(to.upload(what, data, **how))

    def oversize(to: Target) -> int:
        return to.status(to.upload("bits", b"x" * (to.upload_bytes + 1)))

    def oversize_in_chunks(to: Target) -> int:
        head = to.request(
            "POST",
            f"/api/models/{to.model}/bits",
            headers={
                "Transfer-Encoding": "chunked",
                "Content-Type": "multipart/form-data; boundary=mark",
            },
        )
        start = b'--mark\r\nContent-Disposition: form-data; name="picture"; filename="x"\r\n\r\n'
        part = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        first = f"{len(start):x}\r\n".encode() + start + b"\r\n"
        return to.status(head + first + part * (to.upload_bytes // 0x10000 + 2))

    yield Attack("upload above the limit, by its length", oversize, (413,))
    yield Attack("upload above the limit, in chunks", oversize_in_chunks, (413,))
    yield Attack("PNG that claims 60,000 x 60,000 pixels", upload(claiming_png(60_000)), (413,))
    yield Attack("PNG of 5,000 x 5,000 real pixels in 70 KB", upload(flat_png(5_000)), (413,))
    good = flat_png(8)
    yield Attack("PNG cut short", upload(good[:-20]), (400,))
    damaged = good[:45] + bytes([good[45] ^ 255]) + good[46:]
    yield Attack("PNG with a wrong checksum", upload(damaged), (400,))
    yield Attack("text as a picture", upload(b"hello " * 100), (400,))
    yield Attack("an empty file", upload(b""), (400,))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(%pipe%id) (w) file\nshowpage\n"
    yield Attack("PostScript that runs a program", upload(script, name="x.eps"), (400,))
    yield Attack("an animated GIF", upload(_animated()), (400,))
    yield Attack("SVG", upload(b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"), (400,))
    yield Attack("array of pickled objects", upload(_pickled(), name="x.npy"), (400,))
    claims = _npy_header((10**6, 10**6))
    yield Attack("array that claims 10^12 values", upload(claims, name="x.npy"), (400,))
    yield Attack("array of fractions", upload(_npy(np.zeros((8, 8, 3)))), (400,))
    yield Attack("array of values out of range", upload(_npy(np.full((8, 8, 3), 256))), (400,))
    yield Attack("array with a header of code", upload(_npy_code(), name="x.npy"), (400,))
    yield Attack("file name of a path", upload(good, name="../../../etc/passwd"), (200,))
    yield Attack("mask of another size", lambda to: to.status(_mask(to)), (400,))
    yield Attack("noise as a compressed file", upload(bytes(range(256)), "decompress"), (400, 501))


def _mask(to: Target) -> bytes:
    kind = {"Content-Type": "multipart/form-data; boundary=m"}
    body = b""
    for name, data in (("picture", flat_png(8)), ("mask", flat_png(9))):
        start = f'--m\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'
        body += start.encode() + data + b"\r\n"
    return to.request("POST", f"/api/models/{to.model}/complete", body + b"--m--\r\n", kind)


def _paths() -> Iterator[Attack]:
    paths = (
        "/../../etc/passwd",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%5c..%5capp.py",
        "/static//etc/passwd",
        "/static/index.html%00.png",
        "/api/jobs/../../../etc/passwd",
        "/api/jobs/..%2f..%2fetc/0.png",
        "/api/runs/../../etc/log",
        "/api/runs/%2e%2e/samples/0.png",
        "/api/models/..%2f..%2fetc%2fpasswd",
        "/api/runs/0/samples/..%2f..%2frun.json.png",
        "//etc/passwd",
        "http://127.0.0.1/etc/passwd",
    )
    for path in paths:
        yield Attack(f"GET {path}", _get(path), (404, 422))


def _get(path: str) -> Callable[[Target], int]:
    return lambda to: to.status(to.request("GET", path))


def _strangers() -> Iterator[Attack]:
    def asked(method: str = "GET", path: str = "/api", **headers: str) -> Callable[[Target], int]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda to: to.status(to.request(method, path, headers=named))

    def foreign_post(to: Target) -> int:
        return to.status(
            to.draw(b"{}", {"Origin": "http://evil.example", "Content-Type": "text/plain"})
        )

    yield Attack("another host name (DNS rebinding)", asked(Host="evil.example"), (403,))
    yield Attack("a host name that begins like ours", asked(Host="localhost.evil.example"), (403,))
    yield Attack("another address as host", asked(Host="10.0.0.1"), (403,))
    yield Attack("no host", asked(Host=""), (400,))
    yield Attack("two hosts", lambda to: to.status(_two_hosts(to)), (400,))
    yield Attack("a form of another site's page", foreign_post, (403,))
    cross = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    yield Attack("a picture in another site's page", asked(**cross), (403,))
    yield Attack("a null origin", asked("POST", Origin="null"), (403,))
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        yield Attack(f"method {method}", asked(method), (405, 400))


def _two_hosts(to: Target) -> bytes:
    return to.request("GET", "/api").replace(b"\r\n", b"\r\nHost: localhost\r\n", 1)


def token_attacks() -> Iterator[Attack]:
    """For a server that demands a token."""

    def asked(path: str = "/api", **headers: str) -> Callable[[Target], int]:
        return lambda to: to.status(
            to.request("GET", path, headers={"Authorization": ""} | headers)
        )

    yield Attack("no token", asked(), (401,))
    yield Attack("no token, the page", asked("/"), (401,))
    yield Attack("no token, a static file", asked("/static/index.html"), (401,))
    yield Attack("no token, the description", asked("/openapi.json"), (401,))
    yield Attack("a wrong token", asked(Authorization="Bearer wrong"), (401,))
    yield Attack("a wrong token in the address", asked("/?token=wrong"), (401,))
    yield Attack("a wrong token in the cookie", asked(Cookie="axial_studio=wrong"), (401,))
    yield Attack("a token of strange bytes", asked(Authorization="Bearer \xff\xfe"), (401,))
    yield Attack("a cookie that is none", asked(Cookie='axial_studio="\\'), (401,))


def _malformed() -> Iterator[Attack]:
    def draw(body: bytes, **headers: str) -> Callable[[Target], int]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda to: to.status(to.draw(body, named))

    def raw(data: bytes) -> Callable[[Target], int]:
        return lambda to: to.status(data)

    wrong = (400, 422)
    yield Attack("JSON nested 100,000 deep", draw(b"[" * 100_000), wrong)
    yield Attack("JSON cut short", draw(b'{"count": 1'), wrong)
    yield Attack("a number beyond all numbers", draw(b'{"temperature": 1e999}'), wrong)
    yield Attack("a temperature that is no number", draw(b'{"temperature": NaN}'), wrong)
    yield Attack("a seed of 5,000 digits", draw(b'{"seed": ' + b"9" * 5_000 + b"}"), wrong)
    yield Attack("a count of 10^9", draw(b'{"count": 1000000000}'), wrong)
    yield Attack("no UTF-8", draw(b'{"count": "\xff\xfe"}'), wrong)
    yield Attack("a list for a record", draw(b"[1, 2, 3]"), wrong)
    yield Attack("a form without a boundary", draw(b"x", Content_Type="multipart/form-data"), wrong)
    parts = b'--m\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 5_000 + b"--m--\r\n"
    yield Attack("a form of 5,000 fields", lambda to: to.status(_form(to, parts)), wrong)
    long = b"--m\r\n" + b"X-Header: " + b"x" * 1_000_000 + b"\r\n\r\n"
    yield Attack("a form with a header of 1 MB", lambda to: to.status(_form(to, long)), wrong)
    yield Attack("a head of 1 MB", raw(b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000), (400, 431))
    yield Attack(
        "a TLS greeting", raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20), (400,)
    )
    yield Attack("noise", raw(bytes(range(256)) * 40), (400,))
    smuggled = (
        b"POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET"
    )
    yield Attack("two lengths of one body", raw(smuggled), (400, 405))
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    yield Attack(
        "a web socket",
        lambda to: to.status(to.request("GET", "/api/ws", headers=upgrade), seconds=12.0),
        (404, 400, 403),
    )


def _form(to: Target, body: bytes) -> bytes:
    kind = {"Content-Type": "multipart/form-data; boundary=m"}
    return to.request("POST", f"/api/models/{to.model}/bits", body, kind)


def _slow() -> Iterator[Attack]:
    def head(to: Target) -> int:
        start = time.monotonic()
        found = to.status(b"GET / HTTP/1.1\r\nHost:", seconds=3 * to.header_seconds, half=True)
        assert time.monotonic() - start < 2 * to.header_seconds + 0.5
        return found

    def second_head(to: Target) -> int:
        """A request that is answered, then half of another on the same connection."""
        first = to.request("GET", "/api", headers={"Connection": "keep-alive"})
        start = time.monotonic()
        to.exchange(first + b"GET / HTTP/1.1\r\nHo", seconds=3 * to.header_seconds, half=True)
        assert time.monotonic() - start < 2 * to.header_seconds + 0.5
        return CLOSED

    def body(to: Target) -> int:
        data = to.draw(b"{}", {"Content-Length": "1000"})
        start = time.monotonic()
        found = to.status(data, seconds=3 * to.body_seconds, half=True)
        assert time.monotonic() - start < 2 * to.body_seconds + 0.5
        return found

    def crowd(to: Target) -> int:
        """Many that say nothing, while someone asks."""
        silent = [socket.create_connection(("127.0.0.1", to.port)) for _ in range(300)]
        try:
            for one in silent:
                one.sendall(b"G")
            return to.status(to.request("GET", "/api"))
        finally:
            for one in silent:
                one.close()

    def deaf(to: Target) -> int:
        """Some that ask for pictures and never read them, while someone asks."""
        asked = to.draw(b'{"count": 64}', {"Accept": "text/event-stream"})
        deaf = [socket.create_connection(("127.0.0.1", to.port)) for _ in range(8)]
        try:
            for one in deaf:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                one.sendall(asked)
            return to.status(to.request("GET", "/api"))
        finally:
            for one in deaf:
                one.close()

    yield Attack("half a head, then silence (slow loris)", head, (CLOSED,))
    yield Attack("half a second head, then silence", second_head, (CLOSED,))
    yield Attack("half a body, then silence", body, (408,))
    yield Attack("300 silent connections, and one that asks", crowd, (200,))
    yield Attack("8 that never read, and one that asks", deaf, (200,))


def fuzzed(to: Target, count: int, seed: int = 0) -> Iterator[tuple[int, bytes, float]]:
    """Valid requests, damaged at random: the status, the request and the seconds of each."""
    chance = random.Random(seed)
    upload = to.upload("bits", flat_png(8))
    valid = [
        to.request("GET", "/api"),
        to.request("GET", "/api/models"),
        to.request("GET", "/static/index.html"),
        to.request("GET", "/api/runs"),
        to.request("GET", "/api/jobs/0123456789abcdef/0.png"),
        to.request("DELETE", "/api/jobs/0123456789abcdef"),
        to.draw(b'{"count": 1, "seed": 3, "temperature": 0.5}'),
        to.draw(b'{"count": 1}', {"Accept": "text/event-stream"}),
        upload,
        upload.replace(b"/bits ", b"/pixel "),
        to.upload("complete", flat_png(8), keep="3", count="1"),
        to.upload("pixel", flat_png(8), place="3,4"),
    ]
    for _ in range(count):
        data = _damaged(chance, chance.choice(valid))
        start = time.monotonic()
        with socket.create_connection(("127.0.0.1", to.port), timeout=2) as connection:
            found = b""
            with suppress(OSError):  # closed, or it waits for a rest that never comes
                connection.sendall(data)
                if not _is_whole(data):
                    connection.shutdown(socket.SHUT_WR)
                while not _is_complete(found) and (part := connection.recv(1 << 16)):
                    found += part
        yield status_of(found), data, time.monotonic() - start


def _is_whole(data: bytes) -> bool:
    """Whether a server can know that nothing more comes."""
    head, found, body = data.partition(b"\r\n\r\n")
    lengths = re.findall(rb"(?i)\r\ncontent-length: *(\d+) *(?=\r\n|$)", head)
    chunked = re.search(rb"(?i)transfer-encoding|expect", head)
    return bool(found) and not chunked and len(body) >= max(map(int, lengths), default=0)


def _damaged(chance: random.Random, data: bytes) -> bytes:
    """Some bytes changed, lost, doubled or moved; the length told may be wrong then."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(out))
        match chance.randrange(6):
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                del out[at : at + chance.randrange(1, 20)]
            case 2:
                out[at:at] = out[at : at + chance.randrange(1, 40)]
            case 3:
                out[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 8)))
            case 4:
                words = (b"%00", b"../", b"\r\n", b"-1", b"9" * 30, b"NaN", b'"', b"\xff", b"{}")
                out[at:at] = chance.choice(words)
            case _:
                out = out[:at]
        out = out or bytearray(b"\r")
    return bytes(out)


def flat_png(side: int) -> bytes:
    """A grey square."""
    out = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 30)).save(out, "PNG")
    return out.getvalue()


def claiming_png(side: int) -> bytes:
    """A PNG that claims a size and holds one line."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(3 * side + 1))
    mark = b"\x89PNG\r\n\x1a\n"
    return mark + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _animated() -> bytes:
    out = io.BytesIO()
    frames = [Image.new("L", (8, 8), shade) for shade in (0, 100, 200)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


def _npy(x: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, x)
    return out.getvalue()


def _pickled() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return out.getvalue()


def _npy_header(shape: tuple[int, ...]) -> bytes:
    return _npy_text(
        json.dumps({"descr": "|u1", "fortran_order": False, "shape": 0})[:-2] + f"{shape}}}"
    )


def _npy_code() -> bytes:
    return _npy_text(
        "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': ()}"
    )


def _npy_text(text: str) -> bytes:
    text = text.replace("false", "False") + " " * (117 - len(text) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
