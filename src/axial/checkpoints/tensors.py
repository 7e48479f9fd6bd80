"""Tensors and JSON in the files of a checkpoint: read without ever unpickling, and hashed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from axial.errors import CheckpointError


def read_tensors(path: Path, *, undo: str = "copy it again") -> tuple[dict[str, Tensor], Any]:
    """All tensors of a safetensors file, and its metadata; `undo` is what to do if it is bad."""
    _check_readable(path, undo)
    if not is_utf8(path):
        raise CheckpointError(f"{path}: its name is not UTF-8, and so it cannot be read; rename it")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or cut short ({error}); {undo}") from error


def hash_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text, then of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_json(path: Path, *, undo: str = "copy it again") -> dict[str, Any]:
    """The JSON object in a file; `undo` is what to do if there is none."""
    _check_readable(path, undo)
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {undo}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object; {undo}")
    return found


def _check_readable(path: Path, undo: str) -> None:
    """Tell what is missing, which can be undone, from what is there and kept from us."""
    try:
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {undo}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error


def is_utf8(path: Path) -> bool:
    """Whether the whole name of a file is such that safetensors can open it."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_format(path: Path, version: object, newest: int, *, undo: str = "copy it again") -> None:
    """Refuse a file of a layout that this version does not know."""
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: damaged, for it has no number of a format; {undo}")
    if version > newest:
        raise CheckpointError(
            f"{path}: format {version!r} is not one this version knows (up to {newest}); "
            f"upgrade axial-transformers"
        )


def is_file(path: Path) -> bool:
    """Whether a file of that name is there, whatever the name."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or not one at all
        return False
