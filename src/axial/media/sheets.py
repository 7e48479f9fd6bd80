"""Sheets: images in a grid, clips and volumes in rows of slices."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from axial.data.packed import Array, Packed
from axial.errors import DataError, InputError
from axial.media.tiles import (
    CAPTION,
    GAP,
    WIDE_GAP,
    Layout,
    captioned,
    enlarged,
    flowed,
    grid,
    scales,
    shades,
    side_by_side,
    tiles_of,
)
from axial.system.files import check_place, errors_of, replacing
from axial.validation import as_integer

if TYPE_CHECKING:
    from torch import Tensor

_PREVIEW_ELEMENTS = 1 << 24
"""No more than a large screen shows."""


def write_sheet(path: Path | str, x: Array, **how: Any) -> None:
    """Write examples (n, *axes, c) as one PNG; `how` goes to `sheet_pixels`."""
    write_png(path, sheet_pixels(x, **how))


def write_png(path: Path | str, pixels: Array) -> None:
    """Write pixels (h, w, 3) as one PNG."""
    with errors_of(path), replacing(Path(path)) as scratch:
        Image.fromarray(pixels).save(scratch, format="PNG")


def check_preview(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, a place where no sheet can go."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir() or path.is_dir():
        raise DataError(f"{path}: not a .png path in an existing folder")
    check_place(path, overwrite=overwrite)


def write_preview(path: Path | str, packed: Packed) -> None:
    """The first examples of a packed array as a sheet: as many as fit one screen, at least one."""
    slices = math.prod((*packed.shape.axes, 1, 1)[: max(0, len(packed.shape.axes) - 2)])
    most = packed.row_shape if packed.sizes is None else (*packed.sizes.max(0), 3)
    fit = max(1, _PREVIEW_ELEMENTS // math.prod(map(int, most)))
    count = min(len(packed), 100 if slices == 1 else 12, fit)
    x = packed.rows(range(count)) if packed.sizes is None else _padded(packed, count)
    write_sheet(path, x, values=packed.shape.values)


def _padded(packed: Packed, count: int) -> Array:
    """The first pictures, filled up to one size with -1, which stands for nothing."""
    assert packed.sizes is not None
    x = np.full((count, *packed.sizes[:count].max(0), packed.shape.channels), -1, np.int32)
    for i in range(count):
        height, width = packed.sizes[i]
        x[i, :height, :width] = packed.example(i)
    return x


def sheet(
    x: "Tensor | Array",
    *,
    values: int = 256,
    columns: int | None = None,
    frames: int | None = None,
    captions: Sequence[str] | None = None,
) -> Image.Image:
    """A picture of examples (n, *axes, c), as `draw` and `stream` give them; notebooks show it.

    `values` is the number of values an element can take: `model.config.values`. What is missing
    (-1) has a colour that the examples have not, a whole picture is left out. `frames` of clips may
    lie in the channels; 6, 9, 12 ... channels are taken for RGB frames. `captions`, a text for each
    example, are written below them.
    """
    if not isinstance(x, np.ndarray):
        x = x.detach().cpu().numpy()
    if x.ndim < 3 or x.dtype.kind not in "iu":
        raise InputError(
            f"x has shape {x.shape} and type {x.dtype}: give integers (n, *axes, channels)"
        )
    if not x.size:
        raise InputError(f"x has shape {x.shape}: there is nothing to show")
    values = as_integer("values", values, at_least=2)
    if captions is not None and len(captions) != len(x):
        raise InputError(f"captions are {len(captions)}, but there are {len(x)} examples")
    how: dict[str, Any] = {"columns": columns, "frames": frames, "captions": captions}
    return Image.fromarray(sheet_pixels(x, values=values, **how))


def sheet_pixels(
    x: Array,
    *,
    values: int = 256,
    columns: int | None = None,
    frames: int | None = None,
    kept: Array | None = None,
    group: int = 1,
    captions: Sequence[str] | None = None,
) -> Array:
    """The pixels (h, w, 3) of a sheet of examples (n, *axes, c), with -1 where there is nothing.

    Tiny ones are enlarged without smoothing. Elements are shown from black for 0 to white for
    `values - 1`; one channel is grey, three are RGB, of any other number each has its own row,
    but for `frames` that lie in the channels. Tiles that lie wholly in `kept` (*axes, c) are
    framed. Each `group` of examples stands by itself. What is missing has a colour of its own.
    """
    tiles = tiles_of(x, frames)
    pixels = enlarged(shades(tiles, values))
    if captions is not None:
        pixels = captioned(pixels, captions)
    shown = np.asarray((tiles >= 0).any((-3, -2, -1)))
    marked = np.zeros(shown.shape, bool)
    if kept is not None:
        marked |= tiles_of(kept[None], frames).all((-3, -2, -1))
    if shown.shape[1:] == (1, 1):
        wide = columns or side_by_side(len(x), pixels.shape[-2], group)
        pixels, shown, marked = (flowed(part, wide) for part in (pixels, shown, marked))
        columns, group = None, 1
    gap = GAP if kept is None else WIDE_GAP
    return grid(pixels, shown, marked, columns=columns, group=group, gap=gap)


def sheet_size(
    shape: tuple[int, ...],
    *,
    frames: int | None = None,
    kept: bool = False,
    group: int = 1,
    captions: bool = False,
) -> tuple[int, int]:
    """Height and width of the sheet of examples of a shape (n, *axes, c), without making it."""
    tiles = tiles_of(np.broadcast_to(np.uint8(0), shape), frames).shape[:-1]
    count, rows, length, height, width = tiles
    down, right = scales(height, width)
    height, width = height * down + CAPTION * captions, width * right
    if (rows, length) == (1, 1):
        length = side_by_side(count, width, group)
        count, group = -(-count // length), 1
    gap = WIDE_GAP if kept else GAP
    return Layout((count, rows, length, height, width), group=group, gap=gap).size
