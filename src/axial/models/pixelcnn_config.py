"""The configurations of Gated PixelCNN (van den Oord et al. 2016) and PixelCNN++, without torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig
from axial.validation import counted

LayerKind = Literal["pair", "halve", "joined", "double"]


@dataclass(frozen=True, kw_only=True)
class GatedPixelCnnConfig(FamilyConfig):
    """Masked convolutions in two stacks: one sees the rows above, one the row to the left."""

    least: ClassVar = {"layers": 1, "kernel": 1, "first_kernel": 1}

    layers: int
    """Layers, the first one included."""
    kernel: int = 3
    """Width of the convolutions; odd."""
    first_kernel: int = 7
    """Width of those of the first layer; odd."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_picture(self.axes)
        for name in ("kernel", "first_kernel"):
            if getattr(self, name) % 2 == 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: use an odd number")
        if self.width % self.channels:
            raise ConfigError(
                f"width {self.width} does not split into {self.channels} channels: each has as "
                f"many features; use a multiple of {self.channels}"
            )
        self.check_given_is_prefix("a sequence of pixels", "use given_steps, or another family")

    @property
    def positions(self) -> int:
        """Pixels."""
        return math.prod(self.axes)

    @property
    def position_floats(self) -> int:
        """Those of a layer, roughly."""
        return 16 * self.width

    @property
    def cache_floats(self) -> int:
        """What the vertical stack of each layer reads."""
        return self.layers * self.width * self.positions

    def weights(self, layer: int) -> int:
        """Numbers of the matrices and kernels of a layer."""
        reach = (self.kernel if layer else self.first_kernel) // 2
        inputs = self.width if layer else self.channels
        taps = (reach + 1) * (2 * reach + 1) + reach + 1
        return 2 * self.width * inputs * taps + 4 * self.width**2 + self.width**2

    @property
    def head_weights(self) -> int:
        """Those of the two layers before the logits."""
        return self.width**2 + self.width * self.channels * self.values

    def parameters(self) -> int:
        biases = self.layers * 7 * self.width + self.width + self.channels * self.values
        total = sum(map(self.weights, range(self.layers))) + self.head_weights
        return total + biases + self.classes * self.width

    def pass_flops(self) -> int:
        weights = sum(map(self.weights, range(self.layers))) + self.head_weights
        return 2 * self.positions * weights

    def outline(self) -> str:
        shape = ", ".join(map(str, (*self.axes, self.channels)))
        reach = self.first_kernel // 2 + (self.layers - 1) * (self.kernel // 2)
        rows = [
            f"x (b, {shape})",
            f" |- {self.layers} layers of a vertical and a horizontal stack: a pixel sees "
            f"{reach + 1} rows up and {reach} columns aside",
            f"logits (b, {shape}, {self.values})",
        ]
        return "\n".join(rows)


@dataclass(frozen=True, kw_only=True)
class PixelCnnPpConfig(FamilyConfig):
    """A U-net of gated residual blocks over three resolutions, and a mixture of logistics."""

    least: ClassVar = {"layers": 1, "components": 1}

    layers: int = 5
    """Blocks of a stream at each resolution, on the way down and again on the way up."""
    components: int = 10
    """Components of the mixture of discretized logistics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_picture(self.axes)
        if self.values != 256:
            raise ConfigError(
                f"values is {self.values}: PixelCNN++ mixes logistics cut into 256 values; use "
                f"another family, such as gated-pixelcnn"
            )
        if any(side % 4 for side in self.axes):
            raise ConfigError(
                f"axes {self.axes}: PixelCNN++ halves pictures twice, so that sides must be "
                f"multiples of 4; crop or pad them, or use another family"
            )
        self.check_given_is_prefix("a sequence of pixels", "use given_steps, or another family")

    @property
    def plan(self) -> tuple[tuple[LayerKind, int], ...]:
        """The layers in turn, and how often the picture is halved at the finer end of each.

        On the way up a block is joined by what entered the layer that it answers to.
        """
        down: list[tuple[LayerKind, int]] = []
        up: list[tuple[LayerKind, int]] = []
        for level in range(3):
            down += [("pair", level)] * self.layers
            joined: list[tuple[LayerKind, int]] = [("joined", level)] * self.layers
            if level < 2:
                down.append(("halve", level))
                joined = [("double", level), ("joined", level), *joined]
            up = joined + up
        return (*down, *up)

    @property
    def mixture_numbers(self) -> int:
        """Of a component: its weight, a mean and a scale a channel, a slope a pair of channels."""
        channels = self.channels
        return self.components * (1 + 2 * channels + channels * (channels - 1) // 2)

    @property
    def positions(self) -> int:
        """Pixels."""
        return math.prod(self.axes)

    @property
    def position_floats(self) -> int:
        """Both streams as the way down keeps them, a layer, and the bins of a channel."""
        kept = 2 * (self.layers + 1) + 2 * self.layers
        return (kept + 16) * self.width + 6 * self.components * self.values

    @property
    def cache_floats(self) -> int:
        """What the layers keep of a row, and of the one above it."""
        return self.width * sum(self._row_floats(*layer) for layer in (*self.plan, ("stem", 0)))

    def _row_floats(self, kind: str, level: int) -> int:
        """Those of a layer for one feature; see `models/pixelcnnpp_steps.py`."""
        wide = self.axes[1] >> level
        return {
            "stem": wide,
            "pair": 10 * wide + 4,
            "joined": 10 * wide + 4,
            "halve": 2 * wide + 1,
            "double": wide,
        }[kind]

    def _convolutions(self) -> Iterator[tuple[int, int, int]]:
        """Of each: how many places it is computed at, inputs times taps, and outputs."""
        width, inputs = self.width, self.channels + 1
        for taps in (6, 3, 2):
            yield self.positions, taps * inputs, width
        for kind, level in self.plan:
            places = self.positions >> 2 * level
            if kind in ("halve", "double"):
                yield places >> 2, 6 * width, width
                yield places >> 2, 4 * width, width
                continue
            for taps, aside in ((6, kind == "joined"), (4, 1 + (kind == "joined"))):
                yield places, taps * 2 * width, width
                yield places, taps * 2 * width, 2 * width
                if aside:
                    yield places, 2 * aside * width, width
        yield self.positions, width, self.mixture_numbers

    def parameters(self) -> int:
        total = sum(outputs * (inputs + 2) for _, inputs, outputs in self._convolutions())
        return total + self.classes * self.width

    def pass_flops(self) -> int:
        return 2 * sum(math.prod(each) for each in self._convolutions())

    def outline(self) -> str:
        shape = ", ".join(map(str, (*self.axes, self.channels)))
        rows = [f"x (b, {shape})"]
        blocks: dict[tuple[LayerKind, int], int] = {}
        for kind, level in self.plan:
            blocks[kind, level] = blocks.get((kind, level), 0) + 1
        for (kind, level), count in blocks.items():
            high, wide = (side >> level for side in self.axes)
            if kind in ("pair", "joined"):
                more = ", joined by those on the way down" * (kind == "joined")
                blocks_told = counted(count, "gated residual block")
                rows.append(f" |- {high} x {wide}: {blocks_told} a stream{more}")
        rows.append(f" |  mixture of {self.components} logistics a pixel")
        rows.append(f"logits (b, {shape}, {self.values})")
        legend = "Two streams: the rows above a pixel; and those with the pixels to its left."
        return "\n".join([*rows, "", legend])


def _check_picture(axes: tuple[int, ...]) -> None:
    if len(axes) != 2:
        raise ConfigError(f"axes {axes} are {len(axes)}: a PixelCNN is for pictures")
