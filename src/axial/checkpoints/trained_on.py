"""What a model was trained on: the source and the part that a run names, and classes by name."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from axial.checkpoints.run_folder import Run
from axial.data.compatibility import listed
from axial.data.packed import Packed
from axial.data.sources.imagenet import NEW, OLD
from axial.data.sources.options import ReadOptions
from axial.errors import AxialError, ConfigError, DataError
from axial.shape import ClassNames
from axial.validation import from_json, shown


def trained_on(checkpoint: Path | str) -> tuple[str, ReadOptions]:
    """What a run was trained on: the source, and the options it was read with."""
    data = _data_of(checkpoint)
    if data.get("source") is None:  # an array in memory, or no run
        raise ConfigError(f"{checkpoint}: does not say what it was trained on; give --data")
    try:
        return data["source"], from_json(ReadOptions, data["reading"], "reading", strict=True)
    except AxialError as error:
        raise ConfigError(f"{checkpoint}: run.json is damaged ({error}); give --data") from error


def check_unseen(packed: Packed, checkpoint: Path | str) -> None:
    """Refuse the part of a source that a run was trained on."""
    title = packed.description.title
    if title == _data_of(checkpoint).get("title"):
        raise DataError(f"{title}: is what {checkpoint} was trained on; give --data")


def is_trained_on(packed: Packed, checkpoint: Path | str) -> bool:
    """Whether these are the very elements that a run was trained on, or the first of them."""
    own, about = _data_of(checkpoint), packed.description
    first = about.beginning and about.title == own.get("title")
    return bool(first or own.get("sha256") == about.sha256)


def other_version(packed: Packed, checkpoint: Path | str) -> str | None:
    """The version of ImageNet32 or ImageNet64 that a run was trained on, if not that of the data.

    Their bits/dim are not comparable.
    """
    title, found = _data_of(checkpoint).get("title", ""), packed.description.version
    own = next((version for version in (OLD, NEW) if version in title), None)
    return own if found in (OLD, NEW) and found != own else None


def trained_on_crops(checkpoint: Path | str) -> bool:
    """Whether a run was trained on parts of larger pictures."""
    return Run.exists(checkpoint) and Run(checkpoint).about["training"].get("crop") is not None


def class_numbers(
    checkpoint: Path | str, wanted: Sequence[str | int], classes: int, names: ClassNames
) -> tuple[int, ...]:
    """The classes of these names or numbers; `all` is every one of them.

    A name goes before a number that is spelled alike, and may be spelled in other cases.
    """
    if not classes:
        raise ConfigError(f"{checkpoint}: this model is unconditional; leave --label out")
    if list(wanted) == ["all"] and "all" not in (names or ()):
        return tuple(range(classes))
    return tuple(_class_number(checkpoint, one, names or (), classes) for one in wanted)


def _class_number(
    checkpoint: Path | str, wanted: str | int, names: Sequence[str], classes: int
) -> int:
    if wanted in names:
        return names.index(str(wanted))
    alike = [i for i, name in enumerate(names) if name.casefold() == str(wanted).casefold()]
    if len(alike) == 1:
        return alike[0]
    try:
        number = int(wanted)
    except ValueError:
        number = -1
    if 0 <= number < classes:
        return number
    near = difflib.get_close_matches(str(wanted), names, n=1) if number < 0 else []
    known = f"{listed(names)}, or " if names and not are_numbers(names) else ""
    hint = f"did you mean {near[0]}?" if near else f"use {known}0 to {classes - 1}, or all"
    raise ConfigError(
        f"{checkpoint}: --label is {shown(wanted)}, and there is no such class; {hint}"
    )


def are_numbers(names: Sequence[str]) -> bool:
    """Whether classes are called by their numbers, so that names say nothing more."""
    return list(names) == [str(number) for number in range(len(names))]


def class_title(names: ClassNames, number: int) -> str:
    """The name of a class, or its number where no one says."""
    return str(number) if names is None or number >= len(names) else names[number]


def _data_of(checkpoint: Path | str) -> dict[str, Any]:
    """What a run says of its data; nothing for what is no run."""
    return Run(checkpoint).about["data"] if Run.exists(checkpoint) else {}
