"""The packed array: one .npy file of unsigned integers (n, *axes, c), and its description.

`FILE.npy` is an ordinary numpy file. `FILE.json` beside it says what it holds and carries its
hash; `FILE.labels.npy` holds the labels where there are any. A file without a description that
fits it is never taken for data. Layout: docs/data.md.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from axial.errors import DataError
from axial.shape import MOST_VALUES, DataShape
from axial.system.files import errors_of, flush, folders_above, locked, unfinished

FORMAT = 1
"""The newest layout of the description this version reads, and the one it writes."""
MOST_CLASSES = 1 << 20
"""What has more kinds than that is numbered by something else than its kind."""

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the labels of an array are; the labels themselves lie in a file of their own."""

    classes: int
    """How many there are: labels are 0 .. classes - 1."""
    names: tuple[str, ...] | None
    """The name of each, where the source tells."""
    sha256: str
    """Hash of the labels as little-endian int64."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a packed array holds and where it came from; no time and no place of a machine."""

    source: str
    """The data set, as people call it."""
    version: str | None
    """Which of several incompatible versions, where there are such."""
    split: str | None
    """Train, test, or whatever the source calls its parts."""
    axes: tuple[int, ...]
    """Lengths of the grid, slowest first."""
    channels: int
    """Channels of each element."""
    values: int
    """How many values an element can take."""
    count: int
    """How many examples there are."""
    dtype: str
    """Type of the elements in the file."""
    labels: Labels | None
    """What the labels are, if there are any."""
    sha256: str
    """Hash of the elements in the file's order, without its header."""
    skipped: int
    """Records left out because they could not be read: a picture, a clip, the rest of a file."""
    notes: tuple[str, ...]
    """What a careful reader should know."""
    command: str
    """The command that made the file."""
    beginning: bool = False
    """Whether these are only the first examples of a source that goes on after them."""

    @property
    def title(self) -> str:
        """Data set, version and split, as every printed bits/dim names them."""
        return " ".join(filter(None, (self.source, self.version, self.split)))

    @property
    def left_out(self) -> str:
        """How much was skipped, in words."""
        return f"{self.skipped:,} record{'s' * (self.skipped > 1)}"

    @property
    def shape(self) -> DataShape:
        """What a preset has to know of the array."""
        classes = self.labels.classes if self.labels else 0
        return DataShape(
            axes=self.axes, channels=self.channels, values=self.values, classes=classes
        )

    def to_json(self) -> str:
        """The text of the file beside the array."""
        found = {"format": FORMAT, "shape": [self.count, *self.axes, self.channels], **asdict(self)}
        if not self.beginning:
            del found["beginning"]  # only what is read for one command is ever cut
        return json.dumps(found, indent=2) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> "Description":
        """The description in a file; anything else is refused."""
        try:
            found = json.loads(path.read_text())
            version = found.pop("format")
            found.pop("shape")
            if type(version) is not int or not 1 <= version <= FORMAT:
                raise DataError(
                    f"{path}: format {version} is not one this version knows (up to {FORMAT}); "
                    f"upgrade axial-transformers"
                )
            if labels := found["labels"]:
                names = None if labels["names"] is None else tuple(labels["names"])
                found["labels"] = Labels(**(labels | {"names": names}))
                if names is not None and len(names) != labels["classes"]:
                    raise ValueError(f"{labels['classes']} classes have {len(names)} names")
            found["axes"], found["notes"] = tuple(found["axes"]), tuple(found["notes"])
            if not found["axes"]:
                raise ValueError("axes are none")
            for name, least, most in (("values", 2, MOST_VALUES), ("count", 1, 1 << 62)):
                if type(found[name]) is not int or not least <= found[name] <= most:
                    raise ValueError(f"{name} is {found[name]!r}")
            if not isinstance(found.get("beginning", False), bool):
                raise ValueError(f"beginning is {found['beginning']!r}")
            description = cls(**found)
            _check_kinds(description, _KINDS)
            if description.labels:
                _check_kinds(description.labels, _LABEL_KINDS)
            return description
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"{path}: is no description of a packed array ({reason}); `axial data` writes one"
            ) from error


_KINDS = {
    "source": str,
    "version": str | None,
    "split": str | None,
    "axes": int,
    "channels": int,
    "dtype": str,
    "sha256": str,
    "skipped": int,
    "notes": str,
    "command": str,
}
_LABEL_KINDS = {"classes": int, "names": str | None, "sha256": str}


def _check_kinds(about: Description | Labels, kinds: dict[str, Any]) -> None:
    """Refuse a field, or an item of one, that is of another type."""
    for name, kind in kinds.items():
        value = getattr(about, name)
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, kind) and not isinstance(item, bool) for item in items):
            raise ValueError(f"{name} is {value!r}")


def description_path(path: Path | str) -> Path:
    """Where the description of a packed array lies."""
    return Path(path).with_suffix(".json")


def labels_path(path: Path | str) -> Path:
    """Where the labels of a packed array lie."""
    return Path(path).with_suffix(".labels.npy")


class Packed:
    """An opened packed array.

    `array` is memory-mapped. `rows` reads examples into memory of the caller's without a
    mapping: nothing stays resident, and a file cut short under our feet is an error instead
    of a crash. With `stack_frames` the first axis, time, is folded into the channels the
    paper's way, frame-major: (n, t, h, w, c) is read as (n, h, w, t * c).
    """

    def __init__(self, path: Path | str, *, stack_frames: bool = False) -> None:
        self.path = Path(path)
        for needed in (self.path, description_path(self.path)):
            if not needed.is_file():
                raise DataError(f"{needed}: no such file; `axial data` makes a packed array")
        self.description = Description.from_json(description_path(self.path))
        self.array, self._offset = _open_array(self.path)
        self._check()
        self.labels = self._read_labels()
        self.stack_frames = stack_frames
        self.shape = self.description.shape
        if stack_frames:
            self.shape = stacked_shape(self.path, self.shape)
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one example as `rows` gives it: (*axes, c)."""
        return (*self.shape.axes, self.shape.channels)

    def rows(self, indices: Sequence[int] | NDArray[np.int64], out: Array | None = None) -> Array:
        """Examples by index, one copy from the file into `out` (k, *axes, c), or a new array."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"examples {wanted.min()} to {wanted.max()} of {len(self)}")
        shape = (len(wanted), *self.row_shape)
        if out is None:
            out = np.empty(shape, self.array.dtype)
        assert out.shape == shape and out.dtype == self.array.dtype
        if not len(wanted):
            return out
        if not self.stack_frames:
            self._read(wanted, out)
            return out
        clips = np.empty((len(wanted), *self.array.shape[1:]), self.array.dtype)
        self._read(wanted, clips)
        out[:] = np.moveaxis(clips, 1, -2).reshape(out.shape)
        return out

    def checked(self) -> Iterator[Array]:
        """All examples as they are stored, some megabytes at a time.

        Where the last of them ends, the array is refused if it is not the one described.
        """
        digest = hashlib.sha256()
        size = int(np.prod(self.array.shape[1:])) * self.array.itemsize
        step = max(1, (8 << 20) // size)
        for start in range(0, len(self), step):
            index = np.arange(start, min(start + step, len(self)))
            rows = np.empty((len(index), *self.array.shape[1:]), self.array.dtype)
            self._read(index, rows)
            digest.update(rows.data.cast("B"))
            yield rows
        if (found := digest.hexdigest()) != self.description.sha256:
            raise DataError(
                f"{self.path}: is not the array its description names (sha256 {found[:8]}..., "
                f"not {self.description.sha256[:8]}...); pack it again"
            )

    def check(self) -> None:
        """Read all of it, a second or so per gigabyte, and refuse another array's elements."""
        for _ in self.checked():
            pass

    def _read(self, indices: NDArray[np.int64], out: Array) -> None:
        """Fill `out`, neighbours in the file in one go."""
        size = out[:1].nbytes
        view = out.data.cast("B")
        breaks = np.flatnonzero(np.diff(indices) != 1) + 1
        runs = zip([0, *breaks.tolist()], [*breaks.tolist(), len(indices)], strict=True)
        for first, last in runs:
            start, part = int(indices[first]) * size, view[first * size : last * size]
            done = 0
            while done < len(part):
                count = os.preadv(self._file, [part[done:]], self._offset + start + done)
                if not count:
                    raise DataError(
                        f"{self.path}: ends inside example {(start + done) // size}, though it was "
                        f"whole when opened; pack it again"
                    )
                done += count

    def _check(self) -> None:
        wanted = self.description
        shape = (wanted.count, *wanted.axes, wanted.channels)
        if self.array.shape != shape or str(self.array.dtype) != wanted.dtype:
            raise DataError(
                f"{self.path}: holds {self.array.dtype} {self.array.shape}, but its description "
                f"says {wanted.dtype} {shape}; pack it again"
            )

    def _read_labels(self) -> NDArray[np.int64] | None:
        if self.description.labels is None:
            return None
        path = labels_path(self.path)
        try:
            with path.open("rb") as file:
                labels = npy.read_array(file, allow_pickle=False).astype(np.int64)
        except Exception as error:  # numpy's reader raises anything at all on damage
            reason = " ".join(str(error).split())
            raise DataError(f"{path}: labels cannot be read ({reason}); pack again") from error
        about = self.description.labels
        fits = labels.shape == (len(self),) and 0 <= labels.min() <= labels.max() < about.classes
        if not fits or hash_labels(labels) != about.sha256:
            raise DataError(f"{path}: does not belong to {self.path.name}; pack again")
        return labels


def open_packed(path: Path | str, *, stack_frames: bool = False) -> Packed:
    """Open what `axial data` wrote; time folded into the channels with `stack_frames`.

    Sizes, types and labels are checked here, the hash of the elements by `Packed.check`.
    """
    try:
        return Packed(path, stack_frames=stack_frames)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def is_packed(path: Path | str) -> bool:
    """Whether a packed array lies there: a file with a description beside it."""
    path = Path(path)
    try:
        return path.suffix == ".npy" and path.is_file() and description_path(path).is_file()
    except OSError:  # a name too long, a folder without rights: whoever opens it says so
        return False


def dtype_for(values: int) -> np.dtype[Any]:
    """The smallest unsigned integers that hold `values` values."""
    return np.dtype(np.uint8 if values <= 256 else np.uint16)


def hash_labels(labels: Array) -> str:
    """Hash of labels, whatever integers they are stored as."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


class PackedWriter:
    """Writes a packed array piece by piece, and puts it in place whole or not at all.

    Everything goes to hidden files beside the final ones, which are removed on any error. That
    of the description is locked from first to last: whoever else comes is refused, and what a
    process that died has left is written over. The old description is removed before the new
    array takes its name and the new one comes last, so that no crash leaves an array with a
    description of another.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.suffix != ".npy":
            raise DataError(f"{path}: a packed array is a .npy file; call it {path}.npy")
        self.count = 0
        self._digest = hashlib.sha256()
        self._scratch: list[Path] = []
        self._row: tuple[int, ...] = ()
        self._dtype = np.dtype(np.uint8)

    def __enter__(self) -> "PackedWriter":
        with ExitStack() as undo, errors_of(self.path):
            self._check_place()
            undo.enter_context(folders_above(self.path))
            self._lock(undo)
            undo.callback(self._remove_scratch)
            self._file = self._begin(self.path)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(OSError):  # a full disk also refuses what is still in the buffer
            self._file.close()
        self._undo.close()

    def append(self, rows: Array) -> None:
        """Add examples (k, *axes, c), all of one shape and type."""
        if not self.count:
            self._row, self._dtype = rows.shape[1:], rows.dtype.newbyteorder("<")
        assert rows.shape[1:] == self._row and rows.dtype == self._dtype
        data = np.ascontiguousarray(rows).data.cast("B")
        with errors_of(self.path):
            if not self.count:
                self._write_header()
            self._file.write(data)
        self._digest.update(data)
        self.count += len(rows)

    def finish(
        self, labels: Array | None, classes: int, names: Sequence[str] | None, **facts: Any
    ) -> Description:
        """Put array, labels and description in place; `facts` are the rest of the description."""
        about = None
        if labels is not None:
            own_names = None if names is None else tuple(names)
            about = Labels(classes=classes, names=own_names, sha256=hash_labels(labels))
        description = Description(
            axes=self._row[:-1],
            channels=self._row[-1],
            count=self.count,
            dtype=str(self._dtype),
            labels=about,
            sha256=self._digest.hexdigest(),
            **facts,
        )
        with errors_of(self.path):
            self._write_header()
            self._end(self._file)
            if labels is not None:
                file = self._begin(labels_path(self.path))
                np.save(file, labels.astype(np.min_scalar_type(max(0, classes - 1))))
                self._end(file)
            scratch = unfinished(description_path(self.path))
            scratch.write_text(description.to_json())
            flush(scratch)
            self._put_in_place(labels_too=labels is not None)
        return description

    def _check_place(self) -> None:
        """Never replace a file beside the array that is not our own."""
        if self.path.name.endswith(".labels.npy"):
            raise DataError(f"{self.path}: is the name of an array's labels; use another --out")
        beside, labels = description_path(self.path), labels_path(self.path)
        others = [self.path, labels]
        if beside.exists():
            others = [] if Description.from_json(beside).labels else [labels]
        for file in others:
            if file.exists():
                raise DataError(
                    f"{file}: stands in the way, and no description beside it says that it is "
                    f"ours; remove it or use another --out"
                )

    def _write_header(self) -> None:
        """The numpy header; numpy leaves room in it for the count to grow."""
        self._file.seek(0)
        shape = (self.count, *self._row)
        npy.write_array_header_1_0(
            self._file,
            {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape},
        )

    def _lock(self, undo: ExitStack) -> None:
        final = description_path(self.path)
        try:
            undo.enter_context(locked(unfinished(final)))
        except BlockingIOError as error:
            raise DataError(
                f"{self.path}: another process is writing it; wait for it, or use another --out"
            ) from error
        self._scratch.append(final)

    def _begin(self, final: Path) -> BinaryIO:
        self._scratch.append(final)
        return unfinished(final).open("w+b")

    def _remove_scratch(self) -> None:
        for final in self._scratch:
            unfinished(final).unlink(missing_ok=True)

    def _end(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()

    def _put_in_place(self, *, labels_too: bool) -> None:
        folder = self.path.parent
        description_path(self.path).unlink(missing_ok=True)
        flush(folder)
        if not labels_too:
            labels_path(self.path).unlink(missing_ok=True)
        for final in self._scratch[::-1]:  # the description, which was begun first, comes last
            if final == description_path(self.path):
                flush(folder)
            unfinished(final).replace(final)
            self._scratch.remove(final)
        flush(folder)


def _open_array(path: Path) -> tuple[Array, int]:
    """The memory-mapped array and the byte at which its elements begin."""
    try:
        with path.open("rb") as file:
            npy.read_magic(file)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy's reader raises anything at all on damage
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path}: cannot be opened as an array ({reason}); pack it again"
        ) from error
    if not isinstance(array, np.memmap):
        raise DataError(f"{path}: is no .npy file; `axial data` makes one")
    return array, int(array.offset)


def stacked_shape(source: Path | str, shape: DataShape) -> DataShape:
    """Time folded into the channels; data without time is refused by the name it is known by."""
    if len(shape.axes) < 3:
        raise DataError(
            f"{source}: examples have axes {shape.axes}, so there is no time to stack as channels; "
            f"use a video"
        )
    frames, *axes = shape.axes
    return DataShape(
        axes=tuple(axes),
        channels=frames * shape.channels,
        values=shape.values,
        classes=shape.classes,
        frames=frames,
    )
