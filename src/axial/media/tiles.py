"""How examples become tiles of pixels, and tiles one canvas.

n examples, each of r rows of k tiles: one row for a clip or a volume; for more axes one for each
index of the slower ones; and one for each channel that is neither grey nor part of a colour.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from axial.data.packed import Array
from axial.shape import DataShape
from axial.system.terminal import printable

GAP, WIDE_GAP, _APART = 2, 4, 8
"""Pixels between tiles, with room for frames, and between examples of several rows."""
BACKGROUND = 255
_KEPT = (255, 120, 0)
"""The frame around what was kept, or given."""
_MISSING = (172, 140, 214)
"""What is missing: a colour that no grey picture has, and hardly any photograph."""
CAPTION = 14
"""Rows of pixels below a tile that has a text."""
_SMALLEST = 64
_WIDEST = 1600
_LINE = 8


def tiles_of(x: Array, frames: int | None) -> Array:
    """Every 2-D slice of every example, with one channel or three: (n, r, k, h, w, 1 or 3)."""
    if x.ndim == 3:
        x = x[:, None]  # a line is a picture one pixel high
    shape = DataShape(axes=x.shape[1:-1], channels=x.shape[-1], frames=frames)
    x = x.reshape(*x.shape[:-1], shape.stacked_frames, shape.frame_channels)
    x = np.moveaxis(x, -2, 1)
    x = x[:, None] if shape.frame_channels == 3 else np.moveaxis(x, -1, 1)[..., None]
    slices = x.shape[1:-3]
    last = max((place for place, size in enumerate(slices) if size > 1), default=0)
    rows = math.prod(slices[:last])
    return x.reshape(len(x), rows, -1, *x.shape[-3:])


def shades(tiles: Array, values: int) -> Array:
    """Tiles as RGB; a pixel of which every channel is missing (-1) has a colour of its own."""
    shades = (tiles.astype(np.float64) * 255 / max(1, values - 1)).round().clip(0, 255)
    pixels = np.broadcast_to(shades.astype(np.uint8), (*tiles.shape[:-1], 3))
    missing = np.asarray((tiles < 0).all(-1))
    if not missing.any():
        return pixels
    return np.where(missing[..., None], _unused_colour(pixels[~missing]), pixels)


def _unused_colour(pixels: Array) -> Array:
    """The first of some colours that no pixel (n, 3) has; the first where all are taken."""
    for shift in range(256):
        colour = np.array([(part + shift) % 256 for part in _MISSING], np.uint8)
        if not (pixels == colour).all(-1).any():
            return colour
    return np.array(_MISSING, np.uint8)


def captioned(tiles: Array, captions: Sequence[str]) -> Array:
    """Tiles (n, r, k, h, w, 3) with room below for a text, which the last row of each has."""
    room = ((0, 0),) * 3 + ((0, CAPTION), (0, 0), (0, 0))
    out = np.pad(tiles, room, constant_values=BACKGROUND)
    width, font = tiles.shape[4], ImageFont.load_default()
    for example, caption in enumerate(captions):
        text = printable(caption)
        while font.getlength(text) > width and text:
            text = text[:-1]
        strip = Image.new("RGB", (width, CAPTION), (BACKGROUND,) * 3)
        ImageDraw.Draw(strip).text((0, CAPTION // 2), text, fill=0, font=font, anchor="lm")
        out[example, -1, 0, -CAPTION:] = np.asarray(strip)
    return out


def enlarged(tiles: Array) -> Array:
    """Tiny ones larger, without smoothing, and lines high enough to be seen."""
    down, right = scales(*tiles.shape[-3:-1])
    return tiles.repeat(down, axis=-3).repeat(right, axis=-2)


def scales(height: int, width: int) -> tuple[int, int]:
    """How many times a tile is enlarged, downwards and to the right."""
    scale = max(1, _SMALLEST // max(height, width))
    return scale * (_LINE if height == 1 else 1), scale


def fitting_tiles(width: int) -> int:
    """How many tiles stand side by side on one screen."""
    return max(1, _WIDEST // (width + GAP))


def side_by_side(count: int, width: int, group: int) -> int:
    """How many examples of one tile each make a row: a group, or what makes a square."""
    return group if group > 1 else min(fitting_tiles(width), math.ceil(math.sqrt(count)))


def flowed(tiles: Array, columns: int) -> Array:
    """Examples of one tile each as rows of `columns`, the last filled up with zeros."""
    room = np.zeros((-len(tiles) % columns, *tiles.shape[1:]), tiles.dtype)
    return np.concatenate([tiles, room]).reshape(-1, 1, columns, *tiles.shape[3:])


class Layout:
    """Where the tiles (n, r, k, h, w) of a sheet stand.

    Rows too long for a screen, or for `columns`, go on below, in lines of about one length.
    Examples of several rows stand side by side, `pairs` together, where that makes a square.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        columns: int | None = None,
        group: int = 1,
        gap: int = GAP,
        pairs: int = 1,
    ) -> None:
        self.shape, self.group, self.gap = shape, group, gap
        count, rows, length, height, width = shape
        self.columns = columns or -(-length // -(-length // fitting_tiles(width)))
        self.lines = -(-length // self.columns)
        self.one = (rows * self.lines * (height + gap), self.columns * (width + gap))
        self.apart = _APART if rows * self.lines > 1 else 0
        self.across = 1
        if self.apart and group == 1:
            square = round(math.sqrt(count * self.one[0] / self.one[1]))
            self.across = max(1, min(square, _WIDEST // self.one[1]) // pairs * pairs)

    def top(self, example: Any, row: Any, number: Any) -> Any:
        """The first row of pixels of a tile."""
        line = row * self.lines + number // self.columns
        apart = example // self.group * _APART * 2 * (self.group > 1)
        band = example // self.across * (self.one[0] + self.apart)
        return self.gap + line * (self.shape[3] + self.gap) + band + apart

    def left(self, example: Any, number: Any) -> Any:
        """The first column of pixels of a tile."""
        slot = example % self.across * (self.one[1] + self.apart)
        return self.gap + number % self.columns * (self.shape[4] + self.gap) + slot

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the whole."""
        count, rows, length, height, width = self.shape
        top = self.top(count - 1, rows - 1, length - 1)
        left = self.left(min(count, self.across) - 1, min(length, self.columns) - 1)
        return top + height + self.gap, left + width + self.gap


def grid(
    tiles: Array,
    shown: Array | None = None,
    marked: Array | None = None,
    *,
    gap: int = GAP,
    **how: Any,
) -> Array:
    """Tiles (n, r, k, h, w, 3) row by row, those that are `shown`; the `marked` ones framed."""
    layout = Layout(tiles.shape[:-1], gap=gap, **how)
    height, width = tiles.shape[3:5]
    canvas = np.full((*layout.size, 3), BACKGROUND, np.uint8)
    for at in np.argwhere(np.ones(tiles.shape[:3], bool) if shown is None else shown).tolist():
        i, j = layout.top(*at), layout.left(at[0], at[2])
        if marked is not None and marked[*at]:
            canvas[i - gap : i + height + gap, j - gap : j + width + gap] = _KEPT
        canvas[i : i + height, j : j + width] = tiles[*at]
    return canvas
