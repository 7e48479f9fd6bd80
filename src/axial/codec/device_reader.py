"""Reading groups where the model is: on a GPU no element of a line waits for the host.

What a line needs is laid out before it begins, in tensors of the same shapes for every line, so
that a line is one CUDA graph: the words that its streams may take, which elements they hold, what
the others follow from, and the logits near a border. The integers are those of rans.py.

b tiles, g groups, n elements of a tile, l length of a line, w words that a line may take, v values.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Int8
from torch import Tensor

from axial.codec import grid, rans
from axial.codec.group_reader import RunReader
from axial.sampling.decoder import Answer
from axial.system.devices import runs_triton

_MOST_VALUES = 1024
"""Beyond that the notes of a line, one for every value, take too much memory."""
_MASK = rans.WHOLE - 1
_LEAST = 1 << rans.SEAL_BITS


def suits(device: torch.device, values: int) -> bool:
    """Whether groups are better read by the device than by the host."""
    return device.type == "cuda" and values <= _MOST_VALUES


class LineInputs(NamedTuple):
    """What the elements of one line are read from; the first two change as they are."""

    state: Int[Tensor, " g"]
    taken: Int[Tensor, " g"]
    """How many words each stream has taken since the line began."""
    words: Int[Tensor, "g w"]
    """The next words of each stream: an element takes one at most."""
    coded: Bool[Tensor, "l b"]
    """Whether a stream holds the element."""
    within: Int[Tensor, "l b"]
    """Of one that follows from another of this line, which; -1 of all others."""
    known: Int[Tensor, "l b"]
    """What the element is, where it follows from one before the line."""
    notes: Int8[Tensor, "l b v"]
    """Of a logit near a border, whether it went up; -1 of all others."""
    biases: Int8[Tensor, "l b v"]
    """What the palettes add to the values."""


def read_place(
    j: int, logits: Float64[Tensor, "b v"], line: Int[Tensor, "b l"], *inputs: Tensor
) -> Int[Tensor, " b"]:
    """The values of place j of a line, by operations that a CUDA graph can hold."""
    given = LineInputs(*inputs)
    read = _read(given, _shares(logits.double(), given.notes[j], given.biases[j]), given.coded[j])
    place = given.within[j]
    followed = line.gather(1, place.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(given.coded[j], read, torch.where(place < 0, given.known[j], followed))


def _shares(
    logits: Float64[Tensor, "b v"], notes: Int8[Tensor, "b v"], biases: Int8[Tensor, "b v"]
) -> Int[Tensor, "b bounds"]:
    """Where the share of each value begins, as `grid.bounds`, by the notes and the palettes."""
    if runs_triton(logits.device):
        from axial.codec.grid_triton import shares

        return shares(logits, notes, biases)
    return shares_plainly(logits, notes, biases)


def shares_plainly(
    logits: Float64[Tensor, "b v"], notes: Int8[Tensor, "b v"], biases: Int8[Tensor, "b v"]
) -> Int[Tensor, "b bounds"]:
    """The same by torch's operations."""
    points, border, _ = grid.to_grid(logits)
    points = torch.where(notes < 0, points, border - 1 + notes)
    return grid.bounds(grid.biased(points, biases))


def _read(
    given: LineInputs, bounds: Int[Tensor, "b bounds"], wanted: Bool[Tensor, " b"]
) -> Int[Tensor, " b"]:
    """A value of every lane that wants one; those of a group take turns at its stream."""
    if runs_triton(bounds.device):
        from axial.codec.rans_triton import read_lanes

        return read_lanes(given.state, given.taken, given.words, bounds, wanted)
    return read_lanes_plainly(given.state, given.taken, given.words, bounds, wanted)


def read_lanes_plainly(
    state: Int[Tensor, " g"],
    taken: Int[Tensor, " g"],
    words: Int[Tensor, "g w"],
    bounds: Int[Tensor, "b bounds"],
    wanted: Bool[Tensor, " b"],
) -> Int[Tensor, " b"]:
    """What `rans.Reader.read` does, lane after lane; `state` and `taken` are changed."""
    values = []
    lanes = bounds.view(len(state), -1, bounds.shape[-1]).unbind(1)
    for lane, want in zip(lanes, wanted.view(len(state), -1).unbind(1), strict=True):
        slot = state & _MASK
        value = (lane[:, 1:] <= slot.unsqueeze(1)).sum(-1)
        start, end = lane.gather(1, torch.stack([value, value + 1], 1)).unbind(1)
        state.copy_(
            torch.where(want, (end - start) * (state >> grid.PRECISION) + slot - start, state)
        )
        low = state < _LEAST
        word = words.gather(1, taken.clamp(max=words.shape[1] - 1).unsqueeze(1)).squeeze(1)
        state.copy_(torch.where(low, state << rans.WORD_BITS | word, state))
        taken += low
        values.append(value)
    return torch.stack(values, 1).flatten()


class DeviceReader:
    """Answers the sampler's decoder as its `RunReader` would, without asking the host."""

    work_out = staticmethod(read_place)

    def __init__(self, reader: RunReader, device: torch.device) -> None:
        self.reader, self.channels = reader, reader.config.channels
        self.x, self.coded, self.source = (
            torch.from_numpy(found).to(device, copy=True)
            for found in (reader.x, reader.coded, reader.source)
        )
        streams = reader.streams
        self.state, self.words, self.places = (
            torch.from_numpy(found.astype(np.int64)).to(device) for found in streams.progress()
        )
        self.taken = torch.zeros_like(self.places)
        self.rank = reader.rank
        self.notes: Int8[Tensor, "l b v"] | None = None
        self.palettes = None if reader.palettes is None else reader.palettes.to(device)
        self.no_biases: Int8[Tensor, "l b v"] | None = None

    def line_inputs(self, numbers: Int[Tensor, " l"]) -> LineInputs:
        """For the line of these elements."""
        device, length, tiles = self.x.device, len(numbers), len(self.x)
        self._pass_on()
        at = numbers.to(device)
        source = self.source[:, at].clamp(min=0)  # what is always 0 is known already
        place = torch.full((self.x.shape[1],), -1, device=device)
        place[at] = torch.arange(length, device=device)
        most = torch.arange(length * (tiles // len(self.state)), device=device)
        upcoming = (self.places.unsqueeze(1) + most).clamp(max=len(self.words) - 1)
        return LineInputs(
            self.state,
            self.taken,
            self.words[upcoming],
            self.coded[:, at].T.contiguous(),
            place[source].T.contiguous(),
            self.x.gather(1, source).T.contiguous(),
            self._notes_of(numbers),
            self._biases_of(at),
        )

    def _biases_of(self, numbers: Int[Tensor, " l"]) -> Int8[Tensor, "l b v"]:
        if self.palettes is None:
            shape = len(numbers), len(self.x), self.reader.config.values
            if self.no_biases is None or self.no_biases.shape != shape:
                self.no_biases = torch.zeros(shape, dtype=torch.int8, device=self.x.device)
            return self.no_biases
        return self.palettes[:, numbers % self.channels].movedim(1, 0).contiguous()

    def _notes_of(self, numbers: Int[Tensor, " l"]) -> Int8[Tensor, "l b v"]:
        shape = len(numbers), len(self.x), self.reader.config.values
        if self.notes is None or self.notes.shape != shape:
            self.notes = torch.empty(shape, dtype=torch.int8, device=self.x.device)
        self.notes.fill_(-1)
        ranks = self.rank[numbers.numpy()]
        found = [
            (j, *note) for j, r in enumerate(ranks) for note in self.reader.near.get(int(r), ())
        ]
        if found:
            j, tile, value, up = torch.tensor(found, device=self.x.device).T
            self.notes[j, tile, value] = up.to(torch.int8)
        return self.notes

    def settled(
        self, numbers: Int[Tensor, " l"], line: Int[Tensor, "b l"], inputs: tuple[Tensor, ...]
    ) -> None:
        """Keep a line that was read, and where that leaves the streams."""
        given = LineInputs(*inputs)
        self.x[:, numbers.to(self.x.device)] = line
        self.state.copy_(given.state)
        self.taken.copy_(given.taken)

    def __call__(self, numbers: Int[Tensor, " l"]) -> Answer:
        """For a decoder that asks for each element: it need not wait for the answer."""
        inputs, at = self.line_inputs(numbers), numbers.tolist()
        line = self.x[:, numbers.to(self.x.device)]

        def answer(j: int, logits: Tensor) -> Tensor:
            value = read_place(j, logits, line, *inputs)
            line[:, j] = self.x[:, at[j]] = torch.where(line[:, j] < 0, value, line[:, j])
            return value

        return answer

    def _pass_on(self) -> None:
        """Count the words that the line before took."""
        self.places += self.taken
        self.taken.zero_()

    def follow(self) -> None:
        """What `RunReader.follow` does."""
        found = self.x.gather(1, self.source.clamp(min=0)).masked_fill(self.source < 0, 0)
        self.x = torch.where((self.x < 0) & ~self.coded, found, self.x)

    def finish(self) -> None:
        """Hand to the reader what was read, for it to be checked."""
        self._pass_on()
        self.reader.x = self.x.cpu().numpy()
        self.reader.streams.resume(self.state.cpu().numpy(), self.places.cpu().numpy())
