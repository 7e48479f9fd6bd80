"""Tensors and JSON in the files of a checkpoint: read without ever unpickling, and hashed."""

import errno
import hashlib
import json
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from axial.errors import CheckpointError
from axial.system.files import open_file
from axial.system.ranks import deferring

MOST_HEADER = 16 << 20
"""Bytes of a header: enough for 200,000 tensors; a larger one takes minutes to read."""
MOST_TEXT = 16 << 20
"""Bytes of a JSON file; what they mean takes up to a hundred times as much memory."""
COPY = "copy it again"


def read_tensors(path: Path, *, undo: str = COPY) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, and its metadata; `undo` is what to do if it is bad."""
    with open_part(path, undo) as file:
        size = int.from_bytes(file.read(8), "little")
    if not is_utf8(path):
        raise CheckpointError(f"{path}: its name is not UTF-8, and so it cannot be read; rename it")
    try:
        if size > MOST_HEADER:
            raise ValueError(f"a header of {size:,} bytes")
        with deferring(), safe_open(path, "pt") as weights:
            tensors = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
            return tensors, weights.metadata() or {}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path}: damaged or cut short ({reason}); {undo}") from error


def hash_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text, then of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_json(path: Path, *, undo: str = COPY) -> dict[str, Any]:
    """The JSON object in a file; `undo` is what to do if there is none."""
    with open_part(path, undo) as file:
        data = file.read(MOST_TEXT + 1)
    try:
        if len(data) > MOST_TEXT:
            raise ValueError(f"it is larger than {MOST_TEXT:,} bytes")
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {undo}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object; {undo}")
    return found


def open_part(path: Path, undo: str = COPY) -> BufferedReader:
    """A file of a checkpoint, opened to be read; one that is not there or no file is refused.

    What is missing can be undone; what is there and kept from us cannot.
    """
    try:
        return open_file(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {undo}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read ({reason})") from error


def is_utf8(path: Path) -> bool:
    """Whether the whole name of a file is such that safetensors can open it."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_format(path: Path, version: object, newest: int, *, undo: str = COPY) -> None:
    """Refuse a file of a layout that this version does not know."""
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: damaged, for it has no number of a format; {undo}")
    if version > newest:
        raise CheckpointError(
            f"{path}: format {version!r} is not one this version knows (up to {newest}); "
            f"upgrade axial-transformers"
        )


def is_there(path: Path) -> bool:
    """Whether anything of that name is there: a broken link is, and reading it tells what it is."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        return error.errno not in (errno.ENAMETOOLONG, errno.ELOOP)
    return True
