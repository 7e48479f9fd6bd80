"""Hugging Face data sets: pictures, or arrays of integers, in the tables of a folder or by name.

Their library would follow what a README or a table says to any file, and unpickle what lies in
tars. So the tables of a folder are read here, and of a name only what the library keeps as tables.
"""

import json
import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from axial.data.packed import dtype_for
from axial.data.sources.archives import DAMAGE, damaged, told
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder
from axial.data.sources.pictures import OPTIONS, changes, files_below
from axial.data.sources.record import Record, Source, choose_split, natural, rows_per_chunk
from axial.errors import DataError
from axial.shape import MOST_VALUES
from axial.system.terminal import printable

_ROWS = 64
_LARGEST_JSON = 1 << 24
_SMALL, _TIGHTEST = 1 << 28, 64
"""Bytes that a group of rows may unpack to in any case, and how often those it is packed in."""
_BUILDERS = {"parquet", "arrow", "imagefolder"}
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_CALLED = {word: split for split, words in _SPLITS.items() for word in words}
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(sorted(_CALLED, key=len, reverse=True))})(?![a-z])")
"""What the library, too, takes for the name of a split in that of a file."""


class _Table(NamedTuple):
    """One split: its columns, and its rows in batches."""

    schema: Any
    batches: Callable[[list[str]], Iterator[Any]]
    """The record batches of some columns."""
    root: Path
    """The folder that pictures named by their paths must lie in."""

    def about(self, column: str) -> dict[str, Any]:
        """What the library says of a column."""
        said = json.loads((self.schema.metadata or {}).get(b"huggingface", b"{}"))
        found = said.get("info", {}).get("features", {}).get(column)
        return found if isinstance(found, dict) else {}

    def has_pictures(self, column: str) -> bool:
        kind = self.schema.field(column).type
        parts = {kind.field(i).name for i in range(kind.num_fields)}
        return parts == {"bytes", "path"} and self.about(column).get("_type") in ("Image", None)


_Parts = dict[str | None, Callable[[], _Table]]
"""What opens each split, by its name; None for a data set that has no splits."""


def is_local(path: Path) -> bool:
    """Whether `save_to_disk` wrote a folder, or tables lie in it."""
    saved = any((path / mark).is_file() for mark in ("dataset_dict.json", "state.json"))
    return saved or bool(files_below(path, _is_table)[0])


def open_hub(where: str | Path, options: ReadOptions) -> Source:
    """A data set with a column of pictures, or of nested lists of integers."""
    what = str(where)
    parts, notes = _local(where) if isinstance(where, Path) else (_remote(where), [])
    if not parts:
        raise DataError(f"{what}: lists no splits; write it again")
    split = None if None in parts else choose_split(options.split, list(map(str, parts)), what)
    try:
        table = parts[split]()
        column = _column(what, table, options)
        label, names = _labels(what, table)
        pictures = table.has_pictures(column)
    except (*DAMAGE, AttributeError) as error:
        raise damaged(what, error) from error
    kind, left_out = str(table.schema.field(label).type) if label else "", []
    if label and not names and "int" not in kind and kind != "bool":
        left_out = [f"labels left out: column {label!r} holds {kind}, no integers"]
    return Source(
        name=what.rstrip("/").split("/")[-1],
        reader=f"Hugging Face data set, column {column!r}",
        split=split,
        values=256 if pictures else options.values,
        names=names or None,
        classes=len(names),
        records=_records(what, table, column, label, None if pictures else options),
        decode=Decoder(options) if pictures else None,
        takes=(OPTIONS if pictures else frozenset({"values"})) | {"key"},
        notes=[*(changes(options) if pictures else []), *left_out, *notes],
    )


def _is_table(name: str) -> bool:
    return name.endswith((".parquet", ".arrow"))


def _local(folder: Path) -> tuple[_Parts, list[str]]:
    """The splits of a folder, and what to know of them; None for one that has none."""
    found: dict[str | None, list[Path]] = {}
    notes: list[str] = []
    if (folder / "dataset_dict.json").is_file():
        names = map(str, _json(folder / "dataset_dict.json", "splits"))
        found = {name: _saved(folder, name) for name in names}
    elif (folder / "state.json").is_file():
        found = {None: _saved(folder, ".")}
    elif listed := _listed(folder):
        found |= listed
    else:
        for name in sorted(files_below(folder, _is_table)[0], key=natural):
            words = _SPLIT.findall(name.lower())
            found.setdefault(_CALLED[words[-1]] if words else "", []).append(folder / name)
        if others := found.pop("", []):
            said = "left out" if found else "taken together as train"
            tables = (
                "1 table whose name tells"
                if len(others) == 1
                else f"{len(others)} tables whose names tell"
            )
            notes += [f"{tables} no split {said}"]
            found = found or {"train": others}
    return {split: partial(_open_files, folder, files) for split, files in found.items()}, notes


def _listed(folder: Path) -> dict[str | None, list[Path]]:
    """The files of each split as the head of a README lists them; nothing if none does."""
    card = folder / "README.md"
    if not card.is_file():
        return {}
    with card.open("rb") as file:
        text = file.read(_LARGEST_JSON).decode("utf-8", "replace")
    head = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    if head is None or "data_files" not in head[1]:
        return {}
    try:
        import yaml

        configs = yaml.safe_load(head[1])["configs"]
        if len(configs) > 1:
            raise DataError(f"{card}: lists {len(configs)} data sets; give a folder of one")
        entries = configs[0]["data_files"]
        if isinstance(entries, str):
            entries = [{"split": "train", "path": entries}]
        return {str(entry["split"]): _matching(folder, entry["path"]) for entry in entries}
    except (ImportError, KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise damaged(card, error) from error
    except yaml.YAMLError as error:
        raise damaged(card, error) from error


def _matching(folder: Path, patterns: Any) -> list[Path]:
    """The tables of a folder that a pattern, or several, name."""
    found: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        whole = os.path.normpath(folder.absolute() / pattern)
        if not Path(whole).is_relative_to(folder.absolute()):
            raise DataError(
                f"{folder}: names {pattern!r}, which is not inside of it; do not trust it"
            )
        found += [path for path in sorted(folder.glob(pattern)) if _is_table(path.name)]
    if not found:
        raise DataError(f"{folder}: names {patterns!r}, and holds no such table; fetch it again")
    return [_inside(folder, str(path.relative_to(folder)), folder) for path in found]


def _saved(folder: Path, part: str) -> list[Path]:
    """The files that a folder written by `save_to_disk` lists."""
    found = []
    for entry in _json(_inside(folder, f"{part}/state.json", folder), "_data_files"):
        name = entry.get("filename") if isinstance(entry, dict) else entry
        found.append(_inside(folder, f"{part}/{name}", folder))
    return found


def _json(path: Path, key: str) -> list[Any]:
    """A list in a file of JSON."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_JSON))[key]
        if isinstance(found, list):
            return found
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise damaged(path, error) from error
    raise DataError(f"{path}: its {key!r} is no list; write it again")


def _inside(root: Path, name: str, where: Path | str) -> Path:
    """The file of that name in a folder; one that leads out of it, or is none, is refused."""
    path = Path(os.path.normpath(root.absolute() / name))
    if not path.is_relative_to(root.absolute()):
        raise DataError(f"{where}: names {name!r}, which is not inside of it; do not trust it")
    if not path.is_file():
        raise DataError(f"{where}: names {name!r}, which is no file in it; fetch it again")
    return path


def _open_files(root: Path, files: list[Path]) -> _Table:
    """The Arrow or Parquet files of one split; the first says what its columns are."""
    _libraries(str(root))
    if not files:
        raise DataError(f"{root}: lists no files; write it again")

    def batches(columns: list[str]) -> Iterator[Any]:
        return chain.from_iterable(_open_file(file)[1](columns) for file in files)

    return _Table(_open_file(files[0])[0], batches, root)


def _open_file(path: Path) -> tuple[Any, Callable[[list[str]], Iterator[Any]]]:
    """The schema of a file, and what gives the batches of some columns."""
    import pyarrow
    import pyarrow.parquet

    if path.suffix == ".parquet":
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        rows = _rows_at_once(path, file.metadata)
        return file.schema_arrow, lambda columns: file.iter_batches(rows, columns=columns)
    mapped = pyarrow.memory_map(str(path))
    for message in pyarrow.ipc.MessageReader.open_stream(mapped):
        if message.type == "dictionary" or _is_packed(message):
            raise ValueError("packed batches, or dictionaries, which the library does not write")
    mapped.seek(0)
    reader = pyarrow.ipc.open_stream(mapped)
    return reader.schema, lambda columns: (batch.select(columns) for batch in reader)


def _rows_at_once(path: Path, metadata: Any) -> int:
    """How many rows of a Parquet file to unpack together, if it is not packed too tightly."""
    most = 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(i) for i in range(group.num_columns)]
        packed = sum(column.total_compressed_size for column in columns)
        size = sum(column.total_uncompressed_size for column in columns)
        if size > max(_SMALL, _TIGHTEST * packed):
            raise DataError(
                f"{path}: unpacks to {size:,} bytes from {packed:,}, as no pictures do; do not "
                f"trust it"
            )
        most = max(most, size // max(1, group.num_rows))
    return min(_ROWS, rows_per_chunk(most))


def _is_packed(message: Any) -> bool:
    """Whether a message of the Arrow format, a FlatBuffer, says how its batch is compressed."""
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """Where a field of a table stands; 0 where it has none."""
        (back,) = struct.unpack_from("<i", data, table)
        length, *offsets = struct.unpack_from(f"<H2x{number + 1}H", data, table - back)
        return table + offsets[number] if length > 4 + 2 * number and offsets[number] else 0

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", data, place)[0])

    header = field(follow(0), 2)
    return message.type == "record batch" and bool(header and field(follow(header), 3))


def _libraries(what: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{what}: Hugging Face data sets need their library; pip install axial-transformers[hf]"
        ) from error
    return datasets


def _remote(what: str) -> _Parts:
    """The splits of a data set by name, fetched by the library if it keeps tables or pictures."""
    datasets = _libraries(what)
    import huggingface_hub

    datasets.disable_progress_bars()
    print(printable(f"{what}: no such file or folder; asking Hugging Face ..."), file=sys.stderr)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # not each new attempt
    try:
        with _not_waiting(datasets, huggingface_hub):
            builder = datasets.load_dataset_builder(what)
        files = [str(file) for part in (builder.config.data_files or {}).values() for file in part]
        kind = type(builder).__module__.rsplit(".", 1)[-1]
        if kind not in _BUILDERS or not all(file.startswith("hf://") for file in files):
            raise DataError(
                f"{what}: is kept as {kind} in {files[:1]}, which is not read; of data sets by "
                f"name only {', '.join(sorted(_BUILDERS))} on Hugging Face are"
            )
        builder.download_and_prepare()
        found = builder.as_dataset()
    except DataError:
        raise
    except Exception as error:  # a library over a network can raise anything at all
        raise DataError(
            f"{what}: no such file or folder, nor a Hugging Face data set that can be read "
            f"({type(error).__name__}: {told(error)})"
        ) from error
    own, pictures = datasets.config.HF_CACHE_HOME, huggingface_hub.constants.HF_HUB_CACHE
    root = Path(pictures if type(builder).__name__ == "ImageFolder" else own)
    return {split: partial(_fetched, part, root) for split, part in found.items()}


@contextmanager
def _not_waiting(datasets: Any, hub: Any) -> Iterator[None]:
    """Where the Hub has no address, look into its caches alone: asking takes half a minute."""
    from urllib.request import getproxies

    settings = datasets.config, hub.constants
    before = [each.HF_HUB_OFFLINE for each in settings]
    try:
        if not getproxies():  # one of them may know the address
            socket.getaddrinfo(urlsplit(hub.constants.ENDPOINT).hostname, None)
    except OSError:
        for each in settings:
            each.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for each, own in zip(settings, before, strict=True):
            each.HF_HUB_OFFLINE = own


def _fetched(part: Any, root: Path) -> _Table:
    def batches(columns: list[str]) -> Iterator[Any]:
        tables = part.select_columns(columns).with_format("arrow").iter(_ROWS)
        return (batch for table in tables for batch in table.to_batches())

    return _Table(part.features.arrow_schema, batches, root)


def _column(what: str, table: _Table, options: ReadOptions) -> str:
    names = table.schema.names
    if options.key:
        if options.key not in names:
            raise DataError(f"{what}: has no column {options.key!r}; {', '.join(names)}")
        return options.key
    nested = ("list", "large_list", "fixed_size_list", "extension")
    lists = [n for n in names if str(table.schema.field(n).type).startswith(nested)]
    for name in [*(n for n in names if table.has_pictures(n)), *lists]:
        return name
    raise DataError(f"{what}: no column of pictures among {', '.join(names)}; use --key")


def _labels(what: str, table: _Table) -> tuple[str | None, list[str]]:
    """The column of labels, one with names before others, and these names."""
    columns = [n for n in ("label", "labels", "fine_label") if n in table.schema.names]
    for column in columns:
        if (about := table.about(column)).get("_type") == "ClassLabel":
            names = about.get("names")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f"{what}: the names of {column!r} are no text; write it again")
            return column, names
    return (columns[0] if columns else None), []


def _records(
    what: str, table: _Table, column: str, label: str | None, options: ReadOptions | None
) -> Iterator[Record | DataError]:
    """Pictures, or with `options` arrays; a damaged file ends them."""
    number = 0
    try:
        for row in _rows(table.batches([column, label] if label else [column])):
            found = row[label] if label else None
            found = found if isinstance(found, int) else None
            where = f"{what}: row {number}"
            try:
                if options is None:
                    yield Record(where, _picture(table, row[column], where), found)
                else:
                    yield Record(where, _array(row[column], where, options.values), found)
            except DataError as error:
                yield error
            number += 1
    except (*DAMAGE, KeyError, TypeError) as error:
        yield damaged(f"{what}: row {number}", error)


def _rows(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        batch.validate(full=True)
        step = min(_ROWS, rows_per_chunk(batch.nbytes // max(1, batch.num_rows)))
        for start in range(0, batch.num_rows, step):
            yield from batch.slice(start, step).to_pylist()


def _picture(table: _Table, cell: Any, where: str) -> bytes | str:
    """The bytes of a picture, or its path, which must lie in the folder of the data set."""
    cell = cell if isinstance(cell, dict) else {}
    if isinstance(cell.get("bytes"), bytes) and cell["bytes"]:
        return bytes(cell["bytes"])
    if isinstance(cell.get("path"), str) and cell["path"]:
        return str(_inside(table.root, cell["path"], where))
    raise DataError(f"{where}: holds no picture")


def _array(cell: Any, where: str, values: int | None) -> Any:
    dtype = dtype_for(values or 256)
    try:
        x = np.asarray(cell)
    except ValueError:
        x = np.asarray(0.0)
    if x.dtype.kind not in "iu" or not x.size or x.min() < 0 or x.max() >= MOST_VALUES:
        raise DataError(f"{where}: is no array of integers from 0; choose a column by --key")
    if x.max() > np.iinfo(dtype).max:
        raise DataError(
            f"{where}: holds {x.max()}, beyond 255; tell how many values there are by --values"
        )
    x = x if x.ndim >= 3 and x.shape[-1] <= 4 else x[..., None]
    return x[None].astype(dtype)
