"""Which examples stand in which batch: a function of seed, step and rank alone.

A place in the data is a step number, so resuming is starting at that step. Nothing here
depends on how many ranks or threads there are: a rank takes its slice of the global batch.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from axial.data.crops import Crops
from axial.data.packed import Examples
from axial.errors import DataError
from axial.system.ranks import share
from axial.variants import Augment, permutation, variant_count

Indices = NDArray[np.int64]
_AHEAD = 4
_UNSIGNED = {1: "uint8", 2: "uint16"}
# Keep apart what is drawn from the same seed for different ends.
_CHANNELS, _DROPOUT, _VARIANTS, _PLACES = (np.uint64(i) for i in range(1, 5))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples with their labels; the tensors lie in pinned memory where there is a GPU."""

    x: Tensor
    """Unsigned integers (b, *axes, c)."""
    label: Tensor | None
    """int64 (b,), where the data has labels."""
    index: Indices
    """Which example of the packed array each one is, or which crop of an epoch."""
    epoch: Indices
    """How often each had been seen before; crops of one number then lay elsewhere."""
    variant: Indices | None = None
    """Which of its variants each one is, where they are told apart; 0 is the example itself."""


_Stream = Generator[Batch, None, None]


class _Batches:
    """What batches are made of, and a rank's share in them.

    `subset` restricts them to some examples, to hold out a validation part.
    """

    def __init__(
        self,
        packed: Examples | Crops,
        batch: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        subset: Indices | None = None,
    ) -> None:
        check_share(batch, rank, ranks)
        self.packed = packed
        self.batch = batch
        self._mine = share(batch, rank, ranks)
        self._subset = examples_of(packed, subset)


class TrainingBatches(_Batches):
    """Endless shuffled batches: the order comes from (seed, epoch), all else from the index too.

    Batches run over the ends of epochs, so every example is seen once an epoch whatever the
    batch size. Where crops lie in their pictures comes from (seed, epoch, index) as well. With
    `augment` a share of them, `untransformed`, is as it is, and the others are each of the other
    variants alike; a flip comes first, and is told to nobody.
    """

    def __init__(
        self,
        packed: Examples | Crops,
        batch: int,
        *,
        seed: int,
        flip: bool = False,
        augment: Sequence[Augment] = (),
        untransformed: float = 0.5,
        **how: Any,
    ) -> None:
        super().__init__(packed, batch, **how)
        if not 0 <= seed < 1 << 64:
            raise DataError(f"seed is {seed}: use a whole number from 0 to 2 ** 64 - 1")
        self.seed = seed
        self.flip = flip
        self.augment, self.untransformed = augment, untransformed
        self._permutations: dict[int, Indices] = {}
        self._orders: dict[int, Indices] = {}

    @property
    def steps_per_epoch(self) -> float:
        """How many global batches make one pass over the data."""
        return len(self._subset) / self.batch

    def at(self, step: int) -> Batch:
        """The share this rank has in the global batch of a step, counted from 0."""
        place = np.arange(step * self.batch, (step + 1) * self.batch)[self._mine]
        epoch, within = np.divmod(place, len(self._subset))
        index = np.empty_like(place)
        for one in np.unique(epoch):
            index[epoch == one] = self._order(int(one))[within[epoch == one]]
        batch = _read(self.packed, index, epoch, places(self.seed, epoch, index))
        if self.flip:
            _mirror(batch.x.numpy(), flips(self.seed, epoch, index))
        if self.augment:
            batch = replace(batch, variant=self._transform(batch))
        return batch

    def _transform(self, batch: Batch) -> Indices:
        """Turn examples into variants of theirs, in place; tell which."""
        count = variant_count(self.augment)
        chosen = variants(self.seed, batch.epoch, batch.index, count, self.untransformed)
        x = batch.x.numpy().reshape(len(chosen), -1)
        for number in np.unique(chosen[chosen > 0]).tolist():
            if number not in self._permutations:
                self._permutations[number] = permutation(self.augment, number, self.packed.shape)
            rows = chosen == number
            x[rows] = np.take(x[rows], self._permutations[number], axis=1)
        return chosen

    def stream(self, first: int = 0) -> _Stream:
        """Batches from a step on, read ahead by a thread of their own."""
        return _ahead(self.at, first, None)

    def _order(self, epoch: int) -> Indices:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = self._subset[order(self.seed, epoch, len(self._subset))]
        return self._orders[epoch]


class EvaluationBatches(_Batches):
    """Each example exactly once, in the order of the file, over any number of ranks.

    Every rank has the same number of batches; near the end one may be short, or empty.
    """

    def __len__(self) -> int:
        return -(-len(self._subset) // self.batch)

    def at(self, step: int) -> Batch:
        """The share this rank has in one global batch."""
        index = self._subset[step * self.batch : (step + 1) * self.batch][self._mine]
        return _read(self.packed, index, np.zeros_like(index))

    def __iter__(self) -> Iterator[Batch]:
        return self.stream()

    def stream(self, first: int = 0) -> _Stream:
        """Batches from a step to the end, read ahead by a thread of their own."""
        return _ahead(self.at, first, len(self))


def order(seed: int, epoch: int, count: int) -> Indices:
    """The permutation of an epoch.

    Sorted raw Philox words, because numpy promises those, and not its shuffles, to stay as
    they are from version to version.
    """
    words = np.random.Philox(key=int(_mix(np.uint64(seed), np.uint64(epoch)))).random_raw(count)
    return np.argsort(words, kind="stable")


def flips(seed: int, epoch: Indices, index: Indices) -> NDArray[np.bool_]:
    """Which examples are mirrored in an epoch: a fair coin from (seed, epoch, index)."""
    return (_words(seed, epoch, index) >> np.uint64(63)).astype(bool)


def places(seed: int, epoch: Indices, index: Indices) -> NDArray[np.uint64]:
    """A random word for each crop of an epoch, which says where in its picture it lies."""
    found: NDArray[np.uint64] = _mix(_words(seed, epoch, index), _PLACES)
    return found


def channels(seed: int, epoch: Indices, index: Indices, first: int, end: int) -> Indices:
    """Which channel of `first` to `end - 1` each example is trained on in an epoch, uniformly."""
    words = _mix(_words(seed, epoch, index), _CHANNELS) >> np.uint64(1)
    return first + words.astype(np.int64) % (end - first)


def variants(
    seed: int, epoch: Indices, index: Indices, count: int, untransformed: float
) -> Indices:
    """Which variant each example is in an epoch: 0 with a given share, else any other alike."""
    words = _mix(_words(seed, epoch, index), _VARIANTS)
    uniform = (words >> np.uint64(11)) * 2.0**-53
    rest = (uniform - untransformed) / max(1 - untransformed, 2.0**-53)
    other = 1 + np.minimum((rest * (count - 1)).astype(np.int64), count - 2)
    return np.where(uniform < untransformed, 0, other)


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """What a rank's generator starts from at a step: nothing random need be saved."""
    word = _mix(_mix(np.uint64(seed), np.uint64(step)), np.uint64(rank))
    return int(_mix(word, _DROPOUT))


def _words(seed: int, epoch: Indices, index: Indices) -> Any:
    return _mix(_mix(np.uint64(seed), epoch.astype(np.uint64)), index.astype(np.uint64))


def _mix(state: Any, value: Any) -> Any:
    """SplitMix64's finaliser over state and value: every bit depends on every bit."""
    with np.errstate(over="ignore"):
        word = state * np.uint64(0x9E3779B97F4A7C15) + value + np.uint64(0xD1B54A32D192ED03)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def _read(
    packed: Examples | Crops,
    index: Indices,
    epoch: Indices,
    where: NDArray[np.uint64] | None = None,
) -> Batch:
    """The one copy: from the file into the memory the GPU reads."""
    pin = torch.cuda.is_available()
    dtype = getattr(torch, _UNSIGNED[packed.array.itemsize])
    x = torch.empty((len(index), *packed.row_shape), dtype=dtype, pin_memory=pin)
    if isinstance(packed, Crops):
        assert where is not None  # crops are for training
        packed.cut(index, where, x.numpy())
    else:
        packed.rows(index, out=x.numpy())
    label = None
    if packed.labels is not None:
        label = torch.from_numpy(packed.labels[index])
        label = label.pin_memory() if pin else label
    return Batch(x=x, label=label, index=index, epoch=epoch)


def _mirror(x: NDArray[Any], chosen: NDArray[np.bool_]) -> None:
    """Turn the chosen examples round along the last axis, in place.

    A gather along whole lines: numpy copies a reversed axis of three channels far slower.
    """
    width, channels = x.shape[-2:]
    lines = x.reshape(len(x), -1, width * channels)
    backwards = np.arange(width * channels).reshape(width, channels)[::-1].ravel()
    lines[chosen] = np.take(lines[chosen], backwards, axis=-1)


def _ahead(at: Callable[[int], Batch], first: int, end: int | None) -> _Stream:
    """Call `at` for one step after another in a thread, a few steps ahead of the reader."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def read() -> None:
        step = first
        try:
            while not stop.is_set() and (end is None or step < end):
                put(at(step))
                step += 1
            put(None)
        except BaseException as error:  # handed to the reader, who raises it
            put(error)

    thread = threading.Thread(target=read, name="axial-batches", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def examples_of(packed: Examples | Crops, subset: Sequence[int] | Indices | None) -> Indices:
    """The numbers of a subset's examples, of all of them without one; refused if they are none."""
    if subset is None:
        subset = range(len(packed))
    indices = np.asarray(subset)
    if not indices.size:
        raise DataError(f"{packed.path}: no examples to make batches of")
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise DataError(
            f"{packed.path}: a subset is a list of the numbers of its examples, not an array of "
            f"shape {indices.shape} of {indices.dtype}; numpy.flatnonzero makes one of a mask"
        )
    indices = indices.astype(np.int64)
    if not 0 <= indices.min() <= indices.max() < len(packed):
        raise DataError(f"{packed.path}: has {len(packed)} examples, not all of the subset's")
    return indices


def check_share(batch: int, rank: int, ranks: int) -> None:
    """Refuse a batch that the ranks cannot share equally."""
    if batch < 1 or ranks < 1 or batch % ranks:
        raise DataError(
            f"batch {batch} does not split over {ranks} ranks: use a multiple of {ranks}"
        )
    if not 0 <= rank < ranks:
        raise DataError(f"rank {rank} of {ranks}: count ranks from 0")
