"""Which examples are trained on, and which are held out to be scored along the way."""

from dataclasses import dataclass

import numpy as np

from axial.data.batches import Indices
from axial.data.crops import Crops, Tiles, words
from axial.data.packed import Examples, Packed, spread
from axial.errors import DataError
from axial.training.config import HoldOut, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is trained on and what it is scored on; no picture is in both."""

    trained: Examples | Crops
    kept: Indices
    """Those of `trained` that a pass goes over."""
    scored: Examples
    held_out: Indices
    """Those of `scored` that are scored, the same each time."""
    held_out_pictures: int = 0
    """How many pictures the held-out tiles are of, where there are crops."""
    too_small: int = 0
    """How many pictures are left out, as they are smaller than a crop."""


def divide(packed: Packed, config: TrainConfig) -> Parts:
    """Divide the data of a run.

    With crops whole pictures are held out. All their disjoint tiles are scored, or as many of them
    as are asked for, evenly spread.
    """
    if config.crop is None:
        kept, held_out = split(len(packed), config.held_out(len(packed)), config.hold_out)
        return Parts(trained=packed, kept=kept, scored=packed, held_out=held_out)
    height, width = config.crop
    crops = Crops(packed, (height, width))
    pictures = np.flatnonzero(crops.counts)
    small = len(packed) - len(pictures)
    if not len(pictures) or (small and not config.skip_small):
        cure = "; --skip-small leaves them out, or use a smaller --crop"
        raise DataError(
            f"{packed.description.title}: {small:,} of {len(packed):,} pictures are smaller than "
            f"crops of {words(config.crop)}{cure if len(pictures) else '; use a smaller --crop'}"
        )
    count = config.held_out_pictures(len(pictures))
    kept, chosen = (pictures[part] for part in split(len(pictures), count, config.hold_out))
    tiles = Tiles(packed, (height, width))
    held_out = tiles.of(chosen)
    some = spread(len(held_out), min(config.held_out_tiles, len(held_out)))
    return Parts(
        trained=crops,
        kept=crops.of(kept),
        scored=tiles,
        held_out=held_out[some],
        held_out_pictures=count,
        too_small=small,
    )


def split(examples: int, held_out: int, which: HoldOut) -> tuple[Indices, Indices]:
    """Indices to train on, and those held out: the last ones, or every so manyth."""
    everything = np.arange(examples)
    if which == "last":
        return everything[: examples - held_out], everything[examples - held_out :]
    chosen = spread(examples, held_out)
    return np.delete(everything, chosen), chosen
