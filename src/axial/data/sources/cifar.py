"""CIFAR-10: the python and the binary batches, in a folder or the official archive."""

import io
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from axial.data.sources.archives import Entry, tar_entries
from axial.data.sources.options import ReadOptions
from axial.data.sources.pickled import read_batch
from axial.data.sources.record import (
    Record,
    Source,
    choose_split,
    natural,
    planar,
    rows_per_chunk,
)
from axial.errors import DataError

BATCH = re.compile(r"(data_batch_\d+|test_batch)(\.bin)?")
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ROW = 3 * 32 * 32
_LARGEST = 1 << 28
_OFFICIAL = {"train": 50_000, "test": 10_000}


def open_cifar(path: Path, options: ReadOptions) -> Source:
    """CIFAR-10 from a folder of batches, one batch, or an archive of them."""
    split = choose_split(options.split, ["train", "test"], path)
    if path.is_file() and BATCH.fullmatch(path.name):
        split = choose_split(options.split, [_split_of(path.name)], path)
    binary = _is_binary(path)
    form = "binary" if binary else "python"
    kind = "folder" if path.is_dir() else "file" if BATCH.fullmatch(path.name) else "archive"
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


def batch_folder(path: Path) -> Path | None:
    """The folder that holds the batches: this one, or the one the archive unpacks to."""
    for folder in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if folder.is_dir() and any(BATCH.fullmatch(name.name) for name in folder.iterdir()):
            return folder
    return None


def _is_binary(path: Path) -> bool:
    if path.is_dir():
        return any(name.name.endswith(".bin") for name in path.iterdir())
    if BATCH.fullmatch(path.name):
        return path.suffix == ".bin"
    for entry in tar_entries(path, lambda name: bool(BATCH.fullmatch(PurePosixPath(name).name))):
        if isinstance(entry, Entry):
            return entry.name.endswith(".bin")
    return False


def _split_of(name: str) -> str:
    return "test" if name.startswith("test") else "train"


def _records(path: Path, split: str, *, binary: bool) -> Iterator[Record | DataError]:
    for batch in _batches(path, split, binary=binary):
        if isinstance(batch, DataError):
            yield batch
        elif binary:
            yield from _binary_records(batch)
        else:
            yield from _python_records(batch)


def _batches(path: Path, split: str, *, binary: bool) -> Iterator[Entry | DataError]:
    """The batches of a split in the order of their numbers, which is not an archive's."""

    def wanted(name: str) -> bool:
        own = PurePosixPath(name).name
        match = BATCH.fullmatch(own)
        return bool(match) and _split_of(own) == split and own.endswith(".bin") == binary

    if path.is_dir():
        files = sorted((f for f in path.iterdir() if wanted(f.name)), key=lambda f: natural(f.name))
        yield from map(_read, files)
    elif BATCH.fullmatch(path.name):
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
    try:
        return Entry(file.name, str(file), file.read_bytes())
    except OSError as error:
        return DataError(f"{file}: cannot be read ({error.strerror}); check its permissions")


def _binary_records(batch: Entry) -> Iterator[Record | DataError]:
    whole = len(batch.data) // (1 + _ROW)
    rows = np.frombuffer(batch.data, np.uint8)[: whole * (1 + _ROW)].reshape(whole, 1 + _ROW)
    if len(rows) and rows[:, 0].max() > 9:
        odd = int(np.argmax(rows[:, 0] > 9))
        raise DataError(
            f"{batch.where}: record {odd} at byte {odd * (1 + _ROW)} has label {rows[odd, 0]}, "
            f"not 0 to 9; not a CIFAR-10 batch"
        )
    for start in range(0, whole, step := rows_per_chunk(_ROW)):
        part = rows[start : start + step]
        yield Record(f"{batch.where}: record {start}", planar(part[:, 1:], 32), part[:, 0])
    if len(batch.data) % (1 + _ROW):
        yield DataError(
            f"{batch.where}: cut short at byte {len(batch.data)}, inside record {whole}; "
            f"fetch it again"
        )


def _python_records(batch: Entry) -> Iterator[Record | DataError]:
    try:
        data, labels = read_batch(io.BytesIO(batch.data), batch.where)
    except DataError as error:
        yield error
        return
    if data.shape[1] != _ROW:
        raise DataError(f"{batch.where}: rows of {data.shape[1]} bytes; not a CIFAR-10 batch")
    if len(labels) and not 0 <= labels.min() <= labels.max() <= 9:
        raise DataError(
            f"{batch.where}: has labels {labels.min()} to {labels.max()}, not 0 to 9; not a "
            f"CIFAR-10 batch"
        )
    for start in range(0, len(data), step := rows_per_chunk(_ROW)):
        part = slice(start, start + step)
        yield Record(f"{batch.where}: record {start}", planar(data[part], 32), labels[part])
