"""What classical lossless codecs need for pictures: PNG, WebP, and JPEG XL where it is installed.

Every picture is a file of its own, header included. PNG and WebP come with Pillow; JPEG XL needs
imagecodecs (the extra `compare`).
"""

import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from axial.data.packed import Array, Examples
from axial.shape import DataShape

FORMATS = ("PNG", "WebP", "JPEG XL")
"""All of them, installed or not."""
WEBP_LONGEST = 16_383
"""Pixels a side of a WebP picture may have."""
_AT_ONCE = 256
"""Pictures in memory together."""


def picture_encoders() -> dict[str, Callable[[Array], int]]:
    """Lossless codecs of pictures: each turns uint8 (h, w) or (h, w, 3) into a number of bytes."""

    def pillow(x: Array, **how: Any) -> int:
        stream = io.BytesIO()
        Image.fromarray(x).save(stream, **how)
        return len(stream.getvalue())

    found: dict[str, Callable[[Array], int]] = {
        "PNG": lambda x: pillow(x, format="PNG", optimize=True),
        # Method 4 packs small pictures tighter than 6 does, and 25 times as fast.
        "WebP": lambda x: pillow(x, format="WEBP", lossless=True, quality=100, method=4),
    }
    try:
        from imagecodecs import jpegxl_encode
    except ImportError:
        return found
    return found | {"JPEG XL": lambda x: len(jpegxl_encode(x, lossless=True, effort=9))}


def codec_bytes(
    pictures: Iterable[Array], progress: Callable[[int], None] | None = None
) -> dict[str, int]:
    """Bytes that each codec needs for all of these pictures, uint8 (h, w) or (h, w, 3).

    They are coded on all cores, some at a time. A codec that cannot hold one of them is left out.
    `progress` is called with how many are done.
    """
    sizes = dict.fromkeys(encoders := picture_encoders(), 0)
    pictures, done = iter(pictures), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while batch := list(islice(pictures, _AT_ONCE)):
            if max(max(picture.shape[:2]) for picture in batch) > WEBP_LONGEST:
                sizes.pop("WebP", None)
            for name in sizes:
                sizes[name] += sum(pool.map(encoders[name], batch))
            done += len(batch)
            if progress is not None:
                progress(done)
    return sizes


def codec_bits(
    packed: Examples,
    index: Sequence[int] | NDArray[np.int64] | None = None,
    *,
    frames: int | None = None,
    given: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Bits/dim of each codec on some examples of a packed array; default: on all of them.

    Clips and volumes are coded slice by slice, channels that are neither grey nor RGB one by one.
    `frames` lie in the channels, by default as the array says; the first `given` of a clip are left
    out. Empty for lines and for values beyond 8 bits, which these codecs do not hold.
    """
    if not are_pictures(packed):
        return {}
    chosen = np.arange(len(packed)) if index is None else np.asarray(index)
    shape = packed.shape if frames is None else replace(packed.shape, frames=frames)
    elements = 0

    def pictures() -> Iterable[Array]:
        nonlocal elements
        for one in chosen:  # one at a time: they may be large
            for frame in _slices(packed.example(int(one)), shape, given):
                elements += frame.size
                yield from _pictures(frame)

    sizes = codec_bytes(pictures(), progress)
    return {name: 8 * total / elements for name, total in sizes.items()}


def are_pictures(packed: Examples) -> bool:
    """Whether these codecs hold what is there: slices of 8 bits with two axes."""
    two = len(packed.shape.axes) > 1 or packed.description.sizes is not None
    return packed.array.dtype == np.uint8 and two


def _slices(x: Array, shape: DataShape, given: int) -> Array:
    """Every 2-D slice (k, h, w, c) of an example but for those of the first `given` frames."""
    if shape.stacked_frames > 1:
        x = np.moveaxis(x.reshape(*x.shape[:-1], shape.stacked_frames, -1), -2, 0)
    return x[given:].reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x[None]


def _pictures(x: Array) -> list[Array]:
    """A slice (h, w, c) whole where it is grey or RGB, else one channel at a time."""
    if x.shape[-1] == 3:
        return [np.ascontiguousarray(x)]
    return [np.ascontiguousarray(x[..., c]) for c in range(x.shape[-1])]
