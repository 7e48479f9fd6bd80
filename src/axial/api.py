"""`axial.train`: what `axial train` does, as one call."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from axial.checkpoints.run_folder import Run
from axial.data.packed import Array
from axial.errors import ConfigError
from axial.models.config import Sizes
from axial.presets import PRESETS, preset_named
from axial.system.ranks import ranks
from axial.training import loop
from axial.training.config import Recipe, TrainConfig
from axial.training.loop import Outcome
from axial.training.plan import Plan
from axial.training.start import open_run
from axial.validation import unknown_name


def train(
    recipe: str | Callable[..., Recipe] | Recipe | None = None,
    *,
    data: Path | str | Array | torch.Tensor | None = None,
    out: Path | str,
    steps: int | None = None,
    max_minutes: float | None = None,
    epochs: float | None = None,
    resume: bool = False,
    device: torch.device | str | None = None,
    init: Path | str | None = None,
    **settings: Any,
) -> Outcome:
    """Train a model in the folder `out`, which `axial.load` then takes; return how it ended.

    `recipe` is the name of a preset, a preset (a function from the shape of the data to a Recipe),
    or a Recipe, whose model the data must conform to. `data` is a packed file, any source that
    `axial data` takes, or integers (n, *axes, channels); default: the preset's own. `settings` are
    fields of TrainConfig, or sizes of the model such as `width` and `heads`. `init` is a checkpoint
    to start from. How long: `steps`, `max_minutes`, or `epochs`, passes over the examples. With
    `resume` the run in `out` is resumed as it was started; nothing but `out` need be given again,
    and more `steps` lengthen it.
    """
    ends = {"steps": steps, "max_minutes": max_minutes, "epochs": epochs}
    given = [f"{name} {value}" for name, value in ends.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: give one of them")
    if steps is not None:
        settings["steps"] = steps
    if max_minutes is not None:
        settings["max_minutes"] = max_minutes
    ours, sizes = ({field.name for field in fields(kind)} for kind in (TrainConfig, Sizes))
    for name in settings.keys() - ours - sizes:
        raise ConfigError(unknown_name("setting", name, sorted(ours | sizes)))
    preset = preset_named(recipe) if isinstance(recipe, str) else recipe
    if resume:
        about = Run(out).about
        name, base = about["preset"], TrainConfig.from_json(about["training"])
    elif preset is None:
        raise ConfigError(f"name a preset to train ({', '.join(PRESETS)}), or give a Recipe")
    if isinstance(preset, Recipe):
        name, base = "recipe", preset.training
    elif preset is not None:
        own = (name for name, known in PRESETS.items() if known is preset)
        name = next(own, getattr(preset, "__name__", "preset"))
        base = base if resume else preset().training
    plan = Plan(
        name=name,
        preset=preset,
        data=str(data) if isinstance(data, Path) else data,
        training=replace(base, **{name: settings[name] for name in settings.keys() & ours}),
        sizes=Sizes(**{name: settings[name] for name in settings.keys() & sizes}),
        init=init,
        epochs=epochs,
    )
    with ranks(None if device is None else str(device)) as team:
        devices = [team.device] if team.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # a call leaves the caller's generator as it was
            run, packed = open_run(plan, Path(out), team, resume=resume)
            return loop.train(run, packed, team, fresh=not resume)
