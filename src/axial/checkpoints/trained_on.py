"""What a run says of the data it was trained on: the source, the part, the names of classes."""

from pathlib import Path
from typing import Any

from axial.checkpoints.run_folder import Run
from axial.data.compatibility import ClassNames
from axial.data.packed import Packed
from axial.data.sources.imagenet import NEW, OLD
from axial.data.sources.options import ReadOptions
from axial.errors import AxialError, ConfigError, DataError
from axial.validation import from_json


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


def other_version(packed: Packed, checkpoint: Path | str) -> str | None:
    """The version of ImageNet32 or ImageNet64 that a run was trained on, if not that of the data.

    Their bits/dim are not comparable.
    """
    title, found = _data_of(checkpoint).get("title", ""), packed.description.version
    own = next((version for version in (OLD, NEW) if version in title), None)
    return own if found in (OLD, NEW) and found != own else None


def class_names(checkpoint: Path | str) -> ClassNames:
    """What a run calls the classes it was trained on; None for a model that is no run."""
    names = _data_of(checkpoint).get("names")
    return None if names is None else tuple(names)


def _data_of(checkpoint: Path | str) -> dict[str, Any]:
    """What a run says of its data; nothing for what is no run."""
    return Run(checkpoint).about["data"] if Run.exists(checkpoint) else {}
