"""`axial decompress`: what an .axl file holds, restored."""

from pathlib import Path
from typing import Annotated

import tyro

from axial.cli.parsing import Name, Switch
from axial.system.terminal import printable


def decompress(
    file: tyro.conf.Positional[Path],
    out: Path,
    model: Name = None,
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = (),
    device: Name = None,
    overwrite: Switch = False,
) -> None:
    """Restore what `axial compress` wrote: every pixel, or an error and no file.

    Pictures keep their names. One whose format would lose pixels, such as a .jpg, is written
    as a PNG, with .png added to its name.

    Args:
        file: The .axl file.
        out: A new folder; for one entry alone also a .png, .webp or .npy file.
        model: The model that compressed it. Default: the one that the file names.
        only: Restore these entries only; the others need not be decoded.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.
        overwrite: Replace an existing file.

    Examples:
        axial decompress holiday.axl --out restored
        axial decompress holiday.axl --only beach.png --out beach.png
    """
    from axial.codec.outputs import decompress_file

    count = decompress_file(file, out, model=model, only=only, device=device, overwrite=overwrite)
    print(printable(f"{out}: {count:,} {'entry' if count == 1 else 'entries'} restored exactly"))
