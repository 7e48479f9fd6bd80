"""Downsampled ImageNet in its two versions, which must never be mixed up.

The old one (van den Oord et al. 2016) is what the paper and nearly every published bits/dim
use. The new one (Chrabaszcz et al. 2017) is anti-aliased and scores about 0.26 bits/dim lower.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from axial.data import Array
from axial.errors import DataError
from axial.sources.archives import DAMAGE, open_zip
from axial.sources.arrays import NpyStream
from axial.sources.options import ReadOptions
from axial.sources.pickled import read_batch
from axial.sources.pictures import OPTIONS, decoder, open_folder, tar_records
from axial.sources.record import (
    Record,
    Source,
    choose_split,
    natural,
    planar,
    rows_per_chunk,
)

OLD, NEW = "old (van den Oord)", "new (Chrabaszcz)"
OLD_NAME = re.compile(r"(train|valid)_(\d+)x\2(\.tar(\.gz)?)?")
NEW_NAME = re.compile(
    r"(?:train_data_batch_\d+|val_data|Imagenet\d+_(?:train|val))(?:_npz)?(?:\.npz|\.zip)?", re.I
)
_OFFICIAL = {
    (OLD, "train"): 1_281_149,
    (OLD, "valid"): 49_999,
    (NEW, "train"): 1_281_167,
    (NEW, "val"): 50_000,
}


def find_old(path: Path) -> list[Path]:
    """The tars or folders of the old version at a path, by their official names."""
    if OLD_NAME.fullmatch(path.name):
        return [path]
    return (
        [p for p in sorted(path.iterdir()) if OLD_NAME.fullmatch(p.name)] if path.is_dir() else []
    )


def open_old(path: Path, options: ReadOptions) -> Source:
    """The old version: `train_32x32.tar` and its like, or the folders they unpack to."""
    found = find_old(path)
    if options.size:
        found = [p for p in found if f"_{options.size}x" in p.name] or found
    parts = {cast(re.Match[str], OLD_NAME.fullmatch(p.name)).group(1, 2): p for p in found}
    if len({size for _, size in parts}) > 1:
        raise DataError(f"{path}: holds several sizes; choose one by --size")
    size = next(iter(parts))[1]
    split = choose_split(options.split, [name for name, _ in parts], path, [{"valid", "test"}])
    part = parts[split, size]
    records = open_folder(part, options).records if part.is_dir() else tar_records(part)
    return Source(
        name=f"ImageNet{options.size or size}",
        reader="ImageNet, old version, " + ("folder of PNGs" if part.is_dir() else "tar of PNGs"),
        version=OLD,
        split=split,
        values=256,
        count=_OFFICIAL[OLD, split],
        official=_OFFICIAL[OLD, split],
        records=records,
        decode=decoder(options),
        takes=OPTIONS,
    )


class _Batch(NamedTuple):
    """A batch of the new version, wherever it lies."""

    name: str
    where: str
    open: Callable[[ExitStack], BinaryIO]


def find_new(path: Path) -> bool:
    """Whether batches of the new version lie at a path, by their official names."""
    if path.is_dir():
        return any(NEW_NAME.fullmatch(p.name) for p in path.iterdir())
    return bool(NEW_NAME.fullmatch(path.name))


def open_new(path: Path, options: ReadOptions) -> Source:
    """The new version: npz or pickled batches, in a folder, in a zip, or one alone."""
    batches = [batch for file in _files(path) for batch in _batches(file)]
    found = sorted({_split_of(batch.name) for batch in batches}, key=["train", "val"].index)
    if not found:
        raise DataError(f"{path}: holds no batches named as the official ones are")
    split = choose_split(options.split, found, path, [{"val", "test"}])
    mine = sorted((b for b in batches if _split_of(b.name) == split), key=lambda b: natural(b.name))
    source = Source(
        name="ImageNet",  # its size is known with the first picture
        reader="ImageNet, new version, "
        + ("npz batches" if mine[0].name.endswith(".npz") else "pickled batches"),
        version=NEW,
        split=split,
        values=256,
        classes=1000,
        count=_OFFICIAL[NEW, split],
        official=_OFFICIAL[NEW, split],
        records=iter(()),
    )
    source.records = _records(mine, source)
    return source


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [p for p in sorted(path.iterdir()) if p.is_file() and NEW_NAME.fullmatch(p.name)]


def _batches(path: Path) -> Iterator[_Batch]:
    if path.suffix != ".zip":
        yield _Batch(path.name, str(path), lambda stack: stack.enter_context(path.open("rb")))
        return
    with open_zip(path, str(path)) as outer:
        inside = [n for n in outer.namelist() if NEW_NAME.fullmatch(PurePosixPath(n).name)]
    for name in inside:
        yield _Batch(PurePosixPath(name).name, f"{path}: {name}", _opener(path, name))


def _opener(path: Path, name: str) -> Callable[[ExitStack], BinaryIO]:
    def opened(stack: ExitStack) -> BinaryIO:
        outer = stack.enter_context(open_zip(path, str(path)))
        return cast(BinaryIO, stack.enter_context(outer.open(name)))

    return opened


def _split_of(name: str) -> str:
    return "val" if "val" in name.lower() else "train"


def _records(batches: list[_Batch], source: Source) -> Iterator[Record | DataError]:
    for batch in batches:
        row = 0
        try:
            with ExitStack() as stack:
                file = batch.open(stack)
                pickled = not batch.name.endswith(".npz")
                parts = _pickled_parts(file, batch) if pickled else _npz_parts(file, batch, stack)
                for rows, labels in parts:
                    pictures, labels = _pictures(rows, labels, batch.where)
                    source.name = f"ImageNet{pictures.shape[1]}"
                    yield Record(f"{batch.where}: record {row}", pictures, labels)
                    row += len(rows)
        except DataError as error:
            yield error
        except DAMAGE as error:
            yield DataError(
                f"{batch.where}: damaged or cut short in or after record {row} ({error}); "
                f"fetch it again"
            )


def _npz_parts(file: BinaryIO, batch: _Batch, stack: ExitStack) -> Iterator[tuple[Array, Array]]:
    path = Path(batch.where)
    inner = stack.enter_context(open_zip(path if path.is_file() else file, batch.where))
    if not {"data.npy", "labels.npy"} <= set(inner.namelist()):
        raise DataError(f"{batch.where}: has no `data` and `labels`; not an ImageNet batch")
    with inner.open("labels.npy") as stream:
        labels = NpyStream(cast(BinaryIO, stream), f"{batch.where}: labels").all()
    with inner.open("data.npy") as stream:
        row = 0
        for rows in NpyStream(cast(BinaryIO, stream), f"{batch.where}: data").chunks():
            yield rows, labels[row : row + len(rows)]
            row += len(rows)


def _pickled_parts(file: BinaryIO, batch: _Batch) -> Iterator[tuple[Array, Array]]:
    """A pickle can only be read whole: a batch of 64 x 64 pictures takes 1.6 GB."""
    data, labels = read_batch(file, batch.where)
    for start in range(0, len(data), step := rows_per_chunk(data.shape[1])):
        yield data[start : start + step], labels[start : start + step]


def _pictures(rows: Array, labels: Array, where: str) -> tuple[Array, Array]:
    """Official batches are planes in rows, labelled from 1; others (k, h, w, 3), from 0."""
    if rows.dtype != "uint8" or len(labels) != len(rows):
        raise DataError(f"{where}: {rows.dtype} pictures, {len(labels)} labels; not a batch")
    if rows.ndim == 2:
        size = math.isqrt(rows.shape[1] // 3)
        if 3 * size * size != rows.shape[1]:
            raise DataError(f"{where}: rows of {rows.shape[1]} bytes are no square RGB pictures")
        return planar(rows, size), labels - 1
    if rows.ndim != 4 or rows.shape[-1] != 3:
        raise DataError(f"{where}: holds {rows.shape}, not RGB pictures")
    return rows, labels
