"""What a path or a name is: found out by looking at it, not by trusting what it is called."""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from PIL import Image

from axial.data.sources import arrays, bair, cifar, hub, imagenet, pictures, video
from axial.data.sources.archives import (
    DAMAGE,
    Entry,
    damaged,
    is_compressed,
    open_unpacked,
    tar_entries,
)
from axial.data.sources.array_stream import is_idx
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import readable_formats
from axial.data.sources.record import Source
from axial.errors import DataError
from axial.system.crc32c import masked_crc32c

_HUB_NAME = re.compile(r"(hf:)?[A-Za-z0-9_-][\w.-]*(/[A-Za-z0-9_-][\w.-]*)?")
_DIGITS = "digits"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_Opener = Callable[[Path, ReadOptions], Source]


def open_source(what: str | Path, options: ReadOptions | None = None) -> Source:
    """Find out what a path, or a name, is, and open it."""
    options = options or ReadOptions()
    source = _open(what, options)
    for name in options.given:
        if name not in source.takes | {"split", "skip_bad"}:
            raise DataError(
                f"{what}: --{name.replace('_', '-')} does not apply to this source "
                f"({source.reader}); leave it out"
            )
    if options.split is not None and source.split is None:
        raise DataError(
            f"{what}: has no split {options.split!r}, for it is not divided into parts; leave "
            f"--split out, or give the folder or file of that part"
        )
    return source


def is_path(what: str | Path) -> bool:
    """Whether a source is a file or folder that is there; the word digits is none, ./digits is."""
    return what != _DIGITS and Path(what).exists()


def is_video(what: str | Path, *, clips: bool) -> bool:
    """Whether a source has to be told its frames.

    GIFs in a folder, or one that stands still, have to only where `clips` are meant.
    """
    options = ReadOptions(frames=1 if clips else None)
    try:
        return is_path(what) and _reader(Path(what), options) is video.open_video
    except (OSError, DataError):  # what is wrong comes out on opening it
        return False


def _reader(path: Path, options: ReadOptions) -> _Opener:
    return _folder(path, options) if path.is_dir() else _file(path, options)


def _open(what: str | Path, options: ReadOptions) -> Source:
    path = Path(what)
    try:
        if is_path(what):
            return _reader(path, options)(path, options)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if what == _DIGITS:
        return arrays.open_digits(options)
    if isinstance(what, str) and _HUB_NAME.fullmatch(what) and not _looks_like_a_file(what):
        return hub.open_hub(what.removeprefix("hf:"), options)
    raise DataError(f"{what}: no such file or folder; check the path")


def _looks_like_a_file(name: str) -> bool:
    endings = {".npy", ".npz", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zip", ".bin", ".json"}
    known = PurePosixPath(name).suffix.lower() in endings | set(bair.SUFFIXES)
    return known or video.is_video_name(name) or pictures.is_picture_name(name)


def _folder(path: Path, options: ReadOptions) -> _Opener:
    """The reader for a folder: the first kind of file found, the most particular kind first."""
    if not any(path.iterdir()):
        raise DataError(f"{path}: the folder is empty; give one with data in it")
    kinds: dict[_Opener, Callable[[Path], object]] = {
        cifar.open_cifar: cifar.batch_folder,
        imagenet.open_old: imagenet.find_old,
        imagenet.open_new: imagenet.find_new,
        arrays.open_idx: arrays.find_idx,
        bair.open_bair: bair.find_records,
        hub.open_hub: hub.is_local,
    }
    for opener, found in kinds.items():
        if found(path):
            return opener
    videos = pictures.files_below(path, video.is_video_name)[0]
    moving = [name for name in videos if options.frames or not name.lower().endswith(".gif")]
    return video.open_video if moving else pictures.open_folder


def _file(path: Path, options: ReadOptions) -> _Opener:
    """The reader for a file, by its first bytes where they tell, else by its official name."""
    if not path.is_file():
        raise DataError(f"{path}: is a pipe or a device; write what comes out of it to a file")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise DataError(f"{path}: is empty; fetch it again")
    if head.startswith(b"\x93NUMPY"):
        return arrays.open_array
    if head.startswith(b"PK\x03\x04"):
        if imagenet.find_new(path):
            return imagenet.open_new
        if path.suffix != ".zip":
            return arrays.open_array
        raise DataError(
            f"{path}: is no zip of ImageNet batches (Imagenet32_train_npz.zip and its like); "
            f"unpack it and give the folder"
        )
    if cifar.is_batch(path.name):
        return cifar.open_cifar
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        if imagenet.find_new(path):
            return imagenet.open_new
        raise DataError(
            f"{path}: is a pickle, which can run code; only CIFAR-10 and ImageNet batches under "
            f"their official names are read, save anything else as .npy"
        )
    if head.startswith(_ZSTANDARD):
        raise DataError(f"{path}: is packed by Zstandard; unpack it and give what comes out")
    if is_compressed(head):
        try:
            with open_unpacked(path) as unpacked:
                head = unpacked.read(512)
        except DAMAGE as error:
            raise damaged(path, error) from error
    if is_idx(head):
        return arrays.open_idx
    if head[257:262] == b"ustar" or ".tar" in path.suffixes:
        return _tar(path)
    if path.suffix in bair.SUFFIXES or masked_crc32c(head[:8]) == int.from_bytes(
        head[8:12], "little"
    ):
        return bair.open_bair
    return _picture_or_video(path, options)


def _tar(path: Path) -> _Opener:
    """CIFAR-10, old ImageNet under another name, or any pictures: by the first names inside."""
    if imagenet.OLD_NAME.fullmatch(path.name):
        return imagenet.open_old
    first: list[str] = []

    def note(name: str) -> bool:
        first.append(name)
        return cifar.is_batch(name) or len(first) > 20

    error = None
    for entry in tar_entries(path, note):
        if isinstance(entry, Entry):
            break
        error = error or entry
    if any(map(cifar.is_batch, first)):
        return cifar.open_cifar
    if any(map(pictures.is_picture_name, first)):
        return pictures.open_tar
    raise error or DataError(f"{path}: holds neither CIFAR-10 batches nor pictures")


def _picture_or_video(path: Path, options: ReadOptions) -> _Opener:
    """By its name; a GIF that stands still is a picture, unless frames are meant."""
    moving = video.is_video_name(path.name)
    try:
        with Image.open(path, formats=["GIF"] if moving else readable_formats()) as image:
            moving &= bool(options.frames) or getattr(image, "n_frames", 1) > 1
    except Exception as error:  # Pillow's plugins each fail in their own way
        if not moving and not pictures.is_picture_name(path.name):
            raise DataError(
                f"{path}: is not a format axial reads: an archive or batches of CIFAR-10 or "
                f"ImageNet, BAIR TFRecords, IDX, pictures, video, .npy or .npz"
            ) from error
    return video.open_video if moving else pictures.open_picture
