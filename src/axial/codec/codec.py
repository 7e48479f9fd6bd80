"""A model as a codec: examples in, a file out, and back; in bounded memory."""

import copy
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import BinaryIO, NamedTuple

import numpy as np
import torch

from axial.checkpoints.model_folder import fingerprint
from axial.codec.coding import default_lanes, most_lanes, score
from axial.codec.container import (
    FINGERPRINT,
    MARK,
    PALETTE_VALUES,
    VERSION,
    Contents,
    Entry,
    Group,
    most_span,
    read_group,
)
from axial.codec.device_reader import DeviceReader, suits
from axial.codec.group_reader import GroupReader, RunReader
from axial.codec.groups import Part, grouped, widest
from axial.codec.palette import choose_palette
from axial.codec.tiles import extent
from axial.data.packed import Array, dtype_for
from axial.errors import StreamError
from axial.models.protocol import Model
from axial.sampling.decoder import Decoder, decoding
from axial.sampling.draw import decoding_bytes, draws_at_once
from axial.validation import as_integer

_TILES = 1024
"""How many tiles to decode together at most: more of them are not faster, and take memory."""
_MANY = 256
"""Tiles from which on a GPU's time follows their number: with fewer, it is that of launches."""
_ELEMENTS = 1 << 21
"""How many elements to score together at most, in whole groups, all as long as the longest. Each
takes some 60 bytes, and so do those before them, which are still being written."""
_OVERLAP = 16
"""Tiles overlap by so small a part of their shortest axis, where nothing else is asked for."""
_SPAN = 4
"""Tiles of a region along each axis: with more of them, more rounds must be decoded in turn."""
_PALETTES = 1 << 24
"""Bytes that the palettes of a file may take: its contents must have room for many entries."""
Progress = Callable[[int], None]
"""Called with how many tiles are done."""


class Example(NamedTuple):
    """One of the examples of an entry."""

    x: Array
    """(*grid, c)."""
    label: int | None = None


def in_float64(model: Model) -> Model:
    """The same model in float64; itself, if it is."""
    if next(model.parameters()).dtype == torch.float64:
        return model
    return copy.deepcopy(model).double()


def model_id(model: Model) -> bytes:
    """What a file calls its model: the same for its weights in any precision that holds them."""
    return bytes.fromhex(fingerprint(in_float64(model)))[:FINGERPRINT]


class Codec:
    """A model in float64, how many tiles go together, and by how much they overlap."""

    def __init__(
        self,
        model: Model,
        *,
        name: str = "",
        lanes: int | None = None,
        overlap: int | None = None,
    ) -> None:
        self.model, self.config, self.name = in_float64(model), model.config, name
        self.fingerprint = model_id(self.model)
        axes, channels = self.config.axes, self.config.channels
        if lanes is None:
            self.lanes = default_lanes(self.config, decoding_bytes(self.model))
        else:
            most = most_lanes(math.prod(axes) * channels)
            self.lanes = as_integer("lanes", lanes, at_least=1, below=most + 1)
        span = min(_SPAN, most_span(axes, channels))  # 1 where tiles are too large for more
        most = max(axes) // 2 if span > 1 else 0
        if overlap is None:
            overlap = min(min(axes) // _OVERLAP, most)
        self.overlap = as_integer("overlap", overlap, at_least=0, below=most + 1)
        self.span = span if self.overlap else 1

    def contents(self, *, classes: int = 0) -> Contents:
        """Those of a file that holds nothing yet."""
        config = self.config
        return Contents(
            model=self.name.encode(errors="replace").decode(),  # a folder may have any name
            fingerprint=self.fingerprint,
            axes=config.axes,
            channels=config.channels,
            values=config.values,
            classes=classes,
            lanes=self.lanes,
            overlap=self.overlap,
            span=self.span,
        )

    def write(
        self,
        file: BinaryIO,
        contents: Contents,
        entries: Iterable[tuple[Entry, Iterable[Example]]],
        progress: Progress = lambda done: None,
    ) -> None:
        """Write a file: entries are taken one by one, and tiles coded as soon as there are some.

        While the model scores some groups, the bytes of those before them are written.
        """
        file.write(MARK + bytes([VERSION]))
        groups, done = grouped(self._parts(contents, entries), contents.lanes), 0
        elements = math.prod(self.config.axes) * self.config.channels

        def tell(more: int) -> None:
            progress(done + more)

        def put(some: list[list[Part]], coded: Future[list[bytes]]) -> None:
            for parts, data in zip(some, coded.result(), strict=True):
                file.write(data)
                contents.groups.append(Group(len(data), len(parts), zlib.crc32(data)))

        scored: deque[tuple[list[list[Part]], Future[list[bytes]]]] = deque()
        pool = ThreadPoolExecutor(1)
        try:
            for some in _in_bounds(groups, _count_tiles, max(1, _ELEMENTS // elements)):
                written = score(self.model, some, contents.classes, contents.lanes, tell)
                scored.append((some, pool.submit(written)))
                done += sum(map(_count_tiles, some))
                while len(scored) > 1 or (scored and scored[0][1].done()):
                    put(*scored.popleft())
            for each in scored:
                put(*each)
        finally:  # an interrupt does not wait for what nobody needs any more
            pool.shutdown(wait=False, cancel_futures=True)
        file.write(contents.to_bytes())

    def _parts(
        self, contents: Contents, entries: Iterable[tuple[Entry, Iterable[Example]]]
    ) -> Iterator[Part]:
        palettes, fits = 0, self.config.values <= PALETTE_VALUES
        quick: Model | None = None  # in float32: no stream depends on its bits
        for entry, examples in entries:
            contents.entries.append(entry)
            tiling = contents.tiling(entry)
            planes = self.config.channels if entry.one_plane else 1
            palette = None
            for x, label in examples:
                if entry.count == 1 and palettes < _PALETTES and fits:
                    quick = quick or copy.deepcopy(self.model).float()
                    palette = choose_palette(quick, x, label)
                if palette is not None:
                    contents.entries[-1] = replace(entry, palette=palette.tobytes())
                    palettes += palette.size
                for i in range(tiling.regions(entry.grid)):
                    region = tiling.region(entry.grid, i)
                    own = x[region.box].repeat(planes, -1)
                    yield Part(region, own, entry.one_plane, label, palette)

    def read(
        self,
        file: BinaryIO,
        contents: Contents,
        wanted: Sequence[int] | None = None,
        progress: Progress = lambda done: None,
        batch: int | None = None,
    ) -> Iterator[tuple[Entry, Example]]:
        """The examples of all entries, or of some, in the order of the file.

        `batch` is how many tiles are decoded side by side, in whole groups; by default as many as
        memory allows.
        """
        self.check(contents)
        spans = contents.spans()
        chosen = range(len(spans)) if wanted is None else sorted(set(wanted))
        parts = self._decoded(file, contents, [spans[i] for i in chosen], progress, batch)
        for i in chosen:
            entry = contents.entries[i]
            for _ in range(entry.count):
                yield entry, self._assembled(entry, contents, parts)

    def check(self, contents: Contents) -> None:
        """Refuse the file of another model."""
        if contents.fingerprint != self.fingerprint:
            called = f" ({contents.model})" if contents.model else ""
            raise StreamError(
                f"was written with model {contents.fingerprint.hex()[:8]}{called}, but "
                f"{self.name or 'this model'} is {self.fingerprint.hex()[:8]}; decompress with the "
                f"model that compressed it"
            )
        config = self.config
        same = (contents.axes, contents.channels, contents.values) == (
            config.axes,
            config.channels,
            config.values,
        )
        labels = not config.classes or contents.classes == config.classes
        if not same or not labels:
            raise StreamError("says other things of its model than the model; fetch it again")

    def _assembled(self, entry: Entry, contents: Contents, parts: Iterator[Part]) -> Example:
        part, channels = next(parts), 1 if entry.one_plane else self.config.channels
        shape, label = (*entry.grid, channels), part.label
        try:
            x = np.empty(shape, dtype_for(self.config.values))
        except MemoryError as error:
            size = " x ".join(map(str, shape))
            raise StreamError(f"holds an example of {size}, too large for memory") from error
        for number in range(contents.tiling(entry).regions(entry.grid)):
            part = next(parts) if number else part
            x[part.region.box] = part.x[..., :channels]
            if part.label != label:
                raise StreamError("is damaged (an example has two labels); fetch it again")
        return Example(x, label)

    def _decoded(
        self,
        file: BinaryIO,
        contents: Contents,
        spans: list[range],
        progress: Progress,
        batch: int | None,
    ) -> Iterator[Part]:
        """The parts of some spans one by one, whole groups decoded together."""
        places = np.cumsum([len(MARK) + 1] + [group.length for group in contents.groups])
        firsts = np.cumsum([0] + [group.regions for group in contents.groups])
        numbers = _groups(spans, firsts)
        unread = self._unread(contents, (range(firsts[g], firsts[g + 1]) for g in numbers))
        most = batch or min(_TILES, draws_at_once(self.model))
        walk = _Walk(self.model)
        wanted, read = chain.from_iterable(spans), iter(numbers)
        next_wanted = next(wanted, None)
        for some in _in_bounds(unread, lambda parts: widest(parts, contents.lanes), most):
            own = list(islice(read, len(some)))
            data = [read_group(file, contents, int(places[g]), g) for g in own]
            reader = GroupReader(self.config, data, some, contents.lanes, contents.classes)
            walk.fill(reader, progress)
            for g, parts, labels in zip(own, some, reader.labels, strict=True):
                for i, part in enumerate(parts):
                    if firsts[g] + i == next_wanted:
                        yield part._replace(label=labels[i] if labels else None)
                        next_wanted = next(wanted, None)

    def _unread(self, contents: Contents, groups: Iterable[range]) -> Iterator[list[Part]]:
        """The parts of some groups, by the numbers of their regions, with nothing known of them."""
        entries = zip(contents.entries, contents.spans(), strict=True)
        entry, span = next(entries)
        for numbers in groups:
            parts: list[Part] = []
            count = 0
            for number in numbers:
                while number >= span.stop:
                    entry, span = next(entries)
                each = len(span) // entry.count
                region = contents.tiling(entry).region(entry.grid, (number - span.start) % each)
                count += len(region.tiles)
                if parts and count > contents.lanes:
                    raise StreamError("is damaged (a group holds too many tiles); fetch it again")
                size = (*extent(region.box), self.config.channels)
                palette = np.frombuffer(entry.palette, np.int8).reshape(-1, self.config.values)
                blank = np.full(size, -1, np.int32)
                own = palette if entry.palette else None
                parts.append(Part(region, blank, entry.one_plane, palette=own))
            yield parts


class _Walk:
    """Decodes groups, a run of tiles at a time, by one decoder after another."""

    def __init__(self, model: Model) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.decoders: dict[int, Decoder] = {}
        self.done = 0

    def fill(self, reader: GroupReader, progress: Progress) -> None:
        """Fill the parts of some groups."""
        widths = [reader.width(i) for i in range(max(map(len, reader.runs)))]
        if gpu := self.device.type == "cuda":
            widths = self._few(widths, len(reader.groups))
        for number, width in enumerate(widths):
            run = RunReader(reader, number, width)
            sizes = {each * len(reader.groups) for each in (widths if gpu else [width])}
            self.decoders = {n: found for n, found in self.decoders.items() if n in sizes}
            self._fill(run)
            reader.settle(run)
            self.done += sum(1 for _ in reader.slots(number, run.width))
            progress(self.done)
        reader.check_seals()

    @staticmethod
    def _few(widths: list[int], groups: int) -> list[int]:
        """Widths with room for these, at most two: what was captured for one can be replayed."""
        most = max(widths)
        half = -(-most // 2)
        few = half if half * groups >= _MANY else most
        return [few if width <= few else most for width in widths]

    def _fill(self, run: RunReader) -> None:
        config, device, size = self.model.config, self.device, len(run.x)
        if size not in self.decoders:
            self.decoders[size] = Decoder(self.model, size)
        decoder = self.decoders[size]
        client: RunReader | DeviceReader = run
        if suits(device, config.values):
            client = DeviceReader(run, device)
        x = torch.from_numpy(run.x).view(-1, *config.axes, config.channels).to(device)
        label = torch.from_numpy(run.label).to(device) if config.classes else None
        with decoding(self.model):
            for seen in decoder.lines(x, client, label):
                # Planes that follow from this one are known from here on, and are not walked.
                if config.channels_in_turn and run.planes_follow:
                    client.follow()
                    seen.copy_(torch.as_tensor(client.x).view(seen.shape))
        decoder.check_finite()
        if isinstance(client, DeviceReader):
            client.finish()


def _count_tiles(parts: Sequence[Part]) -> int:
    return sum(len(part.region.tiles) for part in parts)


def _in_bounds(
    groups: Iterable[list[Part]], size: Callable[[list[Part]], int], most: int
) -> Iterator[list[list[Part]]]:
    """Groups in batches: if each had the size of the largest, at most so much; or one alone."""
    batch: list[list[Part]] = []
    largest = 0
    for group in groups:
        if batch and (len(batch) + 1) * max(largest, size(group)) > most:
            yield batch
            batch, largest = [], 0
        batch.append(group)
        largest = max(largest, size(group))
    if batch:
        yield batch


def _groups(spans: list[range], firsts: Array) -> list[int]:
    """The groups that some spans of regions lie in."""
    found: set[int] = set()
    for span in spans:
        first, last = np.searchsorted(firsts, (span.start, span.stop - 1), "right") - 1
        found.update(range(int(first), int(last) + 1))
    return sorted(found)
