"""Pictures in any format Pillow reads: what each becomes, and which are refused."""

import functools
import io
import os
import re
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from axial.data.packed import Array
from axial.data.sources.archives import Entry, tar_entries
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import Record, Source, choose_split
from axial.errors import DataError

OPTIONS = frozenset({"size", "patches", "convert"})
SPLITS = ("train", "test", "valid", "val", "validation")
_ORIENTATION = 0x0112
_PARTS = {"TIFF": "pages", "DCX": "pages", "PSD": "layers"}
"""What the pictures in a file of several are called, where they are no frames."""
_GREY, _COLOUR = ("1", "L"), ("RGB", "P")


def open_folder(path: Path, options: ReadOptions) -> Source:
    """A folder of pictures, in subfolders or not; one named after a split is that split."""
    splits = split_folders(path)
    split = choose_split(options.split, splits, path) if splits else None
    folder = path / split if split else path
    files, ignored = files_below(folder, is_picture_name)
    if not files:
        raise DataError(f"{folder}: holds no pictures; give a folder with some in it")
    others = [files_below(path / other, is_picture_name)[0] for other in splits if other != split]
    names = _label_names(files, others)
    if splits:
        ignored += beside_splits(files_below(path, is_picture_name)[0], splits)
    return Source(
        name=path.resolve().name,
        reader="folder of pictures" + (", labels from subfolders" if names else ""),
        split=split,
        values=256,
        names=names or None,
        classes=len(names),
        count=None if options.patches else len(files),
        records=_file_records(folder, files, names),
        decode=decoder(options, only=len(files) == 1),
        takes=OPTIONS,
        notes=notes_on(ignored) + changes(options),
    )


def split_folders(path: Path) -> list[str]:
    """Names of the folders in a folder that are called as splits are."""
    return sorted(e.name for e in path.iterdir() if e.name in SPLITS and e.is_dir())


def beside_splits(names: Iterable[str], splits: Sequence[str]) -> int:
    """How many files, by their paths with / between the parts, lie in none of the splits."""
    return sum(name.split("/", 1)[0] not in splits for name in names)


def notes_on(ignored: int) -> list[str]:
    """What is said of files that were passed over."""
    return [f"{ignored} other files ignored"] if ignored else []


def open_picture(path: Path, options: ReadOptions) -> Source:
    """A single picture; of use with --patches."""
    return Source(
        name=path.stem,
        reader="picture",
        values=256,
        records=iter([Record(str(path), str(path))]),
        decode=decoder(options, only=True),
        takes=OPTIONS,
        notes=changes(options),
    )


def open_tar(path: Path, options: ReadOptions) -> Source:
    """A tar of pictures, read in the order of its entries; a folder named after a split is it."""
    found = _tops(path)
    splits = sorted(found.keys() & set(SPLITS))
    split = choose_split(options.split, splits, path) if splits else None
    inside = f"{split}/" if split else ""
    return Source(
        name=path.name.split(".")[0],
        reader="tar of pictures",
        split=split,
        values=256,
        records=tar_records(path, inside),
        decode=decoder(options),
        takes=OPTIONS,
        notes=notes_on(found.total() - sum(found[s] for s in splits) if splits else 0)
        + changes(options),
    )


def _tops(path: Path) -> Counter[str]:
    """How many pictures lie in each of the first folders of a tar, in none of them under ''."""
    found: Counter[str] = Counter()

    def count(name: str) -> bool:
        if is_picture_name(name):
            folder, slash, _ = _plain(name).partition("/")
            found[folder if slash else ""] += 1
        return False

    for _ in tar_entries(path, count):
        pass  # what is wrong with an entry is told when it is read
    return found


def _plain(name: str) -> str:
    """The name of an entry of a tar without the ./ it may begin with."""
    return str(PurePosixPath(name))


def changes(options: ReadOptions) -> list[str]:
    """What the options do to every picture, for the description."""
    notes = [f"converted to {options.convert}"] if options.convert else []
    if options.size:
        notes.append(f"{'patches of' if options.patches else 'shrunk to'} {options.size}")
    return notes


def tar_records(path: Path, inside: str = "") -> Iterator[Record | DataError]:
    """The pictures of a tar whose names begin with `inside`, in its order."""

    def wanted(name: str) -> bool:
        return is_picture_name(name) and _plain(name).startswith(inside)

    for entry in tar_entries(path, wanted):
        yield Record(entry.where, entry.data) if isinstance(entry, Entry) else entry


def is_picture_name(name: str) -> bool:
    """Whether a name ends as pictures do, and neither it nor a folder of it is hidden."""
    own = PurePosixPath(name)
    return own.suffix.lower() in _suffixes() and not is_hidden(own)


def is_hidden(path: PurePath) -> bool:
    """Whether any part of a relative path begins with a dot, as a system's own files do."""
    return any(part.startswith(".") and part != ".." for part in path.parts)


@functools.cache
def _suffixes() -> frozenset[str]:
    videos = {".mpg", ".mpeg"}  # Pillow names a stub for these that can read nothing
    return (
        frozenset(Image.registered_extensions()) - videos - {".pdf", ".h5", ".hdf", ".ps", ".eps"}
    )


@functools.cache
def readable_formats() -> tuple[str, ...]:
    """What Pillow reads by itself; for EPS it would start Ghostscript, which runs programs."""
    Image.init()
    return tuple(name for name in Image.OPEN if name != "EPS")


def files_below(folder: Path, wanted: Callable[[str], bool]) -> tuple[list[str], int]:
    """Paths below a folder, sorted, with / between their parts; and how many others there are.

    A link to nothing is listed, so that it is noticed; pipes and devices are not, for they hang,
    and a linked folder, which may lead round in circles, counts as one of the others.
    """
    found, ignored, below = [], 0, [""]
    while below:
        within = below.pop()
        with os.scandir(folder / within) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(f"{within}{entry.name}/")
                elif wanted(entry.name) and (entry.is_file() or _leads_nowhere(entry)):
                    found.append(within + entry.name)
                else:
                    ignored += 1
    return sorted(found), ignored


def _leads_nowhere(entry: "os.DirEntry[str]") -> bool:
    return entry.is_symlink() and not Path(entry).exists()


def _label_names(files: list[str], others: list[list[str]]) -> list[str]:
    """The first folders below the top, if every picture lies in one and there are several.

    Those of the other splits count too, so that a label has the same number in all of them.
    """
    if any("/" not in name for name in files):
        return []
    tops = [{n.split("/", 1)[0] for n in part if "/" in n} for part in (files, *others)]
    return sorted(set().union(*tops)) if any(len(top) > 1 for top in tops) else []


def _file_records(folder: Path, files: list[str], names: list[str]) -> Iterator[Record]:
    number = {name: i for i, name in enumerate(names)}
    for name in files:
        label = number[name.split("/", 1)[0]] if names else None
        yield Record(str(folder / name), f"{folder}/{name}", label)


def decoder(options: ReadOptions, *, only: bool = False) -> "Decoder":
    """What turns the bytes, or the path, of a picture, it may be the only one, into examples."""
    return Decoder(options.size, options.patches, options.convert, only=only)


class Decoder:
    """Picture -> (k, h, w, c): one example, or all its patches."""

    def __init__(
        self,
        size: int | None,
        patches: bool,
        convert: Literal["rgb", "grey"] | None,
        *,
        only: bool,
    ) -> None:
        self.size = size
        self.patches = patches
        self.convert = convert
        self.only = only

    def __call__(self, record: Record) -> Array:
        stream = _open(record)
        with stream, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                with Image.open(stream, formats=readable_formats()) as image:
                    alone = not isinstance(record.data, bytes)
                    return self._examples(image, record.where, alone=alone)
            except DataError:
                raise
            except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
                raise DataError(
                    f"{record.where}: claims more than {Image.MAX_IMAGE_PIXELS:,} pixels, which no "
                    f"model takes; shrink it or remove it"
                ) from error
            except Exception as error:  # a damaged picture can raise anything at all
                others = "" if self.only else ", or go on without it by --skip-bad"
                if isinstance(error, UnidentifiedImageError) and not _begins_as_picture(stream):
                    raise DataError(
                        f"{record.where}: is no picture that can be read; give another file{others}"
                    ) from error
                reason = " ".join(str(error).split()).replace(repr(stream), "it")
                raise DataError(
                    f"{record.where}: damaged or cut short near byte {stream.tell()} of the "
                    f"picture ({reason}); fetch it again{others}"
                ) from error

    def _examples(self, image: Image.Image, where: str, *, alone: bool) -> Array:
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise _several(image, where, alone=alone)
        if image.mode == "F":
            raise DataError(
                f"{where}: holds fractions, which no conversion keeps; round it to 8 bits first"
            )
        image = self._upright(image, where) if self.convert else _exact(image, where)
        if self.size and not self.patches:
            image = shrink(image, self.size, where)
        x = np.asarray(image)
        x = x[None, :, :, None] if x.ndim == 2 else x[None]
        return _patches(x[0], self.size, where) if self.patches and self.size else x

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
        return image.convert("RGB").convert("L") if self.convert == "grey" else image.convert("RGB")


def _several(image: Image.Image, where: str, *, alone: bool) -> DataError:
    """What to say of a file of several pictures; the reader of video takes a GIF that is `alone`.

    Pillow calls all of them animated: pages, layers and frames.
    """
    if image.format == "GIF" and alone:
        return DataError(f"{where}: is animated; cut it into clips by --frames")
    count, kind = getattr(image, "n_frames", "several"), _PARTS.get(image.format or "", "frames")
    film = ", or all as a video file (.gif, .mp4), which is read with --frames"
    return DataError(
        f"{where}: holds {count} {kind}, not one picture; save each "
        f"as a file of its own{film * (kind == 'frames')}"
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
            f"nothing is blown up: give a larger picture, or --size {side} at most where the "
            f"model allows it"
        )
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return image.crop(box)
    return image.resize((size, size), Image.Resampling.BOX, box=box)


def _open(record: Record) -> BinaryIO:
    if isinstance(record.data, bytes):
        return io.BytesIO(record.data)
    try:
        return Path(record.data).open("rb")
    except OSError as error:
        raise DataError(f"{record.where}: cannot be read ({error.strerror})") from error


def _begins_as_picture(stream: BinaryIO) -> bool:
    """Whether the first bytes are those of a format that is read, or there are none at all."""
    place = stream.tell()
    stream.seek(0)
    head = stream.read(16)
    stream.seek(place)
    for name in readable_formats():
        accept = Image.OPEN[name][1]
        with suppress(IndexError, TypeError, SyntaxError, struct.error):  # too short for it
            if accept is not None and accept(head) is True:
                return True
    return not head


def _exact(image: Image.Image, where: str) -> Image.Image:
    """Grey or RGB with 8 bits, of which nothing was lost; anything else is refused."""
    if image.mode.startswith("I") or _has_16_bits(image):
        raise DataError(
            f"{where}: has more than 8 bits a channel; --convert rgb or grey keeps the upper 8"
        )
    if (largest := _largest_allowed(image)) != 255:
        raise DataError(f"{where}: counts to {largest}, not 255; --convert rgb or grey rescales it")
    image = _turned(image)
    if image.has_transparency_data:
        image = opaque(image, where)
    if image.mode not in _GREY + _COLOUR:
        raise DataError(f"{where}: is {image.mode}, not RGB or grey; use --convert rgb or grey")
    return image.convert("L" if image.mode in _GREY else "RGB")


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
    if not isinstance(image, ImageFile.ImageFile):
        return False
    if image.format in ("JPEG2000", "AVIF"):
        return _is_deep(_head(image))
    if image.format not in ("PNG", "TIFF", "SGI"):
        return False
    return any(tile.codec_name == "SGI16" or "16" in _raw_mode(tile.args) for tile in image.tile)


def _is_deep(head: bytes) -> bool:
    """Whether the headers of a JPEG 2000 or AVIF tell of more than 8 bits a sample."""
    if found := re.search(rb"\xff\x4f\xff\x51.{36}(..)", head, re.DOTALL):
        depths = head[found.end() :: 3][: int.from_bytes(found[1])]
        return any((depth & 0x7F) + 1 > 8 for depth in depths)
    found = re.search(rb"av1C..(.)", head, re.DOTALL)
    return found is not None and bool(found[1][0] & 0x40)


def _head(image: ImageFile.ImageFile) -> bytes:
    """The first bytes of a picture's file, which is left where it was."""
    assert image.fp is not None  # it is open until the picture is loaded
    place = image.fp.tell()
    image.fp.seek(0)
    head = image.fp.read(1 << 16)
    image.fp.seek(place)
    return head


def _raw_mode(args: object) -> str:
    """How the samples lie in the file, from what Pillow tells its decoders."""
    return str(args[0] if isinstance(args, tuple) and args else args)


def _largest_allowed(image: Image.Image) -> int:
    """The value a PPM or PGM calls white, which Pillow makes 255 without a word."""
    if not isinstance(image, ImageFile.ImageFile) or image.format != "PPM":
        return 255
    for tile in image.tile:
        if tile.codec_name in ("ppm", "ppm_plain") and isinstance(tile.args, tuple):
            return int(tile.args[1])
    return 255


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
