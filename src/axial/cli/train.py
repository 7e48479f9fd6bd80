"""`axial train`: a new run of a preset, or an old one resumed."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import tyro

from axial.cli.parsing import Folder, Name, Number, Switch, Switches, parse, quiet, read
from axial.data.sources.options import ReadOptions
from axial.errors import ConfigError
from axial.models.config import Sizes
from axial.models.family_config import FamilyConfig
from axial.presets import PRESETS, preset_named
from axial.system.terminal import printable
from axial.training.config import TrainConfig

_ENDS = ("--steps", "--epochs", "--max-minutes")
"""What says how long a run is."""


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Train a preset on data, or resume a run: axial train --resume DIR."""

    preset: Annotated[tyro.conf.Positional[str | None], quiet("[PRESET]")] = None
    """A recipe and sizes: small, base or large for any data, digits, cifar10 ...; `axial presets`
    lists them all, and after its name every setting is shown with its value."""
    out: Folder = None
    """Folder of the new run."""
    resume: Folder = None
    """Folder of a run to resume, exactly where it stopped; more --steps (or --max-minutes, where it
    was limited by those) lengthen it."""
    data: Name = None
    """A packed .npy file, or any source that `axial data` takes."""
    epochs: Number = None
    """Train for so many passes over the data instead of --steps."""
    init: Name = None
    """Start from the weights of this checkpoint; its sizes are the run's."""
    stack_frames: Switch = False
    """Fold time into the channels, as the paper does with video."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several ranks (torchrun -m axial train ...): a whole model on each, or shards."""
    device: Name = None
    """cpu, cuda or cuda:N; default: a GPU if there is one."""
    tensorboard: Switch = False
    """Write TensorBoard event files too; a resumed run keeps writing them."""
    training: TrainConfig = PRESETS["small"]().training
    """How to train; the defaults are those of the preset."""
    sizes: Sizes = Sizes()  # noqa: RUF009
    """Changes to the model of the preset."""
    reading: Switches[ReadOptions] = ReadOptions()  # noqa: RUF009
    """How to read a source that is not packed yet."""


def train(args: Sequence[str]) -> None:
    """Train a preset on data, or resume a run; leaves a model, its samples and its curve.

    Examples:
        axial train small --data photographs/ --size 32 --max-minutes 60 --out runs/photographs
        axial train --resume runs/photographs --max-minutes 120
        axial train base --data train.npy --epochs 50 --batch 64 --out runs/base
    """
    flags = _train_flags(args)
    from axial.system.ranks import ranks
    from axial.training.loop import train
    from axial.training.plan import Plan
    from axial.training.start import open_run

    names = {field.name for field in fields(Plan)} & {field.name for field in fields(TrainFlags)}
    asked: dict[str, Any] = {name: getattr(flags, name) for name in names - {"preset"}}
    folder = flags.resume or flags.out
    assert folder is not None and flags.preset is not None  # _train_flags has seen to it
    with ranks(flags.device) as team:
        plan = Plan(name=flags.preset, preset=PRESETS.get(flags.preset), **asked)
        resume = flags.resume is not None
        run, packed = open_run(plan, folder, team, resume=resume)
        outcome = train(
            run,
            packed,
            team,
            parallel=flags.parallel,
            tensorboard=flags.tensorboard,
            fresh=not resume,
        )
    if team.is_rank0:
        print(printable(outcome.line(run.folder)))
    if outcome.signal is not None:
        sys.exit(128 + outcome.signal)


def _sizes_of(config: FamilyConfig) -> Sizes:
    names = {field.name for field in fields(Sizes)} & {field.name for field in fields(config)}
    return Sizes(**{name: getattr(config, name) for name in names})


def _train_flags(args: Sequence[str]) -> TrainFlags:
    """The flags with the defaults of the preset, or of the run to resume."""
    plain = [arg for arg in args if arg not in ("-h", "--help")]
    asked, unknown = read(TrainFlags, plain, "train")
    default = TrainFlags(preset=asked.preset)
    if asked.preset is not None and not unknown:  # which may be misread beside what is not known
        default = replace(default, training=preset_named(asked.preset)().training)
        if len(plain) < len(args):  # help shows the sizes that the preset has for its own data
            default = replace(default, sizes=_sizes_of(preset_named(asked.preset)().model))
    if asked.resume is not None and not unknown:
        from axial.checkpoints.run_folder import Run

        about = Run(asked.resume).about
        training = TrainConfig.from_json(about["training"])
        default = TrainFlags(preset=about["preset"], training=training)
    flags = parse(TrainFlags, args, "train", default=default)
    if flags.resume is None and flags.preset is None:
        raise ConfigError("name a preset to train, or --resume a run")
    given = [end for end in _ENDS if any(arg.split("=")[0] == end for arg in args)]
    if len(given) > 1:
        raise ConfigError(f"give {' or '.join(given)}, but not both")
    if (flags.resume is None) == (flags.out is None):
        both = ", but not both" * (flags.resume is not None)
        raise ConfigError(f"give --out DIR for a new run, or --resume DIR{both}")
    return flags
