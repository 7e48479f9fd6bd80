"""The processes of one job, as torchrun starts them: who we are, and what we add up together.

Alone is the case of one rank: nothing is started and every sum is its own.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from axial.errors import ConfigError

_SAME_WISH_SECONDS = 3.0
_TIMEOUT = timedelta(days=2)
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
def ranks(device: str | None = None) -> Iterator[Ranks]:
    """Join the job that torchrun started, or be alone; leave it at the end.

    Without a `device` it is this rank's own GPU where there are GPUs, else the CPU.
    """
    rank, count, local = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    place = usable(device)
    if place.type == "cuda" and device in (None, "cuda"):
        place = usable(f"cuda:{local}")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if count > 1:
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        # Others wait while rank 0 packs a large source.
        dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield Ranks(rank=rank, count=count, device=place)
    finally:
        if count > 1:
            dist.destroy_process_group()


def usable(device: torch.device | str | None) -> torch.device:
    """The device of that name, a GPU where there is one if none is named; or why there is none."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise ValueError("use cpu or cuda")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {str(device)!r} cannot be used here ({reason})") from error
