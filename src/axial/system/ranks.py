"""The processes of one job, as torchrun starts them: who we are, and what we add up together.

Alone is the case of one rank: nothing is started and every sum is its own.
"""

import functools
import itertools
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from axial.errors import ConfigError

_SAME_WISH_SECONDS = 3.0
_OBEY_SECONDS = 5.0
"""What a process has to end by itself after the second signal that asks for it."""
_TIMEOUT = timedelta(days=2)
"""Others wait so long while rank 0 packs a large source."""
_JOIN_TIMEOUT = timedelta(minutes=10)
"""From the first rank that has started to the last."""
_JOINED = itertools.count()
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """One process among those that share the work."""

    rank: int
    """Our number, counted from 0."""
    count: int
    """How many processes there are."""
    device: torch.device
    """Where this one computes."""

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def share(self, count: int, batch: int = 1) -> slice:
        """Our part of `count` things that the ranks divide among them."""
        return share(count, self.rank, self.count, batch)

    def sum(self, x: Tensor) -> Tensor:
        """Add up what every rank has, in place; each gets the total."""
        if self.count > 1:
            dist.all_reduce(x)
        return x

    def any(self, flag: bool) -> bool:
        """Whether it is true of any rank: for what all must do together."""
        return self.all_reduce_max(int(flag)) > 0

    def all_reduce_max(self, number: int) -> int:
        """The largest number that any rank has; the GPU need not be waited for."""
        if self.count == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def broadcast(self, x: Tensor) -> Tensor:
        """Give every rank what rank 0 has, in place."""
        if self.count > 1:
            dist.broadcast(x, 0)
        return x

    def wait(self) -> None:
        """Go on when all have come this far."""
        self.any(False)

    def rank0_first(self, do: Callable[[], _T]) -> _T:
        """Do something on rank 0, then on the others; if it fails there, all end.

        Rank 0 tells why; the others have nothing to add, and end after it, for torchrun
        ends all once one has ended.
        """
        if not self.is_rank0:
            if self.all_reduce_max(0):
                with suppress(RuntimeError):  # until rank 0 has left us
                    self.wait()
                sys.exit(1)
            return do()
        try:
            found = do()
        except Exception:
            self.all_reduce_max(1)
            raise
        self.all_reduce_max(0)
        return found

    def on_rank0(self, do: Callable[[], _T]) -> _T | None:
        """Do something on rank 0 alone; the others wait, and end if it fails there."""
        return self.rank0_first(lambda: do() if self.is_rank0 else None)


def share(count: int, rank: int, ranks: int, batch: int = 1) -> slice:
    """The part of `count` things, in their order and in whole batches, that one of the ranks has.

    Rounded up, so that rank 0, which shows the progress, has some if there are any.
    """
    batches = -(-count // batch)
    first, stop = (-(-batches * part // ranks) * batch for part in (rank, rank + 1))
    return slice(min(first, count), min(stop, count))


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Note signals that ask to end, in a list, instead of ending; a later second one ends at once.

    Launchers and schedulers send the same wish several times over: within seconds it is one.
    """
    asked: list[int] = []
    patience = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal patience
        if not asked:
            asked.append(number)
            patience = time.monotonic() + _SAME_WISH_SECONDS
        elif time.monotonic() > patience:
            for one, handler in before.items():
                signal.signal(one, handler)
            signal.raise_signal(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def deferring() -> Iterator[None]:
    """Let signals that ask to end wait for the end of what is done inside.

    Libraries take what a signal's handler raises for an error of their own.
    """
    asked: list[int] = []
    try:
        with stopping() as asked:
            yield
    finally:
        if asked:
            signal.raise_signal(asked[0])


@contextmanager
def ranks(device: str | None = None) -> Iterator[Ranks]:
    """Join the job that torchrun started, or be alone; leave it at the end.

    Without a `device` it is this rank's own GPU where there are GPUs, else the CPU.
    """
    rank, count, local = _job()
    place = usable(device)
    if place.type == "cuda" and device in (None, "cuda"):
        place = usable(f"cuda:{local}")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if count > 1:
        _join("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo", rank, count)
    try:
        with _ended_by_signals() if count > 1 else nullcontext():
            yield Ranks(rank=rank, count=count, device=place)
    finally:
        if count > 1:
            dist.destroy_process_group()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End by a second signal even while we wait for a rank that does not answer.

    There the main thread is in torch, and Python's handlers, which are the main thread's, do not
    run; a thread of its own learns of signals by a socket.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    left = threading.Event()

    def watch() -> None:
        first = None
        while number := ours.recv(1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            first = time.monotonic() if first is None else first
            if time.monotonic() - first > _SAME_WISH_SECONDS and not left.wait(_OBEY_SECONDS):
                os._exit(128 + number[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        theirs.close()
        thread.join()
        ours.close()


def _job() -> tuple[int, int, int]:
    """Our rank, the number of ranks and our rank on this machine, as torchrun tells them."""
    found = []
    for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        value = os.environ.get(name, usual)
        if not value.isdecimal() or len(value) > 9:
            raise ConfigError(f"{name} is {value[:40]!r}: unset it, or start the job with torchrun")
        found.append(int(value))
    rank, count, local = found
    if rank >= count:
        raise ConfigError(
            f"RANK is {rank}, but WORLD_SIZE {count}: unset both, or start the job with torchrun"
        )
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if count > 1 and name not in os.environ:
            raise ConfigError(
                f"WORLD_SIZE is {count}, but {name} is not set: unset it, or start the job with "
                f"torchrun"
            )
    return rank, count, local


def _join(backend: str, rank: int, count: int) -> None:
    """Find the other ranks; waiting for them is left to a signal at once, for torch heeds none."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"axial-{next(_JOINED)}", _store(rank, count)
        )
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_TIMEOUT)
    except (dist.DistError, ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"rank {rank} of {count} cannot join the others at {place} "
            f"({str(error).splitlines()[0]}); start every rank, best with torchrun"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@functools.cache
def _store(rank: int, count: int) -> Any:
    """Where ranks find each other, once for all jobs of a process.

    If rank 0 does not come, torch would tell the others' users so in pages: we knock first.
    """
    end = time.monotonic() + _JOIN_TIMEOUT.total_seconds()
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    answered = rank == 0
    while not answered:
        try:
            socket.create_connection(place, 5.0).close()
            answered = True
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    store, *_ = next(rendezvous("env://", rank, count, timeout=_JOIN_TIMEOUT))
    store.set_timeout(_TIMEOUT)
    return store


def usable(device: torch.device | str | None) -> torch.device:
    """The device of that name, a GPU where there is one if none is named; or why there is none."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise ValueError("neither a CPU nor an NVIDIA GPU")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:
        name = str(device)
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
            raise ConfigError(f"device is {name!r}: use cpu, cuda or cuda:N") from error
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here ({reason})") from error
