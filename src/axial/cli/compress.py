"""`axial compress`: pictures, folders and arrays as one lossless file."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from axial.cli.parsing import Count, Name, Switch
from axial.system.terminal import printable

Kind = Annotated[Literal["rgb", "grey"] | None, tyro.conf.arg(help_behavior_hint="")]


def compress(
    model: tyro.conf.Positional[str],
    inputs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT ...")],
    out: Path,
    label: Name = None,
    convert: Kind = None,
    overlap: Count = None,
    verify: Switch = False,
    device: Name = None,
    overwrite: Switch = False,
) -> None:
    """Compress pictures or arrays without loss, by the probabilities of a model.

    Pictures may have any size: they are cut into tiles of the model's. Names, sizes and pixels
    come back exactly, on any machine that has the model; other contents of a file, such as
    EXIF, do not. The file says which model it needs.

    Args:
        model: The folder of a checkpoint or a run, or the name of a shipped model.
        inputs: Pictures, folders of pictures, packed .npy arrays, or any source that
            `axial data` takes.
        out: The .axl file to write.
        label: The class of every picture, by name or number, for a conditional model.
        convert: Convert pictures to 8 bits of this kind, on white. Default: refuse those
            that differ.
        overlap: By how many pixels tiles overlap: more takes fewer bits, and more time. Default: a
            sixteenth of a tile.
        verify: Decode the file at once, and keep it only if every pixel comes back.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.
        overwrite: Replace an existing file.

    Examples:
        axial compress cifar10 holiday/ --out holiday.axl
        axial compress runs/mine test.npy --verify --out test.axl
    """
    from axial.codec.inputs import compress_files

    found = compress_files(
        model,
        inputs,
        out,
        label=label,
        convert=convert,
        device=device,
        overwrite=overwrite,
        verify=verify,
        overlap=overlap,
    )
    if found.pictures:
        print("pixels, names and sizes are kept; metadata such as EXIF is not", file=sys.stderr)
    print(printable(f"{out}: {found}"))
