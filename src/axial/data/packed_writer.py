"""Writing a packed array piece by piece, whole or not at all."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from axial.data.description import (
    Description,
    Labels,
    Sizes,
    description_path,
    labels_path,
    sizes_path,
)
from axial.data.packed import LONGEST, Array, described_by, hash_integers
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
    A packed array that is there already is replaced only with `overwrite`. `append` adds examples
    of one shape, `append_picture` pictures of different sizes.
    """

    def __init__(self, path: Path | str, *, overwrite: bool = False) -> None:
        self.path, self._overwrite = Path(path), overwrite
        if self.path.suffix != ".npy":
            raise DataError(f"{path}: a packed array is a .npy file; call it {path}.npy")
        self._labels, self._sizes = labels_path(self.path), sizes_path(self.path)
        self._beside = self._labels, self._sizes, description_path(self.path)
        self.count = 0
        self.sizes: list[tuple[int, int]] = []
        """Height and width of each picture, where they differ."""
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
        self._write(rows)
        self.count += len(rows)

    def append_picture(self, x: Array) -> None:
        """Add a picture (h, w, c) of any size."""
        height, width, channels = x.shape
        assert 0 < min(height, width) <= max(height, width) <= LONGEST
        self._write(x.reshape(-1, channels))
        self.sizes.append((height, width))
        self.count += 1

    def _write(self, rows: Array) -> None:
        if not self.count:
            self._row, self._dtype = rows.shape[1:], rows.dtype.newbyteorder("<")
        assert rows.shape[1:] == self._row and rows.dtype == self._dtype
        data = np.ascontiguousarray(rows).data.cast("B")
        with errors_of(self.path):
            if not self.count:
                self._write_header()
            self._file.write(data)
        self._digest.update(data)

    def finish(
        self, labels: Array | None, classes: int, names: Sequence[str] | None, **facts: Any
    ) -> Description:
        """Put array, labels and description in place; `facts` are the rest of the description."""
        about = None
        if labels is not None:
            about = Labels(
                classes=classes,
                names=None if names is None else _unique(names),
                sha256=hash_integers(labels),
            )
        sizes = np.array(self.sizes)
        pixels = int(sizes.prod(1).sum()) if self.sizes else 0
        description = Description(
            axes=self._row[:-1],
            channels=self._row[-1],
            count=self.count,
            dtype=str(self._dtype),
            labels=about,
            sha256=self._digest.hexdigest(),
            sizes=Sizes(pixels=pixels, sha256=hash_integers(sizes)) if self.sizes else None,
            **facts,
        )
        with errors_of(self.path):
            self._write_header()
            self._file.close()
            (self._folder / description_path(self.path).name).write_text(description.to_json())
            if labels is not None:
                small = labels.astype(np.min_scalar_type(max(0, classes - 1)))
                np.save(self._folder / self._labels.name, small)
            if self.sizes:
                np.save(self._folder / self._sizes.name, sizes.astype(np.int32))
            gone = self._outdated(description)
            beside = (file for file in self._beside if file not in gone)
            commit(self._folder, self.path, *beside, gone=gone)
        return description

    def _outdated(self, about: Description) -> tuple[Path, ...]:
        """The files beside an array that one of this description does not have."""
        has = {self._labels: about.labels, self._sizes: about.sizes}
        return tuple(file for file, said in has.items() if said is None)

    def _check_place(self) -> None:
        """Never replace a file beside the array that is not our own."""
        for name in ("labels", "sizes"):
            if self.path.name.endswith(f".{name}.npy"):
                raise DataError(f"{self.path}: is the name of an array's {name}; use another --out")
        others: tuple[Path, ...] = (self.path, self._labels, self._sizes)
        if (waiting := pending(self._beside[-1])).exists():
            Description.from_json(waiting)  # or it is not ours to remove
        for beside in {described_by(self.path), self._beside[-1]}:
            if beside.exists():  # two, where a writer died before it removed what the old one had
                unknown = self._outdated(Description.from_json(beside))
                others = tuple(file for file in others if file in unknown)
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
        if waiting == pending(self._beside[-1]):
            complete(*self._beside, gone=self._outdated(Description.from_json(waiting)))
        for file in self._beside:
            pending(file).unlink(missing_ok=True)

    def _write_header(self) -> None:
        """The numpy header; numpy leaves room in it for the count to grow."""
        self._file.seek(0)
        count = sum(height * width for height, width in self.sizes) or self.count
        shape = (count, *self._row)
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
