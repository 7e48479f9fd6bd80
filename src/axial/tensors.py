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
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {undo}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object; {undo}")
    return found


def check_format(path: Path, version: object, newest: int) -> None:
    """Refuse a file of a layout that this version does not know."""
    if type(version) is not int or not 1 <= version <= newest:
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
