"""Pictures that grow: what there is, and what is new since someone last looked.

n pictures, e elements of one, in memory order.
"""

import threading
from dataclasses import dataclass

import numpy as np

from axial.data.packed import Array


@dataclass(frozen=True)
class Change:
    """Values that are new or different: those at `places` of `count` pictures from `first` on."""

    first: int
    count: int
    places: Array
    values: Array
    """(count, places)"""


class Canvas:
    """The pictures of a batch, written by a worker and read by the connections of its jobs.

    What is new is kept as one mask, so that a reader who is slow costs no memory.
    """

    def __init__(self, x: Array) -> None:
        """`x` (n, e) holds what is known from the start, -1 elsewhere."""
        self.x = x
        self._new = np.zeros(x.shape, bool)
        self._lock = threading.Lock()

    def update(self, x: Array) -> None:
        """Take over what there is now."""
        with self._lock:
            self._new |= (x != self.x) & (x >= 0)
            self.x = x

    def take(self, rows: slice) -> Change | None:
        """Something that is new in some pictures since the last call for them; None at the end."""
        with self._lock:
            new, x = self._new[rows], self.x[rows]
            touched = np.flatnonzero(new.any(1))
            if not len(touched):
                return None
            some = slice(int(touched[0]), int(touched[-1]) + 1)
            places = np.flatnonzero(new[some].any(0))
            if (x[some][:, places] < 0).any():  # not all have come as far: those like the first
                unlike = (new[some] != new[some.start]).any(1)
                count = int(unlike.argmax()) if unlike.any() else len(unlike)
                some = slice(some.start, some.start + count)
                places = np.flatnonzero(new[some.start])
            new[some] = False
            return Change(some.start, some.stop - some.start, places, x[some][:, places])
