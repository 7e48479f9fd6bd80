"""How arrays and events travel: base64 of raw little-endian bytes, server-sent events."""

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from axial.data.packed import Array


def packed(x: Array, dtype: DTypeLike) -> str:
    """The bytes of an array in C order, as base64."""
    kind = np.dtype(dtype).newbyteorder("<")
    return base64.b64encode(np.ascontiguousarray(x, dtype=kind).tobytes()).decode("ascii")


def event(name: str, data: dict[str, Any]) -> bytes:
    """A server-sent event with one line of JSON."""
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()


def as_json(data: Any) -> str:
    """JSON in one line; what is no finite number becomes null."""
    return json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(name): _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
