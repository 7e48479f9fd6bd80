"""An array in memory as data: checked, and written as a packed array."""

import hashlib
from pathlib import Path

import numpy as np
from torch import Tensor

from axial.data.packed import Array, Packed, dtype_for, open_packed
from axial.data.packed_writer import PackedWriter
from axial.data.sources.arrays import values_for
from axial.errors import DataError
from axial.shape import MOST_VALUES


def pack_array(
    x: Array | Tensor,
    path: Path,
    *,
    values: int | None = None,
    labels: Array | Tensor | None = None,
    classes: int | None = None,
) -> Packed:
    """Write integers (n, *axes, c) as a packed array, perhaps with a label for each.

    Default `values` and `classes`: found by looking.
    """
    found = _checked(x)
    values = values or values_for(int(found.max()))
    if int(found.max()) >= values:
        raise DataError(f"data holds {found.max()}, but the model has {values} values")
    if labels is not None:
        labels = _checked_labels(labels, len(found))
        classes = classes or int(labels.max()) + 1
        if int(labels.max()) >= classes:
            raise DataError(f"labels hold {labels.max()}, but the model has {classes} classes")
    with PackedWriter(path) as writer:
        writer.append(found.astype(dtype_for(values)))
        writer.finish(
            labels,
            classes if labels is not None and classes else 0,
            None,
            source="array",
            version=None,
            split=None,
            values=values,
            skipped=0,
            notes=(),
            command="in memory",
        )
    return open_packed(path)


def _checked_labels(labels: Array | Tensor, count: int) -> Array:
    found = _as_numpy(labels)
    if found.shape != (count,) or found.dtype.kind not in "iu" or found.min() < 0:
        raise DataError(
            f"labels have shape {found.shape} and type {found.dtype}: give {count} integers from "
            f"0 up, one for each example"
        )
    return found.astype(np.int64)


def is_packed_as(x: Array | Tensor, packed: Packed) -> bool:
    """Whether these are the integers of a packed array."""
    found, about = _checked(x), packed.description
    if int(found.max()) >= about.values:
        return False
    data = found.astype(dtype_for(about.values)).tobytes()
    return hashlib.sha256(data).hexdigest() == about.sha256


def _checked(x: Array | Tensor) -> Array:
    found = _as_numpy(x)
    if found.ndim < 3 or not found.size:
        raise DataError(f"data has shape {found.shape}: give examples (n, *axes, channels)")
    if not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"data is of type {found.dtype}: give integers from 0 up")
    least, most = int(found.min()), int(found.max())
    if least < 0 or most >= MOST_VALUES:
        raise DataError(f"data holds {least if least < 0 else most}: use 0 to {MOST_VALUES - 1:,}")
    return found


def _as_numpy(x: Array | Tensor) -> Array:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
