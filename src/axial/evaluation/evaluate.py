"""What `axial evaluate` does: opens model and data, scores, and writes what was found."""

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import axial
from axial.checkpoints.model_folder import Weights, load
from axial.models.config import Precision
from axial.data.packed import Packed, description_path
from axial.system.files import check_apart, check_place, check_writable, errors_of
from axial.errors import ConfigError, DataError, InputError
from axial.evaluation.scoring import Evaluation, evaluate, write_array, write_json
from axial.data.compatibility import as_modelled, check_unseen, class_names, open_test, trained_on
from axial.models.likelihood import element_bits
from axial.models.axial_transformer import AxialTransformer
from axial.media.tiles import check_preview, write_map
from axial.system.progress import counting
from axial.system.ranks import Ranks, ranks
from axial.data.sources.options import ReadOptions

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
            check_preview(self.map)
        if self.per_example is not None and self.per_example.exists():
            raise DataError(f"{self.per_example}: is there already; use another --per-example")
        if self.json is not None:
            check_place(self.json)
            array = self.json.with_suffix(".npy")
            new = array.exists() and not self.json.exists()
            if new and description_path(array) == self.json:
                raise DataError(
                    f"{self.json}: would pass for the description of {array.name}; name another"
                )

    def forget_progress(self) -> None:
        """Once the result is in safety, there is nothing to go on from."""
        if self.partial is not None:
            try:
                self.partial.unlink(missing_ok=True)
            except OSError as error:
                raise DataError(f"{self.partial}: cannot be removed ({error.strerror})") from error


def report(request: Request, outputs: Outputs, device: str | None) -> None:
    """Score, write what was asked for, then print the result in one line."""
    if outputs.map is not None and request.data is not None:
        check_apart(outputs.map, request.data)
    with ranks(device) as team, TemporaryDirectory(prefix="axial-") as scratch:
        model = load(request.checkpoint, device=team.device, weights=request.weights)
        packed = _open(request, Path(scratch), team)
        packed = as_modelled(packed, model.config, class_names(request.checkpoint))
        count = min(len(packed), request.limit or len(packed))
        start = time.monotonic()
        with counting("scored", count, shown=team.main) as progress:
            found = evaluate(
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
        team.by_main(lambda: _write(outputs, found, facts, model, packed))


def _open(request: Request, scratch: Path, team: Ranks) -> Packed:
    """The data asked for, or that of the run."""
    what, options = request.data, request.reading
    if what is None:
        what, own = trained_on(request.checkpoint)
        told = options.given
        options = replace(own, **({"split": None} | told))
    workers = None if team.count == 1 else 1
    packed = open_test(
        what,
        scratch,
        options,
        trained=request.data is None,
        workers=workers,
        progress=team.main,
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
    model: AxialTransformer,
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
