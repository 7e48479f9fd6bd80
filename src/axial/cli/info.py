"""`axial info`: what a preset, a checkpoint, a packed array or a compressed file is."""

from pathlib import Path
from typing import Annotated

import tyro

from axial.checkpoints.shipped import shipped_folder, shipped_names
from axial.cli.parsing import Count, File
from axial.errors import ConfigError
from axial.models.describe import describe
from axial.presets import PRESETS
from axial.shape import DataShape
from axial.system.terminal import printable
from axial.validation import unknown_name


def info(
    what: tyro.conf.Positional[str],
    duplicates: File = None,
    axes: Annotated[
        tuple[int, ...] | None, tyro.conf.arg(metavar="LENGTH ...", help_behavior_hint="")
    ] = None,
    channels: Count = None,
    values: Count = None,
    classes: Count = None,
) -> None:
    """Describe a preset, checkpoint, packed array or compressed file: data, sizes, cost, levels.

    Args:
        what: The name of a preset or of a shipped model, the folder of a checkpoint,
            a packed .npy file, or a compressed .axl file.
        duplicates: Another packed array: count examples that repeat within and across the two.
        axes: Apply the preset to data with these axes, slowest first; default: the preset's.
        channels: Apply the preset to data with N channels; default: the preset's.
        values: Apply the preset to data with N values; default: the preset's.
        classes: Apply the preset to data with N classes; default: the preset's.
    """
    shape = {"axes": axes, "channels": channels, "values": values, "classes": classes}
    asked = {name: value for name, value in shape.items() if value is not None}
    if duplicates is not None and not what.endswith(".npy"):
        raise ConfigError(f"{what}: is no packed array; --duplicates compares these only")
    if what in PRESETS:
        config = PRESETS[what]().model
        own = {name: getattr(config, name) for name in shape}
        print(describe(PRESETS[what](DataShape(**(own | asked))).model))
        if not asked:
            _tell_trained(what)
    elif asked:
        raise ConfigError(f"{what}: is no preset; --{next(iter(asked))} fits presets only")
    elif what.endswith(".npy"):
        from axial.data.packed import open_packed
        from axial.data.statistics import survey

        print(printable(survey(open_packed(what), open_packed(duplicates) if duplicates else None)))
    elif what.endswith(".axl"):
        from axial.codec.outputs import describe_file

        print(printable(describe_file(Path(what))))
    elif _exists(what) or shipped_folder(what) is not None:
        print("\n\n".join(_loaded(what)))
    else:
        unknown = unknown_name(what, dict.fromkeys([*PRESETS, *shipped_names()]))
        raise ConfigError(f"no such checkpoint, and as a preset or model {unknown}")


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name too long to be one
        return False


def _tell_trained(name: str) -> None:
    """Say which trained model goes by this name, if any does."""
    if (folder := shipped_folder(name)) is not None:
        print(f"\ntrained     comes with axial, as {name}: see {folder / 'README.md'}")
        print(_loaded(name)[1])
    elif name in shipped_names():
        print(f"\ntrained     here, in ./{name}, which goes before the one that comes with axial")


def _loaded(folder: str) -> tuple[str, str]:
    """What a model is, and its weights as they are computed with."""
    from axial.checkpoints.model_folder import fingerprint, load
    from axial.codec.codec import model_id

    model = load(folder)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    weights = f"weights     {dtype}, fingerprint {fingerprint(model)}"
    return describe(model.config), f"{weights}\nin .axl     id {model_id(model).hex()}"
