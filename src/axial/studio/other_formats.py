"""What other lossless formats need for the same pixels, beside what this model needs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from axial.data.classical import FORMATS, codec_bytes
from axial.data.packed import Array


def sizes(pictures: Sequence[Array], own_bytes: int, *, values: int = 256) -> list[dict[str, Any]]:
    """The bytes of some pictures (h, w, 1 or 3) by this model and as a file each of other formats.

    None where a format is not installed; only this model where they are no 8-bit pictures.
    """
    elements = sum(x.size for x in pictures)
    found: dict[str, int | None] = {"this model": own_bytes}
    if values == 256 and all(x.ndim == 3 and x.shape[-1] in (1, 3) for x in pictures):
        plain = (
            np.ascontiguousarray(x if x.shape[-1] == 3 else x[..., 0], np.uint8) for x in pictures
        )
        others = codec_bytes(plain)
        found |= {name: others.get(name) for name in FORMATS}
    return [
        {
            "format": name,
            "bytes": size,
            "bits_per_dim": None if size is None else 8 * size / elements,
        }
        for name, size in found.items()
    ]
