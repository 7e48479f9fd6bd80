"""Sheets of pictures and of maps: images in a grid, clips and volumes one row of slices each."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from axial.data import Array, Packed
from axial.disk import replacing
from axial.errors import DataError

_GAP = 2
_BACKGROUND = 255
_SMALLEST = 64
_WIDEST = 1600
_PAIRS = 4
_LINE = 8


def write_sheet(
    path: Path | str, x: Array, *, values: int = 256, columns: int | None = None
) -> None:
    """Write examples (n, *axes, c) as one PNG.

    Tiny ones are enlarged without smoothing. Elements are shown from black for 0 to white for
    `values - 1`; one channel is grey, three are RGB, any other number is drawn side by side.
    """
    _write(path, sheet(x, values=values, columns=columns))


def write_map(path: Path | str, x: Array, bits: Array, *, values: int = 256) -> None:
    """Write examples (n, *axes, c) as one PNG, each with a map of the bits of its elements."""
    _write(path, bit_map(x, bits, values=values))


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
    _put(path, lambda scratch: figure.savefig(scratch, format="png", dpi=120))
    return True


def _write(path: Path | str, pixels: Array) -> None:
    _put(path, lambda scratch: Image.fromarray(pixels).save(scratch, format="PNG"))


def _put(path: Path | str, write: Callable[[Path], None]) -> None:
    """Let a file take its name when it is finished."""
    try:
        with replacing(Path(path)) as scratch:
            write(scratch)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_preview(path: Path) -> None:
    """Refuse, before any work is done, a place where no sheet can go."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise DataError(f"{path}: no place for a sheet; name a .png file in a folder that is there")


def write_preview(path: Path | str, packed: Packed) -> None:
    """The first examples of a packed array as a sheet: as many as fit one screen."""
    slices = math.prod((*packed.shape.axes, 1, 1)[: max(0, len(packed.shape.axes) - 2)])
    count = min(len(packed), 100 if slices == 1 else 12)
    write_sheet(path, packed.rows(range(count)), values=packed.shape.values)


def sheet(x: Array, *, values: int = 256, columns: int | None = None) -> Array:
    """The pixels (h, w, 3) of the sheet."""
    tiles = _shades(x, values)
    per_example = len(tiles) // len(x)
    tiles = _enlarged(tiles)
    if columns is None:
        fit = max(1, _WIDEST // (tiles.shape[2] + _GAP))
        square = math.ceil(math.sqrt(len(tiles)))
        columns = min(fit, square) if per_example == 1 else min(fit, per_example)
    return _grid(tiles, columns, per_example)


def bit_map(x: Array, bits: Array, *, values: int = 256) -> Array:
    """The pixels (h, w, 3): beside each picture, or below each clip, where its bits go.

    The bits of a position, summed over its channels, are coloured on one scale, drawn below:
    up to what only one position in a thousand exceeds.
    """
    pictures, where = _shades(x, values), _slices(bits).sum(-1)
    most = float(np.quantile(where, 0.999)) or 1.0
    maps = _heat(where / most)
    per_example = len(pictures) // len(x)
    grouped = (len(x), 1, per_example, *pictures.shape[1:])
    both = np.concatenate([pictures.reshape(grouped), maps.reshape(grouped)], 1)
    tiles = _enlarged(both.reshape(-1, *pictures.shape[1:]))
    fit = max(1, _WIDEST // (tiles.shape[2] + _GAP))
    columns = min(fit, per_example) if per_example > 1 else 2 * max(1, min(fit // 2, _PAIRS))
    return _with_scale(_grid(tiles, columns, per_example), most)


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


def _shades(x: Array, values: int) -> Array:
    """Every slice of every example, in order, as RGB (k, h, w, 3)."""
    shades = (x.astype(np.float64) * 255 / max(1, values - 1)).round().clip(0, 255).astype(np.uint8)
    tiles = _slices(shades)
    return tiles.repeat(3, axis=-1) if tiles.shape[-1] == 1 else tiles


def _enlarged(tiles: Array) -> Array:
    """Tiny ones larger, without smoothing, and lines high enough to be seen."""
    scale = max(1, _SMALLEST // max(tiles.shape[1:3]))
    height = _LINE if tiles.shape[1] == 1 else 1
    return tiles.repeat(scale * height, axis=1).repeat(scale, axis=2)


def _slices(x: Array) -> Array:
    """Every 2-D slice of every example, in order, with one channel or three (k, h, w, 1 or 3)."""
    if x.ndim == 3:
        x = x[:, None]  # a line is a picture one pixel high
    channels = x.shape[-1]
    if channels not in (1, 3):
        frames = 3 if channels % 3 == 0 else 1  # channel-stacked video, or planes of anything
        x = x.reshape(*x.shape[:-1], channels // frames, frames)
        x = np.moveaxis(x, -2, 1)
    return x.reshape(-1, *x.shape[-3:])


def _grid(tiles: Array, columns: int, per_example: int) -> Array:
    """Tiles row by row; where an example has several, it begins a row of its own."""
    count, height, width, _ = tiles.shape
    lines = math.ceil(per_example / columns) if per_example > 1 else 1
    examples = count // per_example
    rows = examples * lines if per_example > 1 else math.ceil(count / columns)
    canvas = np.full(
        (rows * (height + _GAP) + _GAP, columns * (width + _GAP) + _GAP, 3), _BACKGROUND, np.uint8
    )
    for number, tile in enumerate(tiles):
        example, part = divmod(number, per_example) if per_example > 1 else (0, number)
        row, column = example * lines + part // columns, part % columns
        top, left = _GAP + row * (height + _GAP), _GAP + column * (width + _GAP)
        canvas[top : top + height, left : left + width] = tile
    return canvas
