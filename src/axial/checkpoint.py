"""A model to and from one folder: model.safetensors and config.json, nothing else.

The fingerprint of weights and configuration stands in both files, so that a mixed pair, a
damaged weight or an edited configuration is noticed. Nothing is ever unpickled.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from axial.config import ModelConfig
from axial.disk import flush, give_usual_mode
from axial.errors import CheckpointError, ConfigError
from axial.model import AxialTransformer
from axial.ranks import usable

FORMAT = 1
"""The newest layout of the folder this version reads, and the one it writes."""
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_PENDING = ".pending"


def save(model: AxialTransformer, folder: Path | str) -> None:
    """Write the model to `folder`, whole or not at all.

    A new folder appears in one step. In an existing one, exchanging the weights is that step;
    should the process die right after it, `load` finds the new configuration beside them.
    """
    folder = Path(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    mark = _fingerprint(model.config, weights)
    config = {"format": FORMAT, "fingerprint": mark, "model": model.config.to_json()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder if folder.is_dir() else folder.parent  # the same disk in either case
        scratch = Path(tempfile.mkdtemp(prefix=".saving-", dir=beside))
        try:
            save_file(weights, scratch / _WEIGHTS, metadata={"fingerprint": mark})
            (scratch / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            for file in (scratch / _WEIGHTS, scratch / _CONFIG):
                give_usual_mode(file)
                flush(file)
            _move(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error})") from error


def load(
    folder: Path | str, *, device: torch.device | str = "cpu", weights: str = "ema"
) -> AxialTransformer:
    """Read the model that `save` or `axial import` wrote, ready to score and draw.

    Every weight is checked against the fingerprint.
    """
    folder = Path(folder)
    device = usable(device)
    if not _is_file(folder / _WEIGHTS):
        raise CheckpointError(f"{folder}: no such checkpoint; it should hold {_WEIGHTS}")
    try:
        with safe_open(folder / _WEIGHTS, "pt") as file:
            mark = (file.metadata() or {}).get("fingerprint")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{folder / _WEIGHTS}: damaged or cut short ({error}); copy it again"
        ) from error
    config, wanted = _read_config(folder, mark)
    if not mark == wanted == _fingerprint(config, tensors):
        raise CheckpointError(
            f"{folder}: {_WEIGHTS} and {_CONFIG} do not belong together, or one was changed; "
            f"copy both again"
        )
    try:
        return AxialTransformer.from_weights(config, tensors).to(device)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / _WEIGHTS}: {error}") from error


def fingerprint(model: AxialTransformer) -> str:
    """SHA-256 of configuration and weights: equal if and only if the models are."""
    return _fingerprint(model.config, model.state_dict())


def _fingerprint(config: ModelConfig, weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(config.to_json(), sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_config(folder: Path, mark: str | None) -> tuple[ModelConfig, str | None]:
    """The configuration and its fingerprint; a pending one if that is the weights' own."""
    found = _read_json(folder / _CONFIG)
    pending = folder / (_CONFIG + _PENDING)
    if found.get("fingerprint") != mark and pending.is_file():
        found = _read_json(pending)
    version = found.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise CheckpointError(
            f"{folder / _CONFIG}: format {version!r} is not one this version knows (up to "
            f"{FORMAT}); upgrade axial-transformers"
        )
    if not isinstance(found.get("model"), dict):
        raise CheckpointError(f"{folder / _CONFIG}: describes no model; copy it again")
    try:
        return ModelConfig.from_json(found["model"]), found.get("fingerprint")
    except ConfigError as error:
        raise CheckpointError(f"{folder / _CONFIG}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); copy it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds no JSON object; copy it again")
    return found


def _move(scratch: Path, folder: Path) -> None:
    """Put the finished files in `scratch` in place of those in `folder`."""
    give_usual_mode(scratch)
    if not folder.exists():
        scratch.rename(folder)
    else:
        for name in (_WEIGHTS, _CONFIG):
            if (folder / name).is_dir():
                raise IsADirectoryError(f"{name} is a folder there")
        pending = folder / (_CONFIG + _PENDING)
        (scratch / _CONFIG).replace(pending)
        flush(folder)
        (scratch / _WEIGHTS).replace(folder / _WEIGHTS)
        pending.replace(folder / _CONFIG)
    flush(folder.parent)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or not one at all
        return False
