"""What a path or a name is: found out by looking at it, not by trusting what it is called."""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from PIL import Image

from axial.data.sources import arrays, bair, cifar, hub, imagenet, pictures, video
from axial.data.sources.archives import DAMAGE, Entry, is_compressed, open_unpacked, tar_entries
from axial.data.sources.options import ReadOptions
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
                f"{what}: --{name.replace('_', '-')} means nothing to the reader of this "
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
    known = PurePosixPath(name).suffix.lower() in endings | video.SUFFIXES | set(bair.SUFFIXES)
    return known or pictures.is_picture_name(name)


def _folder(path: Path, options: ReadOptions) -> _Opener:
    """The reader for a folder: the first kind of file found, the most particular kind first."""
    if not any(path.iterdir()):
        raise DataError(f"{path}: the folder is empty; give one with data in it")
    if folder := cifar.batch_folder(path):
        return lambda _, options: cifar.open_cifar(folder, options)
    if imagenet.find_old(path):
        return imagenet.open_old
    if imagenet.find_new(path):
        return imagenet.open_new
    if arrays.find_idx(path):
        return arrays.open_idx
    if bair.find_records(path):
        return bair.open_bair
    if hub.is_local(path):
        return lambda path, options: hub.open_hub(str(path), options)
    kinds = {file.suffix.lower() for file in video.find_videos(path)}
    if not options.frames:
        kinds.discard(".gif")
    return video.open_video if kinds else pictures.open_folder


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
        return imagenet.open_new if imagenet.find_new(path) else _zip(path)
    if cifar.BATCH.fullmatch(path.name):
        return cifar.open_cifar
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return _pickle(path)
    if head.startswith(_ZSTANDARD):
        raise DataError(f"{path}: is packed by Zstandard; unpack it and give what comes out")
    if is_compressed(head):
        head = _unpacked_head(path)
    if arrays.is_idx(head):
        return arrays.open_idx
    if head[257:262] == b"ustar" or ".tar" in path.suffixes:
        return _tar(path)
    if path.suffix in bair.SUFFIXES or masked_crc32c(head[:8]) == int.from_bytes(
        head[8:12], "little"
    ):
        return bair.open_bair
    return _picture_or_video(path, options)


def _zip(path: Path) -> _Opener:
    if path.suffix == ".zip":
        raise DataError(
            f"{path}: is no zip of ImageNet batches (Imagenet32_train_npz.zip and its like); "
            f"unpack it and give the folder"
        )
    return arrays.open_array


def _pickle(path: Path) -> _Opener:
    if imagenet.find_new(path):
        return imagenet.open_new
    raise DataError(
        f"{path}: is a pickle, which can run code; only CIFAR-10 and ImageNet batches under their "
        f"official names are read, save anything else as .npy"
    )


def _tar(path: Path) -> _Opener:
    """CIFAR-10, old ImageNet under another name, or any pictures: by the first names inside."""
    first: list[str] = []

    def note(name: str) -> bool:
        first.append(name)
        return bool(cifar.BATCH.fullmatch(PurePosixPath(name).name)) or len(first) > 20

    if imagenet.OLD_NAME.fullmatch(path.name):
        return imagenet.open_old
    for entry in tar_entries(path, note):
        if isinstance(entry, Entry):
            break
        if not any(map(pictures.is_picture_name, first)):
            raise entry
    if any(cifar.BATCH.fullmatch(PurePosixPath(name).name) for name in first):
        return cifar.open_cifar
    if not any(map(pictures.is_picture_name, first)):
        raise DataError(f"{path}: holds neither CIFAR-10 batches nor pictures")
    return pictures.open_tar


def _unpacked_head(path: Path) -> bytes:
    try:
        with open_unpacked(path) as file:
            return file.read(512)
    except DAMAGE as error:
        raise DataError(f"{path}: damaged or cut short ({error}); fetch it again") from error


def _picture_or_video(path: Path, options: ReadOptions) -> _Opener:
    if path.suffix.lower() in video.SUFFIXES and (options.frames or not _is_still(path)):
        return video.open_video
    try:
        with Image.open(path, formats=pictures.readable_formats()):
            return pictures.open_picture
    except Exception as error:  # Pillow's plugins each fail in their own way
        if pictures.is_picture_name(path.name):
            return pictures.open_picture
        raise DataError(
            f"{path}: is nothing axial reads: an archive or batches of CIFAR-10 or ImageNet, BAIR "
            f"TFRecords, IDX, pictures, video, .npy or .npz"
        ) from error


def _is_still(path: Path) -> bool:
    """Whether it is a GIF of one picture."""
    try:
        with Image.open(path, formats=["GIF"]) as image:
            return getattr(image, "n_frames", 1) == 1
    except Exception:  # any other file, or a damaged one: the reader of video says what is wrong
        return False
