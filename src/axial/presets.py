"""Named recipes: the paper's experiments, the authors' released ones, and ours for any data.

A preset is a function from the shape of the data to a model and its training; its default is
the data it is named after.
"""

from dataclasses import asdict, replace
from typing import Any

from axial.errors import ConfigError
from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.shape import DataShape
from axial.training.config import Preset, Recipe, TrainConfig
from axial.validation import unknown_name

_DIGITS = DataShape(axes=(8, 8), values=17)
_PICTURE = DataShape(axes=(32, 32), channels=3)
_LARGE_PICTURE = DataShape(axes=(64, 64), channels=3)
_FRAMES = 16
_VIDEO = DataShape(axes=(64, 64), channels=3 * _FRAMES, frames=_FRAMES)
_CLIP = DataShape(axes=(_FRAMES, 64, 64), channels=3)

_AUTHORS_DROPOUT: dict[str, Any] = {"dropout": 0.04, "encoder_dropout": 0.04}


def imagenet32(data: DataShape = _PICTURE) -> Recipe:
    """The paper's ImageNet32 experiment; dropout is that of the authors' release."""
    return _paper(data, 1e-4, **_AUTHORS_DROPOUT)


def imagenet64(data: DataShape = _LARGE_PICTURE) -> Recipe:
    """The paper's ImageNet64 experiment."""
    return _paper(data, 2e-4)


def imagenet32_lstm(data: DataShape = _PICTURE) -> Recipe:
    """The paper's ImageNet32 experiment with an LSTM as inner decoder (table 2)."""
    return _paper(data, 1e-4, layers=(8, 8, 1), inner="lstm", **_AUTHORS_DROPOUT)


def imagenet64_lstm(data: DataShape = _LARGE_PICTURE) -> Recipe:
    """The paper's ImageNet64 experiment with an LSTM as inner decoder (table 2)."""
    return _paper(data, 2e-4, layers=(8, 8, 1), inner="lstm")


def imagenet32_released(data: DataShape = _PICTURE) -> Recipe:
    """The ImageNet32 model the authors released: narrower than the paper's, and deeper inside."""
    return _paper(data, 1e-4, width=1536, layers=(8, 8, 8), **_AUTHORS_DROPOUT)


def imagenet64_released(data: DataShape = _LARGE_PICTURE) -> Recipe:
    """The ImageNet64 model the authors released: deeper inside than the paper's."""
    return _paper(data, 2e-4, layers=(8, 8, 8))


def bair(data: DataShape = _VIDEO) -> Recipe:
    """The paper's BAIR experiment: 16 frames stacked as channels, the first one given."""
    if data.frames not in (None, _FRAMES) or data.channels % _FRAMES:
        found = f"{data.frames} frames" if data.frames else f"{data.channels} channels"
        raise ConfigError(
            f"bair stacks {_FRAMES} frames as channels, but the data has {found}: use clips of "
            f"{_FRAMES} frames, cut by --frames {_FRAMES} where they are longer"
        )
    given = data.channels // _FRAMES
    recipe = _paper(replace(data, frames=_FRAMES), 2e-4, given_channels=given)
    return replace(recipe, stack_frames=True)


def cifar10(data: DataShape = _PICTURE) -> Recipe:
    """A model of CIFAR-10 that one GPU trains in minutes; unconditional, mirrored at random."""
    training = TrainConfig(
        steps=50_000,
        batch=64,
        learning_rate=2e-3,
        embeddings="smooth",
        warmup=300,
        schedule="trapezoid",
        optimizer="muon",
        ema_horizon=0.01,
        flip=True,
        labels=False,
        hold_out="last",
    )
    model = _sized(data, width=320, heads=5, layers=(4, 9, 4), mlp_ratio=2)
    return Recipe(model=model, training=training)


def photos(data: DataShape = _LARGE_PICTURE) -> Recipe:
    """A model of photographs for the codec: the recipe of cifar10 on random crops of 64 x 64."""
    recipe = cifar10(data)
    training = replace(recipe.training, batch=16, crop=(64, 64), hold_out="spread")
    return replace(recipe, training=training)


def cifar10_paper(data: DataShape = _PICTURE) -> Recipe:
    """The paper's ImageNet32 recipe for CIFAR-10, which it never trained: smaller and shorter.

    Half its layers, with heads of 128 as there; warm-up and averaging reach over as large a share
    of the steps.
    """
    recipe = _paper(data, 1e-4, width=640, heads=5, layers=(4, 4, 2), **_AUTHORS_DROPOUT)
    shorter = replace(
        recipe.training, steps=40_000, warmup=1000, ema=None, ema_warmup=True, hold_out="last"
    )
    return replace(recipe, training=shorter)


def strided_cifar10(data: DataShape = _PICTURE) -> Recipe:
    """The Strided Sparse Transformer's CIFAR-10 experiment (Child et al. 2019, 59M, 2.80)."""
    training = _sparse(learning_rate=3.5e-4, batch=16, steps=360_000)
    model = _sequence(data, layers=128, dropout=0.25, stride=None)
    return Recipe(model=model, training=training)


def strided_cifar10_15m(data: DataShape = _PICTURE) -> Recipe:
    """The authors' smaller Strided Sparse Transformer, at the cost and by the recipe of cifar10."""
    return replace(cifar10(), model=_sequence(data, layers=32, stride=None))


def strided_imagenet64(data: DataShape = _LARGE_PICTURE) -> Recipe:
    """The Strided Sparse Transformer's ImageNet64 experiment (Child et al. 2019, 152M, 3.44)."""
    training = _sparse(learning_rate=1.5e-4, batch=128, steps=700_000, weight_decay=0.001)
    sizes: dict[str, Any] = {"width": 512, "heads": 16, "qk_ratio": 1.0, "mlp_ratio": 4}
    sizes |= {"stride": 128, "cycle": ("local", "strided", "local", "local")}
    return Recipe(model=_sequence(data, layers=48, dropout=0.01, **sizes), training=training)


def full_cifar10(data: DataShape = _PICTURE) -> Recipe:
    """The full-attention Transformer that was trained beside strided-cifar10 (59M, 2.82)."""
    return replace(strided_cifar10(), model=_sequence(data, layers=128, dropout=0.25))


def full_cifar10_7m(data: DataShape = _PICTURE) -> Recipe:
    """A full-attention Transformer at the cost, and by the recipe, of cifar10."""
    return replace(cifar10(), model=_sequence(data, layers=14))


def local_1d_cifar10(data: DataShape = _PICTURE) -> Recipe:
    """The Image Transformer's CIFAR-10 experiment (Parmar et al. 2018, 2.90).

    The authors' rate peaks at 3.5e-3 after 4,000 steps, for many devices; tune it for yours.
    """
    training = replace(
        _sparse(learning_rate=3.5e-3, batch=32, steps=300_000), beta2=0.98, weight_decay=0.0
    )
    training = replace(training, optimizer="adam", warmup=4000)
    sizes = {"width": 512, "heads": 4, "layers": 12, "dropout": 0.3}
    return Recipe(model=Local1dConfig(**asdict(data) | sizes), training=training)


def local_1d_cifar10_12m(data: DataShape = _PICTURE) -> Recipe:
    """An Image Transformer at the cost, and by the recipe, of cifar10; norms before branches."""
    sizes = {"width": 288, "heads": 4, "layers": 12, "norm": "pre"}
    return replace(cifar10(), model=Local1dConfig(**asdict(data) | sizes))


def local_2d_cifar10_12m(data: DataShape = _PICTURE) -> Recipe:
    """The same with rectangles of 8 rows and 16 elements, as its authors drew CIFAR-10."""
    sizes = {"width": 288, "heads": 4, "layers": 12, "norm": "pre"}
    blocks: dict[str, Any] = {"block": (8, 16), "flange": (8, 32)}
    return replace(cifar10(), model=Local2dConfig(**asdict(data) | sizes | blocks))


def gated_pixelcnn_cifar10(data: DataShape = _PICTURE) -> Recipe:
    """A Gated PixelCNN of the sizes its paper gives for ImageNet (CIFAR-10: 3.03, sizes untold)."""
    return _gated_pixelcnn(data, width=384, layers=20)


def gated_pixelcnn_cifar10_41m(data: DataShape = _PICTURE) -> Recipe:
    """A Gated PixelCNN at the cost, and by the recipe, of cifar10."""
    return _gated_pixelcnn(data, width=264, layers=15)


def blocks_bair(data: DataShape = _CLIP) -> Recipe:
    """The Block Transformer's BAIR experiment (Weissenborn et al. 2019): 16 frames, one given.

    Its authors used RMSProp at a rate of 2e-5 with momentum 0.9; Adam at ten times that rate takes
    its place here. They did not tell the number of steps, nor show the given frame to all slices.
    """
    if len(data.axes) != 3:
        raise ConfigError(
            f"blocks-bair is for clips of three axes, not {len(data.axes)}: use "
            f"blocks-cifar10-45m for pictures"
        )
    training = TrainConfig(
        steps=200_000,
        batch=64,
        learning_rate=2e-4,
        optimizer="adam",
        beta2=0.95,
        weight_decay=0.0,
        schedule="constant",
        warmup=0,
        labels=False,
    )
    return Recipe(model=_blocks(data, subscale=(4, 2, 2), given_steps=1), training=training)


def blocks_cifar10_45m(data: DataShape = _PICTURE) -> Recipe:
    """A Block Transformer of the published size, at the cost and by the recipe of cifar10."""
    return replace(cifar10(), model=_blocks(data))


def pixelcnnpp_cifar10(data: DataShape = _PICTURE) -> Recipe:
    """The CIFAR-10 experiment of PixelCNN++ (Salimans et al. 2017, 54M, 2.92).

    The authors' rate shrinks by 5e-6 of itself a step, for as many steps as one likes; a cosine
    ends this one.
    """
    training = replace(
        _sparse(learning_rate=1e-3, batch=128, steps=200_000),
        optimizer="adam",
        warmup=0,
        ema=0.9995,
    )
    model = PixelCnnPpConfig(**asdict(data), width=160, dropout=0.5)
    return Recipe(model=model, training=training)


def pixelcnnpp_cifar10_98m(data: DataShape = _PICTURE) -> Recipe:
    """A PixelCNN++ at the cost, and by the recipe, of cifar10."""
    return replace(cifar10(), model=PixelCnnPpConfig(**asdict(data), width=216))


def digits(data: DataShape = _DIGITS) -> Recipe:
    """A model of the 8 x 8 digits that a laptop trains in a minute."""
    model = fitted(data, width=64, heads=4, rounds=2, inner_layers=3, dropout=0.1)
    training = TrainConfig(
        steps=300,
        batch=64,
        learning_rate=3e-3,
        embeddings="smooth",
        warmup=50,
        save_every=100,
        validate_every=100,
        sample_every=150,
    )
    return Recipe(model=model, training=training, source="digits")


def small(data: DataShape = _PICTURE) -> Recipe:
    """A model for any data, to try things out on a CPU."""
    training = TrainConfig(
        steps=2000,
        batch=8,
        learning_rate=2e-3,
        embeddings="smooth",
        warmup=20,
        log_every=5,
        save_every=25,
        validate_every=50,
        sample_every=250,
    )
    model = fitted(data, width=128, heads=4, rounds=1, inner_layers=2)
    return Recipe(model=model, training=training)


def base(data: DataShape = _PICTURE) -> Recipe:
    """A model for any data, for one GPU."""
    training = TrainConfig(
        steps=50_000, batch=128, learning_rate=1e-3, embeddings="smooth", warmup=500
    )
    model = fitted(data, width=512, heads=8, rounds=2, inner_layers=4)
    return Recipe(model=model, training=training)


def large(data: DataShape = _PICTURE) -> Recipe:
    """A model for any data, for several GPUs."""
    training = TrainConfig(
        steps=200_000, batch=128, learning_rate=3e-4, embeddings="smooth", warmup=2000
    )
    model = fitted(data, width=1536, heads=16, rounds=4, inner_layers=8)
    return Recipe(model=model, training=training)


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
    outer = (rounds * (count - level) for level in range(count - 1))
    layers = (rounds * count, *outer, inner_layers)
    return _sized(data, width=width, heads=heads, layers=layers, mlp_ratio=2, dropout=dropout)


def _paper(data: DataShape, learning_rate: float, **sizes: Any) -> Recipe:
    """Section 4: hidden size 2048, 16 heads of 128, 8 encoder, 8 outer and 4 inner layers.

    The training is that which the authors released: Adam at a constant rate, weights averaged for
    long.
    """
    training = TrainConfig(
        steps=200_000,
        batch=64,
        learning_rate=learning_rate,
        optimizer="adam",
        beta2=0.999,
        weight_decay=0.0,
        schedule="constant",
        warmup=5000,
        ema=0.99995,
        ema_warmup=False,
        labels=False,
        save_every=1000,
        validate_every=2000,
    )
    sizes = {"width": 2048, "layers": (8, 8, 4), **sizes}
    return Recipe(model=_sized(data, **sizes), training=training)


def _sparse(*, weight_decay: float = 0.01, **others: Any) -> TrainConfig:
    """How the authors of the Sparse Transformer trained; they let embeddings decay, too."""
    return TrainConfig(
        optimizer="adamw",
        beta2=0.999,
        weight_decay=weight_decay,
        schedule="cosine",
        warmup=15_000,
        ema=0.999,
        ema_warmup=False,
        labels=False,
        hold_out="last",
        **others,
    )


def _sequence(data: DataShape, **sizes: Any) -> FullConfig:
    """A Transformer over all elements: with a stride it is the sparse one."""
    sizes = {"width": 256, "heads": 2, "qk_ratio": 0.5, "mlp_ratio": 2, **asdict(data), **sizes}
    return (StridedConfig if "stride" in sizes else FullConfig)(**sizes)


def _gated_pixelcnn(data: DataShape, **sizes: Any) -> Recipe:
    """Kernels of 5, by the recipe of cifar10."""
    return replace(cifar10(), model=GatedPixelCnnConfig(**asdict(data), kernel=5, **sizes))


def _blocks(data: DataShape, **others: Any) -> BlocksConfig:
    """8 layers of the encoder and 8 of the decoder, the last two axes dealt out into 4 slices."""
    count = len(data.axes)
    sizes = {"width": 512, "heads": 8, "encoder_layers": 8, "layers": 8}
    slices = {"subscale": (1,) * (count - 2) + (2,) * min(count, 2)}
    return BlocksConfig(**asdict(data) | sizes | slices | others)


def _sized(
    data: DataShape, *, width: int, layers: tuple[int, ...], heads: int = 16, **others: Any
) -> ModelConfig:
    """Layers of the encoder, which one channel does not need, and of each level of the decoder."""
    encoder, *decoder = layers
    if len(data.axes) != len(decoder):
        raise ConfigError(
            f"this preset is for two axes, not {len(data.axes)}: small, base and large fit any data"
        )
    return ModelConfig(
        **asdict(data),
        width=width,
        heads=heads,
        encoder_layers=encoder if data.channels > 1 else 0,
        decoder_layers=tuple(decoder),
        **others,
    )


PRESETS = {
    preset.__name__.replace("_", "-"): preset
    for preset in (
        digits,
        cifar10,
        photos,
        cifar10_paper,
        imagenet32,
        imagenet64,
        bair,
        imagenet32_lstm,
        imagenet64_lstm,
        imagenet32_released,
        imagenet64_released,
        strided_cifar10,
        strided_cifar10_15m,
        strided_imagenet64,
        full_cifar10,
        full_cifar10_7m,
        local_1d_cifar10,
        local_1d_cifar10_12m,
        local_2d_cifar10_12m,
        gated_pixelcnn_cifar10,
        gated_pixelcnn_cifar10_41m,
        blocks_bair,
        blocks_cifar10_45m,
        pixelcnnpp_cifar10,
        pixelcnnpp_cifar10_98m,
        small,
        base,
        large,
    )
}


def preset_named(name: str) -> Preset:
    """The preset of a name; any other is refused, and the nearest named."""
    if name not in PRESETS:
        raise ConfigError(unknown_name("preset", name, PRESETS, listed="`axial presets` lists all"))
    return PRESETS[name]
