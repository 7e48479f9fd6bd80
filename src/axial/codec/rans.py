"""The entropy coder: rANS in 64-bit integers, several streams side by side.

A stream ends as it was begun: its state first, eight bytes, then words of four. The coder that
wrote it began with a state that holds a seal of 31 bits; whoever reads it comes out with that state
again, so the seal costs no bytes beyond those that any such coder spends on its first state.

g streams, l steps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from axial.codec.grid import PRECISION
from axial.errors import StreamError

SEAL_BITS = 31
"""Bits of the seal: states stay within [2 ** 31, 2 ** 63)."""
WHOLE = 1 << PRECISION
"""The frequency of what is certain: it changes no state and takes no bits."""
_LEAST = np.uint64(1 << SEAL_BITS)
WORD_BITS = 32
"""Bits that a state sheds, or takes in, at once."""
_MASK = np.uint64(WHOLE - 1)
Integers = NDArray[np.uint64]


def encode(start: Integers, frequency: Integers, seal: Sequence[int]) -> list[bytes]:
    """Write steps (l, g) of several streams, each a share of [0, 2 ** PRECISION)."""
    state = np.array(seal, np.uint64) | _LEAST
    words = np.empty(start.shape, "<u4")
    written = np.empty(start.shape, bool)
    # A state of at least 2 ** (63 - PRECISION) * frequency would leave its range.
    limit = frequency << np.uint64(63 - PRECISION)
    grown = np.uint64(WHOLE) - frequency
    for i in reversed(range(len(start))):
        over = np.greater_equal(state, limit[i], out=written[i])
        words[i] = state  # its lower half
        state >>= over * np.uint64(WORD_BITS)
        state += state // frequency[i] * grown[i] + start[i]
    return [
        int(state[g]).to_bytes(8, "little") + words[written[:, g], g].tobytes()
        for g in range(len(state))
    ]


class Reader:
    """Reads several streams, a step of each at a time."""

    def __init__(self, streams: Sequence[bytes]) -> None:
        if any(len(stream) < 8 or len(stream) % 4 for stream in streams):
            raise StreamError("a stream is cut short")
        words = [np.frombuffer(stream[8:], "<u4").astype(np.uint64) for stream in streams]
        self._ends = np.cumsum([len(part) for part in words])
        self._places = self._ends - [len(part) for part in words]
        self._words = np.concatenate([*words, np.zeros(1, np.uint64)])
        self._state = np.array([int.from_bytes(s[:8], "little") for s in streams], np.uint64)
        if not ((self._state >= _LEAST) & (self._state < np.uint64(1 << 63))).all():
            raise StreamError("a stream begins with a state that no coder leaves")
        self._rows = np.arange(len(streams))

    def read(self, bounds: Integers, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The next value of each stream that has one, by the bounds (g, v + 1) of all values."""
        slot = self._state & _MASK
        value = (bounds[:, 1:] <= slot[:, None]).sum(-1)
        start, end = bounds[self._rows, value], bounds[self._rows, value + 1]
        state = (end - start) * (self._state >> np.uint64(PRECISION)) + slot - start
        self._state = np.where(wanted, state, self._state)
        low = self._state < _LEAST
        if low.any():
            self._check_places(self._places + low)
            word = self._words[self._places]
            self._state = np.where(low, self._state << np.uint64(WORD_BITS) | word, self._state)
            self._places += low
        return value

    def progress(self) -> tuple[Integers, Integers, NDArray[np.int64]]:
        """States, the words of all streams, and where in them each stream goes on."""
        return self._state, self._words, self._places

    def resume(self, state: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Take over what was read elsewhere."""
        self._check_places(places)
        self._state, self._places = state.astype(np.uint64), places

    def _check_places(self, places: NDArray[np.int64]) -> None:
        if (places > self._ends).any():
            raise StreamError("a stream ends before its last value")

    def seals(self) -> list[int]:
        """The seals that the streams were begun with; refused if one has more to say."""
        whole = (self._places == self._ends) & (self._state < _LEAST << np.uint64(1))
        if not whole.all():
            raise StreamError("a stream goes on after its last value")
        return [int(state ^ _LEAST) for state in self._state]
