"""The rows of the comparisons of model families: the Axial Transformer and its rivals."""

from dataclasses import dataclass, replace
from typing import Any

from axial.models.family_config import FamilyConfig
from axial.models.local_config import Local2dConfig
from axial.presets import PRESETS
from axial.shape import DataShape


@dataclass(frozen=True)
class Row:
    """A family: its name in the paper, and its presets."""

    model: str
    equal: str
    """The preset of about the scoring cost of `cifar10`."""
    published: str
    """The preset of the published size."""
    words: tuple[str, str, str, str] | None = None
    """The paper's Table 1: full receptive field, faster than O(N^2), no custom kernels,
    semi-parallel."""
    figures: tuple[str, str, str] = ("", "", "")
    """Published bits/dim on CIFAR-10, ImageNet32 and ImageNet64."""


ROWS = {
    "axial": Row(
        "Axial Transformer",
        "cifar10",
        "imagenet32",
        ("yes", "yes", "yes", "yes"),
        ("", "3.76", "3.44"),
    ),
    "full": Row(
        "Transformer",
        "full-cifar10-7m",
        "full-cifar10",
        ("yes", "no", "yes", "no"),
        ("2.82", "", ""),
    ),
    "local-1d": Row(
        "Image Transformer, 1-D",
        "local-1d-cifar10-12m",
        "local-1d-cifar10",
        ("no", "yes", "yes", "no"),
        ("2.90", "3.77", ""),
    ),
    "local-2d": Row(
        "Image Transformer, 2-D",
        "local-2d-cifar10-12m",
        "local-2d-cifar10-12m",
        ("no", "yes", "yes", "no"),
    ),
    "blocks": Row(
        "Block Transformer",
        "blocks-cifar10-45m",
        "blocks-cifar10-45m",
        ("no", "yes", "yes", "no"),
    ),
    "strided": Row(
        "Strided Sparse Transformer",
        "strided-cifar10-15m",
        "strided-cifar10",
        ("yes", "yes", "no", "no"),
        ("2.80", "", "3.44"),
    ),
    "gated-pixelcnn": Row(
        "Gated PixelCNN",
        "gated-pixelcnn-cifar10-41m",
        "gated-pixelcnn-cifar10",
        figures=("3.03", "3.83", "3.57"),
    ),
    "pixelcnn++": Row(
        "PixelCNN++", "pixelcnnpp-cifar10-98m", "pixelcnnpp-cifar10", figures=("2.92", "", "")
    ),
}
"""In the order of Table 1, the axial row first; the PixelCNNs are not in that table."""


@dataclass(frozen=True)
class Training:
    """How a published figure was trained for, where the preset does not say so itself."""

    preset: str
    figure: str
    steps: int | None = None
    batch: int | None = None


PUBLISHED = (
    Training("full-cifar10", "CIFAR-10 2.82"),
    Training("strided-cifar10", "CIFAR-10 2.80"),
    Training("strided-imagenet64", "ImageNet64 3.44"),
    Training("local-1d-cifar10", "CIFAR-10 2.90"),
    Training("gated-pixelcnn-cifar10", "CIFAR-10 3.03", 200_000, 128),
    Training("pixelcnnpp-cifar10", "CIFAR-10 2.92"),
    Training("imagenet32", "ImageNet32 3.76"),
    Training("imagenet64", "ImageNet64 3.44"),
)
"""The Gated PixelCNN as its paper trained ImageNet; of CIFAR-10 it tells no sizes."""


def config_of(preset: str, side: int, channels: int = 3) -> FamilyConfig:
    """A preset for square pictures; rectangles that do not divide a small one shrink."""
    shape = DataShape(axes=(side, side), channels=channels)
    if not preset.startswith("local-2d"):
        return PRESETS[preset](shape).model
    usual = PRESETS[preset]().model
    assert isinstance(usual, Local2dConfig)
    (high, wide), (above, beside) = usual.block, usual.flange
    across = side * channels
    while across % wide:
        wide //= 2
    sizes: dict[str, Any] = {
        "block": (min(high, side), wide),
        "flange": (min(above, side), min(beside, across)),
    }
    return replace(usual, axes=(side, side), channels=channels, **sizes)
