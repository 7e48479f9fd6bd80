"""A model as a codec: examples in, a file out, and back; in bounded memory."""

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import BinaryIO, NamedTuple

import numpy as np
import torch

from axial.checkpoints.model_folder import fingerprint
from axial.codec.coding import Tiles, default_lanes, encode, most_lanes
from axial.codec.container import FINGERPRINT, MARK, VERSION, Contents, Entry, read_group
from axial.codec.device_reader import DeviceReader, suits
from axial.codec.group_reader import GroupReader
from axial.codec.tiles import Plan, boxes, cut, extent, inside_of, plan
from axial.data.packed import Array, dtype_for
from axial.errors import StreamError
from axial.models.protocol import Model
from axial.sampling.decoder import Decoder, decoding
from axial.sampling.draw import decoding_bytes, draws_at_once
from axial.validation import as_integer

_TILES = 1024
"""How many tiles to decode together at most: more of them are not faster, and take memory."""
_ELEMENTS = 1 << 22
"""How many elements to encode together at most, in whole groups: each takes some 60 bytes."""
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
    """A model in float64, and how many tiles go together."""

    def __init__(self, model: Model, *, name: str = "", lanes: int | None = None) -> None:
        self.model, self.config, self.name = in_float64(model), model.config, name
        self.fingerprint = model_id(self.model)
        if lanes is None:
            self.lanes = default_lanes(self.config, decoding_bytes(self.model))
        else:
            self.lanes = as_integer("lanes", lanes, at_least=1, below=most_lanes(self.config) + 1)

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
        )

    def write(
        self,
        file: BinaryIO,
        contents: Contents,
        entries: Iterable[tuple[Entry, Iterable[Example]]],
        progress: Progress = lambda done: None,
    ) -> None:
        """Write a file: entries are taken one by one, and tiles coded as soon as there are some."""
        file.write(MARK + bytes([VERSION]))
        tiles, done = self._tiles(contents, entries), 0
        elements = math.prod(self.config.axes) * self.config.channels
        groups = max(1, _ELEMENTS // (elements * self.lanes))
        while part := list(islice(tiles, groups * self.lanes)):
            if not done:  # a few tiles are one small group
                contents.lanes = min(contents.lanes, len(part))
            x, plans, labels = zip(*part, strict=True)
            label = np.array(labels) if contents.classes else None
            found = Tiles(np.stack(x), plans, label)
            for group in encode(self.model, found, contents.classes, contents.lanes):
                file.write(group)
                contents.groups.append((len(group), zlib.crc32(group)))
            done += len(part)
            progress(done)
        file.write(contents.to_bytes())

    def _tiles(
        self, contents: Contents, entries: Iterable[tuple[Entry, Iterable[Example]]]
    ) -> Iterator[tuple[Array, Plan, int | None]]:
        for entry, examples in entries:
            contents.entries.append(entry)
            for x, label in examples:
                for tile, inside in cut(self._widened(x, entry), self.config.axes):
                    how = plan(self.config, inside, one_plane=entry.one_plane)
                    yield how.fill(tile.reshape(-1)).reshape(tile.shape), how, label

    def _widened(self, x: Array, entry: Entry) -> Array:
        return np.repeat(x, self.config.channels, -1) if entry.one_plane else x

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
        tiles = self._decoded(file, contents, [spans[i] for i in chosen], progress, batch)
        for i in chosen:
            entry = contents.entries[i]
            for _ in range(entry.count):
                yield entry, self._assembled(entry, tiles)

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

    def _assembled(self, entry: Entry, tiles: Iterator[tuple[Array, int | None]]) -> Example:
        channels, label = self.config.channels, None
        x = np.empty((*entry.grid, channels), dtype_for(self.config.values))
        for box in boxes(entry.grid, self.config.axes):
            tile, label = next(tiles)
            x[box] = tile[tuple(map(slice, extent(box)))]
        return Example(x[..., :1] if entry.one_plane else x, label)

    def _decoded(
        self,
        file: BinaryIO,
        contents: Contents,
        spans: list[range],
        progress: Progress,
        batch: int | None,
    ) -> Iterator[tuple[Array, int | None]]:
        """The tiles of some spans one by one, whole groups decoded together."""
        lanes = contents.lanes
        ends = np.cumsum([len(MARK) + 1] + [length for length, _ in contents.groups])
        most = max(1, min(batch or _TILES, batch or draws_at_once(self.model)) // lanes)
        last = sum(map(contents.tiles_of, contents.entries))
        decoder: tuple[int, Decoder] | None = None
        done, groups_read = 0, _groups(spans, lanes)
        plans = self._plans(contents, (i for g in groups_read for i in _rows(g, lanes, last)))
        wanted = chain.from_iterable(spans)
        next_wanted = next(wanted, None)
        for numbers in _chunks(groups_read, most):
            rows = [i for g in numbers for i in _rows(g, lanes, last)]
            size = len(numbers) * lanes if len(numbers) > 1 else len(rows)
            if decoder is None or decoder[0] != size:
                decoder = size, Decoder(self.model, size)
            groups = [read_group(file, contents, int(ends[g]), g) for g in numbers]
            own = list(islice(plans, len(rows)))
            found = _decode(self.model, decoder[1], groups, own, lanes, contents.classes)
            done += len(rows)
            progress(done)
            for i, row in enumerate(rows):
                if row == next_wanted:
                    yield found.x[i], None if found.label is None else int(found.label[i])
                    next_wanted = next(wanted, None)

    def _plans(self, contents: Contents, rows: Iterator[int]) -> Iterator[Plan]:
        """What of each tile is coded; rows count upwards."""
        row = next(rows, None)
        for entry, span in zip(contents.entries, contents.spans(), strict=True):
            each = len(span) // entry.count
            while row is not None and row < span.stop:
                inside = inside_of((row - span.start) % each, entry.grid, self.config.axes)
                yield plan(self.config, inside, one_plane=entry.one_plane)
                row = next(rows, None)


def _decode(
    model: Model,
    decoder: Decoder,
    groups: Sequence[bytes],
    plans: Sequence[Plan],
    lanes: int,
    classes: int,
) -> Tiles:
    """The tiles of some groups, by a float64 model and a decoder of as many lanes."""
    config, device = model.config, next(model.parameters()).device
    reader = GroupReader(config, groups, plans, lanes, classes)
    client: GroupReader | DeviceReader = reader
    if suits(device, config.values):
        client = DeviceReader(reader, device)
    x = torch.from_numpy(reader.x).view(-1, *config.axes, config.channels).to(device)
    label = None
    if config.classes and reader.label is not None:
        label = torch.from_numpy(reader.label).to(device)
    with decoding(model):
        for seen in decoder.lines(x, client, label):
            # Planes that follow from this one are known from here on, and are not walked.
            if config.channels_in_turn and reader.planes_follow:
                client.follow()
                seen.copy_(torch.as_tensor(client.x).view(seen.shape))
    decoder.check_finite()
    if isinstance(client, DeviceReader):
        client.finish()
    reader.check_seals()
    return Tiles(
        reader.x[: reader.count].reshape(-1, *config.axes, config.channels),
        plans,
        None if reader.label is None else reader.label[: reader.count],
    )


def _groups(spans: list[range], lanes: int) -> list[int]:
    """The groups that some spans of tiles lie in."""
    return sorted({g for span in spans for g in range(span.start // lanes, -(-span.stop // lanes))})


def _rows(group: int, lanes: int, last: int) -> range:
    """The tiles of a group."""
    return range(group * lanes, min((group + 1) * lanes, last))


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[i : i + size] for i in range(0, len(numbers), size))
