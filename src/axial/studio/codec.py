"""The codec as the studio uses it: pictures with names into an .axl file, and back."""

import importlib
import io
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from axial.data.packed import Array, dtype_for
from axial.errors import AxialError
from axial.models.protocol import Model
from axial.studio.errors import RequestError, bad_upload
from axial.studio.jobs import Job
from axial.studio.other_formats import sizes
from axial.studio.worker import Pause

_ROOM, _CONTAINER = "axial.codec.codec", "axial.codec.container"


class _CancelledError(Exception):
    """Nobody waits for what is being coded."""


def can_code(model: Model) -> bool:
    """Whether the codec is there, and takes such a model."""
    with suppress(ImportError):
        importlib.import_module(_ROOM)
        return not (model.config.given_channels or model.config.given_steps)
    return False


@dataclass(frozen=True, kw_only=True)
class CompressTask:
    """Some pictures, to become one file."""

    pictures: list[Array]
    """Each (*grid, c), of any size."""
    names: list[str]
    label: int | None
    quick: bool = field(default=False, init=False)

    def batch_key(self) -> object:
        """It stands alone."""
        return None

    def size(self) -> int:
        """Pictures."""
        return len(self.pictures)

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Write the file, and compare its size with those of other formats."""
        (job,) = jobs
        if not job.start({"lines": 0, "batch": len(self.pictures)}):
            return
        codec, container = importlib.import_module(_ROOM), importlib.import_module(_CONTAINER)
        coder = codec.Codec(model, name=job.model)
        contents = coder.contents(classes=model.config.classes)
        entries = []
        for name, x in zip(self.names, self.pictures, strict=True):
            one_plane = x.shape[-1] < model.config.channels
            entry = container.Entry(name=name, grid=x.shape[:-1], one_plane=one_plane)
            entries.append((entry, [codec.Example(x, self.label)]))
        file, total = io.BytesIO(), sum(contents.tiles_of(entry) for entry, _ in entries)
        try:
            coder.write(file, contents, entries, progress=_telling(job, total, pause))
        except _CancelledError:
            return
        job.file = file.getvalue()
        elements = sum(x.size for x in self.pictures)
        job.finish(
            {
                "file": f"/api/jobs/{job.id}/file.axl",
                "bytes": len(job.file),
                "bits_per_dim": 8 * len(job.file) / elements,
                "pictures": [_about(n, x) for n, x in zip(self.names, self.pictures, strict=True)],
                "sizes": sizes(self.pictures, len(job.file), values=model.config.values),
            }
        )


@dataclass(frozen=True, kw_only=True)
class DecompressTask:
    """A file, to become its pictures."""

    data: bytes
    most_elements: int
    quick: bool = field(default=False, init=False)

    def batch_key(self) -> object:
        """It stands alone."""
        return None

    def size(self) -> int:
        """Unknown before it is read."""
        return 1

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Read the file; anything but the exact pixels is refused."""
        (job,) = jobs
        codec, container = importlib.import_module(_ROOM), importlib.import_module(_CONTAINER)
        dtype, pictures, names = dtype_for(model.config.values), [], []
        file = io.BytesIO(self.data)
        try:
            contents = container.read_contents(file)
            if contents.elements > self.most_elements:
                raise RequestError(
                    413,
                    "too_large",
                    f"the file holds {contents.elements:,} values, and at most "
                    f"{self.most_elements:,} are restored here; use `axial decompress`",
                )
            coder = codec.Codec(model, name=job.model)
            coder.check(contents)
            if not job.start({"lines": 0, "batch": len(contents.entries)}):
                return
            total = sum(contents.tiles_of(entry) for entry in contents.entries)
            for entry, example in coder.read(file, contents, progress=_telling(job, total, pause)):
                pictures.append(np.asarray(example.x).astype(dtype))
                names.append(entry.name or f"{len(names)}.png")
        except _CancelledError:
            return
        except AxialError as error:
            raise bad_upload(f"the file {error}") from error
        job.pictures, job.names = pictures, names
        base, alike = f"/api/jobs/{job.id}", len({x.shape for x in pictures}) == 1
        job.finish(
            {
                "array": f"{base}/all.npy" if alike else None,
                "pictures": [
                    _about(name, x) | {"png": f"{base}/{i}.png", "npy": f"{base}/{i}.npy"}
                    for i, (name, x) in enumerate(zip(names, pictures, strict=True))
                ],
            }
        )


def _telling(job: Job, total: int, pause: Pause) -> Callable[[int], None]:
    """Tell how many tiles are done, and stop where nobody waits."""

    def progress(done: int) -> None:
        job.advance(done, total)
        if not pause():
            raise _CancelledError

    return progress


def _about(name: str, x: Array) -> dict[str, Any]:
    height = 1 if x.ndim == 2 else x.shape[-3]
    return {"name": name, "height": height, "width": x.shape[-2], "channels": x.shape[-1]}


def most_elements(pixels: int, channels: int) -> int:
    """How many values may come out of a file: those of the largest upload."""
    return math.prod((pixels, channels))
