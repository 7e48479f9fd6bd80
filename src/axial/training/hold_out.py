"""Which examples are held out of training, to be scored along the way."""

import numpy as np

from axial.data.batches import Indices
from axial.data.packed import spread
from axial.training.config import HoldOut


def split(examples: int, held_out: int, which: HoldOut) -> tuple[Indices, Indices]:
    """Indices to train on, and those held out: the last ones, or every so manyth."""
    everything = np.arange(examples)
    if which == "last":
        return everything[: examples - held_out], everything[examples - held_out :]
    chosen = spread(examples, held_out)
    return np.delete(everything, chosen), chosen
