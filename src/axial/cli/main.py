"""The command line: one function for each subcommand, and how it ends.

Torch is imported inside the command that needs it, so that help answers at once.
"""

import contextlib
import difflib
import errno
import functools
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

import axial
from axial.models.config import CompleteConfig, DataShape, SampleConfig, Sizes, TrainConfig
from axial.models.describe import describe
from axial.errors import AxialError, ConfigError, is_out_of_memory
from axial.presets import PRESETS
from axial.checkpoints.shipped import shipped_folder, shipped_names
from axial.data.sources.options import ClipOptions, HeldOutOptions, ReadOptions

_T = TypeVar("_T")
_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)
_Reading = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[ReadOptions]]
_Testing = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[HeldOutOptions]]
_Clips = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[ClipOptions]]
_Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
_Switch = tyro.conf.FlagCreatePairsOff[bool]
_Count = Annotated[int | None, tyro.conf.arg(metavar="N")]
_File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
_Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
_Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
"""Not a path: `cifar10` may be a model's name, `./cifar10` is none."""
_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
_How = tyro.conf.OmitArgPrefixes[SampleConfig]


def import_(
    folder: tyro.conf.Positional[Path],
    heads: int,
    out: Path,
    channels: _Count = None,
    weights: Literal["ema", "raw"] = "ema",
) -> None:
    """Turn a TensorFlow checkpoint of the authors' into a folder that `axial.load` takes.

    Args:
        folder: The folder of the checkpoint, or the path of its files without their endings.
        heads: Attention heads, which no shape tells; the released models have 16.
        out: The folder to write.
        channels: Channels of a stacked-rows model, which no shape tells either.
        weights: The averaged weights, which the authors evaluate, or the raw ones.
    """
    from axial.checkpoints.model_folder import fingerprint, save
    from axial.checkpoints.run_folder import check_free
    from axial.checkpoints.tensorflow import load_tensorflow

    check_free(out)
    model = load_tensorflow(folder, heads=heads, channels=channels, ema=weights == "ema")
    save(model, out)
    print(describe(model.config), file=sys.stderr)
    print(f"{out}: {weights} weights of {folder}, fingerprint {fingerprint(model)}")


def data(
    source: _Source,
    out: Path,
    reading: _Reading = ReadOptions(),  # noqa: B008
    workers: _Count = None,
    preview: _File = None,
) -> None:
    """Pack any source of pictures, video or integers into one array, with a report.

    Args:
        source: A file, a folder, `digits`, or the name of a Hugging Face data set.
        out: The .npy file to write; its description goes beside it.
        reading: How to read the source.
        workers: Processes that decode; one for each core unless told.
        preview: Draw the first examples as one PNG sheet.
    """
    from axial.system.files import check_apart
    from axial.data.packing import pack
    from axial.media.tiles import check_preview, write_preview

    if preview:
        check_apart(preview, source)
        check_preview(preview)
    report = pack(source, out, reading, workers=workers, progress=True)
    print(report, file=sys.stderr)
    if preview:
        write_preview(preview, report.packed)
    print(f"{out}: {report.packed.description.title}, {len(report.packed):,} examples")


def evaluate(
    checkpoint: _Model,
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None,
    weights: Literal["ema", "raw"] = "ema",
    json: _File = None,
    map: _File = None,
    per_example: _File = None,
    resume: _File = None,
    batch: _Count = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    device: _Name = None,
    limit: _Count = None,
    reading: _Testing = HeldOutOptions(),  # noqa: B008
) -> None:
    """Score a data set: bits/dim over every element of every example, with its standard error.

    Args:
        checkpoint: The folder of a training run, one that `save` or `axial import` wrote, or the
            name of a model that comes with axial.
        data: A packed .npy file or any source that `axial data` takes; the test part of what
            the run was trained on unless told.
        weights: The averaged weights of a run, or the raw ones.
        json: Write every figure at full precision, by channel and by row too; progress is
            kept beside it, and the same command goes on after an interruption.
        map: Draw a few examples and where their bits go as one PNG.
        per_example: Write the bits of each example as a .npy file.
        resume: Keep progress in this file instead.
        batch: Examples scored together, on all ranks; what memory allows unless told.
        precision: What the model computes in; sums are in float64 always.
        device: cpu, cuda, cuda:1 ...; a GPU where there is one unless told.
        limit: Score only the first so many examples, and say so.
        reading: How to read the source.
    """
    from axial.evaluation.evaluate import Outputs, Request, report

    request = Request(
        checkpoint=checkpoint,
        data=data,
        weights=weights,
        precision=precision,
        batch=batch,
        limit=limit,
        reading=reading,
    )
    outputs = Outputs(json=json, map=map, per_example=per_example, resume=resume)
    report(request, outputs, device)


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Train a preset on data, or go on with a run: axial train --resume DIR."""

    preset: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="PRESET")] = None
    """A recipe and sizes: digits, cifar10, imagenet32, imagenet64, bair, small, base, large ..."""
    out: _Folder = None
    """The folder of the new run."""
    resume: _Folder = None
    """The folder of a run to go on with, exactly where it stopped."""
    data: _Name = None
    """A packed .npy file, or any source that `axial data` takes."""
    init: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Start from the weights of this checkpoint; its sizes are the run's."""
    stack_frames: _Switch = False
    """Fold time into the channels, as the paper does with video."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """On several ranks (torchrun -m axial train ...): the model whole on each, or in shards."""
    device: _Name = None
    """Unless told, a GPU where there is one, else the CPU."""
    tensorboard: _Switch = False
    """Write TensorBoard's event files too; a run that goes on keeps to what it did."""
    training: tyro.conf.OmitArgPrefixes[TrainConfig] = PRESETS["small"]().training
    """How to train; the defaults are those of the preset."""
    sizes: tyro.conf.OmitArgPrefixes[Sizes] = Sizes()  # noqa: RUF009
    """Changes to the model of the preset."""
    reading: _Reading = ReadOptions()  # noqa: RUF009
    """How to read a source that is not packed yet."""


def train(args: Sequence[str]) -> None:
    """Train a preset on data, or go on with a run; leaves a model, its samples and its curve."""
    flags = _train_flags(args)
    from axial.training.start import Plan, begin, resume
    from axial.system.ranks import ranks
    from axial.training.loop import train

    with ranks(flags.device) as team:
        plan = Plan(**{field.name: getattr(flags, field.name) for field in fields(Plan)})
        if (folder := flags.resume) is not None:
            run, packed = team.first_main(functools.partial(resume, folder, plan, team))
        else:
            assert flags.out is not None  # _train_flags has seen to it
            run, packed = begin(plan, flags.out, team)
        if team.main:
            with contextlib.suppress(OSError):  # a run needs no one who listens
                print(run, file=sys.stderr)
        outcome = train(run, packed, team, parallel=flags.parallel, tensorboard=flags.tensorboard)
    if team.main:
        print(outcome.line(run.folder))
    if outcome.signal is not None:
        sys.exit(128 + outcome.signal)


def _train_flags(args: Sequence[str]) -> TrainFlags:
    """The flags with the defaults of the preset, or of the run to go on with."""
    plain = [arg for arg in args if arg not in ("-h", "--help")]
    asked, unknown = _read(TrainFlags, plain, "train")
    if unknown:
        return _parse(TrainFlags, args, "train")  # says which; the preset may be misread beside it
    default = TrainFlags(preset=asked.preset)
    if asked.preset is not None and asked.preset not in PRESETS:
        raise ConfigError(f"as a preset {_unknown(asked.preset, PRESETS)}")
    if asked.resume is not None:
        default = _as_started(asked.resume)
    elif asked.preset is not None:
        default = replace(default, training=PRESETS[asked.preset]().training)
    flags = _parse(TrainFlags, args, "train", default=default)
    if flags.resume is None and flags.preset is None:
        raise ConfigError("name a preset to train, or --resume a run")
    if (flags.resume is None) == (flags.out is None):
        raise ConfigError("a new run needs --out, the folder to train in; --resume names its own")
    return flags


def _as_started(folder: Path) -> TrainFlags:
    """What a run was started with, and need not be said again."""
    from axial.checkpoints.run_folder import Run

    about = Run(folder).about
    return TrainFlags(preset=about["preset"], training=TrainConfig.from_json(about["training"]))


def info(
    what: tyro.conf.Positional[str],
    duplicates: _File = None,
    axes: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="LENGTH ...")] = None,
    channels: _Count = None,
    values: _Count = None,
    classes: _Count = None,
) -> None:
    """Tell what a preset, a checkpoint or a packed array is: its data, sizes, cost and levels.

    Args:
        what: The name of a preset or of a model that comes with axial, the folder of a
            checkpoint, or a packed .npy file.
        duplicates: Another packed array; count examples that repeat within and across the two.
        axes: Fit the preset to data with these axes, slowest first.
        channels: Fit the preset to data with this many channels.
        values: Fit the preset to data with this many values.
        classes: Fit the preset to data with this many labels.
    """
    shape = {"axes": axes, "channels": channels, "values": values, "classes": classes}
    asked = {name: value for name, value in shape.items() if value is not None}
    if duplicates is not None and not what.endswith(".npy"):
        raise ConfigError(f"{what}: is no packed array; --duplicates compares these only")
    if what in PRESETS:
        config = PRESETS[what]().model
        own = {name: getattr(config, name) for name in shape}
        config = PRESETS[what](DataShape(**(own | asked))).model
        print(describe(config))
        if not asked:
            _tell_trained(what)
    elif _exists(what) or shipped_folder(what) is not None:
        if asked:
            raise ConfigError(f"{what}: is no preset; --{next(iter(asked))} fits presets only")
        print(_array(what, duplicates) if what.endswith(".npy") else "\n\n".join(_loaded(what)))
    else:
        raise ConfigError(
            f"no such checkpoint, and as a preset or model {_unknown(what, _names())}"
        )


def _names() -> list[str]:
    """Of presets and of models that come with axial."""
    return list(dict.fromkeys([*PRESETS, *shipped_names()]))


def _tell_trained(name: str) -> None:
    """Say which trained model goes by this name, if any does."""
    if (folder := shipped_folder(name)) is not None:
        print(f"\ntrained     comes with axial, as {name}: see {folder / 'README.md'}")
        print(_loaded(name)[1])
    elif name in shipped_names():
        print(f"\ntrained     here, in ./{name}, which goes before the one that comes with axial")


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name too long to be one
        return False


def _array(path: str, other: Path | None) -> str:
    from axial.data.statistics import survey_file

    return survey_file(Path(path), other)


def _loaded(folder: str) -> tuple[str, str]:
    """What a model is, and its weights as they are computed with."""
    from axial.checkpoints.model_folder import fingerprint, load

    model = load(folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return describe(model.config), f"weights     {dtype}, fingerprint {fingerprint(model)}"


def sample(
    checkpoint: _Model,
    out: Path,
    how: _How = SampleConfig(),  # noqa: B008
    trace: _File = None,
    device: _Name = None,
) -> None:
    """Draw from a checkpoint: a sheet, a folder of PNGs, an array, or for video a moving picture.

    Args:
        checkpoint: The folder of a training run, one that `save` or `axial import` wrote, or the
            name of a model that comes with axial.
        out: A .png sheet, a .npy array, a .gif or .mp4 of video, or without an ending a folder
            of PNGs; how it was drawn is written beside it.
        how: How to draw.
        trace: Show the first pictures being drawn, as a .gif.
        device: cpu, cuda, cuda:1 ...; a GPU where there is one unless told.
    """
    from axial.sampling.sample import sample

    sample(checkpoint, out, how, trace, device)


def complete(
    checkpoint: _Model,
    source: _Source,
    out: Path,
    what: tyro.conf.OmitArgPrefixes[CompleteConfig] = CompleteConfig(),  # noqa: B008
    how: _How = SampleConfig(count=4),  # noqa: B008
    device: _Name = None,
    reading: _Clips = ClipOptions(),  # noqa: B008
) -> None:
    """Draw several continuations of pictures, video or volumes, beside the originals.

    Leading channels, so leading frames of a video whose frames are stacked as channels, and
    leading rows of a grey picture are continued by the exact conditional. Leading rows of a
    colour picture are not: red is drawn whole before the kept rows of green are looked at. Nor
    are leading frames of a colour video whose frames are an axis, but for those the model is
    given. There --candidates K carries K versions through all channels, and comes nearer as K
    grows.

    Clips may have any number of frames, if those to keep are there.

    Args:
        checkpoint: The folder of a training run, one that `save` or `axial import` wrote, or the
            name of a model that comes with axial.
        source: A packed .npy file or any source that `axial data` takes.
        out: As for `axial sample`; .npy and a folder hold the continuations alone.
        what: What to keep, and how to continue it.
        how: How to draw.
        device: cpu, cuda, cuda:1 ...; a GPU where there is one unless told.
        reading: How to read a source that is not packed yet.
    """
    from axial.sampling.continuations import continue_

    continue_(checkpoint, source, out, what, how, device, reading)


COMMANDS: dict[str, Callable[..., None]] = {
    "complete": complete,
    "data": data,
    "evaluate": evaluate,
    "import": import_,
    "info": info,
    "sample": sample,
    "train": train,
}


def main(args: Sequence[str] | None = None) -> None:
    """Run a subcommand; end with one line and status 1 on an error that the user can mend."""
    if threading.current_thread() is threading.main_thread():
        # So that being asked to end cleans up like any other error.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name it cannot spell
    try:
        _dispatch(args)
        sys.stdout.flush()
    except AxialError as error:
        sys.exit(f"axial: {' '.join(str(error).splitlines())}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sys.exit("axial: not enough memory for this; ask for fewer, shorter or smaller ones")
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed at the end
        if error.errno == errno.EPIPE:  # whoever read our output has seen enough
            sys.exit(1)
        sys.exit(f"axial: output cannot be written ({error.strerror}); make room for it")
    except KeyboardInterrupt:
        sys.exit(130)


def _dispatch(args: Sequence[str] | None) -> None:
    args = sys.argv[1:] if args is None else args
    name = args[0] if args else ""
    if name in ("-h", "--help"):
        print(_overview())
    elif name == "--version":
        print(f"axial {axial.__version__}")
    elif name not in COMMANDS:
        what = _unknown(name, COMMANDS) if args else "name a command"
        print(f"{_overview()}\n\naxial: {what}", file=sys.stderr)
        sys.exit(2)
    else:
        command = COMMANDS[name]
        if command is train:  # its defaults depend on its arguments
            train(args[1:])
        else:
            _parse(_postponed(command), args[1:], name)()


def _postponed(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same signature and help, but only told what to call it with."""

    @functools.wraps(command)
    def postponed(*args: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **named)

    return postponed


def _parse(what: Callable[..., _T], args: Sequence[str], name: str, default: Any = None) -> _T:
    """Read flags; an unknown one ends with status 2 and one line that names the nearest."""
    how = {} if default is None else {"default": default}
    found, unknown = _read(what, args, name, **how)
    if unknown:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            _read(what, ["--help"], name, **how)
        flags = sorted(set(re.findall(r"--[a-z0-9-]+", shown.getvalue())))
        print(f"axial {name}: {_unknown(unknown[0], flags, brief=True)}", file=sys.stderr)
        sys.exit(2)
    return found


def _read(
    what: Callable[..., _T], args: Sequence[str], name: str, **how: Any
) -> tuple[_T, list[str]]:
    """Flags, and those that are not known; a wrong value ends with status 2 and one line."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(what, args=args, prog=f"axial {name}", return_unknown_args=True, **how)
    except SystemExit as stop:
        if stop.code:
            line = _in_one_line(told.getvalue()).replace(f" from axial {name}", "")
            print(f"axial {name}: {line}; --help tells more", file=sys.stderr)
        raise


def _in_one_line(box: str) -> str:
    """What tyro puts into a box: the text below its title, without the help of each flag."""
    rows = box.replace("│", " ").splitlines()
    rules = [i for i, row in enumerate(rows) if "──" in row or row.strip()[-2:] == "--"]
    said = rows[rules[0] + 1 : rules[1]] if len(rules) > 1 else rows
    return " ".join(" ".join(row for row in said if row[:10].strip()).split()).rstrip(".")


def _overview() -> str:
    """The commands with the first line of each one's help.

    Not left to tyro, which imports a third of a second's worth of modules to join subcommands.
    """
    lines = ["usage: axial COMMAND ...", "", "Axial Transformers: exact-likelihood models.", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  {name:<10}{(command.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "axial COMMAND --help tells more of each."])


def _unknown(name: str, known: Iterable[str], *, brief: bool = False) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    every = "--help lists all" if brief else f"there are {', '.join(known)}"
    hint = f"did you mean {near[0]}?" if near else every
    return f"{name!r} is not known; {hint}"
