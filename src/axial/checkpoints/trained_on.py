"""What a run says of the data it was trained on: the source, the part, the names of classes."""

import json
from pathlib import Path
from typing import Any

from axial.data.compatibility import ClassNames
from axial.data.packed import Packed
from axial.data.sources.options import ReadOptions
from axial.errors import ConfigError, DataError


def trained_on(checkpoint: Path | str) -> tuple[str, ReadOptions]:
    """What a run was trained on: the source, and the options it was read with."""
    try:
        data = _data_of(checkpoint)
        if "source" in data and data["source"] is None:
            raise ValueError("an array in memory")
        return str(data["source"]), ReadOptions(**data.get("reading", {}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{checkpoint}: does not say what it was trained on; give --data"
        ) from error


def check_unseen(packed: Packed, checkpoint: Path | str) -> None:
    """Refuse the part of a source that a run was trained on."""
    title = packed.description.title
    if title == _data_of(checkpoint).get("title"):
        raise DataError(f"{title}: is what {checkpoint} was trained on; give --data")


def class_names(checkpoint: Path | str) -> ClassNames:
    """What a run calls the classes it was trained on; None for a model that is no run."""
    try:
        return tuple(map(str, _data_of(checkpoint)["names"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # no run, one without names, or one written before they were kept


def _data_of(checkpoint: Path | str) -> Any:
    """What a run says of its data; as bad as it may be, for anyone may have written it."""
    return json.loads((Path(checkpoint) / "run.json").read_text())["data"]
