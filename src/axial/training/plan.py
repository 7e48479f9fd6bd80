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

    def for_data(self, trained: int) -> "Plan":
        """The plan with passes over so many examples or crops counted in steps."""
        training = self.training
        if self.epochs is None:
            return self
        epochs = as_float("epochs", self.epochs)
        if not 0 < epochs < math.inf:
            raise ConfigError(f"epochs is {epochs}: use a positive number")
        steps = math.ceil(epochs * trained / training.batch)
        return replace(self, training=replace(training, steps=max(1, steps)), epochs=None)

    @property
    def usual(self) -> Recipe:
        """The recipe for the data it is made for."""
        assert self.preset is not None  # that of a new run
        return self.preset if isinstance(self.preset, Recipe) else self.preset()


def opening(run: Run, plan: Plan) -> str:
    """What a run is, for a person: data, size, length, and what is other than in the preset."""
    config, training = read_config(run.about), TrainConfig.from_json(run.about["training"])
    passes = training.steps * training.batch / trained_examples(run)
    length = f"{training.steps:,} steps of {training.batch:,} examples: {passes:,.3g} passes"
    if training.max_minutes is not None:
        length = f"{training.max_minutes:g} minutes, in steps of {training.batch:,} examples"
    lines = {
        "run": f"{run.folder}, preset {run.about['preset']}",
        "data": f"{run.about['data']['title']}, {_divided(run, training)}{_unscored(run, plan)}",
        "model": f"{config.parameters():,} parameters",
        "training": length,
    }
    for longer in run.about.get("lengthened", []):
        lines["training"] += f"; lengthened at step {longer['at']:,}, and the schedule with it"
    if run.about["init"] is not None:
        lines["init"] = run.about["init"]["folder"]
        if new := run.about["init"].get("new"):
            lines["init"] += f"; {new} is new and starts at 0"
    if plan.preset is not None:
        changed = _changes(plan, training, config)
        lines["changed"] = ", ".join(changed) or "nothing: all settings are the preset's"
    lines["settings"] = f"all in {run.folder / 'run.json'}"
    return "\n".join(f"{name:<10}{text}" for name, text in lines.items())


def trained_examples(run: Run) -> int:
    """How many examples, or crops, one pass of a run goes over."""
    data = run.about["data"]
    if (crops := data.get("crops")) is not None:
        return int(crops["trained"])
    count = int(data["examples"])
    return count - TrainConfig.from_json(run.about["training"]).held_out(count)


def _divided(run: Run, training: TrainConfig) -> str:
    """What of the data is trained on, and what is held out."""
    data, trained = run.about["data"], trained_examples(run)
    count, crops = data["examples"], data.get("crops")
    if crops is None:
        return f"{count:,} examples: {trained:,} to train on, {count - trained:,} held out"
    size = " x ".join(map(str, training.crop or ()))
    held_out = f"{crops['held_out_pictures']:,} held out, scored on {crops['held_out']:,} tiles"
    small = f", {crops['too_small']:,} too small" if crops["too_small"] else ""
    return f"{count:,} pictures: {trained:,} crops of {size} a pass, {held_out}{small}"


def _unscored(run: Run, plan: Plan) -> str:
    """What to say of a new run that is too small to hold anything out of itself."""
    data = run.about["data"]
    new = plan.preset is not None and plan.training.validation is None
    if not new or "crops" in data or trained_examples(run) < data["examples"]:
        return ""
    return ", so nothing is scored: --validation N holds some out"


def _changes(plan: Plan, training: TrainConfig, config: FamilyConfig) -> list[str]:
    """Settings and sizes that are not the preset's, with its own."""
    usual = plan.usual
    if plan.preset is not None and not isinstance(plan.preset, Recipe):
        with suppress(ConfigError):  # a run may have started from a model of another shape
            usual = plan.preset(config.data)
    own = asdict(config) if plan.init is None else plan.sizes.given
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
            f"{run.folder}: ends at {name} {before:g}, and may get more, but not fewer; start a "
            f"new run"
        )
    return {name: after}
