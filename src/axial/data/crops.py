"""Parts of equal size of larger pictures: disjoint tiles to score, random crops to train on."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from axial.data.packed import Array, Packed
from axial.errors import DataError

Indices = NDArray[np.int64]
Size = tuple[int, int]
"""Height and width."""


class _Parts:
    """Parts (h, w) of the pictures of a packed array, counted from picture to picture."""

    def __init__(self, packed: Packed, size: Size, counts: Indices) -> None:
        self.packed, self.size, self.counts = packed, size, counts
        self.path, self.description, self.array = packed.path, packed.description, packed.array
        self.shape = replace(packed.shape, axes=size)
        self.labels = None if packed.labels is None else np.repeat(packed.labels, counts)
        self.stack_frames = False
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one part: (h, w, c)."""
        return (*self.size, self.shape.channels)

    def of(self, pictures: Indices) -> Indices:
        """The numbers of all parts of some pictures."""
        chosen = np.zeros(len(self.counts), bool)
        chosen[pictures] = True
        return np.flatnonzero(np.repeat(chosen, self.counts))

    def pictures(self, index: Sequence[int] | Indices) -> Indices:
        """The picture that each part is of."""
        found = np.asarray(index, np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < len(self):
            raise IndexError(f"parts {found.min()} to {found.max()} of {len(self)}")
        return np.searchsorted(self._ends, found, side="right").astype(np.int64)

    def check(self) -> None:
        """Read all of it and refuse another array's elements."""
        self.packed.check()

    def _cut(self, pictures: Indices, top: Indices, left: Indices, out: Array | None) -> Array:
        if out is None:
            out = np.empty((len(pictures), *self.row_shape), self.array.dtype)
        places = zip(pictures.tolist(), top.tolist(), left.tolist(), strict=True)
        for x, (picture, row, column) in zip(out, places, strict=True):
            self.packed.part(picture, row, column, self.size, x)
        return out


class Tiles(_Parts):
    """The disjoint tiles of every picture, in raster order from its upper left corner.

    What is left at its lower and right edges belongs to none.
    """

    def __init__(self, packed: Packed, size: Size) -> None:
        sizes = picture_sizes(packed)
        super().__init__(packed, size, (sizes // np.array(size)).prod(1))
        if not len(self):
            raise DataError(
                f"{packed.description.title}: none of its pictures holds a tile of {words(size)}; "
                f"give larger ones"
            )
        self._columns = sizes[:, 1] // size[1]

    @property
    def left_out(self) -> float:
        """The share of all pixels that belong to no tile."""
        return 1 - len(self) * self.size[0] * self.size[1] / picture_sizes(self.packed).prod(1).sum(
            dtype=np.float64
        )

    def rows(self, indices: Sequence[int] | Indices, out: Array | None = None) -> Array:
        """Tiles by their numbers, in `out` (k, h, w, c) or a new array."""
        picture = self.pictures(indices)
        within = np.asarray(indices, np.int64) - (self._ends - self.counts)[picture]
        row, column = np.divmod(within, self._columns[picture])
        return self._cut(picture, row * self.size[0], column * self.size[1], out)

    def example(self, index: int) -> Array:
        """One tile."""
        return self.rows([index])[0]


class Crops(_Parts):
    """The random crops that an epoch takes of every picture: as many as its area is that of crops.

    At least one, so that pixels of large and small pictures are seen about equally often; none of a
    picture that is smaller than a crop.
    """

    def __init__(self, packed: Packed, size: Size) -> None:
        self.sizes = picture_sizes(packed)
        share = self.sizes.prod(1) / (size[0] * size[1])
        fits = (self.sizes >= np.array(size)).all(1)
        super().__init__(packed, size, np.where(fits, np.maximum(1, np.rint(share)), 0).astype(int))

    def cut(self, index: Indices, words: NDArray[np.uint64], out: Array) -> Array:
        """Crops by their numbers, each where its random word says, uniformly within its picture."""
        picture = self.pictures(index)
        room = (self.sizes[picture] - np.array(self.size) + 1).astype(np.uint64)
        half = np.uint64(32)
        top, left = (words >> half) % room[:, 0], ((words << half) >> half) % room[:, 1]
        return self._cut(picture, top.astype(np.int64), left.astype(np.int64), out)


def picture_sizes(packed: Packed) -> Indices:
    """Height and width of each picture (n, 2); data without pictures is refused."""
    if packed.sizes is not None:
        return packed.sizes
    if len(packed.shape.axes) != 2 or packed.stack_frames:
        raise DataError(
            f"{packed.description.title}: holds examples of {words(packed.description.axes)}, and "
            f"crops are cut from pictures; leave --crop out, or train a preset without crops"
        )
    return np.broadcast_to(np.array(packed.shape.axes), (len(packed), 2))


def words(size: Sequence[int]) -> str:
    """A size as it is printed."""
    return " x ".join(map(str, size))
