"""Writing a packed array piece by piece, whole or not at all."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from axial.data.description import Description, Labels, description_path, labels_path
from axial.data.packed import Array, described_by, hash_labels
from axial.errors import DataError
from axial.system.files import (
    commit,
    complete,
    errors_of,
    folders_above,
    pending,
    scratch_folder,
)


class PackedWriter:
    """Writes a packed array piece by piece, and puts it in place whole or not at all.

    Everything goes to a scratch folder beside the final place, which one process at a time has.
    A packed array that is there already is replaced only with `overwrite`.
    """

    def __init__(self, path: Path | str, *, overwrite: bool = False) -> None:
        self.path, self._overwrite = Path(path), overwrite
        if self.path.suffix != ".npy":
            raise DataError(f"{path}: a packed array is a .npy file; call it {path}.npy")
        self._beside = labels_path(self.path), description_path(self.path)
        self.count = 0
        self._digest = hashlib.sha256()
        self._row: tuple[int, ...] = ()
        self._dtype = np.dtype(np.uint8)

    def __enter__(self) -> "PackedWriter":
        with ExitStack() as undo, errors_of(self.path):
            self._check_place()
            undo.enter_context(folders_above(self.path))
            self._folder = undo.enter_context(scratch_folder(self.path, alone=True))
            self._clean_up()
            self._file = (self._folder / self.path.name).open("w+b")
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
            about = Labels(
                classes=classes,
                names=None if names is None else _unique(names),
                sha256=hash_labels(labels),
            )
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
            self._file.close()
            (self._folder / description_path(self.path).name).write_text(description.to_json())
            beside = self._beside if labels is not None else self._beside[1:]
            if labels is not None:
                small = labels.astype(np.min_scalar_type(max(0, classes - 1)))
                np.save(self._folder / beside[0].name, small)
            commit(self._folder, self.path, *beside, gone=self._outdated(description))
        return description

    def _outdated(self, about: Description) -> tuple[Path, ...]:
        return () if about.labels else self._beside[:1]

    def _check_place(self) -> None:
        """Never replace a file beside the array that is not our own."""
        if self.path.name.endswith(".labels.npy"):
            raise DataError(f"{self.path}: is the name of an array's labels; use another --out")
        others = [self.path, self._beside[0]]
        if (waiting := pending(self._beside[1])).exists():
            Description.from_json(waiting)  # or it is not ours to remove
        if (beside := described_by(self.path)).exists():
            others = [] if Description.from_json(beside).labels else [self._beside[0]]
        for file in others:
            if file.exists():
                raise DataError(
                    f"{file}: stands in the way, and no description beside it says that it is "
                    f"ours; remove it or use another --out"
                )
        if self.path.exists() and not self._overwrite:
            raise DataError(f"{self.path}: exists already; use another --out, or add --overwrite")

    def _clean_up(self) -> None:
        """Finish, or forget, what a writer that died has left pending."""
        waiting = described_by(self.path)
        if waiting == pending(self._beside[1]):
            complete(*self._beside, gone=self._outdated(Description.from_json(waiting)))
        for file in self._beside:
            pending(file).unlink(missing_ok=True)

    def _write_header(self) -> None:
        """The numpy header; numpy leaves room in it for the count to grow."""
        self._file.seek(0)
        shape = (self.count, *self._row)
        npy.write_array_header_1_0(
            self._file,
            {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape},
        )


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names that tell classes apart: those of several classes get their numbers."""
    often = Counter(names)
    if len(often) == len(names):
        return tuple(names)
    return _unique([f"{name} ({i})" if often[name] > 1 else name for i, name in enumerate(names)])
