"""A model to and from one folder: model.safetensors and config.json, nothing else.

The fingerprint of weights and configuration stands in both files, so that a mixed pair, a
damaged weight or an edited configuration is noticed. Nothing is ever unpickled.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from axial.checkpoints.hub import fetch
from axial.checkpoints.hub_name import is_on_hub
from axial.checkpoints.run_folder import Run, check_free
from axial.checkpoints.shipped import shipped_folder, shipped_names
from axial.checkpoints.tensors import (
    check_format,
    hash_tensors,
    is_there,
    is_utf8,
    read_json,
    read_tensors,
)
from axial.errors import CheckpointError, ConfigError
from axial.models.families import model_from_weights, model_of_shapes, read_config
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model, check_model, plain_name
from axial.shape import ClassNames
from axial.system.files import commit, complete, pending, remove_dead, replacing, scratch_folder
from axial.system.ranks import usable
from axial.validation import Weights, check_choice, shown

FORMAT = 1
"""The newest layout of the folder this version reads, and the one it writes."""
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


def save(model: Model, folder: Path | str) -> None:
    """Write the model to `folder`, whole or not at all.

    A new folder appears in one step. In an existing one, exchanging the weights is that step;
    should the process die right after it, `load` finds the new configuration beside them.
    """
    check_model(model)
    folder = Path(folder)
    if not is_utf8(folder):
        raise CheckpointError(f"{folder}: is no name in UTF-8; choose another")
    weights = _apart(_weights(model))
    try:
        model_of_shapes(model.config).check_weights(weights)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: not written, as it could not be read: {error}") from None
    mark = _fingerprint(model.config, weights)
    config = {"format": FORMAT, "fingerprint": mark, "family": model.family}
    config["model"] = model.config.to_json()
    if (names := model.class_names) is not None:
        config["class_names"] = _class_names(folder, list(names), model.config)
    text = json.dumps(config, indent=2) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            _exchange(folder, weights, mark, text)
        else:
            with replacing(folder) as scratch:
                scratch.mkdir()
                save_file(weights, scratch / _WEIGHTS, metadata={"fingerprint": mark})
                (scratch / _CONFIG).write_text(text)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error})") from error


def _exchange(folder: Path, weights: dict[str, Tensor], mark: str, config: str) -> None:
    """Put a model in the place of the one in a folder; the new weights' coming is the one step."""
    for name in (_WEIGHTS, _CONFIG):
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{name} is a folder there")
    _clean_up(folder)
    with scratch_folder(folder / _WEIGHTS) as scratch:
        save_file(weights, scratch / _WEIGHTS, metadata={"fingerprint": mark})
        (scratch / _CONFIG).write_text(config)
        commit(scratch, folder / _WEIGHTS, folder / _CONFIG)


def check_new(folder: Path) -> None:
    """Refuse a place that holds anything, but for what a `save` that died has left there."""
    with suppress(OSError):
        remove_dead(folder)
        _clean_up(folder)
    check_free(folder)


def _clean_up(folder: Path) -> None:
    """Finish, or forget, what a `save` that died has left."""
    waiting = pending(folder / _CONFIG)
    if not remove_dead(folder / _WEIGHTS) and waiting.is_file():
        with suppress(CheckpointError):  # there is no model, or a damaged one
            mark = read_tensors(folder / _WEIGHTS)[1].get("fingerprint")
            if read_json(waiting).get("fingerprint") == mark:
                complete(folder / _CONFIG)
        waiting.unlink(missing_ok=True)


def load(
    folder: Path | str, *, device: torch.device | str = "cpu", weights: Weights = "ema"
) -> Model:
    """Read a model, ready to score and draw; every weight is checked against its fingerprint.

    `folder` is what `save` or `axial import` wrote, or a training run: its best EMA weights
    so far, or, before any were scored, those of its last checkpoint. `weights="raw"` are a
    run's last weights before averaging. Where there is no such folder, a string may be the name
    of a model that comes with the package: kept in bfloat16, and computed with in float32. A
    string `hub:user/name`, or `hub:user/name@revision`, is a model on the Hugging Face Hub.
    """
    if not isinstance(folder, str | os.PathLike):
        raise CheckpointError(f"folder is a {type(folder).__name__}: give a path or a name")
    device = usable(device)
    check_choice("weights", weights, get_args(Weights))
    if (own := shipped_folder(folder)) is not None and weights == "ema":
        return load(own).float().to(device)
    folder = _folder(folder)
    if Run.exists(folder) and (weights == "raw" or not is_model(folder)):
        return _load_from_run(Run(folder), weights, device)
    if weights == "raw":
        raise CheckpointError(f"{folder}: is no training run, and holds one set of weights only")
    if not is_model(folder):
        raise _no_checkpoint(folder)
    config, tensors, names = _read_pair(folder)
    try:
        model = _placed(config, tensors, device)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / _WEIGHTS}: {error}") from error
    model.class_names = names or _names_in_run(folder, config)
    return model


def config_of(folder: Path | str) -> FamilyConfig:
    """What model `load` would read there, from its configuration alone: quick, and unchecked."""
    folder = shipped_folder(folder) or _folder(folder)
    if is_model(folder):
        return _read_config(folder, None)[0]
    if Run.exists(folder):
        return _config(folder, Run(folder).about)
    raise _no_checkpoint(folder)


def class_names(checkpoint: Path | str) -> ClassNames:
    """What the classes of a model are called, from its configuration alone."""
    folder = shipped_folder(checkpoint) or _folder(checkpoint)
    if not is_model(folder):
        return _names_in_run(folder, config_of(folder))
    config, _, names = _read_config(folder, None)
    return names or _names_in_run(folder, config)


def _names_in_run(folder: Path, config: FamilyConfig) -> ClassNames:
    """What a run calls the classes of its data, if the model is told of them."""
    if not config.classes or not Run.exists(folder):
        return None
    names = Run(folder).about["data"].get("names")
    return None if names is None else tuple(names)


def _class_names(path: Path, names: object, config: FamilyConfig) -> ClassNames:
    """Names that are texts which all differ, one for each class."""
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{path}: class_names is {shown(names)}; give a list of texts")
    if len(set(names)) != config.classes or len(names) != config.classes:
        raise CheckpointError(
            f"{path}: class_names is {shown(names)}; give {config.classes} names that all differ"
        )
    return tuple(names)


def _folder(checkpoint: Path | str) -> Path:
    """Where a checkpoint lies; one on the Hub is fetched."""
    return fetch(str(checkpoint)) if is_on_hub(checkpoint) else Path(checkpoint)


def _no_checkpoint(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder}: no such checkpoint; name a folder that holds {_WEIGHTS}, a run, or a model "
        f"that comes with axial ({', '.join(shipped_names())})"
    )


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model of its own, as `save` writes it."""
    return is_there(folder / _WEIGHTS)


def fingerprint(model: Model) -> str:
    """SHA-256 of configuration and weights: equal if and only if the models are."""
    check_model(model)
    return _fingerprint(model.config, _weights(model))


def _weights(model: Model) -> dict[str, Tensor]:
    """All weights by the names they have where nothing is compiled."""
    return {plain_name(name): tensor for name, tensor in model.state_dict().items()}


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, copied only where two share it."""
    seen: set[int] = set()
    found = {}
    for name, tensor in weights.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return found


def _placed(config: FamilyConfig, weights: Mapping[str, Tensor], device: torch.device) -> Model:
    """A model with weights in memory of its own.

    Where they are read they lie in the file, which may change, and not as products want them: on
    some CPUs they would round otherwise.
    """
    wanted, held = config.parameters(), sum(weight.numel() for weight in weights.values())
    if wanted > 2 * held:  # which weight is missing is told, unless it would take too long
        raise CheckpointError(
            f"the model has {wanted:,} weights, but there are {held:,}; copy both again"
        )
    own = {name: weight.to(device, copy=True) for name, weight in weights.items()}
    return model_from_weights(config, own)


def _load_from_run(run: Run, weights: Weights, device: torch.device) -> Model:
    """The weights of a run's last checkpoint."""
    found = run.newest()
    if found is None:
        raise CheckpointError(
            f"{run.folder}: has no checkpoint yet; wait for one, or `axial train --resume "
            f"{run.folder}`"
        )
    wanted = "weights/" if weights == "raw" else "ema/"
    tensors = {
        name.removeprefix(wanted): tensor
        for name, tensor in found[1].items()
        if name.startswith(wanted)
    }
    config = _config(run.folder, run.about)
    model = _placed(config, tensors, device)
    model.class_names = _names_in_run(run.folder, config)
    return model


def _fingerprint(config: FamilyConfig, weights: Mapping[str, Tensor]) -> str:
    return hash_tensors(weights, json.dumps(config.to_json(), sort_keys=True))


def _read_pair(folder: Path) -> tuple[FamilyConfig, dict[str, Tensor], ClassNames]:
    """A configuration and its weights; read once more where a `save` may have come between."""
    for _ in range(2):
        tensors, metadata = read_tensors(folder / _WEIGHTS)
        mark = metadata.get("fingerprint")
        config, wanted, names = _read_config(folder, mark)
        if mark == wanted == _fingerprint(config, tensors):
            return config, tensors, names
    raise CheckpointError(
        f"{folder}: {_WEIGHTS} and {_CONFIG} do not belong together, or one was changed; "
        f"copy both again"
    )


def _read_config(folder: Path, mark: str | None) -> tuple[FamilyConfig, str | None, ClassNames]:
    """The configuration, its fingerprint and names; a pending one if that is the weights' own."""
    waiting = pending(folder / _CONFIG)
    found: dict[str, Any] = {}
    if is_there(waiting):
        with suppress(CheckpointError):  # a `save` may be moving it to its place
            found = read_json(waiting)
    if not found or found.get("fingerprint") != mark:
        found = read_json(folder / _CONFIG)
    check_format(folder / _CONFIG, found.get("format"), FORMAT)
    config = _config(folder / _CONFIG, found)
    names = _class_names(folder / _CONFIG, found.get("class_names"), config)
    return config, found.get("fingerprint"), names


def _config(path: Path, found: Mapping[str, Any]) -> FamilyConfig:
    """The model that a JSON file describes."""
    if not isinstance(found.get("model"), dict):
        raise CheckpointError(f"{path}: describes no model; copy it again")
    try:
        return read_config(found)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
