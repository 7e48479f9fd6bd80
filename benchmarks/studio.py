"""The studio under load and under attack, on a loopback port of this machine.

    python benchmarks/studio.py                    200 clients for 60 s against a small model
    python benchmarks/studio.py --attack           the attack table, and 10,000 damaged requests
    python benchmarks/studio.py --start cifar10    from the command to the page and the first line

Every picture is compared with that of `axial.draw`. The model computes in float64, where the two
are equal to the last value whatever the batch.
"""

import argparse
import asyncio
import base64
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the studio does, before torch is loaded

import numpy as np
import torch
from studio_attacks import Target, attacks, fuzzed, token_attacks

import axial

AXES, CHANNELS, SEEDS, MOST = (8, 8), 3, 50, 4
Expected = dict[int, bytes]


@contextmanager
def served(*args: str) -> Iterator[tuple[int, subprocess.Popen[str], str]]:
    """The port, the process and the first line of a studio of its own."""
    command = [sys.executable, "-m", "axial", "studio", *args, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://[^:/]+:(\d+)/", line)
        assert found, line
        yield int(found[1]), process, line
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def get(port: int, path: str, headers: dict[str, str] | None = None) -> Any:
    """The JSON of a call."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers or {})
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def wait_until_ready(port: int, headers: dict[str, str] | None = None) -> str:
    """The name of the only model, once it is loaded."""
    while (model := get(port, "/api/models", headers)["models"][0])["state"] == "loading":
        time.sleep(0.02)
    assert model["state"] == "ready", model["error"]
    return str(model["id"])


def small_model(folder: Path) -> Path:
    """A model of 8 x 8 RGB pictures in float64, with weights that all speak."""
    torch.manual_seed(0)
    config = axial.ModelConfig(
        axes=AXES,
        channels=CHANNELS,
        width=64,
        heads=4,
        encoder_layers=2,
        decoder_layers=(2, 2),
    )
    model = axial.AxialTransformer(config)
    model.reset_parameters(final_scale=1.0)
    axial.save(model.double(), folder / "small")
    return folder / "small"


def drawn(model: Path, batch: int) -> Expected:
    """The pictures of each seed."""
    loaded = axial.load(model)
    seeds = torch.arange(SEEDS).repeat_interleave(MOST)
    images = torch.arange(MOST).repeat(SEEDS)
    x = axial.draw(loaded, len(seeds), seed=seeds, first=images, batch=batch)
    pictures = x.to(torch.uint8).view(SEEDS, MOST, -1).numpy()
    return {s: pictures[s].tobytes() for s in range(SEEDS)}


def speed(model: Path, batch: int, seconds: float = 8.0) -> tuple[float, float]:
    """Pictures of `axial.draw` at a batch size: how many a second, and seconds of CPU for each."""
    loaded = axial.load(model)
    axial.draw(loaded, batch, batch=batch)
    start, used, count = time.monotonic(), time.process_time(), 0
    while time.monotonic() - start < seconds:
        axial.draw(loaded, batch, seed=count, batch=batch)
        count += batch
    return count / (time.monotonic() - start), (time.process_time() - used) / count


class Load:
    """Clients that draw and compare, and one that only looks at the page."""

    def __init__(self, port: int, name: str, expected: Expected, seconds: float) -> None:
        self.port, self.name, self.expected = port, name, expected
        self.until = time.monotonic() + seconds
        self.answers: Counter[str] = Counter()
        self.pictures, self.drawn, self.batches = 0, 0, Counter[int]()
        self.page: list[float] = []

    async def run(self, clients: int) -> None:
        await asyncio.gather(self._look(), *(self._draw(i) for i in range(clients)))

    async def _draw(self, number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < self.until:
            seed, count = chance.randrange(SEEDS), chance.randint(1, MOST)
            stream = number % 2 == 0
            try:
                status, body = await self._ask(seed, count, stream)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.answers[f"lost ({type(error).__name__})"] += 1
                continue
            if status == 503:
                self.answers["503"] += 1
                await asyncio.sleep(1)
                continue
            found = self._pictures(body, stream)
            size = len(self.expected[seed]) // MOST * count
            right = status == 200 and found == self.expected[seed][:size]
            self.answers["right" if right else f"wrong ({status})"] += 1
            self.drawn += count * right
            if time.monotonic() < self.until:
                self.pictures += count * right

    def _pictures(self, body: bytes, stream: bool) -> bytes | None:
        """The pictures of an answer, put together from its lines if it is a stream."""
        if not stream:
            return base64.b64decode(json.loads(body)["values"])
        x = np.zeros((MOST, int(np.prod(AXES)) * CHANNELS), np.uint8)
        name, stop = "", 0
        for line in body.decode().splitlines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                if name == "started":
                    self.batches[data["batch"]] += 1
                elif name == "lines":
                    rows = slice(data["first"], data["first"] + data["count"])
                    places = np.frombuffer(base64.b64decode(data["places"]), "<u4")
                    values = np.frombuffer(base64.b64decode(data["values"]), np.uint8)
                    x[rows, places] = values.reshape(data["count"], -1)
                elif name == "done":
                    stop = data["shape"][0]
        return x[:stop].tobytes()

    async def _ask(self, seed: int, count: int, stream: bool) -> tuple[int, bytes]:
        body = json.dumps({"seed": seed, "count": count}).encode()
        accept = "text/event-stream" if stream else "application/json"
        return await self._request(
            f"POST /api/models/{self.name}/draw HTTP/1.1\r\nContent-Type: application/json\r\n"
            f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n",
            body,
        )

    async def _request(self, head: str, body: bytes = b"") -> tuple[int, bytes]:
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                told = f"{head}Host: 127.0.0.1\r\nConnection: close\r\n\r\n"
                writer.write(told.encode() + body)
                answer = await reader.read()
            finally:
                writer.close()
        head_, found, rest = answer.partition(b"\r\n\r\n")
        if not found:
            raise asyncio.IncompleteReadError(answer, None)
        if b"transfer-encoding: chunked" in head_.lower():
            rest = _unchunked(rest)
        return int(head_.split(b" ", 2)[1]), rest

    async def _look(self) -> None:
        while time.monotonic() < self.until:
            start = time.monotonic()
            status, _ = await self._request("GET / HTTP/1.1\r\n")
            self.page.append(time.monotonic() - start)
            assert status == 200
            await asyncio.sleep(0.1)


def _unchunked(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        out, data = out + data[:length], data[length + 2 :]
    return out


def resident_bytes(process: subprocess.Popen[str]) -> int:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Time that a process has computed, over all cores."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def watch_memory(process: subprocess.Popen[str], found: list[int]) -> None:
    """Note the memory of a process every second."""
    while True:
        found.append(resident_bytes(process))
        await asyncio.sleep(1)


def load(clients: int, seconds: float) -> None:
    """Many clients at once."""
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder))
        expected, before = drawn(model, 64), speed(model, 64)
        with served(str(model)) as (port, process, _):
            name = wait_until_ready(port)
            work, memory = Load(port, name, expected, seconds), list[int]()

            async def both() -> None:
                watching = asyncio.create_task(watch_memory(process, memory))
                await work.run(clients)
                watching.cancel()

            used = cpu_seconds(process)
            asyncio.run(both())
            used = cpu_seconds(process) - used
        after = speed(model, 64)
    rate, page = work.pictures / seconds, sorted(work.page)
    print(f"{clients} clients for {seconds:g} s, 1 to {MOST} pictures a request, half as streams")
    for answer, count in sorted(work.answers.items()):
        print(f"  {answer:<28}{count:>8,}")
    jobs = sum(work.batches.values())
    print(f"  batch of a job, mean {sum(b * n for b, n in work.batches.items()) / jobs:>16.1f}")
    alone = [before[0], after[0]]
    share = rate / statistics.fmean(alone)
    told = " and ".join(f"{one:.1f}" for one in alone)
    print(f"  pictures a second {rate:>18.1f}, axial.draw at batch 64 {told}: {share:.0%}")
    each, plain = 1e3 * used / max(1, work.drawn), 1e3 * statistics.fmean((before[1], after[1]))
    print(f"  CPU of a picture, ms {each:>16.1f}, axial.draw {plain:.1f}: {plain / each:.0%}")
    middle, late = statistics.median(page), page[int(0.99 * len(page))]
    print(f"  the page, seconds: median {middle:.3f}, 99 % {late:.3f}, most {page[-1]:.3f}")
    marks = {at: memory[min(at, len(memory) - 1)] >> 20 for at in (0, 10, int(seconds / 2))}
    told = ", ".join(f"{at} s {size} MiB" for at, size in marks.items())
    print(f"  memory: {told}, end {memory[-1] >> 20} MiB")


def attack(count: int) -> None:
    """Every attack, then damaged requests; the server must answer after each."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        small = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": (2, 1)}
        config = axial.ModelConfig(axes=(8, 8), channels=3, **small)  # type: ignore[arg-type]
        axial.save(axial.AxialTransformer(config), Path(folder) / "tiny")
        for host, rows in (("127.0.0.1", attacks()), ("0.0.0.0", list(token_attacks()))):
            with served(f"{folder}/tiny", "--host", host, "--runs", folder) as (port, _, line):
                token = line.partition("token=")[2].split(" ")[0] or None
                own = {"Authorization": f"Bearer {token}"} if token else {}
                name = wait_until_ready(port, own)
                to = Target(port, name, 10.0, 30.0, 1 << 24, token)
                for row in rows:
                    found = row.run(to)
                    answers = to.status(to.request("GET", "/api"))
                    wrong += found not in row.expected or answers != 200
                    print(f"{row.name:<48}{found or 'closed':>8}  then {answers}", flush=True)
                if not token:
                    wrong += _fuzz(to, count)
    print(f"{wrong} not as expected")
    sys.exit(1 if wrong else 0)


def _fuzz(to: Target, count: int) -> int:
    start, found, slowest, bad = time.monotonic(), Counter[int](), 0.0, 0
    for status, data, seconds in fuzzed(to, count):
        found[status] += 1
        slowest = max(slowest, seconds)
        if status >= 500:
            bad += 1
            print(f"{status}: {data[:200]!r}")
    answers = to.status(to.request("GET", "/api"))
    told = ", ".join(f"{status or 'closed'} x {n:,}" for status, n in sorted(found.items()))
    print(f"{count:,} damaged requests in {time.monotonic() - start:.0f} s: {told}")
    print(f"  the slowest took {slowest:.2f} s; then {answers}")
    return bad + (answers != 200)


def start(model: str) -> None:
    """How long it takes until the page answers, and until the first line of the first picture."""
    begun = time.monotonic()
    with served(model) as (port, _, _):
        get(port, "/api")
        print(f"from the command to a page that answers: {time.monotonic() - begun:.2f} s")
        name = wait_until_ready(port)
        print(f"until {name} is loaded: {time.monotonic() - begun:.2f} s")
        for which in ("first", "second"):
            asked = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
            body = json.dumps({"count": 1})
            connection.request("POST", f"/api/models/{name}/draw", body, headers)
            for line in connection.getresponse():
                if line == b"event: lines\n":
                    break
            seconds = time.monotonic() - asked
            print(f"from asking to the first line of the {which} picture: {seconds:.2f} s")
            connection.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--attack", action="store_true", help="the attack table")
    parser.add_argument("--fuzz", type=int, default=10_000, help="damaged requests of --attack")
    parser.add_argument("--start", metavar="MODEL", help="time the start with this model")
    asked = parser.parse_args()
    if asked.start:
        start(asked.start)
    elif asked.attack:
        attack(asked.fuzz)
    else:
        load(asked.clients, asked.seconds)


if __name__ == "__main__":
    main()
