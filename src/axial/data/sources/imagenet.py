"""Downsampled ImageNet in its two versions, which must never be mixed up.

The old one (van den Oord et al. 2016) is what the paper and nearly every published bits/dim
use. The new one (Chrabaszcz et al. 2017) is anti-aliased and scores about 0.26 bits/dim lower.
"""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from axial.data.packed import Array
from axial.data.sources.archives import DAMAGE, shown, told
from axial.data.sources.array_stream import npy_stream
from axial.data.sources.options import ReadOptions
from axial.data.sources.pickled import read_batch
from axial.data.sources.picture_decoder import Decoder
from axial.data.sources.pictures import OPTIONS, open_folder, tar_records
from axial.data.sources.record import Record, Source, choose_split, natural, planar, rows_per_chunk
from axial.data.sources.zips import open_zip
from axial.errors import DataError

OLD, NEW = "old (van den Oord)", "new (Chrabaszcz)"
OLD_NAME = re.compile(r"(train|valid)_(\d+)x\2(\.tar(\.(gz|bz2|xz))?)?")
NEW_NAME = re.compile(
    r"(?:train_data_batch_\d+|val_data|Imagenet\d+_(?:train|val))(?:_npz)?(?:\.npz|\.zip)?", re.I
)
_SMALL, _TIGHTEST = 1 << 26, 16
"""Bytes that a pickle may unpack to in any case, and how often those that it is packed in."""
_OFFICIAL = {
    (OLD, "train"): 1_281_149,
    (OLD, "valid"): 49_999,
    (NEW, "train"): 1_281_167,
    (NEW, "val"): 50_000,
}


def find_old(path: Path) -> list[Path]:
    """The tars or folders of the old version at a path, by their official names."""
    folder = path.is_dir() and not OLD_NAME.fullmatch(path.name)
    files = sorted(path.iterdir()) if folder else [path]
    return [f for f in files if OLD_NAME.fullmatch(f.name) and (f.is_file() or f.is_dir())]


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
    changed = options.size is not None and options.size != int(size)
    how = [f"{'patches of' if options.patches else 'shrunk to'} {options.size}"] if changed else []
    how += ["in grey"] if options.convert == "grey" else []
    official = f"ImageNet{options.size or size}"
    return Source(
        name=" ".join([f"ImageNet{size}", *how]),
        reader="ImageNet, old version, " + ("folder of PNGs" if part.is_dir() else "tar of PNGs"),
        version=OLD,
        split=split,
        values=256,
        count=None if changed and options.patches else _OFFICIAL[OLD, split],
        official=_OFFICIAL[OLD, split],
        records=records,
        decode=Decoder(options),
        notes=[f"{' '.join(how)}, so not the official {official}"] if how else [],
        takes=OPTIONS,
    )


class _Batch(NamedTuple):
    """A batch of the new version: a file, or a member of a zip."""

    path: Path
    member: str | None = None

    @property
    def name(self) -> str:
        return PurePosixPath(self.member or self.path).name

    @property
    def where(self) -> str:
        return f"{self.path}: {shown(self.member)}" if self.member else str(self.path)


def find_new(path: Path) -> list[Path]:
    """The batches of the new version at a path, or zips of them, by their official names."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if NEW_NAME.fullmatch(file.name) and file.is_file()]


def open_new(path: Path, options: ReadOptions) -> Source:
    """The new version: npz or pickled batches, in a folder, in a zip, or one alone."""
    batches = list(_batches(path))
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


def _batches(path: Path) -> Iterator[_Batch]:
    for file in find_new(path):
        if file.suffix != ".zip":
            yield _Batch(file)
            continue
        with open_zip(file, str(file)) as outer:
            members = outer.namelist()
        yield from (b for b in map(partial(_Batch, file), members) if NEW_NAME.fullmatch(b.name))


def _split_of(name: str) -> str:
    return "val" if "val" in name.lower() else "train"


def _records(batches: list[_Batch], source: Source) -> Iterator[Record | DataError]:
    for batch in batches:
        row = 0
        try:
            for rows, labels in _parts(batch):
                pictures, labels = _pictures(rows, labels, batch.where)
                source.name = f"ImageNet{pictures.shape[1]}"
                yield Record(f"{batch.where}: record {row}", pictures, labels)
                row += len(rows)
        except DataError as error:
            yield error
        except DAMAGE as error:
            yield DataError(
                f"{batch.where}: damaged or cut short in or after record {row} ({told(error)}); "
                f"fetch it again"
            )


def _parts(batch: _Batch) -> Iterator[tuple[Array, Array]]:
    """Rows and labels of a batch, a few at a time."""
    npz = batch.name.endswith(".npz")
    with ExitStack() as stack:
        file: Any = batch.path
        if batch.member:
            outer: Any = stack.enter_context(open_zip(batch.path, str(batch.path)))
            about = outer.getinfo(batch.member)
            if not npz and about.file_size > max(_SMALL, _TIGHTEST * about.compress_size):
                raise DataError(
                    f"{batch.where}: unpacks to {about.file_size:,} bytes from "
                    f"{about.compress_size:,}, as no pictures do; do not trust it"
                )
            file = stack.enter_context(outer.open(batch.member))
        elif not npz:
            file = stack.enter_context(batch.path.open("rb"))
        yield from (_npz_parts if npz else _pickled_parts)(file, batch.where)


def _npz_parts(file: Path | BinaryIO, where: str) -> Iterator[tuple[Array, Array]]:
    with open_zip(file, where) as inner:
        if not {"data.npy", "labels.npy"} <= set(inner.namelist()):
            raise DataError(f"{where}: has no `data` and `labels`; not an ImageNet batch")
        with inner.open("labels.npy") as first, inner.open("data.npy") as second:
            named, data = (
                npy_stream(first, f"{where}: labels"),
                npy_stream(second, f"{where}: data"),
            )
            if named.shape != data.shape[:1] or not data.shape or not math.prod(data.shape):
                raise DataError(
                    f"{where}: has labels of shape {named.shape} for data of shape {data.shape}; "
                    f"not an ImageNet batch"
                )
            labels = named.all()
            row = 0
            for rows in data.chunks():
                yield rows, labels[row : row + len(rows)]
                row += len(rows)


def _pickled_parts(file: BinaryIO, where: str) -> Iterator[tuple[Array, Array]]:
    """A pickle can only be read whole: a batch of 64 x 64 pictures takes 1.6 GB."""
    data, labels = read_batch(file, where)
    for start in range(0, len(data), step := rows_per_chunk(data.shape[1])):
        yield data[start : start + step], labels[start : start + step]


def _pictures(rows: Array, labels: Array, where: str) -> tuple[Array, Array]:
    """Official batches are planes in rows, labelled from 1; others (k, h, w, 3), from 0."""
    if rows.dtype != "uint8" or labels.dtype.kind not in "iu" or labels.shape != rows.shape[:1]:
        raise DataError(
            f"{where}: {rows.dtype} pictures of shape {rows.shape}, {labels.dtype} labels of shape "
            f"{labels.shape}; not a batch"
        )
    first = 1 if rows.ndim == 2 else 0
    if len(labels) and not first <= labels.min() <= labels.max() <= first + 999:
        raise DataError(
            f"{where}: has labels {labels.min()} to {labels.max()}, not {first} to {first + 999}; "
            f"not an ImageNet batch"
        )
    if rows.ndim == 2:
        size = math.isqrt(rows.shape[1] // 3)
        if not size or 3 * size * size != rows.shape[1]:
            raise DataError(f"{where}: rows of {rows.shape[1]} bytes are no square RGB pictures")
        return planar(rows, size), labels.astype("int64") - 1
    if rows.ndim != 4 or rows.shape[-1] != 3:
        raise DataError(f"{where}: holds {rows.shape}, not RGB pictures")
    return rows, labels
