"""How a run begins: a preset, the data and the user's wishes become a folder; and goes on."""

import errno
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import axial
from axial.data.batches import check_share
from axial.checkpoints.model_folder import fingerprint, load
from axial.models.config import ModelConfig, Recipe, Sizes, TrainConfig
from axial.data.packed import Packed, is_packed, open_packed, stacked_shape
from axial.system.files import LOCK, claimed, folders_above, unfinished
from axial.errors import ConfigError, DataError
from axial.data.compatibility import as_modelled, class_names, renumbered
from axial.data.packing import open_data
from axial.presets import PRESETS
from axial.system.ranks import Ranks
from axial.checkpoints.run_folder import Run, check_free, write_run
from axial.checkpoints.shipped import shipped_folder
from axial.data.sources.options import ReadOptions
from axial.data.sources.recognise import is_path


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a user asks to train."""

    preset: str
    """A name in PRESETS."""
    data: str | None
    """A packed file, or any source that `axial data` takes; None for the preset's or run's own."""
    training: TrainConfig
    """How to train."""
    reading: ReadOptions = ReadOptions()  # noqa: RUF009
    """How to read the source."""
    sizes: Sizes = Sizes()  # noqa: RUF009
    """What is other than in the preset's model."""
    stack_frames: bool = False
    """Fold the first axis of a video into the channels, as the paper does."""
    init: Path | str | None = None
    """A checkpoint to start from instead of random weights; its sizes are the run's."""


def begin(plan: Plan, out: Path, ranks: Ranks) -> tuple[Run, Packed]:
    """Make the folder of a new run; on an error nothing of it stays.

    Every rank calls it; the main one writes. The folder must be one that all can see.
    """
    return ranks.first_main(lambda: _create(plan, out, ranks) if ranks.main else _join(out))


def _create(plan: Plan, out: Path, ranks: Ranks) -> tuple[Run, Packed]:
    """Make the run beside its place, or inside if that is there; an error leaves nothing."""
    try:
        place = out.resolve()
        for left in (unfinished(place), place / unfinished(place).name):
            if left.is_dir():
                with claimed(left):
                    pass  # a process that died has left it: it goes
        check_free(out)
        check_share(plan.training.batch, ranks.rank, ranks.count)
        beside = place if place.is_dir() else place.parent  # the same disk in either case
        scratch = beside / unfinished(place).name
        with folders_above(place), claimed(scratch):
            packed = _open(plan, scratch, out)
            packed.check()  # what run.json says of the data is true of what is trained on
            model, packed, start = _model(plan, packed)
            plan.training.held_out(len(packed))
            write_run(scratch, _about(plan, packed, model, start, scratch))
            _move(scratch, place)
    except BlockingIOError as error:
        raise ConfigError(
            f"{out}: another process is starting a run here; wait for it, or choose another --out"
        ) from error
    except OSError as error:
        check_free(out)  # another process may have been faster
        raise ConfigError(
            f"{out}: cannot be made ({error.strerror or error}); choose another --out"
        ) from error
    return _join(out)


def _move(scratch: Path, place: Path) -> None:
    """Give a finished run its name; a folder that is there may be a mount, or where we stand."""
    if scratch.parent != place:
        scratch.rename(place)
        return
    if len(list(place.iterdir())) > 1:
        raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    for part in sorted(scratch.iterdir()):  # data before run.json, which makes it a run
        if part.name != LOCK:  # by which others know that this is going on
            part.rename(place / part.name)


def _join(out: Path) -> tuple[Run, Packed]:
    run = Run(out)
    return run, open_again(run)


def resume(folder: Path, plan: Plan, ranks: Ranks) -> tuple[Run, Packed]:
    """Open a run to go on with it, as it was started; the plan says nothing else."""
    run = Run(folder)
    _check_same(run, plan, ranks)
    packed = open_again(run, plan.data)
    packed.check()
    return run, packed


def open_again(run: Run, data: str | None = None) -> Packed:
    """The data of a run, or the same array at another place; any other is refused."""
    about = run.about["data"]
    if data is not None and about.get("source") in (data, str(Path(data).resolve())):
        data = None  # what the run was started with: its own array is made of that
    path = Path(data) if data else run.folder / about["file"]  # an absolute path stays so
    if not is_packed(path):
        what = "is no packed array" if path.exists() else "the data of this run is not there"
        raise DataError(f"{path}: {what}; give --data, the same array elsewhere")
    packed = open_packed(path, stack_frames=about["stack_frames"])
    if about.get("names"):  # those of the model that it started from, if it did
        packed = renumbered(packed, tuple(about["names"]))
    for name, found in _identity(packed).items():
        if about[name] != found:
            raise DataError(
                f"{path}: is not what {run.folder} was trained on ({name} {found!r}, not "
                f"{about[name]!r}); give the same --data, or start a new run"
            )
    return packed


def _check_same(run: Run, plan: Plan, ranks: Ranks) -> None:
    """Refuse to go on with settings other than the run's own."""
    about, data = run.about, run.about["data"]
    training = TrainConfig.from_json(about["training"]).to_json()  # with what came later
    own = training | about["model"] | data["reading"]
    own |= {"preset": about["preset"], "stack_frames": data["stack_frames"]}
    own["init"] = (about["init"] or {}).get("folder")
    wanted: dict[str, Any] = plan.training.to_json() | plan.sizes.given
    wanted |= plan.reading.given
    wanted["preset"] = plan.preset
    if plan.stack_frames:
        wanted["stack_frames"] = True
    if plan.init is not None:
        wanted["init"] = _place(plan.init)
    for name, value in wanted.items():
        value = list(value) if isinstance(value, tuple) else value
        if value != own.get(name):
            raise ConfigError(
                f"{run.folder}: was started with {name} {own.get(name)}, not {value}; leave it "
                f"out, or start a new run with --init {run.folder}"
            )
    check_share(plan.training.batch, ranks.rank, ranks.count)


def _open(plan: Plan, scratch: Path, out: Path) -> Packed:
    source = plan.data or PRESETS[plan.preset]().source
    if source is None:
        raise ConfigError(
            f"{plan.preset}: give --data, a packed .npy file or any source that `axial data` takes"
        )
    shown = out / "data" / "data.npy"
    packed = open_data(source, scratch / "data", plan.reading, progress=True, shown=shown)
    if plan.stack_frames or (plan.preset == "bair" and len(packed.shape.axes) == 3):
        stacked_shape(source, packed.shape)  # what cannot be is told of what the user knows
        packed = open_packed(packed.path, stack_frames=True)
    return packed


def _model(plan: Plan, packed: Packed) -> tuple[ModelConfig, Packed, dict[str, Any] | None]:
    """What is trained, the data as it takes it, and what it starts from."""
    if plan.init is not None:
        for name in plan.sizes.given.keys() - {"dropout"}:
            raise ConfigError(
                f"--{name.replace('_', '-')} {plan.sizes.given[name]}: with --init the sizes are "
                f"those of {plan.init}; leave it out"
            )
        model = load(plan.init)
        if model.config.classes and not plan.training.labels:
            raise ConfigError(
                f"{plan.init}: is conditioned on labels, and this training goes without; give "
                f"--labels, or leave --init out"
            )
        if plan.training.labels and packed.shape.classes and not model.config.classes:
            raise ConfigError(
                f"{plan.init}: is not conditioned on labels, and this training would be; give "
                f"--no-labels, or leave --init out"
            )
        start = {"folder": _place(plan.init), "fingerprint": fingerprint(model)}
        config = replace(model.config, **plan.sizes.given)
        return config, as_modelled(packed, config, class_names(plan.init)), start
    shape = packed.shape if plan.training.labels else replace(packed.shape, classes=0)
    recipe: Recipe = PRESETS[plan.preset](shape)
    return plan.sizes.applied(recipe.model), packed, None


def _place(checkpoint: Path | str) -> str:
    """Where a checkpoint is found again from anywhere: its whole path, or the name it ships by."""
    return str(checkpoint if shipped_folder(checkpoint) else Path(checkpoint).resolve())


def _lasting(path: Path) -> Path:
    """Where data is found again from anywhere; links stay, for they may be set anew."""
    plain = Path(os.path.abspath(path))  # noqa: PTH100 - `absolute` leaves each .. in it
    return plain if plain.exists() and plain.samefile(path) else path.resolve()


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
            "source": str(Path(source).resolve()) if is_path(source) else source,
            "reading": plan.reading.given,
            "file": str(packed.path.relative_to(out) if own else _lasting(packed.path)),
            "stack_frames": packed.stack_frames,
            "examples": len(packed),
            **_identity(packed),
            "names": labels.names if (labels := packed.description.labels) else None,
        },
        "versions": {
            "axial": axial.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
