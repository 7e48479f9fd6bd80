"""The two data sets that come as pickles, read by an unpickler that can only make arrays."""

import pickle
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from axial.data import Array
from axial.errors import DataError

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    """Finds what rebuilds numpy arrays, and nothing that could do anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _RefusedError("an object outside itself")


class _RefusedError(Exception):
    pass


def read_batch(file: BinaryIO, where: Path | str) -> tuple[Array, Array]:
    """The rows and labels of a pickled batch: a dictionary with `data` and `labels`."""
    try:
        found = _ArraysOnly(file, encoding="bytes").load()
    except _RefusedError as error:
        raise DataError(
            f"{where}: is a pickle that asks for {error}, which no data needs; not read, do not "
            f"trust it"
        ) from error
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DataError(
            f"{where}: damaged or cut short near byte {file.tell()} "
            f"({' '.join(str(error).split())}); fetch it again"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: is a pickle without `data` and `labels`; not a batch")
    named = {k.decode() if isinstance(k, bytes) else k: v for k, v in found.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise DataError(f"{where}: its `data` is no array of bytes with one picture a row")
    labels = np.asarray(labels)
    if labels.shape != (len(data),) or labels.dtype.kind not in "iu":
        raise DataError(f"{where}: has {len(data)} pictures but other labels; fetch it again")
    return data, labels
