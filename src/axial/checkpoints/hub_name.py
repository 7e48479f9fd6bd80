"""How a model on the Hugging Face Hub is named: hub:user/name, hub:user/name@revision."""

import re
from pathlib import Path

from axial.errors import ConfigError
from axial.validation import shown

_HUB = "hub:"
_PART = r"(?!-)(?![.])(?:(?!--|[.][.])[\w.-])+(?<![.-])"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?", re.ASCII)


def is_on_hub(checkpoint: Path | str) -> bool:
    """Whether a checkpoint is named by its repository; a Path never is."""
    return isinstance(checkpoint, str) and checkpoint.startswith(_HUB)


def parse_name(name: str) -> tuple[str, str | None]:
    """The repository and the revision of `user/name@revision`, with or without `hub:`."""
    found = _NAME.fullmatch(name.removeprefix(_HUB))
    if found is None:
        raise ConfigError(f"{shown(name)}: is no name on the Hub; use user/name or user/name@rev")
    return found["repository"], found["revision"]
