"""The configurations of Transformers over the sequence of all elements; checked without torch."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig, check_heads
from axial.validation import as_float, as_integer, check_choice

Pattern = Literal["full", "strided", "local"]


@dataclass(frozen=True, kw_only=True)
class FullConfig(FamilyConfig):
    """A decoder-only Transformer in which every position attends to all before it."""

    least: ClassVar = {"heads": 1, "layers": 1, "mlp_ratio": 1}

    heads: int
    """Attention heads: equal consecutive slices of queries, keys and values."""
    layers: int
    """Blocks, one after another."""
    qk_ratio: float = 1.0
    """Width of queries and keys, in multiples of the width."""
    mlp_ratio: int = 4
    """Hidden features of the feed-forward layers, in multiples of the width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "qk_ratio", as_float("qk_ratio", self.qk_ratio))
        check_heads(self.width, self.heads)
        narrow = self.width * self.qk_ratio
        if not (0 < narrow < math.inf) or narrow % self.heads:
            raise ConfigError(
                f"qk_ratio is {self.qk_ratio!r}: queries of {narrow:g} features do not split into "
                f"{self.heads} heads; use 1, or another ratio of the width {self.width} that does"
            )
        self.check_given_is_prefix("a sequence of elements", "use given_steps, or another family")

    @property
    def length(self) -> int:
        """Positions of the sequence."""
        return math.prod(self.axes) * self.channels

    @property
    def query_width(self) -> int:
        """Features of queries, and of keys."""
        return round(self.width * self.qk_ratio)

    @property
    def position_floats(self) -> int:
        """Those of a block, roughly."""
        return self.width * (10 + 2 * self.mlp_ratio) + 2 * self.query_width

    @property
    def cache_floats(self) -> int:
        """Keys and values of all elements in every layer, which local ones need not keep."""
        return self.layers * self.length * (self.query_width + self.width)

    def parameters(self) -> int:
        width, narrow, hidden = self.width, self.query_width, self.mlp_ratio * self.width
        attention = 2 * narrow * (width + 1) + 2 * width * (width + 1)
        block = attention + 2 * width * hidden + hidden + width + 4 * width
        tables = 2 * self.values + sum(self.axes) + self.channels + self.classes + 1
        return self.layers * block + tables * width + 2 * width

    def pass_flops(self) -> int:
        width, narrow = self.width, self.query_width
        each = 2 * width * narrow + 2 * width**2 * (1 + self.mlp_ratio)
        total = self.length * (self.layers * each + width * self.values)
        compared = sum(self.compared(layer) for layer in range(self.layers))
        return 2 * (total + compared * (narrow + width))

    def compared(self, layer: int) -> int:
        """How many pairs of a query and a key a layer computes, masked ones included."""
        return self.length**2

    def outline(self) -> str:
        patterns = [self.pattern(layer) for layer in range(self.layers)]
        shown = ", ".join(patterns[:8]) + ", ..." * (len(patterns) > 8)
        shape = ", ".join(map(str, (*self.axes, self.channels)))
        rows = [
            f"x (b, {shape})",
            f" |  one sequence of {self.length:,} elements, moved on by one",
            f" |- {self.layers} blocks: {shown}",
            f"logits (b, {shape}, {self.values})",
            "",
            f"Pairs of a query and a key: {sum(map(self.pairs, range(self.layers))):,} an example.",
        ]
        return "\n".join(rows)

    def pattern(self, layer: int) -> Pattern:
        """Who attends to whom in a layer."""
        return "full"

    def pairs(self, layer: int) -> int:
        """How many (query, key) pairs a layer has."""
        return self.length * (self.length + 1) // 2


@dataclass(frozen=True, kw_only=True)
class StridedConfig(FullConfig):
    """The Strided Sparse Transformer: layers attend to the last `stride` positions, or by strides.

    One strided and one local layer, in either order, connect every position to all before it.
    """

    stride: int | None = None
    """Length of the local window, and step of the strided layers. Default: a line of the data."""
    cycle: tuple[Pattern, ...] = ("strided", "local", "local", "local")
    """The pattern of each layer, repeated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        stride = self.line if self.stride is None else as_integer("stride", self.stride, at_least=1)
        object.__setattr__(self, "stride", stride)
        if self.length % stride:
            raise ConfigError(
                f"stride is {stride}, which does not divide the {self.length} elements of an "
                f"example: use {self.line}, a line of the data, or another divisor"
            )
        if not isinstance(self.cycle, tuple | list) or not self.cycle:
            raise ConfigError(f"cycle is {self.cycle!r}: name the pattern of at least one layer")
        object.__setattr__(self, "cycle", tuple(self.cycle))
        for pattern in self.cycle:
            check_choice("cycle", pattern, get_args(Pattern))

    def pattern(self, layer: int) -> Pattern:
        return self.cycle[layer % len(self.cycle)]

    def compared(self, layer: int) -> int:
        length, stride = self.length, self.stride or self.line
        counts = {"full": length**2, "strided": length**2 // stride}
        # All blocks but the first are compared with the block before, too.
        return counts.get(self.pattern(layer), (2 * length - stride) * stride)

    def pairs(self, layer: int) -> int:
        length, stride = self.length, self.stride or self.line
        lines = length // stride
        counts = {"full": super().pairs(layer), "strided": stride * lines * (lines + 1) // 2}
        local = stride * (stride + 1) // 2 + (length - stride) * stride
        return counts.get(self.pattern(layer), local)
