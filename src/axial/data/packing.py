"""Any source -> one packed array: decoded on all cores, in order, in bounded memory.

The number of workers changes nothing but the time: records are decoded in pieces of a fixed
size and written in their own order.
"""

import multiprocessing
import os
import shlex
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from axial.data.description import MOST_CLASSES
from axial.data.packed import Array, Packed, is_packed, open_packed
from axial.data.packed_writer import PackedWriter
from axial.data.sources.arrays import beyond_values, values_for
from axial.data.sources.options import ReadOptions
from axial.data.sources.recognise import open_source
from axial.data.sources.record import Record, Source
from axial.errors import DataError
from axial.system.progress import counting

_RECORDS = 64
_PIECE_BYTES = 16 << 20
_SKIPPED = "a skipped record is a picture, a clip or the rest of a file: one example or more"
_Piece = list[Record | DataError]
_Decode = Callable[[Record], Array]


@dataclass(frozen=True)
class PackReport:
    """What became of a source."""

    packed: Packed
    reader: str
    bad: tuple[str, ...]
    """The first few of what was skipped, in words."""

    def __str__(self) -> str:
        about = self.packed.description
        shape = " x ".join(map(str, (*about.axes, about.channels)))
        lines = {
            "source": f"{about.title}, read as {self.reader}",
            "examples": f"{about.count:,} of {shape}, {about.values} values, {about.dtype}",
            "labels": f"{about.labels.classes} classes" if about.labels else "none",
            "sha256": about.sha256,
        }
        if about.skipped:
            first = f", the first: {self.bad[0]}" if self.bad else ", when it was packed before"
            lines["skipped"] = f"{about.left_out}{first}"
        rows = [*lines.items(), *(("note", note) for note in about.notes)]
        return "\n".join(f"{name:<12}{text}" for name, text in rows)


def pack(
    source: str | Path,
    out: Path | str,
    options: ReadOptions | None = None,
    *,
    workers: int | None = None,
    progress: bool = False,
    shown: Path | None = None,
    limit: int | None = None,
) -> PackReport:
    """Write a source as one packed array, whole or not at all.

    `workers` defaults to one for each core; `progress` draws a bar on standard error. `shown` is
    what the description calls the file, if it is to be moved there. With a `limit` only the first
    so many examples are read, unless all must be seen to tell how many classes there are.
    """
    options = options or ReadOptions()
    before = _open_as_packed(source, options.split) if is_packed(source) else None
    opened = open_source(source, options if before is None else _as_packed(options))
    if _is_same_file(source, out):
        raise DataError(f"{out}: would replace the very file it is made from; use another --out")
    with PackedWriter(out) as writer:
        collector = _Collector(writer, opened, skip_bad=options.skip_bad, limit=limit)
        if before is not None:
            collector.inherit(before)
        expected = min(filter(None, (limit, opened.count)), default=None)
        try:
            with (
                closing(collector.wanted(_workers(workers))) as pieces,
                counting("packing", expected, shown=progress) as advance,
            ):
                for piece in pieces:
                    collector.add(piece)
                    advance(writer.count)
        except OSError as error:
            raise DataError(f"{source}: cannot be read ({error.strerror or error})") from error
        collector.finish(command(source, shown or out, options, workers))
    return PackReport(open_packed(out), opened.reader, tuple(collector.bad))


def open_data(
    what: str | Path, scratch: Path, options: ReadOptions | None = None, **how: Any
) -> Packed:
    """A packed array as it is, which no option alters; any other source packed into `scratch`."""
    if not is_packed(what):
        return pack(what, scratch / "data.npy", options, **how).packed
    options = options or ReadOptions()
    if extra := [name for name in options.given if name != "split"]:
        raise DataError(
            f"{what}: --{extra[0].replace('_', '-')} means nothing to a packed array; leave it out"
        )
    return _open_as_packed(what, options.split)


def _open_as_packed(what: str | Path, wanted: str | None) -> Packed:
    """A packed array, which is one part of its source, or all of one that has no parts."""
    packed = open_packed(what)
    split = packed.description.split
    if wanted not in (None, split):
        found = f"holds {split!r}" if split else "is not divided into parts"
        raise DataError(
            f"{what}: has no split {wanted!r}, for it {found}; leave --split out, or give other "
            f"data"
        )
    return packed


def _is_same_file(one: str | Path, other: str | Path) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:  # one of them is not there
        return False


def _as_packed(options: ReadOptions) -> ReadOptions:
    """Options that read a packed array as its description has it, but for those asked for."""
    options = replace(options, split=None)  # its own, which is the one asked for
    return options if options.channels_none else replace(options, channels_last=True)


def command(
    source: str | Path, out: str | Path, options: ReadOptions, workers: int | None = None
) -> str:
    """The command line that does what `pack` does with these arguments."""
    words = ["axial", "data", str(source), "--out", str(out)]
    for name in options.given:
        value = getattr(options, name)
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    if workers is not None:
        words += ["--workers", str(workers)]
    return shlex.join(words)


class _Collector:
    """Takes decoded records in order, checks that they fit together, and writes them."""

    def __init__(
        self, writer: PackedWriter, source: Source, *, skip_bad: bool, limit: int | None
    ) -> None:
        self.writer = writer
        self.source = source
        self.skip_bad = skip_bad
        self.limit = limit
        self.beginning = False
        self.bad: list[str] = []
        self.skipped = 0
        self.largest = 0
        self.labels: list[Array] = []
        self.row: tuple[int, ...] | None = None
        self.first = ""

    def inherit(self, packed: Packed) -> None:
        """Keep what an array that was packed before is called, and its labels."""
        about, source = packed.description, self.source
        source.name, source.version, source.split = about.source, about.version, about.split
        source.values = source.values or about.values
        source.notes = [*about.notes]
        self.skipped = about.skipped
        if about.labels is not None and packed.labels is not None:
            self.labels = [packed.labels[: self.limit]]
            source.names, source.classes = about.labels.names, about.labels.classes

    @property
    def missing(self) -> int | None:
        """How many more examples are wanted; None for all there are."""
        return None if self.limit is None else self.limit - self.writer.count

    def wanted(self, workers: int) -> Generator[_Piece, None, None]:
        """Decoded pieces until there is enough; to be closed, which ends the workers.

        No more records are decoded than examples are missing, unless one holds several.
        """
        records, decode = self.source.records, self.source.decode
        for record in records:
            if self.missing == 0:
                self.beginning = True
                return
            others = islice(records, None if self.missing is None else self.missing - 1)
            with closing(_decoded(chain([record], others), decode, workers)) as pieces:
                for piece in pieces:
                    if self.missing == 0:
                        self.beginning = True
                        return
                    yield piece

    def add(self, piece: _Piece) -> None:
        """Write a decoded piece; what does not fit is an error, or skipped and counted."""
        rows: list[Array] = []
        labels: list[Array] = []
        for record in piece:
            try:
                if isinstance(record, DataError):
                    raise record
                self._check(record)
            except DataError as error:
                if not self.skip_bad:
                    raise error from error.__cause__
                self.skipped += 1
                self.bad += [str(error)] if len(self.bad) < 10 else []
            else:
                room = self._room(record, sum(map(len, rows)))
                rows.append(record.data[:room])
                if record.label is not None:
                    labels.append(np.broadcast_to(record.label, (len(record.data),))[:room])
        if rows:
            x = rows[0] if len(rows) == 1 else np.concatenate(rows)
            self.largest = max(self.largest, int(x.max()))
            self.writer.append(x)
        if labels:
            self.labels.append(np.concatenate(labels).astype(np.int64))

    def _room(self, record: Record, before: int) -> int | None:
        """How many of a record's examples are wanted after those before it; None for all."""
        if record.label is not None and not self.source.classes:
            self.limit = None  # only the whole source tells how many classes there are
        if self.missing is None:
            return None
        room = self.missing - before
        self.beginning |= len(record.data) > room
        return room

    def finish(self, made_by: str) -> None:
        """Write the description and put everything in place."""
        source, count = self.source, self.writer.count
        if not count:
            why = f"; the first of {self.skipped} bad ones: {self.bad[0]}" if self.bad else ""
            raise DataError(f"{source.name}: holds no examples{why}")
        values = source.values or values_for(self.largest)
        if self.largest >= values:
            raise beyond_values(source.name, self.largest, values)
        if source.official and count != source.official and not self.beginning:
            source.notes.append(
                f"{count:,} examples, but the official split has {source.official:,}"
            )
        if self.skipped and _SKIPPED not in source.notes:
            source.notes.append(_SKIPPED)
        labels = self._all_labels()
        most = -1 if labels is None else int(labels.max())
        classes = source.classes or most + 1
        if most >= classes:
            raise DataError(f"{source.name}: holds the label {most}, but there are {classes}")
        if classes > MOST_CLASSES:
            raise DataError(
                f"{source.name}: holds the label {most:,}, so that there were {classes:,} classes; "
                f"number them from 0, up to {MOST_CLASSES:,} of them"
            )
        self.writer.finish(
            labels,
            classes,
            source.names,
            source=source.name,
            version=source.version,
            split=source.split,
            values=values,
            skipped=self.skipped,
            notes=tuple(source.notes),
            command=made_by,
            beginning=self.beginning,
        )

    def _check(self, record: Record) -> None:
        shape = record.data.shape[1:]
        if self.row is None:
            self.row, self.first = shape, record.where
        elif shape != self.row:
            takes = self.source.takes
            raise DataError(_misfit(record.where, shape, self.first, self.row, takes))

    def _all_labels(self) -> Array | None:
        if not self.labels:
            return None
        labels = np.concatenate(self.labels)
        if len(labels) != self.writer.count or labels.min() < 0:
            self.source.notes.append("labels left out: not every example has one")
            return None
        return labels


def _misfit(
    where: str, shape: tuple[int, ...], first: str, row: tuple[int, ...], takes: frozenset[str]
) -> str:
    ways = {"size": "--size", "patches": "--patches"}
    mine, theirs = (" x ".join(map(str, s)) for s in (shape, row))
    if shape[:-1] == row[:-1]:
        ways = {"convert": "--convert rgb or grey"}
        kinds = {1: "grey", 3: "in colour"}
        mine, theirs = (kinds.get(s[-1], str(s[-1])) for s in (shape, row))
    found = " or ".join(way for name, way in ways.items() if name in takes)
    cure = f"use {found} to make all alike" if found else "all examples of an array are alike"
    return f"{where}: is {mine}, but {first} is {theirs}; {cure}"


def _decoded(
    records: Iterator[Record | DataError], decode: _Decode | None, workers: int
) -> Generator[_Piece, None, None]:
    """The records of a source in their order, decoded; to be closed, which ends the workers."""
    if decode is None:
        yield from ([record] for record in records)
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

    def __iter__(self) -> Iterator[_Piece]:
        while piece := list(islice(self.records, self.length)):
            yield piece

    def learn(self, piece: _Piece) -> _Piece:
        """Take note of how large the records of a decoded piece have become."""
        sizes = [record.data.nbytes for record in piece if not isinstance(record, DataError)]
        if sizes:
            most = _PIECE_BYTES // max(sizes)
            self.length = max(1, min(_RECORDS, 2 * self.length, most))
        return piece


def _decode(decode: _Decode, piece: _Piece) -> _Piece:
    """What a worker does: every record decoded, or the error that it is."""
    found: _Piece = []
    for record in piece:
        if isinstance(record, DataError):
            found.append(record)
            continue
        try:
            found.append(record._replace(data=decode(record)))
        except DataError as error:
            found.append(error)
    return found


def _in_parallel(
    decode: _Decode, pieces: Iterator[_Piece], workers: int
) -> Generator[_Piece, None, None]:
    """Decode pieces in other processes, a few ahead of the reader, in order."""
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet)
    waiting: deque[Future[_Piece]] = deque()
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


def _workers(asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise DataError(f"--workers is {asked}: use at least 1")
    return asked or len(os.sched_getaffinity(0))
