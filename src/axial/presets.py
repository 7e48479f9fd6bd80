"""Named sizes of models: the paper's, the authors' released ones, and ours for any data.

A preset is a function from the shape of the data to a complete configuration; its default is
the data it is named after.
"""

from dataclasses import asdict

from axial.config import DataShape, Inner, ModelConfig
from axial.errors import ConfigError

_DIGITS = DataShape(axes=(8, 8), values=17)
_PICTURE = DataShape(axes=(32, 32), channels=3)
_LARGE_PICTURE = DataShape(axes=(64, 64), channels=3)
_VIDEO = DataShape(axes=(64, 64), channels=48)

_FRAMES = 16


def imagenet32(data: DataShape = _PICTURE) -> ModelConfig:
    """The paper's ImageNet32 model; dropout is that of the authors' release."""
    return _paper(data, dropout=0.04)


def imagenet64(data: DataShape = _LARGE_PICTURE) -> ModelConfig:
    """The paper's ImageNet64 model."""
    return _paper(data)


def imagenet32_lstm(data: DataShape = _PICTURE) -> ModelConfig:
    """The paper's ImageNet32 model with an LSTM as inner decoder (table 2)."""
    return _paper(data, dropout=0.04, inner="lstm")


def imagenet64_lstm(data: DataShape = _LARGE_PICTURE) -> ModelConfig:
    """The paper's ImageNet64 model with an LSTM as inner decoder (table 2)."""
    return _paper(data, inner="lstm")


def imagenet32_released(data: DataShape = _PICTURE) -> ModelConfig:
    """The ImageNet32 model the authors released: narrower than the paper's, and deeper inside."""
    return _two_axes(data, width=1536, layers=(8, 8, 8), dropout=0.04)


def imagenet64_released(data: DataShape = _LARGE_PICTURE) -> ModelConfig:
    """The ImageNet64 model the authors released: deeper inside than the paper's."""
    return _two_axes(data, width=2048, layers=(8, 8, 8))


def bair(data: DataShape = _VIDEO) -> ModelConfig:
    """The paper's BAIR video model: 16 frames stacked as channels, the first one given."""
    if data.channels % _FRAMES:
        raise ConfigError(
            f"bair stacks {_FRAMES} frames as channels, but the data has {data.channels}: "
            f"use clips of {_FRAMES} frames"
        )
    return _paper(data, given_channels=data.channels // _FRAMES)


def cifar10(data: DataShape = _PICTURE) -> ModelConfig:
    """A model of CIFAR-10 that one GPU trains in minutes."""
    return base(data)


def digits(data: DataShape = _DIGITS) -> ModelConfig:
    """A model of the 8 x 8 digits that a laptop trains in a minute."""
    return fitted(data, width=96, heads=4, rounds=2, inner_layers=3, dropout=0.1)


def small(data: DataShape = _PICTURE) -> ModelConfig:
    """A model for any data, to try things out on a CPU."""
    return fitted(data, width=128, heads=4, rounds=1, inner_layers=2)


def base(data: DataShape = _PICTURE) -> ModelConfig:
    """A model for any data, for one GPU."""
    return fitted(data, width=512, heads=8, rounds=2, inner_layers=4)


def large(data: DataShape = _PICTURE) -> ModelConfig:
    """A model for any data, for several GPUs."""
    return fitted(data, width=1536, heads=16, rounds=4, inner_layers=8)


def fitted(
    data: DataShape,
    *,
    width: int,
    heads: int,
    rounds: int,
    inner_layers: int,
    dropout: float = 0.0,
) -> ModelConfig:
    """Sizes for any number of axes: `rounds` full cycles in the encoder and in each outer level."""
    count = len(data.axes)
    return ModelConfig(
        **asdict(data),
        width=width,
        heads=heads,
        encoder_layers=rounds * count if data.channels > 1 else 0,
        decoder_layers=(*(rounds * (count - level) for level in range(count - 1)), inner_layers),
        mlp_ratio=2,
        dropout=dropout,
    )


def _paper(
    data: DataShape, *, dropout: float = 0.0, inner: Inner = "attention", given_channels: int = 0
) -> ModelConfig:
    """Section 4: hidden size 2048, 16 heads of 128, 8 encoder, 8 outer and 4 inner layers."""
    layers = (8, 8, 1 if inner == "lstm" else 4)
    return _two_axes(
        data, 2048, layers, dropout=dropout, inner=inner, given_channels=given_channels
    )


def _two_axes(
    data: DataShape,
    width: int,
    layers: tuple[int, int, int],
    *,
    dropout: float = 0.0,
    inner: Inner = "attention",
    given_channels: int = 0,
) -> ModelConfig:
    if len(data.axes) != 2:
        raise ConfigError(
            f"this preset is for two axes, not {len(data.axes)}: small, base and large fit any data"
        )
    return ModelConfig(
        **asdict(data),
        width=width,
        heads=16,
        encoder_layers=layers[0],
        decoder_layers=layers[1:],
        dropout=dropout,
        inner=inner,
        given_channels=given_channels,
    )


PRESETS = {
    preset.__name__.replace("_", "-"): preset
    for preset in (
        digits,
        cifar10,
        imagenet32,
        imagenet64,
        bair,
        imagenet32_lstm,
        imagenet64_lstm,
        imagenet32_released,
        imagenet64_released,
        small,
        base,
        large,
    )
}
