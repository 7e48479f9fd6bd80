"""Where drawn examples go: a sheet, a folder of pictures, an array, a moving picture.

Every file takes its name when it is finished; beside it, in JSON, stands how it was drawn.
"""

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from axial.data.description import description_path
from axial.data.packed import Array, dtype_for
from axial.data.sources.video import pyav
from axial.errors import DataError
from axial.media.moving import check_size, write_moving
from axial.media.sheets import sheet_pixels, sheet_size, write_sheet
from axial.shape import DataShape
from axial.system.files import (
    check_place,
    check_writable,
    commit,
    complete,
    errors_of,
    pending,
    replacing,
    resolved,
    scratch_folder,
    sha256,
)

_KINDS = ".png (a sheet), .npy (an array), .gif or .mp4 (video), or a folder of PNGs"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a picture shows, where that is more than what was drawn."""

    x: Array
    """Examples (n, *axes, c), -1 where there is nothing to see."""
    kept: Array | None = None
    """What was kept of each clip (*axes, c): frames wholly inside it are marked."""
    group: int = 1
    """How many one after another belong together."""
    captions: tuple[str, ...] | None = None
    """What is written below each example."""


class Output:
    """A place to write to, checked before any work is done."""

    def __init__(self, path: Path, shape: DataShape, *, overwrite: bool = False) -> None:
        self.path, self.shape = path, shape
        self.kind = path.suffix.lower()
        if self.kind not in (".png", ".npy", ".gif", ".mp4", ""):
            raise DataError(f"{path}: cannot hold what is drawn; use {_KINDS}")
        self._check_data()
        with errors_of(path):  # a name too long to be one
            if not path.parent.is_dir():
                raise DataError(f"{path}: {path.parent} is no folder; name an existing one")
            if self.kind == ".npy" and description_path(path).exists():
                raise DataError(
                    f"{path}: {description_path(path).name} beside it describes a data set, for "
                    f"which what is drawn must not pass; name a new one"
                )
            if self.kind:
                self._clean_up()
                check_place(path, overwrite=overwrite)
                check_place(record_path(path), overwrite=overwrite)
            elif resolved(path) == Path.cwd():
                raise DataError(f"{path}: is where you are, and cannot be replaced; name a new one")
            elif not _is_free(path):
                raise DataError(f"{path}: is there, and not empty; name a new one")
            else:
                check_writable(path)

    def write(self, x: Array, about: dict[str, Any], shown: Shown | None = None) -> None:
        """Write examples (n, *axes, c), and how they came about beside them."""
        with errors_of(self.path):
            if self.kind == "":
                with replacing(self.path) as scratch:
                    self._write_folder(scratch, x, _as_text(about))
                return
            with _in_turn(self.path) as folder:
                new, record = folder / self.path.name, record_path(self.path)
                if self.kind == ".npy":
                    np.save(new, x.astype(dtype_for(self.shape.values)), allow_pickle=False)
                else:
                    self._write_pictures(new, shown or Shown(x=x))
                (folder / record.name).write_text(_as_text(about | {"sha256": sha256(new)}))
                commit(folder, self.path, record)

    def _clean_up(self) -> None:
        """Finish, or forget, a record that a process that died has left pending."""
        waiting = pending(record_path(self.path))
        if waiting.is_file():
            # Where another does so, or writes it, there is nothing left to do.
            with suppress(BlockingIOError), scratch_folder(self.path, alone=True):
                with suppress(OSError, ValueError, TypeError, KeyError):
                    if json.loads(waiting.read_text())["sha256"] == sha256(self.path):
                        complete(record_path(self.path))
                waiting.unlink(missing_ok=True)

    def check_size(self, shown: Shown) -> None:
        """Refuse to show more than a moving picture holds; what is to be seen need not be there."""
        if self.kind in (".gif", ".mp4"):
            moment = self._moments(shown.x)[0].shape
            check_size(self.path, self._size(moment, shown))

    def _size(self, shape: tuple[int, ...], shown: Shown) -> tuple[int, int]:
        captions = shown.captions is not None
        return sheet_size(shape, frames=1, kept=True, group=shown.group, captions=captions)

    def _write_pictures(self, path: Path, shown: Shown) -> None:
        how: dict[str, Any] = {"values": self.shape.values, "group": shown.group}
        how["captions"] = shown.captions
        if self.kind == ".png":
            frames = self.shape.stacked_frames
            write_sheet(path, shown.x, kept=shown.kept, frames=frames, **how)
        else:
            kept = np.zeros(shown.x.shape[1:], bool) if shown.kept is None else shown.kept
            moments = zip(self._moments(shown.x), self._moments(kept[None]), strict=True)
            pictures = [sheet_pixels(x, kept=part[0], frames=1, **how) for x, part in moments]
            write_moving(path, pictures)

    def _write_folder(self, folder: Path, x: Array, text: str) -> None:
        folder.mkdir()
        (folder / "request.json").write_text(text)
        shades = (x.astype(np.float64) * 255 / (self.shape.values - 1)).round().astype(np.uint8)
        for number, picture in enumerate(shades):
            pixels = picture if picture.shape[-1] == 3 else picture[..., 0]
            Image.fromarray(pixels).save(folder / f"{number:05}.png")

    def _check_data(self) -> None:
        axes, channels = self.shape.axes, self.shape.channels
        if self.kind == "" and (len(axes) != 2 or channels not in (1, 3)):
            raise DataError(
                f"{self.path}: a folder of PNGs holds grey or RGB pictures, not {len(axes)} axes "
                f"of {channels} channels; use .png for a sheet, or .npy"
            )
        if self.kind in (".gif", ".mp4") and self.shape.window is None:
            raise DataError(f"{self.path}: holds video, and these do not move; use .png or .npy")
        if self.kind == ".mp4":
            pyav()

    def _moments(self, x: Array) -> list[Array]:
        """One frame of each clip, again and again."""
        shape, count = self.shape, self.shape.window or 0
        frames = [x[shape.frames_at(t, t + 1)] for t in range(count)]
        return frames if shape.stacked_frames > 1 else [frame[:, 0] for frame in frames]


@contextmanager
def _in_turn(path: Path) -> Iterator[Path]:
    """A scratch folder while no other process has one: what was drawn waits, and is not lost."""
    with ExitStack() as stack:
        while True:
            try:
                folder = stack.enter_context(scratch_folder(path, alone=True))
                break
            except BlockingIOError:
                time.sleep(random.uniform(0.01, 0.1))
        yield folder


def record_path(path: Path) -> Path:
    """Where it stands how a file was drawn."""
    return path.with_name(f"{path.name}.json")


def _as_text(about: dict[str, Any]) -> str:
    return json.dumps(about, indent=2) + "\n"


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
