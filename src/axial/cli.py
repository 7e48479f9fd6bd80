"""The command line: one function for each subcommand, and how it ends.

Torch is imported inside the command that needs it, so that help answers at once.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import tyro

from axial.config import DataShape
from axial.errors import AxialError, ConfigError
from axial.presets import PRESETS


def import_(
    folder: tyro.conf.Positional[Path],
    heads: int,
    out: Path,
    channels: int | None = None,
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
    from axial.checkpoint import fingerprint, save
    from axial.describe import describe
    from axial.tensorflow import load_tensorflow

    model = load_tensorflow(folder, heads=heads, channels=channels, ema=weights == "ema")
    print(describe(model.config), file=sys.stderr)
    save(model, out)
    print(f"{out}: {weights} weights of {folder}, fingerprint {fingerprint(model)}")


def info(
    what: tyro.conf.Positional[str],
    axes: tuple[int, ...] | None = None,
    channels: int | None = None,
    values: int | None = None,
    classes: int | None = None,
) -> None:
    """Tell what a preset or a checkpoint is: its data, sizes, cost and levels.

    Args:
        what: The name of a preset, or the folder of a checkpoint.
        axes: Fit the preset to data with these axes, slowest first.
        channels: Fit the preset to data with this many channels.
        values: Fit the preset to data with this many values.
        classes: Fit the preset to data with this many labels.
    """
    from axial.checkpoint import fingerprint, load
    from axial.describe import describe

    shape = {"axes": axes, "channels": channels, "values": values, "classes": classes}
    asked = {name: value for name, value in shape.items() if value is not None}
    if what in PRESETS:
        config = PRESETS[what]()
        own = {name: getattr(config, name) for name in shape}
        config = PRESETS[what](DataShape(**(own | asked)))
        print(describe(config))
    elif Path(what).exists():
        if asked:
            raise ConfigError(f"{what}: is a checkpoint; --{next(iter(asked))} fits presets only")
        model = load(what)
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        print(f"{describe(model.config)}\n\nweights     {dtype}, fingerprint {fingerprint(model)}")
    else:
        near = difflib.get_close_matches(what, PRESETS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"presets are {', '.join(PRESETS)}"
        raise ConfigError(f"{what}: neither a preset nor a checkpoint; {hint}")


COMMANDS: dict[str, Callable[..., None]] = {"import": import_, "info": info}


def main(args: Sequence[str] | None = None) -> None:
    """Run a subcommand; exit with 1 and one line on an error that the user can mend."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, args=args, prog="axial", description="Axial Transformers."
        )
    except AxialError as error:
        sys.exit(f"axial: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
