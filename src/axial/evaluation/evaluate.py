"""A model, or a checkpoint, on data of any kind; and what `axial evaluate` does and writes."""

import copy
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import axial
from axial.checkpoints.model_folder import load
from axial.checkpoints.trained_on import check_unseen, class_names, other_version, trained_on
from axial.data.compatibility import conform, open_test
from axial.data.description import description_path
from axial.data.in_memory import pack_array
from axial.data.packed import Array, Packed
from axial.data.sources.options import ReadOptions
from axial.errors import DataError, InputError
from axial.evaluation.config import EvaluateConfig
from axial.evaluation.scoring import Evaluation, score, write_json
from axial.media.maps import bit_map
from axial.media.sheets import check_preview, write_png
from axial.models.likelihood import element_bits
from axial.models.protocol import Model
from axial.system.files import (
    check_apart,
    check_place,
    errors_of,
    replacing,
    resolved,
    temporary_folder,
)
from axial.system.progress import counting
from axial.system.ranks import ranks, usable
from axial.system.terminal import printable
from axial.validation import Weights

_DRAWN = 8


def evaluate(
    model: Model | Path | str,
    data: Packed | Path | str | Tensor | Array | None = None,
    label: Tensor | Array | None = None,
    *,
    weights: Weights = "ema",
    device: torch.device | str | None = None,
    **how: Any,
) -> Evaluation:
    """Score a data set: bits/dim over every element of every example, with its standard error.

    `model` is a model, which is scored where it is, or what `load` takes. `data` is a packed array,
    any source that `pack` takes (its test part, if it has parts), or integers (n, *axes, c) with
    their labels if the model takes some; of a run it may be left out, and is the test part of
    what that was trained on. `how` goes to `score`: `subset`, `batch`, `precision` ...
    """
    folder = None
    if isinstance(model, str | Path):
        folder, model = model, load(model, device=usable(device), weights=weights)
    with temporary_folder() as scratch:
        if isinstance(data, Packed):
            packed = data
        elif isinstance(data, str | Path | None):
            packed = _open(folder, data, ReadOptions(), scratch)
        else:
            path, classes = scratch / "data.npy", model.config.classes or None
            packed = pack_array(data, path, labels=label, classes=classes)
        names = None if folder is None else class_names(folder)
        found = score(model, conform(packed, model.config.data, names), **how)
        other = None if folder is None else other_version(packed, folder)
        return replace(found, weights=weights, trained_on=other)


def report(
    checkpoint: Path | str, config: EvaluateConfig, reading: ReadOptions, device: str | None
) -> None:
    """Score, write what was asked for, then print the result in one line."""
    _check_outputs(config)
    with ranks(device) as team, temporary_folder() as scratch:
        model = load(checkpoint, device=team.device, weights=config.weights)
        packed = _open(
            checkpoint,
            config.data,
            reading,
            scratch,
            workers=None if team.count == 1 else 1,
            progress=team.is_rank0,
            limit=config.limit,
        )
        packed = conform(packed, model.config.data, class_names(checkpoint))
        count = min(len(packed), config.limit or len(packed))
        start = time.monotonic()
        with counting("scored", count, shown=team.is_rank0) as progress:
            found = score(
                model,
                packed,
                ranks=team,
                batch=config.batch,
                subset=np.arange(count),
                precision=config.precision,
                resume=config.partial,
                progress=progress,
            )
        if not math.isfinite(found.bits_per_dim):
            raise InputError(
                f"{checkpoint}: gives probabilities that are no numbers in {found.precision}; its "
                f"training went wrong, or it needs another --precision"
            )
        other = other_version(packed, checkpoint)
        found = replace(found, weights=config.weights, trained_on=other)
        on_gpu = team.device.type == "cuda"
        facts = {
            "checkpoint": str(checkpoint),
            "device": torch.cuda.get_device_name(team.device) if on_gpu else str(team.device),
            "seconds": time.monotonic() - start,
            "versions": {"axial": axial.__version__, "torch": torch.__version__},
        }
        team.on_rank0(lambda: _write(config, found, facts, model, packed))


def _open(
    checkpoint: Path | str | None,
    data: Path | str | None,
    reading: ReadOptions,
    scratch: Path,
    **how: Any,
) -> Packed:
    """The data asked for, or that of the run."""
    if data is not None:
        return open_test(data, scratch, reading, **how)
    if checkpoint is None:
        raise InputError("data is missing: a model does not say what to score it on")
    what, own = trained_on(checkpoint)
    options = replace(own, **({"split": None} | reading.given))
    packed = open_test(what, scratch, options, trained=True, **how)
    if reading.split is None:
        check_unseen(packed, checkpoint)
    return packed


def _check_outputs(config: EvaluateConfig) -> None:
    """Refuse, before any work is done, places where nothing can or should go."""
    if config.map is not None:
        if config.data is not None:
            check_apart(config.map, config.data)
        check_preview(config.map, overwrite=config.overwrite)
    for path in filter(None, (config.per_example, config.json)):
        check_place(path, overwrite=config.overwrite)
        if config.data is not None and path.exists():
            for read in (Path(config.data), description_path(Path(config.data))):
                check_apart(path, str(read))
    if config.partial is not None:
        check_place(config.partial, overwrite=True)
    every = (config.json, config.map, config.per_example, config.partial)
    paths = [path for path in every if path is not None]
    if len({resolved(path) for path in paths}) < len(paths):
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: one file for two things; give each its own")
    if config.json is not None and not config.json.exists():
        array = config.json.with_suffix(".npy")
        if array.exists() and description_path(array) == config.json:
            raise DataError(
                f"{config.json}: would pass for the description of {array.name}; name another"
            )


def _write(
    config: EvaluateConfig, found: Evaluation, facts: dict[str, Any], model: Model, packed: Packed
) -> None:
    """Write the files, and only then print the result and forget how far it had come."""
    written = [path for path in (config.json, config.per_example, config.map) if path is not None]
    for old in written[1:]:  # so that none stands beside a new one, whatever happens
        with errors_of(old):
            old.unlink(missing_ok=True)
    if config.json is not None:
        write_json(config.json, found.to_json() | facts)
    if (path := config.per_example) is not None:
        with errors_of(path), replacing(path) as scratch, scratch.open("wb") as file:
            np.save(file, found.bits, allow_pickle=False)
    if config.map is not None:
        index = found.index[:_DRAWN]
        x = torch.from_numpy(packed.rows(index).astype(np.int64))
        label = None
        if found.labels and packed.labels is not None:
            label = torch.from_numpy(packed.labels[index])
        if next(model.parameters()).element_size() < 4:
            model = copy.deepcopy(model).float()  # as it was scored
        where = element_bits(model, x, label).numpy()
        frames = packed.shape.frames or model.config.data.stacked_frames
        write_png(config.map, bit_map(x.numpy(), where, values=packed.shape.values, frames=frames))
    if found.trained_on is not None:
        line = f"warning: trained on the version {found.trained_on}, scored on "
        line += f"{found.data.version}: not comparable with other results on either"
        print(printable(line), file=sys.stderr)
    for new in written:
        print(printable(f"{new}: written"), file=sys.stderr)
    print(printable(found), flush=True)
    if config.partial is not None:
        with errors_of(config.partial):
            config.partial.unlink(missing_ok=True)
