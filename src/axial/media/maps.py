"""Maps of bits: beside each picture, where the model needs them."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from axial.data.packed import Array
from axial.media.tiles import BACKGROUND, enlarged, fitting_tiles, flowed, grid, shades, tiles_of

_PAIRS = 4


def bit_map(x: Array, bits: Array, *, values: int = 256, frames: int | None = None) -> Array:
    """The pixels (h, w, 3): beside each picture, or below each clip, where its bits go.

    The bits of a position, summed over its channels, are coloured on one scale, drawn below:
    up to what only one position in a thousand exceeds.
    """
    tiles, where = tiles_of(x, frames), tiles_of(bits, frames).sum(-1)
    most = float(np.quantile(where, 0.999)) or 1.0
    both = np.stack([shades(tiles, values), _heat(where / most)], 1)
    pixels = enlarged(both.reshape(-1, *both.shape[2:]))
    if pixels.shape[1:3] == (1, 1):
        pixels = flowed(pixels, 2 * max(1, min(fitting_tiles(pixels.shape[-2]) // 2, _PAIRS)))
    return _with_scale(grid(pixels, pairs=2), most)


def _with_scale(pixels: Array, most: float) -> Array:
    """The pixels with the scale of the colours below them."""
    height, width, _ = pixels.shape
    canvas = Image.new("RGB", (max(width, 340), height + 20), (BACKGROUND,) * 3)
    canvas.paste(Image.fromarray(pixels))
    scale = _heat(np.linspace(0, 1, 128))[None].repeat(12, axis=0)
    canvas.paste(Image.fromarray(scale), (16, height + 4))
    draw = ImageDraw.Draw(canvas)
    for left, text in ((4, "0"), (150, f"{most:.1f} bits per position and more")):
        draw.text((left, height + 10), text, fill=0, font=ImageFont.load_default(), anchor="lm")
    return np.asarray(canvas)


def _heat(share: Array) -> Array:
    """Colours (..., 3) from black for 0 over red and yellow to white for 1."""
    return (255 * np.clip(3 * share[..., None] - np.arange(3), 0, 1)).round().astype(np.uint8)
