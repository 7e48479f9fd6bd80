"""A model, or a checkpoint, on data of any kind; and what `axial evaluate` does and writes."""

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import axial
from axial.checkpoints.model_folder import Weights, load
from axial.checkpoints.trained_on import check_unseen, class_names, trained_on
from axial.data.compatibility import ClassNames, conform, open_test
from axial.data.description import description_path
from axial.data.in_memory import pack_array
from axial.data.packed import Array, Packed
from axial.data.sources.options import ReadOptions
from axial.errors import ConfigError, DataError, InputError
from axial.evaluation.scoring import Evaluation, score, write_array, write_json
from axial.media.maps import write_map
from axial.media.sheets import check_preview
from axial.models.likelihood import element_bits
from axial.models.protocol import Model
from axial.system.files import check_apart, check_place, check_writable, errors_of
from axial.system.progress import counting
from axial.system.ranks import Ranks, ranks, usable
from axial.validation import Precision

_DRAWN = 8


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which model to score on which data, and how."""

    checkpoint: Path | str
    data: str | None
    weights: Weights
    precision: Precision
    batch: int | None
    limit: int | None
    reading: ReadOptions

    def __post_init__(self) -> None:
        for name in ("batch", "limit"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"--{name} is {value}: use at least 1")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where to write what."""

    json: Path | None
    map: Path | None
    per_example: Path | None
    resume: Path | None
    overwrite: bool = False

    @property
    def partial(self) -> Path | None:
        """Where progress is kept, if anywhere."""
        if self.resume is None and self.json is not None:
            return self.json.with_name(f"{self.json.name}.partial")
        return self.resume

    @property
    def paths(self) -> list[Path]:
        """Every file that may be written."""
        every = (self.json, self.map, self.per_example, self.partial)
        return [path for path in every if path is not None]

    def __post_init__(self) -> None:
        """Refuse, before any work is done, places where nothing can or should go."""
        paths = self.paths
        for path in paths:
            with errors_of(path):  # a name too long to be one, a folder without rights
                odd = path.exists() and not path.is_file()
                there = path.parent.is_dir()
            if odd or not there:
                raise DataError(f"{path}: no place for a file; name one in a folder that is there")
            check_writable(path)
        if len({path.resolve() for path in paths}) < len(paths):
            names = ", ".join(map(str, paths))
            raise DataError(f"{names}: one file for two things; give each its own")
        if self.map is not None:
            check_preview(self.map, overwrite=self.overwrite)
        for path in filter(None, (self.per_example, self.json)):
            check_place(path, overwrite=self.overwrite)
        if self.json is not None:
            array = self.json.with_suffix(".npy")
            new = array.exists() and not self.json.exists()
            if new and description_path(array) == self.json:
                raise DataError(
                    f"{self.json}: would pass for the description of {array.name}; name another"
                )

    def forget_progress(self) -> None:
        """Once the result is in safety, there is nothing to resume from."""
        if self.partial is not None:
            try:
                self.partial.unlink(missing_ok=True)
            except OSError as error:
                raise DataError(f"{self.partial}: cannot be removed ({error.strerror})") from error


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
    names: ClassNames = None
    folder = model if isinstance(model, str | Path) else None
    if isinstance(model, str | Path):
        names = class_names(model)
        model = load(model, device=usable(device), weights=weights)
    with TemporaryDirectory(prefix="axial-") as scratch:
        if data is None and folder is not None:
            what, options = trained_on(folder)
            options = replace(options, split=None)
            packed = open_test(what, Path(scratch), options, trained=True)
            check_unseen(packed, folder)
        elif data is None:
            raise InputError("data is missing: a model does not say what to score it on")
        elif isinstance(data, Packed):
            packed = data
        elif isinstance(data, str | Path):
            packed = open_test(data, Path(scratch), ReadOptions())
        else:
            path, classes = Path(scratch) / "data.npy", model.config.classes or None
            packed = pack_array(data, path, labels=label, classes=classes)
        found = score(model, conform(packed, model.config.data, names), **how)
        return replace(found, weights=weights)


def report(request: Request, outputs: Outputs, device: str | None) -> None:
    """Score, write what was asked for, then print the result in one line."""
    if outputs.map is not None and request.data is not None:
        check_apart(outputs.map, request.data)
    with ranks(device) as team, TemporaryDirectory(prefix="axial-") as scratch:
        model = load(request.checkpoint, device=team.device, weights=request.weights)
        packed = _open(request, Path(scratch), team)
        packed = conform(packed, model.config.data, class_names(request.checkpoint))
        count = min(len(packed), request.limit or len(packed))
        start = time.monotonic()
        with counting("scored", count, shown=team.is_rank0) as progress:
            found = score(
                model,
                packed,
                ranks=team,
                batch=request.batch,
                subset=np.arange(count),
                precision=request.precision,
                resume=outputs.partial,
                progress=progress,
            )
        if not math.isfinite(found.bits_per_dim):
            raise InputError(
                f"{request.checkpoint}: gives probabilities that are no numbers; its weights are "
                f"damaged, or its training went wrong"
            )
        found = replace(found, weights=request.weights)
        facts = _facts(request, team.device, time.monotonic() - start)
        team.on_rank0(lambda: _write(outputs, found, facts, model, packed))


def _open(request: Request, scratch: Path, team: Ranks) -> Packed:
    """The data asked for, or that of the run."""
    what, options = request.data, request.reading
    if what is None:
        what, own = trained_on(request.checkpoint)
        options = replace(own, **({"split": None} | options.given))
    workers = None if team.count == 1 else 1
    packed = open_test(
        what,
        scratch,
        options,
        trained=request.data is None,
        workers=workers,
        progress=team.is_rank0,
        limit=request.limit,
    )
    if request.data is None and request.reading.split is None:
        check_unseen(packed, request.checkpoint)
    return packed


def _facts(request: Request, device: torch.device, seconds: float) -> dict[str, Any]:
    """What a reader of the figures may want to know of how they came about."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {
        "checkpoint": str(request.checkpoint),
        "device": name,
        "seconds": seconds,
        "versions": {"axial": axial.__version__, "torch": torch.__version__},
    }


def _write(
    outputs: Outputs,
    found: Evaluation,
    facts: dict[str, Any],
    model: Model,
    packed: Packed,
) -> None:
    """Write the files, and only then print the result and forget how far it had come."""
    if outputs.json is not None:
        write_json(outputs.json, found.to_json() | facts)
    if outputs.per_example is not None:
        write_array(outputs.per_example, found.bits)
    if outputs.map is not None:
        index = found.index[:_DRAWN]
        x = torch.from_numpy(packed.rows(index).astype(np.int64))
        label = None
        if found.labels and packed.labels is not None:
            label = torch.from_numpy(packed.labels[index])
        where = element_bits(model, x, label).numpy()
        frames = packed.shape.frames or model.config.data.stacked_frames
        write_map(outputs.map, x.numpy(), where, values=packed.shape.values, frames=frames)
    for path in filter(None, (outputs.json, outputs.per_example, outputs.map)):
        print(f"{path}: written", file=sys.stderr)
    print(found, flush=True)
    outputs.forget_progress()
