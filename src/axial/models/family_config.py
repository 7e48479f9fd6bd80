"""What the configurations of all families have: the shape of the data, and what is asked of them.

It imports no torch: the command line reads configurations before it needs a model.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from axial.errors import ConfigError
from axial.shape import MOST_ELEMENTS, MOST_LAYERS, MOST_VALUES, DataShape
from axial.validation import as_float, as_integer, as_lengths, from_json

Places = NDArray[np.int64]
"""Flat indices into (*axes, channels)."""
_LEAST = {"channels": 1, "values": 2, "classes": 0, "width": 1}
_LEAST |= {"given_channels": 0, "given_steps": 0}


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """The shape of the data of a model, what of it is given, and dropout."""

    least: ClassVar[dict[str, int]] = {}
    """Whole numbers that a family adds, and the least that each may be."""
    rates: ClassVar[tuple[str, ...]] = ("dropout",)
    """Numbers from 0 up to below 1."""
    later: ClassVar[tuple[str, ...]] = ("frames",)
    """Fields that came later: in JSON only where they say something, as old fingerprints stand."""
    slice_name: ClassVar[str] = "slice"
    """What one pass scores, where it is not all of an example."""

    axes: tuple[int, ...]
    """Lengths of the grid, slowest first: height and width for an image."""
    channels: int = 1
    """Channels of each element; 3 for RGB, 3 * frames for a channel-stacked video."""
    values: int = 256
    """Number of values an element can take: x is in [0, values)."""
    classes: int = 0
    """Number of classes the model is conditioned on; 0 for an unconditional model."""
    width: int
    """Features per position, and of a context."""
    dropout: float = 0.0
    """Dropout rate of the residual branches of the decoder."""
    given_channels: int = 0
    """Leading channels that are always known: the model is p(the others | these)."""
    given_steps: int = 0
    """Leading steps of axis 0 that are always known, in every channel."""
    frames: int | None = None
    """Frames stacked in the channels, if the data says so; it changes no prediction."""

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("axes", as_lengths("axes", self.axes))
        if not self.axes:
            raise ConfigError("axes is empty: name the length of at least one axis, as in (32, 32)")
        for name, least in (_LEAST | self.least).items():
            put(name, as_integer(name, getattr(self, name), at_least=least))
        check_most("values", self.values, MOST_VALUES)
        check_most("number of layers", getattr(self, "layers", 1), MOST_LAYERS)
        check_most("axes times channels", math.prod(self.axes) * self.channels, MOST_ELEMENTS)
        for name in self.rates:
            put(name, as_float(name, getattr(self, name)))
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {rate!r}: use a number from 0 up to below 1")
        if self.frames is not None:
            put("frames", as_integer("frames", self.frames, at_least=1))
            if self.channels % self.frames:
                raise ConfigError(
                    f"frames is {self.frames}, but {self.channels} channels do not split into as "
                    f"many: use a number that divides them, or None"
                )
        whole = {
            "given_channels": ("", self.channels),
            "given_steps": (" along axis 0", self.axes[0]),
        }
        for name, (where, length) in whole.items():
            if (given := getattr(self, name)) >= length:
                raise ConfigError(
                    f"{name} is {given} of {length}{where}: leave at least one to model"
                )

    def check_given_is_prefix(self, what: str, cure: str) -> None:
        """Refuse given parts that `what` cannot show to all the elements it predicts."""
        if not (self.given_channels or self.given_steps):
            return
        known = np.zeros((*self.axes, self.channels), bool)
        known[..., : self.given_channels] = known[: self.given_steps] = True
        known = known.ravel()[self.order()]
        if not known[: known.sum()].all():
            name = "given_channels" if self.given_channels else "given_steps"
            if self.given_steps and self.channels_in_turn:
                name = "given_steps"
            raise ConfigError(
                f"{name} is {getattr(self, name)}, which {what} cannot show to the elements "
                f"predicted before them: {cure}"
            )

    @property
    def data(self) -> DataShape:
        """The shape of what is modelled."""
        names = (field.name for field in fields(DataShape))
        return DataShape(**{name: getattr(self, name) for name in names})

    @property
    def variants(self) -> int:
        """Variants of an example that the model tells apart, the untransformed one included."""
        return 1

    @property
    def elements(self) -> int:
        """Elements of one example that carry bits: all but the given ones."""
        steps = (self.axes[0] - self.given_steps) * math.prod(self.axes[1:])
        return steps * (self.channels - self.given_channels)

    def order(self) -> Places:
        """The places of all elements in the order of prediction: raster, channels innermost."""
        return np.arange(math.prod(self.axes) * self.channels)

    @property
    def line(self) -> int:
        """Elements of a line: so many of the order are drawn from one glance to the next."""
        return self.axes[-1] * self.channels

    @property
    def slices(self) -> range:
        """The numbers of the slices of an example, each scored by one pass; given ones left out."""
        return range(1)

    @property
    def positions(self) -> int:
        """How many positions of features one pass computes."""
        return math.prod(self.axes) * self.channels

    @property
    def position_floats(self) -> int:
        """Numbers that scoring keeps of a position at a time, roughly, logits aside."""
        return 16 * self.width

    @property
    def input_bytes(self) -> int:
        """What a pass keeps of an example beside that."""
        return 0

    @property
    def cache_floats(self) -> int:
        """Numbers that drawing element by element keeps of an example."""
        return 0

    def parameters(self) -> int:
        """How many numbers the model learns."""
        raise NotImplementedError

    def pass_flops(self) -> int:
        """Operations of one pass: two for a multiply-add, matrix products alone, masks or not."""
        raise NotImplementedError

    def sizes(self) -> str:
        """Its sizes in one line."""
        shared = {field.name for field in fields(FamilyConfig)}
        own = (field.name for field in fields(self) if field.name not in shared)
        names = ("width", *own, "dropout")
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)

    def outline(self) -> str:
        """What it computes, in a few lines for a person."""
        raise NotImplementedError

    @property
    def channels_in_turn(self) -> bool:
        """Whether a channel is predicted as a whole before the next one."""
        return self.channels == 1

    def to_json(self) -> dict[str, Any]:
        """Describe this configuration in plain JSON values."""
        return {name: v for name, v in asdict(self).items() if v or name not in self.later}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The configuration `to_json` described; unknown names are refused."""
        return from_json(cls, values, "model config")


def check_most(what: str, found: int, most: int) -> None:
    """Refuse sizes that no model has, before anything of such a size is made."""
    if found > most:
        raise ConfigError(f"{what} is {found}: use at most {most}")


def check_heads(width: int, heads: int) -> None:
    """Refuse heads that do not split the width evenly."""
    if heads < 1 or width % heads:
        fits = [count for count in range(1, min(width, 64) + 1) if width % count == 0]
        raise ConfigError(f"width {width} does not split into {heads} heads: use one of {fits}")
