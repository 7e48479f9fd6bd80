"""What one picture becomes: Pillow's 8-bit grey or colour, exactly, or an error that says why."""

import functools
import io
import re
import struct
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from axial.data.packed import Array
from axial.data.sources.archives import told
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import Record
from axial.errors import DataError

_LARGEST = 1 << 29
_ORIENTATION = 0x0112
_PARTS = {"TIFF": "pages", "DCX": "pages", "PSD": "layers"}
"""What the pictures in a file of several are called, where they are no frames."""


@functools.cache
def readable_formats() -> tuple[str, ...]:
    """What Pillow reads by itself; for EPS it would start Ghostscript, which runs programs."""
    Image.init()
    return tuple(name for name in Image.OPEN if name != "EPS")


@dataclass(frozen=True)
class Decoder:
    """Picture -> (k, h, w, c): one example, or all its patches."""

    options: ReadOptions
    only: bool = False
    """Whether the picture was given by itself, not in a folder or an archive."""
    most_pixels: int | None = None
    """Pixels that are decoded at most; default: Pillow's own limit."""

    def __call__(self, record: Record) -> Array:
        data = _read(record)
        stream = io.BytesIO(data)
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                with Image.open(stream, formats=readable_formats()) as image:
                    if self.most_pixels and image.width * image.height > self.most_pixels:
                        raise Image.DecompressionBombError
                    if image.format == "PNG":
                        _check_png(stream)
                    return self._examples(image, record)
            except DataError:
                raise
            except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
                raise DataError(
                    f"{record.where}: claims more than "
                    f"{self.most_pixels or Image.MAX_IMAGE_PIXELS:,} pixels, which no model takes; "
                    f"shrink it or remove it"
                ) from error
            except Exception as error:  # a damaged picture can raise anything at all
                if isinstance(error, UnidentifiedImageError) and not _begins_as_picture(data):
                    raise DataError(
                        f"{record.where}: is no picture that can be read; give another file"
                    ) from error
                reason = told(error).replace(repr(stream), "it")
                raise DataError(
                    f"{record.where}: damaged or cut short near byte {stream.tell()} of the "
                    f"picture ({reason}); fetch it again"
                ) from error

    def _examples(self, image: Image.Image, record: Record) -> Array:
        where, size = record.where, self.options.size
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise _several(image, record, only=self.only)
        if image.mode == "F":
            raise DataError(
                f"{where}: holds fractions, which no conversion keeps; round it to 8 bits first"
            )
        image = self._upright(image, where) if self.options.convert else _exact(image, where)
        if size and self.options.patches:
            return _patches(np.atleast_3d(np.asarray(image)), size, where)
        return np.atleast_3d(np.asarray(shrink(image, size, where) if size else image))[None]

    def _upright(self, image: Image.Image, where: str) -> Image.Image:
        """Convert anything to 8-bit colour or grey, transparent parts on white."""
        image = _turned(image)  # first: what follows forgets how the camera was held
        if image.mode.startswith("I"):
            values = np.asarray(image).astype(np.int64)
            if values.min() < 0 or values.max() > 65_535:
                raise DataError(
                    f"{where}: holds values from {values.min()} to {values.max()}, beyond 16 bits; "
                    f"round it to 8 bits first"
                )
            image = Image.fromarray((values >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = on_white(image)
        image = image.convert("RGB")
        return image.convert("L") if self.options.convert == "grey" else image


def _several(image: Image.Image, record: Record, *, only: bool) -> DataError:
    """What to say of a file of several pictures: Pillow calls pages, layers and frames animated.

    The reader of video takes a GIF in a folder, but then no picture beside it.
    """
    count, kind = getattr(image, "n_frames", "several"), _PARTS.get(image.format or "", "frames")
    film = ", or read it as clips by `axial data --frames`, in a folder without pictures"
    is_film = image.format == "GIF" and not only and not isinstance(record.data, bytes)
    return DataError(
        f"{record.where}: holds {count} {kind}, not one picture; save each as a file of its "
        f"own{film * is_film}"
    )


def on_white(image: Image.Image) -> Image.Image:
    """A picture with its transparent parts on white."""
    over = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")


def shrink(image: Image.Image, size: int, where: str) -> Image.Image:
    """The middle square of a picture, each new pixel the mean of the area it covers."""
    side = min(image.size)
    if side < size:
        raise DataError(
            f"{where}: is {image.width} x {image.height}, smaller than --size {size}, and "
            f"pictures are never enlarged: give one of at least {size} x {size}, or use --size "
            f"{side} at most, with a model of that size"
        )
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return image.crop(box)
    return image.resize((size, size), Image.Resampling.BOX, box=box)


def _read(record: Record) -> bytes:
    if isinstance(record.data, bytes):
        return record.data
    path = Path(record.data)
    try:
        size = path.stat().st_size
        if not path.is_file() or size > _LARGEST:
            raise DataError(
                f"{record.where}: is no regular file of up to {_LARGEST:,} bytes, as pictures are; "
                f"remove it"
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{record.where}: cannot be read ({error.strerror})") from error


def _check_png(stream: BinaryIO) -> None:
    """Compare the checksums of a PNG, some of which Pillow passes over."""
    place, kind = stream.tell(), b""
    stream.seek(8)
    while kind != b"IEND":
        length, kind = int.from_bytes(stream.read(4)), stream.read(4)
        if zlib.crc32(kind + stream.read(length)).to_bytes(4) != stream.read(4):
            raise ValueError(f"the checksum of a chunk of {length} bytes is wrong")
    stream.seek(place)


def _begins_as_picture(data: bytes) -> bool:
    """Whether the first bytes are those of a format that is read, or there are none at all."""
    for name in readable_formats():
        accept = Image.OPEN[name][1]
        with suppress(IndexError, TypeError, SyntaxError, struct.error):  # too short for it
            if accept is not None and accept(data[:16]) is True:
                return True
    return not data


def _exact(image: Image.Image, where: str) -> Image.Image:
    """Grey or RGB with 8 bits, of which nothing was lost; anything else is refused."""
    if image.mode.startswith("I") or _has_16_bits(image):
        raise DataError(
            f"{where}: has more than 8 bits a channel; --convert rgb or grey keeps the upper 8"
        )
    if (white := _white(image)) != 255:
        raise DataError(f"{where}: counts to {white}, not 255; --convert rgb or grey rescales it")
    image = _turned(image)
    if image.has_transparency_data:
        image = opaque(image, where)
    if image.mode not in ("1", "L", "RGB", "P"):
        raise DataError(f"{where}: is {image.mode}, not RGB or grey; use --convert rgb or grey")
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == mode else image.convert(mode)  # which would copy it


def opaque(image: Image.Image, where: str) -> Image.Image:
    """The picture without an alpha channel that hides nothing; one that does is refused."""
    alpha = image.convert("RGBA").getchannel("A")
    if alpha.getextrema()[0] != 255:
        raise DataError(
            f"{where}: has an alpha channel and is transparent in places; --convert rgb or grey "
            f"puts it on white"
        )
    return image.convert("L" if image.mode in ("LA", "L") else "RGB")


def _has_16_bits(image: Image.Image) -> bool:
    """Whether Pillow would drop the lower half of each sample, which it does without a word."""
    assert isinstance(image, ImageFile.ImageFile) and image.fp is not None  # it is not loaded yet
    if image.format in ("PNG", "TIFF", "SGI"):  # it says how samples lie in the file
        modes = [tile.args[0] if isinstance(tile.args, tuple) else tile.args for tile in image.tile]
        return any("16" in str(word) for word in (*modes, *(tile[0] for tile in image.tile)))
    if image.format not in ("JPEG2000", "AVIF"):
        return False
    image.fp.seek(0)
    head = image.fp.read(1 << 16)
    if found := re.search(rb"\xff\x4f\xff\x51.{36}(..)", head, re.DOTALL):
        depths = head[found.end() :: 3][: int.from_bytes(found[1])]
        return any((depth & 0x7F) + 1 > 8 for depth in depths)
    found = re.search(rb"av1C..(.)", head, re.DOTALL)
    return found is not None and bool(found[1][0] & 0x40)


def _white(image: Image.Image) -> int:
    """The value a PPM or PGM calls white, which Pillow makes 255 without a word."""
    tiles = getattr(image, "tile", []) if image.format == "PPM" else []
    scaled = [tile.args for tile in tiles if tile.codec_name.startswith("ppm")]
    return int(scaled[0][1]) if scaled and isinstance(scaled[0], tuple) else 255


def _turned(image: Image.Image) -> Image.Image:
    """The picture as a camera meant it to be looked at."""
    image.load()  # a TIFF turns itself then
    turned = image.getexif().get(_ORIENTATION, 1) != 1
    return ImageOps.exif_transpose(image) if turned else image


def _patches(x: Array, size: int, where: str) -> Array:
    height, width, channels = x.shape
    rows, columns = height // size, width // size
    if not rows * columns:
        raise DataError(f"{where}: is {width} x {height}, smaller than a patch of {size}")
    grid = x[: rows * size, : columns * size].reshape(rows, size, columns, size, channels)
    return np.ascontiguousarray(grid.swapaxes(1, 2)).reshape(-1, size, size, channels)
