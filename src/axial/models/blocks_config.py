"""The configuration of the Block Transformer (Weissenborn et al. 2019); checked without torch."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from axial.errors import ConfigError
from axial.models.family_config import FamilyConfig, Places, check_most
from axial.shape import MOST_LAYERS
from axial.validation import as_lengths, counted, shown

Lengths = tuple[int, ...]
_BLOCK = 128
"""Places of a block by default, at most."""
_LONGEST = 16
"""Of these, along the slowest of three axes."""


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(FamilyConfig):
    """Slices of an example, one after another; in each, attention inside blocks.

    Slice (a, b) of a picture is x[a::subscale[0], b::subscale[1]]. An encoder sees the pixels of
    the slices before it, a masked decoder those of its own.
    """

    least: ClassVar = {
        "heads": 1,
        "head_width": 1,
        "encoder_layers": 0,
        "layers": 1,
        "embedding_width": 1,
        "mlp_ratio": 1,
    }

    heads: int
    """Attention heads."""
    head_width: int = 128
    """Features of a head; all heads together need not have the width."""
    encoder_layers: int
    """Unmasked layers of the slice encoder; 0 for no encoder, where there is one slice."""
    layers: int
    """Masked layers of the slice decoder."""
    subscale: Lengths
    """Into how many slices each axis is dealt out; all 1 for a single slice."""
    block_shapes: tuple[Lengths, ...] | None = None
    """The shape of the blocks of each layer, repeated. Default: of about 128 places, in turn."""
    kernel: Lengths | None = None
    """Pixels along each axis that a place of the encoder sees at first; odd. Default: those that
    reach halfway to the next pixels of the same slice."""
    embedding_width: int = 128
    """Features of a pixel before the first layer."""
    mlp_ratio: int = 1
    """Hidden features of the feed-forward layers, in multiples of the width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_most("number of layers", self.encoder_layers + self.layers, MOST_LAYERS)
        if len(self.axes) > 3:
            raise ConfigError(f"axes {self.axes} are {len(self.axes)}: blocks takes one to three")
        self._put("subscale", self._for_axes("subscale", self.subscale))
        for axis, (length, factor) in enumerate(zip(self.axes, self.subscale, strict=True)):
            if length % factor:
                raise ConfigError(
                    f"subscale is {self.subscale}, but axis {axis} has {length} steps, which "
                    f"{factor} does not divide: use a divisor"
                )
        self._check_kernel()
        self._check_blocks()
        self._check_encoder()

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _for_axes(self, name: str, lengths: Any) -> Lengths:
        lengths = as_lengths(name, lengths)
        if len(lengths) != len(self.axes):
            raise ConfigError(f"{name} is {lengths}: give one number for each of {self.axes}")
        return lengths

    def _check_kernel(self) -> None:
        usual = tuple(2 * (factor // 2) + 1 for factor in self.subscale)
        kernel = usual if self.kernel is None else self._for_axes("kernel", self.kernel)
        for side, length in zip(kernel, self.axes, strict=True):
            if side % 2 == 0 or side > 2 * length:
                raise ConfigError(
                    f"kernel is {kernel}: use odd numbers, below twice the lengths {self.axes}"
                )
        self._put("kernel", kernel)

    def _check_blocks(self) -> None:
        shapes: Any = self.block_shapes
        if shapes is None:
            shapes = usual_blocks(self.slice_axes)
        if not isinstance(shapes, tuple | list) or not 0 < len(shapes) <= MOST_LAYERS:
            raise ConfigError(f"block_shapes is {shown(shapes)}: give the shape of each layer")
        shapes = tuple(self._for_axes("block_shapes", shape) for shape in shapes)
        for shape in shapes:
            for side, length in zip(shape, self.slice_axes, strict=True):
                if length % side:
                    raise ConfigError(
                        f"block_shapes has {shape}, but a slice is {self.slice_axes}, and {length} "
                        f"does not split into {side} each: use a divisor"
                    )
        self._put("block_shapes", shapes)

    def _check_encoder(self) -> None:
        if self.encoder_layers:
            if self.slice_count == 1 and not (self.given_channels or self.given_steps):
                raise ConfigError(
                    f"encoder_layers is {self.encoder_layers}, but subscale {self.subscale} leaves "
                    f"an encoder nothing to see: use 0"
                )
        elif self.slice_count > 1:
            raise ConfigError(
                f"encoder_layers is 0, but {self.slice_count} slices know of each other by the "
                f"encoder: use at least 1"
            )
        else:
            self.check_given_is_prefix("a decoder alone", "use encoder_layers")

    @property
    def slice_axes(self) -> Lengths:
        """The grid of a slice."""
        return tuple(n // s for n, s in zip(self.axes, self.subscale, strict=True))

    @property
    def slice_count(self) -> int:
        """Slices of an example, given ones included."""
        return math.prod(self.subscale)

    @property
    def slices(self) -> range:
        """All but those whose last step is given."""
        last = self.axes[0] - self.subscale[0]
        given = max(0, self.given_steps - last) * math.prod(self.subscale[1:])
        return range(given, self.slice_count)

    def pixels(self) -> Places:
        """The pixels of each slice, in raster order: (slices, places)."""
        pairs = zip(self.slice_axes, self.subscale, strict=True)
        dealt = np.arange(math.prod(self.axes)).reshape([n for pair in pairs for n in pair])
        first = range(1, dealt.ndim, 2)
        return dealt.transpose(*first, *(at - 1 for at in first)).reshape(self.slice_count, -1)

    def order(self) -> Places:
        """Slice by slice, each in raster order, channels innermost."""
        return (self.pixels()[..., None] * self.channels + np.arange(self.channels)).ravel()

    @property
    def line(self) -> int:
        """A line of a slice."""
        return self.slice_axes[-1] * self.channels

    @property
    def channels_in_turn(self) -> bool:
        """Where slices are interleaved, not even one channel is: what is kept is no prefix."""
        return self.channels == 1 and self.slice_count == 1

    def block(self, layer: int) -> Lengths:
        """The shape of the blocks of a layer, of the encoder or of the decoder."""
        assert self.block_shapes is not None
        return self.block_shapes[layer % len(self.block_shapes)]

    @property
    def taps(self) -> tuple[Lengths, ...]:
        """Steps to the neighbours of a place that come before it: half of the 3 ** axes."""
        every = list(itertools.product((-1, 0, 1), repeat=len(self.axes)))
        return tuple(every[: len(every) // 2])

    @property
    def kernel_taps(self) -> int:
        """Pixels that a place of the encoder sees at first."""
        assert self.kernel is not None
        return math.prod(self.kernel)

    @property
    def attention_width(self) -> int:
        """Features of the queries of all heads, and of their keys and values."""
        return self.heads * self.head_width

    @property
    def positions(self) -> int:
        """Pixels of a slice."""
        return math.prod(self.slice_axes)

    @property
    def position_floats(self) -> int:
        """Those of a layer and its pairs, of the convolution and of the channels' logits."""
        pairs = self.heads * max(math.prod(shape) for shape in self.block_shapes or ())
        layer = (8 + 2 * self.mlp_ratio) * self.width + 6 * self.attention_width + 2 * pairs
        read = self.channels * (2 * self.width + 8 * self.values)
        return layer + (len(self.taps) + self.channels) * self.embedding_width + read

    @property
    def input_bytes(self) -> int:
        """The rows of the embedding that the encoder looks up, and a weight of each."""
        looked_up = self.positions * self.kernel_taps * self.channels if self.encoder_layers else 0
        return 32 * looked_up + 32 * math.prod(self.axes) * self.channels

    @property
    def cache_floats(self) -> int:
        """Keys and values of the blocks that lie open, and what is added to the decoder's input."""
        kept = sum(map(self.open_places, range(self.layers)))
        return 2 * kept * self.attention_width + self.positions * self.width

    def open_places(self, layer: int) -> int:
        """Places of all blocks of a layer that have begun and not ended, in raster order."""
        shape = self.block(layer)
        axis = next((at for at, side in enumerate(shape) if side > 1), len(shape) - 1)
        return shape[axis] * math.prod(self.slice_axes[axis + 1 :])

    def pairs(self, layer: int, *, masked: bool = True) -> int:
        """How many (query, key) pairs a layer of the decoder, or of the encoder, has in a slice."""
        size = math.prod(self.block(layer))
        return self.positions * (size + 1) // 2 if masked else self.positions * size

    def parameters(self) -> int:
        width, small, count = self.width, self.embedding_width, sum(self.slice_axes)
        pixel = self.channels * self.values
        total = pixel * small + (len(self.taps) * small + 1) * width + count * width
        total += sum(map(self._layer_parameters, range(self.layers))) + self.classes * width
        if self.encoder_layers:
            total += (self.kernel_taps * pixel + 1 + count + self.slice_count) * small
            total += sum(map(self._layer_parameters, range(self.encoder_layers)))
            total += small * width + width**2
        told = self.channels * (self.channels - 1) // 2 * self.values * width
        head = self.channels * width * (width + 1) + self.values * (width + 1)
        return total + 2 * width + told + head

    def _layer_parameters(self, layer: int) -> int:
        width, hidden = self.width, self.mlp_ratio * self.width
        relative = self.heads * sum(2 * side - 1 for side in self.block(layer))
        attention = 4 * width * self.attention_width + relative
        return attention + 2 * width * hidden + hidden + width + 4 * width

    def pass_flops(self) -> int:
        """The encoder and the decoder of a slice; looking up embeddings is no product."""
        width, small = self.width, self.embedding_width
        each = len(self.taps) * small * width
        each += self.channels * width * (width + self.values)
        each += sum(map(self._place_products, range(self.layers)))
        if self.encoder_layers:
            each += small * width + width**2
            each += sum(map(self._place_products, range(self.encoder_layers)))
        return 2 * self.positions * each

    def _place_products(self, layer: int) -> int:
        dense = 4 * self.width * self.attention_width + 2 * self.mlp_ratio * self.width**2
        return dense + 2 * math.prod(self.block(layer)) * self.attention_width

    def outline(self) -> str:
        shape = ", ".join(map(str, (*self.axes, self.channels)))
        grid = " x ".join(map(str, self.slice_axes))
        count = len(self.slices)
        rows = [f"x (b, {shape})", f" |  {counted(count, 'slice')} of {grid} pixels in turn"]
        pairs = sum(map(self.pairs, range(self.layers)))
        if self.encoder_layers:
            rows.append(self._row("slice encoder", self.encoder_layers, "unmasked"))
            rows.append(" |    added to the decoder's input")
            pairs += sum(self.pairs(at, masked=False) for at in range(self.encoder_layers))
        rows += [
            f" |    the pixel's {len(self.taps)} neighbours before it, by a masked convolution",
            self._row("slice decoder", self.layers, "masked"),
            f" |- channel head: {self.channels} in turn, each told those before it",
            f"logits (b, {shape}, {self.values})",
            "",
            f"Pairs of a query and a key: {count * pairs:,} an example.",
        ]
        return "\n".join(rows)

    def _row(self, name: str, layers: int, how: str) -> str:
        shapes = ["x".join(map(str, self.block(layer))) for layer in range(layers)]
        listed = " ".join(shapes[:8]) + " ..." * (layers > 8)
        return f" |- {name}, {counted(layers, 'layer')}, {how} in blocks of {listed}"


def usual_blocks(grid: Lengths) -> tuple[Lengths, ...]:
    """Shapes of up to 128 places that cut a grid in different ways, so that blocks exchange.

    Of 4 x 32 x 32 those of the paper: (4, 8, 4), (4, 4, 8), (1, 32, 4), (1, 4, 32).
    """
    if math.prod(grid) <= _BLOCK:
        return (grid,)
    if len(grid) == 1:
        return ((_divisor(grid[0], _BLOCK),),)
    if len(grid) == 2:
        return tuple(dict.fromkeys([*_even(grid, _BLOCK), *_long(grid)]))
    steps = _divisor(grid[0], _LONGEST)
    through = [(steps, *shape) for shape in _even(grid[1:], _BLOCK // steps)]
    return tuple(dict.fromkeys([*through, *((1, *shape) for shape in _long(grid[1:]))]))


def _even(grid: Sequence[int], size: int) -> list[Lengths]:
    """Two shapes that are nearly square, upright and lying."""
    side = 1 << (size.bit_length() // 2)
    high, wide = _divisor(grid[0], side), _divisor(grid[1], side)
    return [(high, _divisor(grid[1], size // high)), (_divisor(grid[0], size // wide), wide)]


def _long(grid: Sequence[int]) -> list[Lengths]:
    """Two shapes that are as long as the grid, along either axis."""
    high, wide = _divisor(grid[0], _BLOCK), _divisor(grid[1], _BLOCK)
    return [(high, _divisor(grid[1], _BLOCK // high)), (_divisor(grid[0], _BLOCK // wide), wide)]


def _divisor(length: int, most: int) -> int:
    """The largest divisor up to `most`."""
    return next(part for part in range(min(length, most), 0, -1) if length % part == 0)
