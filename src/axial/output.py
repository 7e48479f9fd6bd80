"""Where drawn examples go: a sheet, a folder of pictures, an array, a moving picture.

Every file takes its name when it is finished; beside it, in JSON, stands how it was drawn.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from axial.completion import stacked_frames
from axial.config import ModelConfig
from axial.data import Array, dtype_for
from axial.disk import replacing, write_text
from axial.errors import DataError
from axial.pictures import sheet, write_sheet

_MILLISECONDS = 120
_KINDS = ".png (a sheet), .npy (an array), .gif or .mp4 (video), or a folder of PNGs"


class Output:
    """A place to write to, checked before any work is done."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path, self.config = path, config
        self.kind = path.suffix.lower()
        if self.kind not in (".png", ".npy", ".gif", ".mp4", ""):
            raise DataError(f"{path}: cannot hold what is drawn; use {_KINDS}")
        self._check_data()
        if not path.parent.is_dir() or (path.is_dir() if self.kind else not _is_free(path)):
            raise DataError(
                f"{path}: no place to write to; name a new one in a folder that is there"
            )

    def write(self, x: Array, about: dict[str, Any], *, columns: int | None = None) -> None:
        """Write examples (n, *axes, c), and how they came about beside them."""
        x = x.astype(dtype_for(self.config.values))
        text = json.dumps(about, indent=2) + "\n"
        with errors_of(self.path):
            if self.kind == "":
                with replacing(self.path) as scratch:
                    self._write_folder(scratch, x, text)
                return
            self._write_file(x, columns)
            write_text(self.path.with_name(f"{self.path.name}.json"), text)

    def _write_file(self, x: Array, columns: int | None) -> None:
        if self.kind == ".png":
            write_sheet(self.path, x, values=self.config.values, columns=columns)
        elif self.kind == ".npy":
            with replacing(self.path) as scratch, scratch.open("wb") as file:
                np.save(file, x, allow_pickle=False)
        else:
            frames = [self._sheet(frame, columns) for frame in self._frames(x)]
            write_moving(self.path, frames)

    def _write_folder(self, folder: Path, x: Array, text: str) -> None:
        folder.mkdir()
        (folder / "request.json").write_text(text)
        shades = (x.astype(np.float64) * 255 / (self.config.values - 1)).round().astype(np.uint8)
        for number, picture in enumerate(shades):
            pixels = picture if picture.shape[-1] == 3 else picture[..., 0]
            Image.fromarray(pixels).save(folder / f"{number:05}.png")

    def _check_data(self) -> None:
        axes, channels = self.config.axes, self.config.channels
        if self.kind == "" and (len(axes) != 2 or channels not in (1, 3)):
            raise DataError(
                f"{self.path}: a folder of PNGs holds grey or RGB pictures, not {len(axes)} axes "
                f"of {channels} channels; use .png for a sheet, or .npy"
            )
        if self.kind in (".gif", ".mp4") and not self._moving:
            raise DataError(f"{self.path}: holds video, and these do not move; use .png or .npy")

    @property
    def _moving(self) -> bool:
        volume = len(self.config.axes) == 3 and self.config.channels in (1, 3)
        return volume or (len(self.config.axes) == 2 and stacked_frames(self.config) is not None)

    def _frames(self, x: Array) -> Array:
        """(t, n, h, w, 1 or 3)."""
        if len(self.config.axes) == 3:
            return np.moveaxis(x, 1, 0)
        return np.moveaxis(x.reshape(*x.shape[:-1], -1, 3), -2, 0)

    def _sheet(self, x: Array, columns: int | None) -> Array:
        return sheet(x, values=self.config.values, columns=columns)


def write_moving(path: Path, frames: Sequence[Array]) -> None:
    """Write pictures (h, w, 3) one after another as .gif or .mp4; both are lossy."""
    with errors_of(path), replacing(path) as scratch:
        if path.suffix.lower() == ".gif":
            first, *others = [Image.fromarray(frame) for frame in frames]
            settings = {"save_all": True, "append_images": others, "loop": 0}
            first.save(scratch, format="GIF", duration=_MILLISECONDS, **settings)
        else:
            _write_mp4(scratch, frames)


def _write_mp4(path: Path, frames: Sequence[Array]) -> None:
    try:
        import av
    except ImportError as error:
        raise DataError(".mp4 needs PyAV; pip install axial-transformers[video]") from error
    height, width = (size + size % 2 for size in frames[0].shape[:2])
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=round(1000 / _MILLISECONDS))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "10"}
        for frame in frames:
            room = ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0))
            picture = av.VideoFrame.from_ndarray(np.pad(frame, room, mode="edge"), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Say in one line what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
