"""CIFAR-10: the python and the binary batches, in a folder or the official archive."""

import io
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from axial.data.packed import Array
from axial.data.sources.archives import Entry, tar_entries
from axial.data.sources.options import ReadOptions
from axial.data.sources.pickled import read_batch
from axial.data.sources.record import Record, Source, choose_split, natural, planar, rows_per_chunk
from axial.errors import DataError

_BATCH = re.compile(r"(data_batch_\d+|test_batch)(\.bin)?")
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ROW = 3 * 32 * 32
_LARGEST = 1 << 28
_OFFICIAL = {"train": 50_000, "test": 10_000}


def open_cifar(path: Path, options: ReadOptions) -> Source:
    """CIFAR-10 from a folder of batches, one batch, or an archive of them."""
    path = batch_folder(path) or path
    kind = "folder" if path.is_dir() else "file" if is_batch(path.name) else "archive"
    splits = [_split_of(path.name)] if kind == "file" else ["train", "test"]
    split = choose_split(options.split, splits, path)
    binary = _is_binary(path)
    form = "binary" if binary else "python"
    return Source(
        name="CIFAR-10",
        reader=f"CIFAR-10, {form} batches, {kind}",
        split=split,
        values=256,
        names=_NAMES,
        classes=10,
        count=_OFFICIAL[split],
        official=_OFFICIAL[split],
        records=_records(path, split, binary=binary),
    )


def is_batch(name: str) -> bool:
    """Whether a file, or an entry of an archive, is named as the official batches are."""
    return _BATCH.fullmatch(PurePosixPath(name).name) is not None


def batch_folder(path: Path) -> Path | None:
    """The folder that holds the batches: this one, or the one the archive unpacks to."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if folder.is_dir() and any(is_batch(file.name) for file in folder.iterdir()):
            return folder
    return None


def _is_binary(path: Path) -> bool:
    if path.is_dir():
        return any(name.name.endswith(".bin") for name in path.iterdir())
    if is_batch(path.name):
        return path.suffix == ".bin"
    for entry in tar_entries(path, is_batch):
        if isinstance(entry, Entry):
            return entry.name.endswith(".bin")
    return False


def _split_of(name: str) -> str:
    return "test" if PurePosixPath(name).name.startswith("test") else "train"


def _records(path: Path, split: str, *, binary: bool) -> Iterator[Record | DataError]:
    for batch in _batches(path, split, binary=binary):
        if isinstance(batch, DataError):
            yield batch
            continue
        try:
            data, labels = (_read_binary if binary else _read_python)(batch)
        except DataError as error:
            yield error
            continue
        if len(odd := np.flatnonzero((labels < 0) | (labels > 9))):
            raise DataError(
                f"{batch.where}: record {odd[0]} has label {labels[odd[0]]}, not 0 to 9; not a "
                f"CIFAR-10 batch"
            )
        for start in range(0, len(data), step := rows_per_chunk(_ROW)):
            part = slice(start, start + step)
            yield Record(f"{batch.where}: record {start}", planar(data[part], 32), labels[part])
        if binary and len(batch.data) % (1 + _ROW):
            yield DataError(
                f"{batch.where}: cut short at byte {len(batch.data)}, inside record {len(data)}; "
                f"fetch it again"
            )


def _batches(path: Path, split: str, *, binary: bool) -> Iterator[Entry | DataError]:
    """The batches of a split in the order of their numbers, which is not an archive's."""

    def wanted(name: str) -> bool:
        mine = _split_of(name) == split and name.endswith(".bin") == binary
        return is_batch(name) and mine

    if path.is_dir():
        files = sorted((f for f in path.iterdir() if wanted(f.name)), key=lambda f: natural(f.name))
        yield from map(_read, files)
    elif is_batch(path.name):
        yield _read(path)
    else:
        whole: list[Entry] = []
        for entry in tar_entries(path, wanted):
            if isinstance(entry, DataError):
                yield entry
                continue
            whole.append(entry)
            if sum(len(one.data) for one in whole) > _LARGEST:
                raise DataError(
                    f"{path}: its batches take more than {_LARGEST:,} bytes, CIFAR-10's take "
                    f"155,000,000; fetch it again"
                )
        yield from sorted(whole, key=lambda entry: natural(entry.name))


def _read(file: Path) -> Entry | DataError:
    if not file.is_file():
        return DataError(
            f"{file}: is named like a batch but is no file (a folder, or a link to nothing); "
            f"fetch it again or remove it"
        )
    return Entry(file.name, str(file), file.read_bytes())


def _read_binary(batch: Entry) -> tuple[Array, Array]:
    whole = len(batch.data) // (1 + _ROW)
    rows = np.frombuffer(batch.data, np.uint8, whole * (1 + _ROW)).reshape(whole, 1 + _ROW)
    return rows[:, 1:], rows[:, 0]


def _read_python(batch: Entry) -> tuple[Array, Array]:
    data, labels = read_batch(io.BytesIO(batch.data), batch.where)
    if data.shape[1] != _ROW:
        raise DataError(f"{batch.where}: rows of {data.shape[1]} bytes; not a CIFAR-10 batch")
    return data, labels
