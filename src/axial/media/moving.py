"""Moving pictures: GIF and MP4."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from axial.data.packed import Array
from axial.data.sources.video import pyav
from axial.errors import DataError
from axial.system.files import errors_of, replacing

_MILLISECONDS = 120
_LONGEST = {".gif": 65_535, ".mp4": 16_384}
"""Pixels a side may have: two bytes in a GIF, x264's own limit in an MP4."""


def write_moving(path: Path, frames: Sequence[Array]) -> None:
    """Write pictures (h, w, 3) one after another as .gif or .mp4; both are lossy."""
    height, width = frames[0].shape[:2]
    check_size(path, (height, width))
    with errors_of(path), replacing(path) as scratch:
        if path.suffix.lower() == ".gif":
            write_gif(scratch, frames)
        else:
            _write_mp4(scratch, frames)


def write_gif(file: Path | BinaryIO, frames: Sequence[Array]) -> None:
    """Write pictures (h, w, 3) one after another as a GIF that never ends."""
    first, *others = [Image.fromarray(frame) for frame in frames]
    settings = {"save_all": True, "append_images": others, "loop": 0}
    first.save(file, format="GIF", duration=_MILLISECONDS, **settings)


def check_size(path: Path, size: tuple[int, int]) -> None:
    """Refuse more pixels, (height, width), than the kind of file holds."""
    kind, (height, width) = path.suffix.lower(), size
    if max(size) > _LONGEST[kind]:
        raise DataError(
            f"{path}: {width:,} x {height:,} pixels are more than a {kind} holds; draw fewer, or "
            f"use .npy"
        )


def _write_mp4(path: Path, frames: Sequence[Array]) -> None:
    av = pyav()
    height, width = (size + size % 2 for size in frames[0].shape[:2])
    # An open file: FFmpeg would take some names for URLs.
    with path.open("wb") as file, av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=round(1000 / _MILLISECONDS))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "10"}
        for frame in frames:
            room = ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0))
            picture = av.VideoFrame.from_ndarray(np.pad(frame, room, mode="edge"), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
