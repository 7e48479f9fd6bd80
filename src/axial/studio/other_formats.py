"""What other lossless formats need for the same pixels."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, features

from axial.data.packed import Array


def sizes(pictures: Sequence[Array], own_bytes: int, *, values: int = 256) -> list[dict[str, Any]]:
    """The bytes of some pictures (h, w, 1 or 3) by this model and as a file each of other formats.

    Null where a format is not installed; only this model where they are no 8-bit pictures.
    """
    elements = sum(x.size for x in pictures)
    found: list[dict[str, Any]] = [_row("this model", own_bytes, elements)]
    if values == 256 and all(x.ndim == 3 and x.shape[-1] in (1, 3) for x in pictures):
        plain = [np.ascontiguousarray(x, np.uint8) for x in pictures]
        for name, encode in (("PNG", _png), ("WebP", _webp), ("JPEG XL", _jpeg_xl)):
            found.append(_row(name, _total(encode, plain), elements))
    return found


def _row(name: str, size: int | None, elements: int) -> dict[str, Any]:
    return {
        "format": name,
        "bytes": size,
        "bits_per_dim": None if size is None else 8 * size / elements,
    }


def _total(encode: Callable[[Array], bytes | None], pictures: Sequence[Array]) -> int | None:
    total = 0
    for picture in pictures:
        if (data := encode(picture)) is None:
            return None
        total += len(data)
    return total


def _image(x: Array) -> Image.Image:
    return Image.fromarray(x if x.shape[-1] == 3 else x[..., 0])


def _png(x: Array) -> bytes:
    out = io.BytesIO()
    _image(x).save(out, "PNG", optimize=True)
    return out.getvalue()


def _webp(x: Array) -> bytes | None:
    if not features.check("webp") or max(x.shape[:2]) > 16_383:
        return None
    out = io.BytesIO()
    _image(x).save(out, "WEBP", lossless=True, quality=100, method=6)
    return out.getvalue()


def _jpeg_xl(x: Array) -> bytes | None:
    try:
        from imagecodecs import jpegxl_encode
    except ImportError:
        return None
    return jpegxl_encode(x if x.shape[-1] == 3 else x[..., 0], lossless=True, effort=7)
