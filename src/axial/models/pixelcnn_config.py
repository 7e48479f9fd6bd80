"""The configuration of the Gated PixelCNN (van den Oord et al. 2016); checked without torch."""

import math
from dataclasses import dataclass
from typing import ClassVar

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig


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
        if len(self.axes) != 2:
            raise ConfigError(f"axes {self.axes} are {len(self.axes)}: a PixelCNN is for pictures")
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
