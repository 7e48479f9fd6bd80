"""`axial info`: what a preset, a checkpoint, a run, a packed array or a compressed file is."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from axial.checkpoints.hub_name import is_on_hub
from axial.checkpoints.shipped import shipped_folder, shipped_names
from axial.cli.parsing import Count, File, quiet
from axial.errors import ConfigError
from axial.models.describe import describe
from axial.presets import PRESETS
from axial.shape import DataShape
from axial.system.terminal import printable
from axial.validation import unknown_name


def info(
    what: tyro.conf.Positional[str],
    other: Annotated[Positional[str | None], quiet("[OTHER]")] = None,
    duplicates: File = None,
    axes: Annotated[tuple[int, ...] | None, quiet("N ...")] = None,
    channels: Count = None,
    values: Count = None,
    classes: Count = None,
) -> None:
    """Describe a preset, checkpoint, run, packed array or .axl file; list the runs in a folder.

    Args:
        what: The name of a preset or of a shipped model, the folder of a checkpoint or of a run, a
            folder with runs beneath it, a packed .npy file, or a compressed .axl file.
        other: Another run: tell what the two have apart.
        duplicates: Another packed array: count examples that repeat within and across the two.
        axes: Apply the preset to data with these axes, slowest first; default: the preset's.
        channels: Apply the preset to data with N channels; default: the preset's.
        values: Apply the preset to data with N values; default: the preset's.
        classes: Apply the preset to data with N classes; default: the preset's.

    Examples:
        axial info train.npy --duplicates test.npy
        axial info runs
        axial info runs/one runs/other
    """
    shape = {"axes": axes, "channels": channels, "values": values, "classes": classes}
    asked = {name: value for name, value in shape.items() if value is not None}
    if duplicates is not None and not what.endswith(".npy"):
        raise ConfigError(f"{what}: is no packed array; --duplicates compares these only")
    if other is not None:
        from axial.checkpoints.run_folder import Run
        from axial.checkpoints.run_summary import RunSummary, differences

        print(printable(differences(*(RunSummary.of(Run(folder)) for folder in (what, other)))))
    elif what in PRESETS:
        config = PRESETS[what]().model
        own = {name: getattr(config, name) for name in shape}
        preset = describe(PRESETS[what](DataShape(**(own | asked))).model)
        print(preset)
        if not asked:
            _tell_trained(what, preset)
    elif asked:
        raise ConfigError(f"{what}: is no preset; --{next(iter(asked))} fits presets only")
    elif what.endswith(".npy"):
        from axial.data.packed import open_packed
        from axial.data.statistics import survey

        print(printable(survey(open_packed(what), open_packed(duplicates) if duplicates else None)))
    elif what.endswith(".axl"):
        from axial.codec.outputs import describe_file

        print(printable(describe_file(Path(what))))
    elif _is_run(what) or shipped_folder(what) is not None or _is_model(what) or is_on_hub(what):
        print("\n\n".join([*_summary(what), *_loaded(what)]))
    elif _exists(what):
        if table := _table(Path(what)):
            print(table)
            return
        kinds = "no checkpoint, packed .npy array or .axl file"
        found = "holds no checkpoint and no run" if Path(what).is_dir() else f"is {kinds}"
        raise ConfigError(f"{what}: {found}; `axial data` packs pictures, video and arrays")
    else:
        kind = "file, checkpoint, preset or model"
        names = dict.fromkeys([*PRESETS, *shipped_names()])
        raise ConfigError(unknown_name(kind, what, names, listed="`axial presets` lists presets"))


def _is_run(folder: str) -> bool:
    return _exists(f"{folder}/run.json")


def _is_model(folder: str) -> bool:
    return _exists(f"{folder}/model.safetensors") or _exists(f"{folder}/config.json")


def _summary(folder: str) -> list[str]:
    """How far a run has come; nothing of a model that is no run."""
    if not _is_run(folder):
        return []
    from axial.checkpoints.run_folder import Run
    from axial.checkpoints.run_summary import RunSummary

    return [printable(RunSummary.of(Run(folder)))]


def _table(folder: Path) -> str:
    from axial.checkpoints.run_summary import runs_beneath, table

    runs = runs_beneath(folder)
    return printable(table(runs, folder)) if runs else ""


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name too long to be one
        return False


def _tell_trained(name: str, preset: str) -> None:
    """Describe the trained model of this name, if there is one and it is not as the preset."""
    if (folder := shipped_folder(name)) is not None:
        sizes, weights = _loaded(name)
        print(f"\ntrained     comes with axial, as {name}: see {folder / 'README.md'}")
        if sizes != preset:
            print(f"{sizes}\n")
        print(weights)
    elif name in shipped_names():
        print(f"\ntrained     here, in ./{name}, which goes before the one that comes with axial")


def _loaded(folder: str) -> tuple[str, str]:
    """What a model is, and its weights as they are computed with."""
    from axial.checkpoints.model_folder import config_of, fingerprint, is_model, load
    from axial.checkpoints.run_folder import Run
    from axial.checkpoints.trained_on import are_numbers
    from axial.codec.codec import model_id

    if _is_run(folder) and not is_model(Path(folder)) and not Run(folder).checkpoints():
        return describe(config_of(folder)), "weights     none yet"
    model = load(folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    weights = f"weights     {dtype}, fingerprint {fingerprint(model)}"
    names = model.class_names or ()
    if not are_numbers(names) and not _is_run(folder):  # which has told them
        words = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        weights = f"classes     {printable(words)}\n{weights}"
    return describe(model.config), f"{weights}\nin .axl     id {model_id(model).hex()}"
