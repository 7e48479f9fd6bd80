"""Hugging Face data sets, by name or from a local folder: pictures, or arrays of integers."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from axial.data.packed import dtype_for
from axial.data.sources.archives import told
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder
from axial.data.sources.pictures import OPTIONS, changes
from axial.data.sources.record import Record, Source, choose_split
from axial.errors import DataError
from axial.shape import MOST_VALUES


def is_local(path: Path) -> bool:
    """Whether `save_to_disk` wrote a folder, or Parquet files lie in it."""
    marks = ("dataset_dict.json", "dataset_info.json", "state.json")
    return any((path / mark).is_file() for mark in marks) or any(path.rglob("*.parquet"))


def open_hub(where: str | Path, options: ReadOptions) -> Source:
    """A data set with a column of pictures, or of nested lists of integers."""
    what = str(where)
    found = _load(what)
    split: str | None = None
    if isinstance(found, dict):
        split = choose_split(options.split, list(found), what)
        found = found[split]
    column = _column(what, found, options)
    label, names = _labels(found)
    left_out = []
    if label and not names and "int" not in (held := _held(found, label)) and held != "bool":
        left_out = [f"labels left out: column {label!r} holds {held}, no integers"]
    pictures = _kind(found, column) == "Image"
    return Source(
        name=what.rstrip("/").split("/")[-1],
        reader=f"Hugging Face data set, column {column!r}",
        split=split,
        values=256 if pictures else options.values,
        names=names or None,
        classes=len(names),
        count=len(found),
        records=(
            _pictures(what, found, column, label)
            if pictures
            else _arrays(what, found, column, label, options.values)
        ),
        decode=Decoder(options) if pictures else None,
        takes=(OPTIONS if pictures else frozenset({"values"})) | {"key"},
        notes=[*(changes(options) if pictures else []), *left_out],
    )


def _load(what: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{what}: Hugging Face data sets need their library; pip install axial-transformers[hf]"
        ) from error
    datasets.disable_progress_bars()
    try:
        path = Path(what)
        if any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(what)
        if not path.exists():
            print(f"{what}: no such file or folder; asking Hugging Face ...", file=sys.stderr)
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # not each new attempt
        return datasets.load_dataset(what)
    except Exception as error:  # a library over a network can raise anything at all
        raise DataError(
            f"{what}: no such file or folder, nor a Hugging Face data set that can be read "
            f"({type(error).__name__}: {told(error)})"
        ) from error


def _kind(found: Any, column: str) -> str:
    return type(found.features[column]).__name__


def _held(found: Any, column: str) -> str:
    """What kind of numbers, or what else, a column holds."""
    return str(getattr(found.features[column], "dtype", _kind(found, column)))


def _column(what: str, found: Any, options: ReadOptions) -> str:
    if options.key:
        if options.key not in found.features:
            raise DataError(f"{what}: has no column {options.key!r}; {', '.join(found.features)}")
        return options.key
    for kinds in (("Image",), ("Array2D", "Array3D", "Array4D", "Array5D", "List", "Sequence")):
        if columns := [name for name in found.features if _kind(found, name) in kinds]:
            return columns[0]
    raise DataError(f"{what}: no column of pictures among {', '.join(found.features)}; use --key")


def _labels(found: Any) -> tuple[str | None, list[str]]:
    """The column of labels, one with names before others, and these names."""
    columns = [name for name in ("label", "labels", "fine_label") if name in found.features]
    for column in columns:
        if _kind(found, column) == "ClassLabel":
            return column, list(found.features[column].names)
    return (columns[0] if columns else None), []


def _label(row: dict[str, Any], column: str | None) -> int | None:
    found = row[column] if column else None
    return found if isinstance(found, int) else None


def _pictures(
    what: str, found: Any, column: str, label: str | None
) -> Iterator[Record | DataError]:
    import datasets

    raw = found.cast_column(column, datasets.Image(decode=False))
    for number, row in enumerate(raw):
        where, data = f"{what}: row {number}", row[column] or {}
        if picture := data.get("bytes") or data.get("path"):
            yield Record(where, picture, _label(row, label))
        else:
            yield DataError(f"{where}: {column!r} is empty; go on without it by --skip-bad")


def _arrays(
    what: str, found: Any, column: str, label: str | None, values: int | None
) -> Iterator[Record | DataError]:
    dtype = dtype_for(values or 256)
    for number, row in enumerate(found):
        where = f"{what}: row {number}"
        try:
            x = np.asarray(row[column])
        except ValueError:
            x = np.asarray(0.0)
        if x.dtype.kind not in "iu" or not x.size or x.min() < 0 or x.max() >= MOST_VALUES:
            yield DataError(f"{where}: {column!r} is no array of integers from 0; use --key")
            continue
        if x.max() > np.iinfo(dtype).max:
            yield DataError(
                f"{where}: {column!r} holds {x.max()}, beyond 255; tell how many values there are "
                f"by --values"
            )
            continue
        x = x if x.ndim >= 3 and x.shape[-1] <= 4 else x[..., None]
        yield Record(where, x[None].astype(dtype), _label(row, label))
