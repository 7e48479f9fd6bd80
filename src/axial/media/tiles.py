"""Sheets of pictures and of maps: images in a grid, clips and volumes in rows of slices.

n examples, each of r rows of k tiles: one row for a clip or a volume; for more axes one for each
index of the slower ones; and one for each channel that is neither grey nor part of a colour.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from axial.models.config import DataShape
from axial.data.packed import Array, Packed
from axial.system.files import MARK, check_place, errors_of, replacing
from axial.errors import DataError

_GAP, _WIDE_GAP, _APART = 2, 4, 8
"""Pixels between tiles, with room for frames, and between examples of several rows."""
_BACKGROUND = 255
_KEPT = (255, 120, 0)
"""The frame around what was kept, or given."""
_SMALLEST = 64
_WIDEST = 1600
_PAIRS = 4
_PREVIEW_ELEMENTS = 1 << 24
"""No more than a large screen shows."""
_LINE = 8


def write_sheet(path: Path | str, x: Array, **how: Any) -> None:
    """Write examples (n, *axes, c) as one PNG; `how` goes to `sheet`."""
    _write(path, sheet(x, **how))


def write_map(path: Path | str, x: Array, bits: Array, **how: Any) -> None:
    """Write examples (n, *axes, c) as one PNG, each with a map of the bits of its elements."""
    _write(path, bit_map(x, bits, **how))


def write_curve(path: Path | str, log: Sequence[Mapping[str, Any]]) -> bool:
    """Draw a run's bits/dim over its steps from its log; False where there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in (("loss", "#b0b8c4"), ("validation", "#c03020")):
        points = [(record["step"], record[name]) for record in log if record.get(name) is not None]
        if points:
            shown = "training, raw weights" if name == "loss" else "held out, averaged weights"
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                label=shown,
                marker="." * (name == "validation"),
            )
    settled = sorted(record["loss"] for record in log if record.get("loss") is not None)
    if len(settled) > 20:  # the first steps would flatten all the rest
        axes.set_ylim(settled[0] - 0.1, settled[int(len(settled) * 0.95)] + 0.1)
    axes.set(xlabel="step", ylabel="bits/dim")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    with errors_of(path), replacing(Path(path)) as scratch:
        figure.savefig(scratch, format="png", dpi=120, metadata={"Software": MARK})
    return True


def _write(path: Path | str, pixels: Array) -> None:
    mark = PngInfo()
    mark.add_text("Software", MARK)
    with errors_of(path), replacing(Path(path)) as scratch:
        Image.fromarray(pixels).save(scratch, format="PNG", pnginfo=mark)


def check_preview(path: Path) -> None:
    """Refuse, before any work is done, a place where no sheet can go."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir() or path.is_dir():
        raise DataError(f"{path}: no place for a sheet; name a .png file in a folder that is there")
    check_place(path)


def write_preview(path: Path | str, packed: Packed) -> None:
    """The first examples of a packed array as a sheet: as many as fit one screen, at least one."""
    slices = math.prod((*packed.shape.axes, 1, 1)[: max(0, len(packed.shape.axes) - 2)])
    fit = max(1, _PREVIEW_ELEMENTS // math.prod(packed.row_shape))
    count = min(len(packed), 100 if slices == 1 else 12, fit)
    write_sheet(path, packed.rows(range(count)), values=packed.shape.values)


def sheet(
    x: Array,
    *,
    values: int = 256,
    columns: int | None = None,
    frames: int | None = None,
    kept: Array | None = None,
    group: int = 1,
) -> Array:
    """The pixels (h, w, 3) of a sheet of examples (n, *axes, c), with -1 where there is nothing.

    Tiny ones are enlarged without smoothing. Elements are shown from black for 0 to white for
    `values - 1`; one channel is grey, three are RGB, of any other number each has its own row,
    but for `frames` that lie in the channels. Tiles that lie wholly in `kept` (*axes, c) are
    framed. Each `group` of examples stands by itself.
    """
    tiles = _tiles(x, frames)
    pixels = _enlarged(_shades(tiles, values))
    shown = np.asarray((tiles >= 0).any((-3, -2, -1)))
    marked = np.zeros(shown.shape, bool)
    if kept is not None:
        marked |= _tiles(kept[None], frames).all((-3, -2, -1))
    if shown.shape[1:] == (1, 1):
        wide = columns or _side_by_side(len(x), pixels.shape[-2], group)
        pixels, shown, marked = (_flowed(part, wide) for part in (pixels, shown, marked))
        columns, group = None, 1
    gap = _GAP if kept is None else _WIDE_GAP
    return _grid(pixels, shown, marked, columns=columns, group=group, gap=gap)


def sheet_size(
    shape: tuple[int, ...], *, frames: int | None = None, kept: bool = False, group: int = 1
) -> tuple[int, int]:
    """Height and width of the `sheet` of examples of a shape (n, *axes, c), without making it."""
    tiles = _tiles(np.broadcast_to(np.uint8(0), shape), frames).shape[:-1]
    count, rows, length, height, width = tiles
    down, right = _scales(height, width)
    height, width = height * down, width * right
    if (rows, length) == (1, 1):
        length = _side_by_side(count, width, group)
        count, group = -(-count // length), 1
    gap = _WIDE_GAP if kept else _GAP
    return _Layout((count, rows, length, height, width), group=group, gap=gap).size


def bit_map(x: Array, bits: Array, *, values: int = 256, frames: int | None = None) -> Array:
    """The pixels (h, w, 3): beside each picture, or below each clip, where its bits go.

    The bits of a position, summed over its channels, are coloured on one scale, drawn below:
    up to what only one position in a thousand exceeds.
    """
    tiles, where = _tiles(x, frames), _tiles(bits, frames).sum(-1)
    most = float(np.quantile(where, 0.999)) or 1.0
    both = np.stack([_shades(tiles, values), _heat(where / most)], 1)
    pixels = _enlarged(both.reshape(-1, *both.shape[2:]))
    if pixels.shape[1:3] == (1, 1):
        pixels = _flowed(pixels, 2 * max(1, min(_fit(pixels.shape[-2]) // 2, _PAIRS)))
    return _with_scale(_grid(pixels, pairs=2), most)


def _with_scale(pixels: Array, most: float) -> Array:
    """The pixels with the scale of the colours below them."""
    height, width, _ = pixels.shape
    canvas = Image.new("RGB", (max(width, 340), height + 20), (_BACKGROUND,) * 3)
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


def _tiles(x: Array, frames: int | None) -> Array:
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


def _shades(tiles: Array, values: int) -> Array:
    """Tiles as RGB."""
    shades = (tiles.astype(np.float64) * 255 / max(1, values - 1)).round().clip(0, 255)
    return np.broadcast_to(shades.astype(np.uint8), (*tiles.shape[:-1], 3))


def _enlarged(tiles: Array) -> Array:
    """Tiny ones larger, without smoothing, and lines high enough to be seen."""
    down, right = _scales(*tiles.shape[-3:-1])
    return tiles.repeat(down, axis=-3).repeat(right, axis=-2)


def _scales(height: int, width: int) -> tuple[int, int]:
    """How many times a tile is enlarged, downwards and to the right."""
    scale = max(1, _SMALLEST // max(height, width))
    return scale * (_LINE if height == 1 else 1), scale


def _fit(width: int) -> int:
    """How many tiles stand side by side on one screen."""
    return max(1, _WIDEST // (width + _GAP))


def _side_by_side(count: int, width: int, group: int) -> int:
    """How many examples of one tile each make a row: a group, or what makes a square."""
    return group if group > 1 else min(_fit(width), math.ceil(math.sqrt(count)))


def _flowed(tiles: Array, columns: int) -> Array:
    """Examples of one tile each as rows of `columns`, the last filled up with zeros."""
    room = np.zeros((-len(tiles) % columns, *tiles.shape[1:]), tiles.dtype)
    return np.concatenate([tiles, room]).reshape(-1, 1, columns, *tiles.shape[3:])


class _Layout:
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
        gap: int = _GAP,
        pairs: int = 1,
    ) -> None:
        self.shape, self.group, self.gap = shape, group, gap
        count, rows, length, height, width = shape
        self.columns = columns or -(-length // -(-length // _fit(width)))
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


def _grid(
    tiles: Array,
    shown: Array | None = None,
    marked: Array | None = None,
    *,
    gap: int = _GAP,
    **how: Any,
) -> Array:
    """Tiles (n, r, k, h, w, 3) row by row, those that are `shown`; the `marked` ones framed."""
    layout = _Layout(tiles.shape[:-1], gap=gap, **how)
    height, width = tiles.shape[3:5]
    canvas = np.full((*layout.size, 3), _BACKGROUND, np.uint8)
    for at in np.argwhere(np.ones(tiles.shape[:3], bool) if shown is None else shown).tolist():
        i, j = layout.top(*at), layout.left(at[0], at[2])
        if marked is not None and marked[*at]:
            canvas[i - gap : i + height + gap, j - gap : j + width + gap] = _KEPT
        canvas[i : i + height, j : j + width] = tiles[*at]
    return canvas
