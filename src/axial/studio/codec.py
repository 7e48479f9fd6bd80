"""The codec as the studio uses it: pictures with names into an .axl file, and back."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.data.packed import Array, dtype_for
from axial.errors import AxialError
from axial.models.protocol import Model
from axial.studio.errors import RequestError, bad_upload
from axial.studio.jobs import Job
from axial.studio.other_formats import sizes
from axial.studio.worker import Alone, Pause

_codecs: WeakKeyDictionary[Model, Codec] = WeakKeyDictionary()
"""A copy in float64 of each model that coded something."""


class _CancelledError(Exception):
    """Nobody waits for what is being coded."""


def _codec(model: Model, name: str) -> Codec:
    if model not in _codecs:
        _codecs[model] = Codec(model, name=name)
    return _codecs[model]


@dataclass(frozen=True, kw_only=True)
class CompressTask(Alone):
    """Some pictures, to become one file."""

    pictures: list[Array]
    """Each (*grid, c), of any size."""
    names: list[str]
    label: int | None
    quick: bool = field(default=False, init=False)

    def size(self) -> int:
        """Pictures."""
        return len(self.pictures)

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Write the file, and compare its size with those of other formats."""
        (job,) = jobs
        if not job.start({"lines": 0, "batch": len(self.pictures)}):
            return
        codec = _codec(model, job.model)
        contents = codec.contents(classes=model.config.classes)
        entries = []
        for name, x in zip(self.names, self.pictures, strict=True):
            plain = x.ndim == 3 and x.shape[-1] in (1, 3) and model.config.values == 256
            entry = Entry(
                name=name if plain else f"{Path(name).stem}.npy",
                grid=x.shape[:-1],
                one_plane=x.shape[-1] < model.config.channels,
                array=not plain,
                alone=not plain,
            )
            entries.append((entry, [Example(x, self.label)]))
        file, total = io.BytesIO(), sum(contents.tiles_of(entry) for entry, _ in entries)
        try:
            with _interruptible(codec.model, pause):
                codec.write(file, contents, entries, progress=_telling(job, total, pause))
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
class DecompressTask(Alone):
    """A file, to become its pictures."""

    data: bytes
    most_elements: int
    quick: bool = field(default=False, init=False)

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Read the file; anything but the exact pixels is refused."""
        (job,) = jobs
        dtype = dtype_for(model.config.values)
        pictures: list[Array] = []
        names: list[str] = []
        file = io.BytesIO(self.data)
        try:
            contents = read_contents(file)
            if contents.elements > self.most_elements:
                raise RequestError(
                    413,
                    "too_large",
                    f"the file holds {contents.elements:,} values, and at most "
                    f"{self.most_elements:,} are restored here; use `axial decompress`",
                )
            codec = _codec(model, job.model)
            codec.check(contents)
            if not job.start({"lines": 0, "batch": len(contents.entries)}):
                return
            total = sum(contents.tiles_of(entry) for entry in contents.entries)
            with _interruptible(codec.model, pause):
                telling = _telling(job, total, pause)
                for entry, example in codec.read(file, contents, progress=telling):
                    pictures.append(example.x.astype(dtype))
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


@contextmanager
def _interruptible(model: Model, pause: Pause) -> Iterator[None]:
    """Stop between two passes of a model where nobody waits; it codes many tiles at once.

    So do copies that are made of it meanwhile.
    """

    def stop(*_: Any) -> None:
        if not pause():
            raise _CancelledError

    with ExitStack() as hooks:
        layer = getattr(model, "positions", None)  # called once in every pass, or plane
        if isinstance(layer, nn.Module):
            hooks.callback(layer.register_forward_pre_hook(stop).remove)
        yield


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
