"""The configurations of the Image Transformer (Parmar et al. 2018); checked without torch."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig, Places, check_heads
from axial.validation import as_integer, check_choices

Norm = Literal["post", "pre"]
PositionKind = Literal["timing", "learned"]
Shift = Literal["order", "block"]


@dataclass(frozen=True, kw_only=True)
class LocalConfig(FamilyConfig):
    """What both forms have: a stack of blocks over elements that are cut into query blocks."""

    least: ClassVar = {"heads": 1, "layers": 1, "mlp_ratio": 1}

    heads: int
    """Attention heads: equal consecutive slices of the width."""
    layers: int
    """Blocks, one after another."""
    mlp_ratio: int = 4
    """Hidden features of the feed-forward layers, in multiples of the width."""
    norm: Norm = "post"
    """Layer norm after each branch, as published, or before it."""
    position_kind: PositionKind = "timing"
    """Fixed sines and cosines of the place in the grid, or one learned table for each axis."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads)
        check_choices(self, norm=get_args(Norm), position_kind=get_args(PositionKind))

    @property
    def grid(self) -> tuple[int, ...]:
        """The axes with the channels in the last one: an element is a place of it."""
        return (*self.axes[:-1], self.axes[-1] * self.channels)

    @property
    def length(self) -> int:
        """Elements of an example."""
        return math.prod(self.grid)

    @property
    def position_floats(self) -> int:
        """Those of a block, and the keys and values gathered for it, roughly."""
        return self.width * (8 + self.mlp_ratio + 2 * (1 + self.memory // self.query))

    @property
    def query(self) -> int:
        """Elements of a query block."""
        raise NotImplementedError

    @property
    def memory(self) -> int:
        """Places around a block that its queries see beside their own, as far as they exist."""
        raise NotImplementedError

    @property
    def cache_floats(self) -> int:
        """Keys and values of all elements, and of what a block sees."""
        return 2 * self.layers * self.width * (self.length + self.query + self.memory)

    def pairs(self, layer: int) -> int:
        """How many (query, key) pairs a layer has."""
        raise NotImplementedError

    def parameters(self) -> int:
        width, hidden = self.width, self.mlp_ratio * self.width
        block = 4 * width**2 + 2 * width * hidden + hidden + width + 4 * width
        rows = self.channels * self.values + self.classes
        rows += sum(self.grid) if self.position_kind == "learned" else 0
        final = 2 * width if self.norm == "pre" else 0
        return self.layers * block + (rows + self.values) * width + self.values + final

    def pass_flops(self) -> int:
        width, padded = self.width, -(-self.length // self.query) * self.query
        attended = padded * (3 * width**2 + 2 * (self.query + self.memory) * width)
        rest = self.length * width**2 * (1 + 2 * self.mlp_ratio)
        return 2 * (self.layers * (attended + rest) + self.length * width * self.values)

    def outline(self) -> str:
        shape = ", ".join(map(str, (*self.axes, self.channels)))
        rows = [
            f"x (b, {shape})",
            f" |  {self.length:,} elements in query blocks of {self.query}, moved on by one",
            f" |- {self.layers} blocks, each query sees its block and {self.memory} places around",
            f"logits (b, {shape}, {self.values})",
            "",
            f"Pairs of a query and a key: {self.layers * self.pairs(0):,} an example.",
        ]
        return "\n".join(rows)


@dataclass(frozen=True, kw_only=True)
class Local1dConfig(LocalConfig):
    """Elements in raster order, cut into blocks; a query sees its own block and the one before."""

    block: int = 256
    """Elements of a block; of an example shorter than two blocks, all of them are one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "block", as_integer("block", self.block, at_least=1))
        self.check_given_is_prefix("a sequence of elements", "use given_steps, or another family")

    @property
    def query(self) -> int:
        return self.length if self.length < 2 * self.block else self.block

    @property
    def memory(self) -> int:
        return 0 if self.query == self.length else self.query

    def pairs(self, layer: int) -> int:
        blocks, rest = divmod(self.length, self.query)
        within = blocks * self.query * (self.query + 1) // 2 + rest * (rest + 1) // 2
        return within + (self.length - self.query) * self.query


@dataclass(frozen=True, kw_only=True)
class Local2dConfig(LocalConfig):
    """The grid (height, width * channels) in rectangles, predicted one after another.

    A query sees its own rectangle up to itself, and a flange above, above right and to the left.
    """

    block: tuple[int, int] = (8, 32)
    """Rows and elements of a row in a rectangle."""
    flange: tuple[int, int] = (8, 64)
    """Rows above it, and elements to its left and upper right, that its queries see."""
    shift: Shift = "order"
    """Elements move on along the order of prediction; or inside each rectangle, as the authors
    released it, by which the last one of each is seen by nobody."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, shift=get_args(Shift))
        if len(self.axes) != 2:
            raise ConfigError(
                f"axes {self.axes} are {len(self.axes)}: local-2d is for pictures, local-1d for all"
            )
        for name, least in (("block", 1), ("flange", 0)):
            value: Any = getattr(self, name)
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{name} is {value!r}: give rows, and elements of a row")
            pair = tuple(as_integer(name, one, at_least=least) for one in value)
            object.__setattr__(self, name, pair)
        for length, part, what in zip(self.grid, self.block, ("rows", "elements"), strict=True):
            if length % part:
                raise ConfigError(
                    f"block is {self.block}, but {length} {what} do not split into {part} each: "
                    f"use a divisor"
                )
        if any(part > length for length, part in zip(self.grid, self.flange, strict=True)):
            raise ConfigError(f"flange is {self.flange}: the picture has {self.grid} elements")
        self.check_given_is_prefix("a picture in rectangles", "use local-1d")

    def order(self) -> Places:
        """Rectangle by rectangle, each in raster order."""
        (rows, columns), (high, wide) = self.grid, self.block
        places = np.arange(self.length).reshape(rows // high, high, columns // wide, wide)
        return places.swapaxes(1, 2).ravel()

    @property
    def channels_in_turn(self) -> bool:
        """Not even one channel: what is kept of it is no prefix."""
        return False

    @property
    def line(self) -> int:
        """A row of a rectangle."""
        return self.block[1]

    @property
    def query(self) -> int:
        return math.prod(self.block)

    @property
    def memory(self) -> int:
        (high, wide), (above, beside) = self.block, self.flange
        return above * (wide + 2 * beside) + high * beside

    def pairs(self, layer: int) -> int:
        (rows, columns), (high, wide), (above, beside) = self.grid, self.block, self.flange
        seen = 0
        for top in range(0, rows, high):
            for left in range(0, columns, wide):
                before = left - max(0, left - beside)
                after = min(columns, left + wide + beside) - left
                seen += min(above, top) * (before + after) + high * before
        within = (self.query + 1) * self.length // 2
        return within + seen * self.query
