"""How a run begins: a preset, the data and the user's wishes become a folder; and goes on."""

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import axial
from axial.checkpoint import fingerprint, load
from axial.config import ModelConfig, Recipe, Sizes, TrainConfig
from axial.data import Packed, is_packed, open_packed
from axial.errors import ConfigError, DataError
from axial.fitting import as_modelled
from axial.packing import open_data
from axial.presets import PRESETS
from axial.ranks import Ranks
from axial.runs import Run, reserve
from axial.sources.options import ReadOptions


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a user asks to train."""

    preset: str
    """A name in PRESETS."""
    data: str | None
    """A packed file, or any source that `axial data` takes; None for the preset's own."""
    training: TrainConfig
    """How to train."""
    reading: ReadOptions = ReadOptions()  # noqa: RUF009
    """How to read the source."""
    sizes: Sizes = Sizes()  # noqa: RUF009
    """What is other than in the preset's model."""
    stack_frames: bool = False
    """Fold the first axis of a video into the channels, as the paper does."""
    init: Path | None = None
    """A checkpoint to start from instead of random weights; its sizes are the run's."""


def begin(plan: Plan, out: Path, ranks: Ranks) -> tuple[Run, Packed]:
    """Make the folder of a new run; on an error nothing of it stays.

    Every rank calls it; the main one writes. The folder must be one that all can see.
    """
    if not ranks.main:
        ranks.wait()
        run = Run(out)
        return run, open_again(run)
    reserve(out)
    try:
        packed = _open(plan, out)
        model, start = _model(plan, packed)
        plan.training.held_out(len(packed))
        run = Run.create(out, _about(plan, packed, model, start, out))
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    ranks.wait()
    return run, packed


def open_again(run: Run, data: str | None = None) -> Packed:
    """The data of a run, or the same array at another place; any other is refused."""
    about = run.about["data"]
    path = Path(data) if data else run.folder / about["file"]  # an absolute path stays as it is
    if not is_packed(path):
        raise DataError(
            f"{path}: the data of this run is not there; give --data, the same array elsewhere"
        )
    packed = open_packed(path, stack_frames=about["stack_frames"])
    for name, found in _identity(packed).items():
        if about[name] != found:
            raise DataError(
                f"{path}: is not what {run.folder} was trained on ({name} {found!r}, not "
                f"{about[name]!r}); give the same --data, or start a new run"
            )
    return packed


def check_same(run: Run, training: TrainConfig, sizes: Sizes, preset: str | None) -> None:
    """Refuse to go on with settings other than the run's own."""
    about = run.about
    asked: dict[str, Any] = training.to_json() | sizes.given
    if preset is not None:
        asked["preset"] = preset
    own = about["training"] | about["model"] | {"preset": about["preset"]}
    for name, value in asked.items():
        value = list(value) if isinstance(value, tuple) else value
        if value != own[name]:
            raise ConfigError(
                f"{run.folder}: was started with {name} {own[name]}, not {value}; leave it out, or "
                f"start a new run with --init {run.folder}"
            )


def _open(plan: Plan, out: Path) -> Packed:
    source = plan.data or PRESETS[plan.preset]().source
    if source is None:
        raise ConfigError(
            f"{plan.preset}: give --data, a packed .npy file or any source that `axial data` takes"
        )
    packed = open_data(source, out / "data", plan.reading, progress=True)
    if plan.stack_frames or (plan.preset == "bair" and len(packed.shape.axes) == 3):
        packed = open_packed(packed.path, stack_frames=True)
    return packed


def _model(plan: Plan, packed: Packed) -> tuple[ModelConfig, dict[str, Any] | None]:
    """What is trained, and what it starts from."""
    if plan.init is not None:
        if plan.sizes.given.keys() - {"dropout"}:
            name = next(iter(plan.sizes.given.keys() - {"dropout"}))
            raise ConfigError(f"--{name.replace('_', '-')}: --init takes its model's own; leave it")
        model = load(plan.init)
        as_modelled(packed, model.config)
        start = {"folder": str(plan.init.resolve()), "fingerprint": fingerprint(model)}
        return replace(model.config, **plan.sizes.given), start
    labels = plan.training.labels
    shape = packed.shape if labels else replace(packed.shape, classes=0)
    recipe: Recipe = PRESETS[plan.preset](shape)
    return plan.sizes.applied(recipe.model), None


def _identity(packed: Packed) -> dict[str, Any]:
    """What makes it the same data: its elements and its labels."""
    labels = packed.description.labels
    return {"sha256": packed.description.sha256, "labels": labels.sha256 if labels else None}


def _about(
    plan: Plan, packed: Packed, model: ModelConfig, start: Mapping[str, Any] | None, out: Path
) -> dict[str, Any]:
    """The contents of run.json."""
    own = packed.path.is_relative_to(out)
    source = plan.data or str(PRESETS[plan.preset]().source)
    return {
        "preset": plan.preset,
        "model": model.to_json(),
        "training": plan.training.to_json(),
        "init": start,
        "data": {
            "title": packed.description.title,
            "source": str(Path(source).resolve()) if Path(source).exists() else source,
            "reading": {name: getattr(plan.reading, name) for name in plan.reading.given},
            "file": str(packed.path.relative_to(out) if own else packed.path.absolute()),
            "stack_frames": packed.stack_frames,
            "examples": len(packed),
            **_identity(packed),
        },
        "versions": {
            "axial": axial.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
