"""Records of a source decoded in other processes, in their order, in bounded memory."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from itertools import chain, islice
from multiprocessing import resource_tracker
from typing import Any

from axial.data.packed import Array
from axial.data.sources.record import Record, Refused
from axial.errors import DataError

_RECORDS = 64
_PIECE_BYTES = 16 << 20
Piece = list[Record | Refused]
"""Records after decoding."""
_Given = list[Record | DataError]
_Decode = Callable[[Record], Array]


def decoded(
    records: Iterator[Record | DataError], decode: _Decode | None, workers: int
) -> Generator[Piece, None, None]:
    """The records of a source in their order, decoded; to be closed, which ends the workers."""
    if decode is None:
        yield from (_decode(None, [record]) for record in records)
        return
    pieces = _Pieces(records)
    head = list(islice(pieces, 2))
    if workers == 1 or len(head) < 2:
        for piece in chain(head, pieces):
            yield pieces.learn(_decode(decode, piece))
        return
    with closing(_in_parallel(decode, chain(head, pieces), workers)) as decoded:
        yield from map(pieces.learn, decoded)


class _Pieces:
    """Records in lists that are neither long nor large once they are decoded.

    How large a decoded record is shows only afterwards: the first pieces are short, and the
    largest record so far says how long the next may be.
    """

    def __init__(self, records: Iterator[Record | DataError]) -> None:
        self.records = records
        self.length = 1

    def __iter__(self) -> Iterator[_Given]:
        while piece := list(islice(self.records, self.length)):
            yield piece

    def learn(self, piece: Piece) -> Piece:
        """Take note of how large the records of a decoded piece have become."""
        sizes = [record.data.nbytes for record in piece if isinstance(record, Record)]
        if sizes:
            most = _PIECE_BYTES // max(sizes)
            self.length = max(1, min(_RECORDS, 2 * self.length, most))
        return piece


def _decode(decode: _Decode | None, given: _Given) -> Piece:
    """What a worker does: every record decoded, or the error that it is."""
    found: Piece = []
    for record in given:
        if isinstance(record, DataError):
            found.append(Refused("", record))
            continue
        try:
            found.append(record._replace(data=decode(record)) if decode else record)
        except DataError as error:
            found.append(Refused(record.where, error))
    return found


def _in_parallel(
    decode: _Decode, pieces: Iterator[_Given], workers: int
) -> Generator[Piece, None, None]:
    """Decode pieces in other processes, a few ahead of the reader, in order."""
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet)
    waiting: deque[Future[Piece]] = deque()
    resource_tracker.ensure_running()  # which unblocks interrupts when it starts
    try:
        for piece in pieces:
            with _uninterrupted():  # a worker is started here as long as there are too few
                waiting.append(pool.submit(_decode, decode, piece))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker ended: for want of memory (use fewer --workers), or because a script calls "
            "pack() outside `if __name__ == '__main__':` (add that, or use workers=1)"
        ) from error
    finally:
        with _uninterrupted():  # half an end would wait for ever
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off an interrupt to the end; processes that are started meanwhile never see one.

    They inherit what is blocked. Here another thread, of a library, may still be given it.
    """
    asked: list[int] = []
    ours = threading.current_thread() is threading.main_thread()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = signal.signal(signal.SIGINT, lambda *_: asked.append(1)) if ours else None
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    if asked:
        signal.raise_signal(signal.SIGINT)


def _quiet() -> None:
    """An interrupt is the parent's to handle, and without a parent there is no work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def worker_count(asked: int | None) -> int:
    """How many processes decode: as many as asked for, or one for each core."""
    if asked is not None and asked < 1:
        raise DataError(f"--workers is {asked}: use at least 1")
    return asked or len(os.sched_getaffinity(0))
