"""The rows of the comparison of crops: the preset `photos` with one change each, at equal time.

A step of every row has as many elements, and as many are held out: a row of smaller crops has
more of them.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of the comparison."""

    crop: int
    """Height and width of a crop, and of the tiles that the codec cuts."""
    init: str | None = None
    """The model that it starts from."""
    about: str

    @property
    def batch(self) -> int:
        """Crops a step: 16 of 64 x 64, or as many elements."""
        return 16 * 64**2 // self.crop**2


ROWS = {
    "crop-64": Row(crop=64, about="the preset"),
    "crop-32": Row(crop=32, about="smaller tiles"),
    "crop-128": Row(crop=128, about="larger tiles"),
    "crop-32-init": Row(crop=32, init="cifar10", about="smaller tiles, started from cifar10"),
}
VALIDATE_EVERY = 1000
"""Steps between two looks at the held-out tiles, and between checkpoints."""
_TINY = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": (2, 1), "warmup": 2}


def settings_of(name: str, *, tiny: bool = False) -> dict[str, Any]:
    """What a row passes to `axial.train` beside the preset; crops and model may be tiny."""
    row, every = ROWS[name], 5 if tiny else VALIDATE_EVERY
    found: dict[str, Any] = {"crop": row.crop // 8 if tiny else row.crop, "batch": row.batch}
    found |= {"validate_every": every, "save_every": every, "sample_every": 0, "log_every": every}
    if tiny:
        found["batch"] = max(1, row.batch // 4)
        found |= {} if row.init else _TINY
    return found
