"""Any source -> one packed array: decoded on all cores, in order, in bounded memory.

The number of workers changes nothing but the time: records are decoded in pieces of a fixed
size and written in their own order.
"""

import shlex
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from axial.data.decoding import Piece, decoded, worker_count
from axial.data.description import MOST_CLASSES, Labels
from axial.data.packed import LONGEST, Array, Packed, is_packed, open_packed, size_range
from axial.data.packed_writer import PackedWriter
from axial.data.refusals import Refusals
from axial.data.sources.arrays import beyond_values, values_for
from axial.data.sources.options import ReadOptions
from axial.data.sources.recognise import open_source
from axial.data.sources.record import Record, Source
from axial.errors import DataError
from axial.system.progress import counting
from axial.validation import counted

_SKIPPED = "a skipped record is a picture, a clip or the rest of a file: one example or more"
_SKIP = "go on without it by --skip-bad"
_SHOWN = 10
"""Names of classes that a report shows."""


@dataclass(frozen=True)
class PackReport:
    """What became of a source."""

    packed: Packed
    reader: str

    def __str__(self) -> str:
        about = self.packed.description
        shape = " x ".join(map(str, (*about.axes, about.channels)))
        examples = f"{about.count:,} of {shape}"
        if self.packed.sizes is not None:
            examples = f"{about.count:,} of {size_range(self.packed.sizes)}, "
            examples += counted(about.channels, "channel")
        lines = {
            "source": f"{about.title}, read as {self.reader}",
            "examples": f"{examples}, {about.values} values, {about.dtype}",
            "labels": _classes(about.labels) if about.labels else "none",
            "sha256": about.sha256,
        }
        if about.skipped:
            lines["skipped"] = about.left_out
        rows = [*lines.items(), *(("note", note) for note in about.notes)]
        return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _classes(labels: Labels) -> str:
    """How many there are, and how they are called, or can be."""
    names = labels.names
    if names is None:
        return f"{counted(labels.classes, 'class')} without names; --class-names gives some"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{counted(labels.classes, 'class')}: {', '.join(names[:_SHOWN])}{more}"


def pack(
    source: str | Path,
    out: Path | str,
    options: ReadOptions | None = None,
    *,
    workers: int | None = None,
    progress: bool = False,
    shown: Path | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    class_names: Sequence[str] | None = None,
    skippable: bool = True,
) -> PackReport:
    """Write a source as one packed array, whole or not at all; over another with `overwrite`.

    `workers` defaults to one for each core; `progress` draws a bar on standard error. `shown` is
    what the description calls the file, if it is to be moved there. With a `limit` only the first
    so many examples are read, unless all must be seen to tell how many classes there are.
    `class_names` are what the labels 0, 1, 2 ... of the source mean. `skippable` says that whoever
    asks can ask for `skip_bad` too; else no message advises it.
    """
    if not isinstance(source, str | Path):
        raise DataError(
            f"source is a {type(source).__name__}: give a path or a name; `axial.train` and "
            f"`axial.evaluate` take arrays"
        )
    if not isinstance(options, ReadOptions | None):
        raise DataError(f"options is a {type(options).__name__}: give axial.ReadOptions(...)")
    options = options or ReadOptions()
    before = _open_as_packed(source, options.split) if is_packed(source) else None
    reading = options
    if before is not None and before.sizes is not None:
        raise DataError(
            f"{source}: is packed already, in sizes that differ; give the source it was made from"
        )
    if before is not None:  # as its description has it, but for what is asked for
        reading = replace(options, split=None, channels_last=not options.channels_none)
    opened = open_source(source, reading)
    with suppress(OSError):  # one of them is not there
        if Path(source).samefile(out):
            raise DataError(
                f"{out}: would replace the very file it is made from; use another --out"
            )
    with PackedWriter(out, overwrite=overwrite) as writer:
        collector = _Collector(
            writer, opened, options, path=str(source), limit=limit, skippable=skippable
        )
        if before is not None:
            collector.inherit(before)
        if class_names is not None:
            collector.rename(class_names)
        expected = min(filter(None, (limit, opened.count)), default=None)
        try:
            with (
                closing(collector.wanted(worker_count(workers))) as pieces,
                counting("packing", expected, shown=progress) as advance,
            ):
                for piece in pieces:
                    collector.add(piece)
                    advance(writer.count)
        except OSError as error:
            raise DataError(f"{source}: cannot be read ({error.strerror or error})") from error
        collector.finish(command(source, shown or out, options, workers, class_names))
    return PackReport(open_packed(out), opened.reader)


def open_data(
    what: str | Path, scratch: Path, options: ReadOptions | None = None, **how: Any
) -> Packed:
    """A packed array as it is, which no option alters; any other source packed into `scratch`."""
    if not is_packed(what):
        return pack(what, scratch / "data.npy", options, **how).packed
    options = options or ReadOptions()
    if extra := [name for name in options.given if name != "split"]:
        raise DataError(
            f"{what}: --{extra[0].replace('_', '-')} does not apply to a packed array; leave it out"
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


def command(
    source: str | Path,
    out: str | Path,
    options: ReadOptions,
    workers: int | None = None,
    class_names: Sequence[str] | None = None,
) -> str:
    """The command line that does what `pack` does with these arguments."""
    words = ["axial", "data", str(source), "--out", str(out)]
    for name in options.given:
        value = getattr(options, name)
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    if workers is not None:
        words += ["--workers", str(workers)]
    if class_names is not None:
        words += ["--class-names", *class_names]
    return shlex.join(words)


class _Collector:
    """Takes decoded records in order, checks that they fit together, and writes them."""

    def __init__(
        self,
        writer: PackedWriter,
        source: Source,
        options: ReadOptions,
        *,
        path: str,
        limit: int | None,
        skippable: bool,
    ) -> None:
        self.writer = writer
        self.source = source
        self.skip_bad, self.any_size = options.skip_bad, options.any_size
        self.skippable = skippable and not source.alone
        self.limit = limit
        self.beginning = self.renamed = False
        self.refused = Refusals()
        self.path = path
        self.skipped_before = 0
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
        self.skipped_before = about.skipped
        if about.labels is not None and packed.labels is not None:
            self.labels = [packed.labels[: self.limit]]
            source.names, source.classes = about.labels.names, about.labels.classes

    def rename(self, names: Sequence[str]) -> None:
        """Call the classes by other names than the source does, if it does."""
        if len(set(names)) < len(names):
            raise DataError(f"--class-names is {', '.join(names)}; give names that all differ")
        self.renamed = True
        self.source.names, self.source.classes = names, len(names)

    @property
    def missing(self) -> int | None:
        """How many more examples are wanted; None for all there are."""
        return None if self.limit is None else self.limit - self.writer.count

    def wanted(self, workers: int) -> Generator[Piece, None, None]:
        """Decoded pieces until there is enough; to be closed, which ends the workers.

        No more records are decoded than examples are missing, unless one holds several.
        """
        records, decode = self.source.records, self.source.decode
        for record in records:
            if self.missing == 0:
                self.beginning = True
                return
            others = islice(records, None if self.missing is None else self.missing - 1)
            with closing(decoded(chain([record], others), decode, workers)) as pieces:
                for piece in pieces:
                    if self.missing == 0:
                        self.beginning = True
                        return
                    yield piece

    def add(self, piece: Piece) -> None:
        """Write a decoded piece; what does not fit is an error, or skipped and counted."""
        rows: list[Array] = []
        labels: list[Array] = []
        for record in piece:
            try:
                if not isinstance(record, Record):
                    raise record.error
                self._check(record)
            except DataError as error:
                if not self.skip_bad:
                    raise self._advised(error) from error.__cause__
                self.refused.add(error, record.where)
            else:
                room = self._room(record, sum(map(len, rows)))
                rows.append(record.data[:room])
                if record.label is not None:
                    labels.append(np.broadcast_to(record.label, (len(record.data),))[:room])
        if rows and not self.any_size:
            rows = [rows[0] if len(rows) == 1 else np.concatenate(rows)]
        for x in rows:
            self.largest = max(self.largest, int(x.max()))
            if not self.any_size:
                self.writer.append(x)
                continue
            for picture in x:
                self.writer.append_picture(picture)
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
        source, count, refused = self.source, self.writer.count, self.refused
        if not count:
            why = f"; the first of {refused.count:,} bad ones: {refused.first}"
            raise DataError(f"{source.name}: holds no examples{why if refused.count else ''}")
        values = source.values or values_for(self.largest)
        if self.largest >= values:
            raise beyond_values(source.name, self.largest, values)
        if source.official and count != source.official and not self.beginning:
            source.notes.append(
                f"{counted(count, 'example')}, but the official split has {source.official:,}"
            )
        source.notes += refused.notes(self.path)
        skipped = self.skipped_before + refused.count
        if skipped and _SKIPPED not in source.notes:
            source.notes.append(_SKIPPED)
        labels = self._all_labels()
        most = -1 if labels is None else int(labels.max())
        classes = source.classes or most + 1
        if self.renamed and not 0 <= most < classes:
            found = "no labels" if labels is None else f"the label {most:,}"
            cure = "leave --class-names out" if labels is None else "name every class"
            raise DataError(
                f"{source.name}: holds {found}, but --class-names names "
                f"{counted(classes, 'class')}; {cure}"
            )
        if not most < classes <= MOST_CLASSES:
            raise DataError(
                f"{source.name}: holds the label {most:,}, and has {counted(classes, 'class')}; "
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
            skipped=skipped,
            notes=tuple(source.notes),
            command=made_by,
            beginning=self.beginning,
        )

    def _advised(self, error: DataError) -> DataError:
        """The error, with the way past it where there is one."""
        if not self.skippable:
            return error
        return DataError(f"{error}{', or ' if '; ' in error.as_written else '; '}{_SKIP}")

    def _check(self, record: Record) -> None:
        shape = record.data.shape[1:]
        if self.any_size and max(shape[:-1]) > LONGEST:
            raise DataError(
                f"{record.where}: has {max(shape[:-1]):,} pixels along one side, more than "
                f"{LONGEST:,}; shrink it or remove it"
            )
        if self.row is None:
            self.row, self.first = shape, record.where
        elif shape[-1] != self.row[-1] or (shape != self.row and not self.any_size):
            takes = self.source.takes
            row = shape[:-1] + self.row[-1:] if self.any_size else self.row
            raise DataError(_misfit(record.where, shape, self.first, row, takes))

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
    """What to say of an example that is unlike the first one, and what makes them alike."""
    mine, theirs = (" x ".join(map(str, s)) for s in (shape, row))
    if same_size := shape[:-1] == row[:-1]:
        kinds = {1: "grey", 3: "in colour"}
        mine, theirs = (kinds.get(s[-1], str(s[-1])) for s in (shape, row))
    convert = "--convert rgb or grey" if shape[-1] != row[-1] and "convert" in takes else ""
    ways = {"size": "--size", "patches": "--patches"}
    sizes = "" if same_size else " or ".join(way for name, way in ways.items() if name in takes)
    cure = ", and all examples of an array are alike"
    if convert or sizes:
        cure = f"; use {', with '.join(filter(None, (convert, sizes)))} to make all alike"
    if sizes and "any_size" in takes:
        kept = "with --any-size to keep their sizes"
        cure += f", or {kept if convert else '--any-size to keep them as they are'}"
    return f"{where}: is {mine}, but {first} is {theirs}{cure}"
