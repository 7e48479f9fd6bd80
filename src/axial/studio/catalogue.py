"""The models that are served, by name: what each is, from before it is loaded until it is ready.

Torch is imported by the thread that loads the first of them, so that the page answers before.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from axial.errors import CheckpointError, ConfigError
from axial.studio.errors import RequestError

if TYPE_CHECKING:
    from axial.models.family_config import FamilyConfig
    from axial.models.protocol import Model

_LATER: tuple[str, ...] = ("family", "parameters", "fingerprint", "axes", "channels", "values")
_LATER += ("dtype", "slices", "height", "width", "slice_channels", "stacked", "moving", "classes")
_LATER += ("given_channels", "given_steps", "lines", "takes_pictures", "attention", "codec", "keep")
_LATER += ("outline",)
"""What is known of a model once it is loaded."""


class Entry:
    """A model that is served: its name, where it comes from, and what is known of it."""

    def __init__(self, name: str, source: str, *, shipped: bool) -> None:
        self.id, self.source, self.shipped = name, source, shipped
        self.state, self.error = "loading", ""
        self.config: FamilyConfig | None = None
        self._facts: dict[str, Any] = dict.fromkeys(_LATER)

    def load(self, device: str | None) -> "Model":
        """Read the model, and what there is to say of it."""
        import torch

        from axial.checkpoints.model_folder import load
        from axial.system.ranks import usable

        model = load(self.source, device=usable(device))
        if next(model.parameters()).dtype in (torch.bfloat16, torch.float16):
            model = model.float()  # so that pictures do not depend on who else draws
        self._facts = facts(model)
        self.config, self.state = model.config, "ready"
        return model

    def fail(self, message: str) -> None:
        """Note why it cannot be served."""
        self.state, self.error = "failed", message

    def ready(self) -> "FamilyConfig":
        """Its configuration; refused unless it is loaded."""
        if self.state == "failed":
            raise RequestError(500, "failed", f"{self.id} could not be loaded: {self.error}")
        if self.config is None:
            raise RequestError(503, "loading", f"{self.id} is being loaded; try again", retry=1)
        return self.config

    def __getitem__(self, name: str) -> Any:
        """Something that `to_json` says."""
        return self._facts[name]

    def to_json(self, queue: dict[str, int]) -> dict[str, Any]:
        """Everything the page needs to know of it."""
        known = {"id": self.id, "state": self.state, "error": self.error or None}
        known["source"] = "shipped" if self.shipped else self.source
        return known | self._facts | {"queue": queue}


def catalogue(models: tuple[str, ...]) -> list[Entry]:
    """An entry for each model that was asked for, by names that all differ; none is loaded yet."""
    from axial.checkpoints.shipped import shipped_folder, shipped_names

    found: list[Entry] = []
    names: set[str] = set()
    for source in models or shipped_names():
        shipped = shipped_folder(source) is not None
        if not shipped and not _is_folder(source):
            raise CheckpointError(
                f"{source}: no such checkpoint; name the folder of a run or a model, or one that "
                f"comes with axial ({', '.join(shipped_names())})"
            )
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source).resolve().name).strip("-.") or "model"
        name, number = stem, 1
        while name in names:
            number += 1
            name = f"{stem}-{number}"
        names.add(name)
        found.append(Entry(name, source, shipped=shipped))
    if not found:
        raise ConfigError("no models ship with this installation: name a run or a folder")
    return found


def _is_folder(source: str) -> bool:
    try:
        return Path(source).is_dir()
    except (OSError, ValueError):
        return False


def facts(model: "Model") -> dict[str, Any]:
    """What there is to say of a loaded model."""
    import math

    from axial.checkpoints.model_folder import fingerprint
    from axial.data.packed import dtype_for
    from axial.models.describe import describe
    from axial.studio.attention import has_attention

    config, shape = model.config, model.config.data
    stacked = shape.stacked_frames > 1
    slower = math.prod(config.axes[:-2])
    return {
        "family": model.family,
        "parameters": config.parameters(),
        "fingerprint": fingerprint(model),
        "axes": list(config.axes),
        "channels": config.channels,
        "values": config.values,
        "dtype": str(dtype_for(config.values)),
        "slices": slower * shape.stacked_frames,
        "height": 1 if len(config.axes) == 1 else config.axes[-2],
        "width": config.axes[-1],
        "slice_channels": shape.frame_channels,
        "stacked": stacked,
        "moving": shape.window is not None,
        "classes": list(model.class_names or map(str, range(config.classes))),
        "given_channels": config.given_channels,
        "given_steps": config.given_steps,
        "lines": math.prod(config.axes) * config.channels // config.line,
        "takes_pictures": takes_pictures(config),
        "attention": has_attention(model),
        "codec": True,
        "keep": _keep(config),
        "outline": describe(config),
    }


def takes_pictures(config: "FamilyConfig") -> bool:
    """Whether an example, or a frame of one, is a grey or RGB picture."""
    grids = 2 if config.data.window is None or config.data.stacked_frames > 1 else 3
    return len(config.axes) == grids and config.data.frame_channels in (1, 3)


def _keep(config: "FamilyConfig") -> dict[str, Any]:
    """What keeping a leading part of an example means."""
    from axial.sampling.complete import is_exact, kept_part

    length = config.data.window or config.axes[0]
    exact = length == 1 or all(
        is_exact(config, kept_part(config, keep=keep, keep_channels=None))
        for keep in {1, length - 1}
    )
    channels = config.channels == 1 or is_exact(
        config, kept_part(config, keep=None, keep_channels=max(1, config.given_channels))
    )
    return {
        "unit": "rows" if config.data.window is None else "frames",
        "length": length,
        "exact": exact,
        "particles": not exact and config.channels_in_turn,
        "channels_exact": channels,
    }
