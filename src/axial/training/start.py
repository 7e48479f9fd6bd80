"""Create a run folder from a preset, data and settings, or open one to resume it."""

import errno
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import axial
from axial.checkpoints.run_folder import Run, check_free, write_run
from axial.data.batches import check_share
from axial.data.compatibility import remap_labels
from axial.data.in_memory import is_packed_as, pack_array
from axial.data.packed import Packed, is_packed, open_packed, stacked_shape
from axial.data.packing import open_data
from axial.data.sources.recognise import is_path, open_source
from axial.errors import ConfigError, DataError
from axial.models.families import family_of, read_config
from axial.models.family_config import FamilyConfig
from axial.system.files import (
    LOCK,
    UNFINISHED,
    folders_above,
    locked,
    remove_dead,
    resolved,
    scratch_folder,
)
from axial.system.ranks import Ranks
from axial.system.terminal import printable
from axial.training.config import Recipe, TrainConfig
from axial.training.hold_out import Parts, divide
from axial.training.initial_model import check_memory, initial_model, lasting_name, with_crop
from axial.training.plan import Plan, later_end, opening, trained_examples, with_end_of


def open_run(plan: Plan, folder: Path, ranks: Ranks, *, resume: bool = False) -> tuple[Run, Packed]:
    """Create a run or open one to resume it, and say on standard error what it is.

    Every rank calls it; rank 0 writes. The folder must be one that all can see.
    """
    how = _resume if resume else create
    run, packed = ranks.rank0_first(lambda: how(plan, folder, ranks))
    if ranks.is_rank0:
        with suppress(OSError):  # a run needs no one who listens
            print(printable(opening(run, plan)), file=sys.stderr)
    return run, packed


def create(plan: Plan, out: Path, ranks: Ranks) -> tuple[Run, Packed]:
    """Make the run on rank 0, beside its place, or inside if that is there, and open it on all.

    An error leaves nothing of it.
    """
    try:
        if ranks.is_rank0:
            _write(plan, out, ranks)
    except BlockingIOError as error:
        raise ConfigError(
            f"{out}: another process is starting a run here; wait for it, or choose another --out"
        ) from error
    except OSError as error:
        check_free(out)  # another process may have been faster
        raise ConfigError(
            f"{out}: cannot be made ({error.strerror or error}); choose another --out"
        ) from error
    run = Run(out)
    return run, open_again(run)


def _write(plan: Plan, out: Path, ranks: Ranks) -> None:
    place = resolved(out)
    within = place if place.is_dir() else place.parent  # the same disk in either case
    _finish_move(place)
    if any([remove_dead(place, within=folder) for folder in (place, place.parent)]):
        raise BlockingIOError
    check_free(out)
    check_share(plan.training.batch, ranks.rank, ranks.count)
    with folders_above(place), scratch_folder(place, within=within, alone=True) as scratch:
        plan = _reading_crops(plan)
        packed = _open(plan, scratch, out)
        packed.check()  # what run.json says of the data is true of what is trained on
        plan = with_crop(plan, packed)
        model, packed, start = initial_model(plan, packed)
        parts = divide(packed, plan.training)
        plan = plan.for_data(len(parts.kept))
        check_memory(model, plan.training, ranks)
        write_run(scratch, _about(plan, packed, model, start, parts, scratch))
        _move(scratch, place)


def _move(scratch: Path, place: Path) -> None:
    """Give a finished run its name; a folder that is there may be a mount, or where we stand."""
    if scratch.parent != place:
        scratch.rename(place)
        return
    if len(list(place.iterdir())) > 1:
        raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    _move_parts(scratch, place)


def _move_parts(scratch: Path, place: Path) -> None:
    for part in sorted(scratch.iterdir()):  # data before run.json, which makes it a run
        if part.name != LOCK:  # by which others know that this is going on
            part.rename(place / part.name)


def _finish_move(place: Path) -> None:
    """Bring the rest of a run whose process died when its data had been moved already."""
    for left in place.glob(UNFINISHED):
        if left.is_symlink():
            continue
        with suppress(OSError), locked(left / LOCK):  # or another process is about it
            if Run.exists(left) and not (left / "data").exists() and (place / "data").is_dir():
                _move_parts(left, place)


def _resume(plan: Plan, folder: Path, ranks: Ranks) -> tuple[Run, Packed]:
    """Open a run to resume it, as it was started; all that may be other is a later end."""
    run = Run(folder)
    plan = plan.for_data(trained_examples(run))
    limits = later_end(run, plan.training)
    _check_same(run, replace(plan, training=with_end_of(run, plan.training)))
    check_share(plan.training.batch, ranks.rank, ranks.count)
    data = plan.data
    packed = open_again(run, data if isinstance(data, str) else None)
    if not (data is None or isinstance(data, str) or is_packed_as(data, packed)):
        raise DataError(
            f"data is not the array that {run.folder} was trained on; leave it out, or start a "
            f"new run"
        )
    packed.check()
    if limits:
        with run.locked():
            done = [path.name for path in run.checkpoints()]
            run.lengthen(int(done[-1].removeprefix("step-")) if done else 0, **limits)
    return run, packed


def open_again(run: Run, data: str | None = None) -> Packed:
    """The data of a run, or the same array at another place; any other is refused."""
    about = run.about["data"]
    if data is not None and about.get("source") in (data, str(resolved(data))):
        data = None  # what the run was started with: its own array is made of that
    path = Path(data) if data else run.folder / about["file"]  # an absolute path stays so
    if not is_packed(path):
        what = "is no packed array" if path.exists() else "the data of this run is not there"
        raise DataError(f"{path}: {what}; give --data, the same array elsewhere")
    packed = open_packed(path, stack_frames=about["stack_frames"])
    if about.get("names"):  # those of the model that it started from, if it did
        packed = remap_labels(packed, tuple(about["names"]))
    for name, found in _identity(packed).items():
        if about.get(name) != found:
            raise DataError(
                f"{path}: is not what {run.folder} was trained on ({name} {found!r}, not "
                f"{about.get(name)!r}); give the same --data, or start a new run"
            )
    return packed


def _check_same(run: Run, plan: Plan) -> None:
    """Refuse to resume with settings other than the run's own."""
    about, data = run.about, run.about["data"]
    own = asdict(TrainConfig.from_json(about["training"])) | asdict(read_config(about))
    own |= data["reading"] | {"preset": about["preset"], "stack_frames": data["stack_frames"]}
    own["init"] = (about["init"] or {}).get("folder")
    wanted = asdict(plan.training) | plan.sizes.given | plan.reading.given | {"preset": plan.name}
    if isinstance(plan.preset, Recipe):
        wanted |= asdict(plan.sizes.applied(plan.preset.model))
    if plan.stack_frames:
        wanted["stack_frames"] = True
    if plan.init is not None:
        wanted["init"] = lasting_name(plan.init)
    own, wanted = (json.loads(json.dumps(each)) for each in (own, wanted))  # tuples are lists
    for name, value in wanted.items():
        if value != own.get(name):
            raise ConfigError(
                f"{run.folder}: was started with {name} {own.get(name)}, not {value}; leave it "
                f"out, or start a new run with --init {run.folder}"
            )


def _reading_crops(plan: Plan) -> Plan:
    """Pictures that are to be cropped are read in their own sizes, unless they are made alike."""
    source, reading = plan.usual.source if plan.data is None else plan.data, plan.reading
    if plan.training.crop is None or reading.size or not isinstance(source, str):
        return plan
    if is_packed(source) or "any_size" not in open_source(source, reading).takes:
        return plan
    return replace(plan, reading=replace(reading, any_size=True))


def _open(plan: Plan, scratch: Path, out: Path) -> Packed:
    usual = plan.usual
    if plan.data is not None and not isinstance(plan.data, str):
        values = usual.model.values if isinstance(plan.preset, Recipe) else None
        return pack_array(plan.data, scratch / "data" / "data.npy", values=values)
    source = plan.data or usual.source
    if source is None:
        raise ConfigError(
            f"{plan.name}: give --data, a packed .npy file or any source that `axial data` takes"
        )
    shown = out / "data" / "data.npy"
    packed = open_data(source, scratch / "data", plan.reading, progress=True, shown=shown)
    if plan.stack_frames or (usual.stack_frames and len(packed.shape.axes) == 3):
        stacked_shape(source, packed.shape)  # what cannot be is told of what the user knows
        packed = open_packed(packed.path, stack_frames=True)
    return packed


def _lasting(path: Path) -> Path:
    """Where data is found again from anywhere; links stay, for they may be set anew."""
    plain = Path(os.path.abspath(path))  # noqa: PTH100 - `absolute` leaves each .. in it
    return plain if plain.exists() and plain.samefile(path) else resolved(path)


def _identity(packed: Packed) -> dict[str, Any]:
    """What makes it the same data: its elements, its labels, and sizes if they differ."""
    about = packed.description
    found = {"sha256": about.sha256, "labels": about.labels.sha256 if about.labels else None}
    return found | ({"sizes": about.sizes.sha256} if about.sizes else {})


def _about(
    plan: Plan,
    packed: Packed,
    model: FamilyConfig,
    start: Mapping[str, Any] | None,
    parts: Parts,
    out: Path,
) -> dict[str, Any]:
    """The contents of run.json."""
    own = packed.path.is_relative_to(out)
    source = plan.data if isinstance(plan.data, str | None) else None
    if plan.data is None:
        source = plan.usual.source
    return {
        "preset": plan.name,
        "family": family_of(model).family,
        "model": model.to_json(),
        "training": plan.training.to_json(),
        "init": start,
        "data": {
            "title": packed.description.title,
            "source": str(resolved(source)) if source and is_path(source) else source,
            "reading": plan.reading.given,
            "file": str(packed.path.relative_to(out) if own else _lasting(packed.path)),
            "stack_frames": packed.stack_frames,
            "examples": len(packed),
            **({"crops": _crops(parts)} if plan.training.crop else {}),
            **_identity(packed),
            "names": labels.names if (labels := packed.description.labels) else None,
        },
        "versions": {
            "axial": axial.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _crops(parts: Parts) -> dict[str, int]:
    """What run.json says of crops."""
    return {
        "trained": len(parts.kept),
        "held_out": len(parts.held_out),
        "held_out_pictures": parts.held_out_pictures,
        "too_small": parts.too_small,
    }
