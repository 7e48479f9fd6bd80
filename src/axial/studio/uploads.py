"""Uploads: bytes of strangers into examples of a model, limited before they are decoded."""

import io
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from axial.data.packed import Array
from axial.data.sources.array_stream import npy_stream
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder, shrink
from axial.data.sources.record import Record
from axial.errors import DataError
from axial.shape import DataShape
from axial.studio.config import Limits
from axial.studio.errors import RequestError, bad_upload
from axial.system.terminal import printable

_NPY = b"\x93NUMPY"
_one_at_a_time = threading.Lock()
"""A picture takes memory while it is decoded, and Python's warnings belong to all threads."""


class Upload(NamedTuple):
    """A file that was sent."""

    name: str
    data: bytes

    @property
    def is_array(self) -> bool:
        """Whether it is an .npy file."""
        return self.data.startswith(_NPY)


def plain_name(name: str | None, number: int = 0) -> str:
    """What an upload is called: the last part of its name, never a path."""
    last = PurePosixPath(printable(name or "").replace("\\", "/")).name
    return last[:100] if last.strip(". ") else f"picture-{number}.png"


class Reader:
    """Reads uploads for models of one shape."""

    def __init__(self, shape: DataShape, limits: Limits) -> None:
        self.shape, self.limits = shape, limits
        self.size = (1 if len(shape.axes) == 1 else shape.axes[-2], shape.axes[-1])
        """Height and width of a picture."""

    def example(self, uploads: Sequence[Upload]) -> tuple[Array, Array]:
        """One example (*axes, c), and which of its elements are there: frames may be missing."""
        whole = (*self.shape.axes, self.shape.channels)
        if len(uploads) == 1 and uploads[0].is_array:
            x = self._array(uploads[0])
            x = x[0] if x.shape[1:] == whole and len(x) == 1 else x
            if x.shape != whole:
                raise bad_upload(
                    f"{uploads[0].name}: has shape {x.shape}, but this model takes {whole}"
                )
            return x, np.ones(whole, bool)
        window = self.shape.window
        most = window or 1
        if not 1 <= len(uploads) <= most:
            raise bad_upload(f"{len(uploads)} pictures were sent: this model takes up to {most}")
        frames = [self.picture(upload) for upload in uploads]
        if window is None:
            return frames[0], np.ones(whole, bool)
        x, there = np.zeros((1, *whole), np.int64), np.zeros((1, *whole), bool)
        for t, frame in enumerate(frames):
            at = self.shape.frames_at(t, t + 1)
            x[at] = frame.reshape(x[at].shape)
            there[at] = True
        return x[0], there[0]

    def picture(self, upload: Upload) -> Array:
        """A picture (h, w, c) of the model's size, in its values."""
        channels = self.shape.frame_channels
        self._check_pictures(upload)
        height, width = self.size
        x = self._decoded(upload, ReadOptions(convert="rgb" if channels == 3 else "grey"))
        if x.shape[:2] != (height, width) and height == width <= min(x.shape[:2]):
            image = Image.fromarray(x if channels == 3 else x[..., 0])
            x = np.atleast_3d(np.asarray(shrink(image, width, upload.name)))
        if x.shape[:2] != (height, width):
            small = x.shape[0] < height or x.shape[1] < width
            raise bad_upload(
                f"{upload.name}: is {x.shape[1]} x {x.shape[0]}, but this model takes {width} x "
                f"{height}; {'give a larger picture' if small else 'crop it'}"
            )
        return self._in_values(x)

    def any_size(self, uploads: Sequence[Upload]) -> list[Array]:
        """Pictures as they are, of any size, or the one example of an array: for the codec."""
        if len(uploads) == 1 and uploads[0].is_array:
            return [self.example(uploads)[0]]
        for upload in uploads:
            self._check_pictures(upload)
        if self.shape.window is not None:
            return [self.example(uploads)[0]]
        if self.shape.values != 256:
            return [self.picture(upload) for upload in uploads]
        channels = self.shape.channels
        found = []
        for upload in uploads:
            x = self._decoded(upload, ReadOptions(convert="grey" if channels == 1 else None))
            found.append(x.astype(np.int64))
        return found

    def mask(self, upload: Upload) -> Array:
        """What is kept (*axes, c): white in a picture, anything but 0 in an array."""
        axes, channels = self.shape.axes, self.shape.channels
        if upload.is_array:
            x = self._array(upload) != 0
            if x.shape == axes:
                x = np.repeat(x[..., None], channels, -1)
            if x.shape != (*axes, channels):
                raise bad_upload(
                    f"{upload.name}: has shape {x.shape}, but a mask has {axes} or "
                    f"{(*axes, channels)}"
                )
            return x
        grey = self._decoded(upload, ReadOptions(convert="grey"))[..., 0]
        if grey.shape != self.size:
            raise bad_upload(
                f"{upload.name}: a mask has the model's size, {self.size[1]} x {self.size[0]}, not "
                f"{grey.shape[1]} x {grey.shape[0]}"
            )
        kept = np.broadcast_to((grey >= 128)[..., None], (*self.size, channels))
        return np.broadcast_to(kept.reshape((*axes[-2:], channels)), (*axes, channels)).copy()

    def _check_pictures(self, upload: Upload) -> None:
        if self.shape.frame_channels not in (1, 3) or upload.is_array:
            raise bad_upload(
                f"{upload.name}: this model takes one .npy file of integers "
                f"{(*self.shape.axes, self.shape.channels)}"
                if self.shape.frame_channels not in (1, 3)
                else f"{upload.name}: send one array, or pictures"
            )

    def _decoded(self, upload: Upload, how: ReadOptions) -> Array:
        """The pixels (h, w, c), by the reader of `axial data`."""
        decode = Decoder(how, only=True, most_pixels=self.limits.upload_pixels)
        try:
            with _one_at_a_time:
                return decode(Record(upload.name, upload.data))[0]
        except DataError as error:
            bombs = Image.DecompressionBombError | Image.DecompressionBombWarning
            if isinstance(error.__cause__, bombs):
                raise RequestError(413, "too_large", str(error)) from error
            raise bad_upload(error) from error

    def _in_values(self, x: Array) -> Array:
        """Shades as values of the model, as they are shown."""
        values = self.shape.values
        if values == 256:
            return x.astype(np.int64)
        return (x.astype(np.float64) * (values - 1) / 255).round().astype(np.int64)

    def _array(self, upload: Upload) -> Array:
        """The integers of an .npy file; nothing is unpickled."""
        file = io.BytesIO(upload.data)
        try:
            stream = npy_stream(file, upload.name)
            wanted = np.prod((*self.shape.axes, self.shape.channels))
            if stream.dtype.kind not in "iub" or np.prod(stream.shape, dtype=object) > wanted:
                raise DataError(
                    f"{upload.name}: has shape {stream.shape} of {stream.dtype}: give integers "
                    f"{(*self.shape.axes, self.shape.channels)}"
                )
            x = stream.all()
        except DataError as error:
            raise bad_upload(error) from error
        if x.size and not 0 <= int(x.min()) <= int(x.max()) < self.shape.values:
            raise bad_upload(
                f"{upload.name}: holds {x.min()} to {x.max()}, but this model takes 0 to "
                f"{self.shape.values - 1}"
            )
        return x.astype(np.int64)


def reader_for(shape: DataShape, limits: Limits) -> Reader:
    """A reader of uploads; labels are told beside them."""
    return Reader(replace(shape, classes=0), limits)
