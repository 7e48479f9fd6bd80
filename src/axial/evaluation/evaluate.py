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
from axial.checkpoints.model_folder import class_names, config_of, load
from axial.checkpoints.trained_on import (
    check_unseen,
    class_numbers,
    class_title,
    is_trained_on,
    other_version,
    trained_on,
    trained_on_crops,
)
from axial.data.batches import Indices
from axial.data.classical import codec_bits
from axial.data.compatibility import conform, open_test, tiles_for
from axial.data.crops import Tiles
from axial.data.description import description_path
from axial.data.in_memory import pack_array
from axial.data.packed import Array, Examples, Packed, spread
from axial.data.sources.options import ReadOptions
from axial.errors import DataError, InputError
from axial.evaluation.config import EvaluateConfig
from axial.evaluation.result import Evaluation, write_json
from axial.evaluation.scoring import conditioned_bits, score, wanted_data
from axial.media.maps import bit_map
from axial.media.sheets import check_preview, write_png
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model, check_model
from axial.shape import ClassNames
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
from axial.validation import Weights, as_integer

_DRAWN = 8


def evaluate(
    model: Model | Path | str,
    data: Packed | Path | str | Tensor | Array | None = None,
    label: Tensor | Array | str | int | None = None,
    *,
    weights: Weights = "ema",
    device: torch.device | str | None = None,
    limit: int | None = None,
    compare: bool = False,
    **how: Any,
) -> Evaluation:
    """Score a data set: bits/dim over every element of every example, with its standard error.

    `model` is a model, which is scored where it is, or what `load` takes. `data` is a packed array,
    any source that `pack` takes (its test part, if it has parts), or integers (n, *axes, c) with
    their labels if the model takes some; of a run it may be left out, and is the test part of
    what that was trained on. One `label` for all, by name or number, scores every example as that
    class; without labels a class-conditional model is scored by the exact sum over its classes, as
    it is with `label="all"`. Larger pictures are cut into disjoint tiles of the model's size where
    their sizes differ, or where a run was trained on crops. `limit` takes so many examples evenly
    spread over the data; `compare` measures classical codecs on the same. `how` goes to `score`:
    `subset`, `batch`, `precision` ...
    """
    folder = None
    if isinstance(model, str | Path):
        folder, model = model, load(model, device=usable(device), weights=weights)
    check_model(model)
    fixed = None
    if isinstance(label, str | int):
        fixed, label = _condition(folder or "model", label, model.config, model.class_names), None
    with temporary_folder() as scratch:
        if isinstance(data, Packed):
            packed = data
        elif isinstance(data, str | Path | None):
            packed = _open(folder, data, ReadOptions(), scratch)
        else:
            path, classes = scratch / "data.npy", model.config.classes or None
            packed = pack_array(data, path, labels=label, classes=classes)
        examples = _conform(packed, model.config, model.class_names, folder, fixed)
        if limit is not None:
            count = min(as_integer("limit", limit, at_least=1), len(examples))
            how = {"subset": spread(len(examples), count)} | how
        found = score(model, examples, label=fixed, **how)
        other = None if folder is None else other_version(packed, folder)
        codecs = _codecs(examples, found.index, model.config) if compare else {}
        found = replace(found, weights=weights, trained_on=other, codecs=codecs)
        return _named(found, model.class_names)


def _condition(
    checkpoint: Path | str, label: str | int, config: FamilyConfig, names: ClassNames
) -> int:
    """The class of that name or number; -1 for the sum over all."""
    numbers = class_numbers(checkpoint, [label], config.classes, names)
    return -1 if label == "all" else numbers[0]


def _conform(
    packed: Packed,
    config: FamilyConfig,
    names: ClassNames,
    checkpoint: Path | str | None,
    label: int | None,
) -> Examples:
    """The data as it is scored: its labels matter unless it has none or a class is asked for."""
    labels = packed.labels is not None and label is None
    wanted = wanted_data(config, labels=labels)
    larger = packed.shape.axes != config.axes and len(packed.shape.axes) == 2
    cropped = checkpoint is not None and larger and trained_on_crops(checkpoint)
    if packed.sizes is not None or cropped:
        return tiles_for(packed, wanted, names)
    return conform(packed, wanted, names)


def _named(found: Evaluation, names: ClassNames) -> Evaluation:
    """The result with the name of its one class."""
    if not isinstance(found.label, int):
        return found
    return replace(found, label=class_title(names, found.label))


def _codecs(packed: Examples, index: Indices, config: FamilyConfig, **how: Any) -> dict[str, float]:
    """What codecs need for the same elements; nothing where what is given is no whole frames.

    Tiles are coded as the whole pictures they are of, which is what these codecs are made for.
    """
    if isinstance(packed, Tiles):
        return _codecs(packed.packed, np.unique(packed.pictures(index)), config, **how)
    shape, given = config.data, config.given_steps
    if given and shape.stacked_frames == 1 and shape.window is None:
        return {}  # rows of a picture
    if config.given_channels:
        if given or shape.stacked_frames == 1 or config.given_channels % shape.frame_channels:
            return {}
        given = config.given_channels // shape.frame_channels
    elif given and shape.stacked_frames > 1:
        return {}
    return codec_bits(packed, index, frames=shape.stacked_frames, given=given, **how)


def report(
    checkpoint: Path | str, config: EvaluateConfig, reading: ReadOptions, device: str | None
) -> None:
    """Score, write what was asked for, then print the result in one line."""
    _check_outputs(config)
    with ranks(device) as team, temporary_folder() as scratch:
        about, names, fixed = config_of(checkpoint), class_names(checkpoint), None
        if config.label is not None:
            fixed = _condition(checkpoint, config.label, about, names)
        packed = _open(
            checkpoint,
            config.data,
            reading,
            scratch,
            workers=None if team.count == 1 else 1,
            progress=team.is_rank0,
            limit=config.first,
        )
        if team.is_rank0 and is_trained_on(packed, checkpoint):
            line = f"warning: {checkpoint} was trained on this data: the score is none of new data"
            print(printable(line), file=sys.stderr)
        examples = _conform(packed, about, names, checkpoint, fixed)
        model = load(checkpoint, device=team.device, weights=config.weights)
        count = min(len(examples), config.limit or config.first or len(examples))
        index = np.arange(count) if config.limit is None else spread(len(examples), count)
        start = time.monotonic()
        with counting("scored", count, shown=team.is_rank0) as progress:
            found = score(
                model,
                examples,
                ranks=team,
                batch=config.batch,
                subset=index,
                precision=config.precision,
                resume=config.partial,
                progress=progress,
                label=fixed,
            )
        if not math.isfinite(found.bits_per_dim):
            raise InputError(
                f"{checkpoint}: gives probabilities that are no numbers in {found.precision}; its "
                f"training went wrong, or it needs another --precision"
            )
        other = other_version(packed, checkpoint)
        found = _named(replace(found, weights=config.weights, trained_on=other), names)
        seconds = time.monotonic() - start
        on_gpu = team.device.type == "cuda"
        facts = {
            "checkpoint": str(checkpoint),
            "device": torch.cuda.get_device_name(team.device) if on_gpu else str(team.device),
            "seconds": seconds,
            "versions": {"axial": axial.__version__, "torch": torch.__version__},
        }
        if config.compare and team.is_rank0:
            with counting("coded by classical codecs", None) as progress:
                codecs = _codecs(examples, index, model.config, progress=progress)
                found = replace(found, codecs=codecs)
        condition = -1 if found.summed else fixed
        team.on_rank0(lambda: _write(config, found, facts, model, examples, condition))


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
    config: EvaluateConfig,
    found: Evaluation,
    facts: dict[str, Any],
    model: Model,
    packed: Examples,
    condition: int | None,
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
        index = found.index[spread(len(found.index), min(_DRAWN, len(found.index)))]
        x = torch.from_numpy(packed.rows(index).astype(np.int64))
        label = None
        if found.labels and packed.labels is not None:
            label = torch.from_numpy(packed.labels[index])
        if next(model.parameters()).element_size() < 4:
            model = copy.deepcopy(model).float()  # as it was scored
        where = conditioned_bits(model, x, label, condition).numpy()
        frames = packed.shape.frames or model.config.data.stacked_frames
        write_png(config.map, bit_map(x.numpy(), where, values=packed.shape.values, frames=frames))
    if found.trained_on is not None:
        line = f"warning: trained on the version {found.trained_on}, scored on "
        line += f"{found.data.version}: not comparable with other results on either"
        print(printable(line), file=sys.stderr)
    for new in written:
        print(printable(f"{new}: written"), file=sys.stderr)
    if found.codecs:
        missing = "JPEG XL" not in found.codecs
        hint = "; JPEG XL: pip install axial-transformers[compare]" * missing
        print(f"{found.comparison}{hint}", file=sys.stderr)
    print(printable(found), flush=True)
    if config.partial is not None:
        with errors_of(config.partial):
            config.partial.unlink(missing_ok=True)
