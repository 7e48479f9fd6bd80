"""What a user asks to train, in how many steps; and what that is, in words, as a run starts."""

import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from axial.checkpoints.run_folder import Run
from axial.data.packed import Array
from axial.data.sources.options import ReadOptions
from axial.errors import ConfigError
from axial.models.config import Sizes
from axial.models.families import read_config
from axial.models.family_config import FamilyConfig
from axial.training.config import Preset, Recipe, TrainConfig
from axial.validation import as_float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a user asks to train."""

    name: str
    """What the run calls its recipe."""
    preset: Preset | Recipe | None
    """For data of any shape that it fits, or for one shape; None where a run is resumed."""
    data: str | Array | Tensor | None
    """A packed file, any source that `axial data` takes, or integers (n, *axes, c); None for the
    preset's or run's own."""
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
    epochs: float | None = None
    """Passes over the examples that are trained on, instead of a number of steps."""

    def for_data(self, examples: int) -> "Plan":
        """The plan with passes over so many examples, some held out, counted in steps."""
        training = self.training
        if self.epochs is None:
            return self
        epochs = as_float("epochs", self.epochs)
        if not 0 < epochs < math.inf:
            raise ConfigError(f"epochs is {epochs}: use a positive number")
        steps = math.ceil(epochs * (examples - training.held_out(examples)) / training.batch)
        return replace(self, training=replace(training, steps=max(1, steps)), epochs=None)

    @property
    def usual(self) -> Recipe:
        """The recipe for the data it is made for."""
        assert self.preset is not None  # that of a new run
        return self.preset if isinstance(self.preset, Recipe) else self.preset()


def opening(run: Run, plan: Plan) -> str:
    """What a run is, for a person: data, size, length, and what is other than in the preset."""
    data, config = run.about["data"], read_config(run.about)
    training = TrainConfig.from_json(run.about["training"])
    count = data["examples"]
    held_out = training.held_out(count)
    passes = training.steps * training.batch / (count - held_out)
    length = f"{training.steps:,} steps of {training.batch:,} examples: {passes:,.3g} passes"
    if training.max_minutes is not None:
        length = f"{training.max_minutes:g} minutes, in steps of {training.batch:,} examples"
    kept = f"{count - held_out:,} to train on, {held_out:,} held out"
    lines = {
        "run": f"{run.folder}, preset {run.about['preset']}",
        "data": f"{data['title']}, {count:,} examples: {kept}",
        "model": f"{config.parameters():,} parameters",
        "training": length,
    }
    for longer in run.about.get("lengthened", []):
        lines["training"] += f"; set anew at step {longer['at']:,}, as is the schedule"
    if run.about["init"] is not None:
        lines["init"] = run.about["init"]["folder"]
    if plan.preset is not None:
        changed = _changes(plan, training, config)
        lines["changed"] = ", ".join(changed) or "nothing: all settings are the preset's"
    lines["settings"] = f"all in {run.folder / 'run.json'}"
    return "\n".join(f"{name:<10}{text}" for name, text in lines.items())


def _changes(plan: Plan, training: TrainConfig, config: FamilyConfig) -> list[str]:
    """Settings and sizes that are not the preset's, with its own."""
    usual = plan.usual
    if plan.preset is not None and not isinstance(plan.preset, Recipe):
        with suppress(ConfigError):  # a run may have started from a model of another shape
            usual = plan.preset(config.data)
    own = asdict(config) if plan.init is None else {}
    pairs = ((asdict(training), asdict(usual.training)), (own, asdict(usual.model)))
    return [
        f"{name} {value} ({preset[name]})"
        for found, preset in pairs
        for name, value in found.items()
        if name in preset and value != preset[name]
    ]


def with_end_of(run: Run, training: TrainConfig) -> TrainConfig:
    """Settings that end when the run does."""
    own = TrainConfig.from_json(run.about["training"])
    return replace(training, steps=own.steps, max_minutes=own.max_minutes)


def later_end(run: Run, wanted: TrainConfig) -> dict[str, float]:
    """What is to be other than in the run: more steps, or more minutes where it counts those."""
    own = TrainConfig.from_json(run.about["training"])
    name: Literal["steps", "max_minutes"] = "steps" if own.max_minutes is None else "max_minutes"
    before, after = getattr(own, name), getattr(wanted, name)
    other = wanted.steps != own.steps if name == "max_minutes" else wanted.max_minutes is not None
    if other:
        raise ConfigError(
            f"{run.folder}: ends after {before:g} {name.removeprefix('max_')}; lengthen it by "
            f"--{name.replace('_', '-')}"
        )
    if after is None or after == before:
        return {}
    if after < before:
        raise ConfigError(
            f"{run.folder}: was started with {name} {before:g}, and may get more, but not fewer; "
            f"start a new run"
        )
    return {name: after}
