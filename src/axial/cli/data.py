"""`axial data`: any source becomes one packed array."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from axial.cli.parsing import Count, File, Switch, Switches, quiet
from axial.data.sources.options import ReadOptions
from axial.system.terminal import printable


def data(
    source: tyro.conf.Positional[str],
    out: Path,
    reading: Switches[ReadOptions] = ReadOptions(),  # noqa: B008
    workers: Count = None,
    preview: File = None,
    overwrite: Switch = False,
    class_names: Annotated[tuple[str, ...] | None, quiet("NAME ...")] = None,
) -> None:
    """Pack pictures, video or arrays of integers into one array, and report what was read.

    Args:
        source: A file, a folder, `digits`, or the name of a Hugging Face data set.
        out: The .npy file to write. Its description is written beside it.
        reading: How to read the source.
        workers: Number of decoding processes; default: one per core.
        preview: Write a sheet of the first examples to this .png file.
        overwrite: Replace a packed array or a preview that exists already.
        class_names: What the labels 0, 1, 2 ... mean, where the source does not say.

    Examples:
        axial data photographs/ --size 32 --out train.npy --preview train.png
        axial data clips/ --frames 16 --size 64 --out clips.npy
    """
    from axial.data.packing import pack
    from axial.media.sheets import check_preview, write_preview
    from axial.system.files import check_apart
    from axial.validation import counted

    if preview:
        check_apart(preview, source)
        check_preview(preview, overwrite=overwrite)
    report = pack(
        source,
        out,
        reading,
        workers=workers,
        progress=True,
        overwrite=overwrite,
        class_names=class_names,
    )
    print(printable(report), file=sys.stderr)
    if preview:
        write_preview(preview, report.packed)
    title = report.packed.description.title
    print(printable(f"{out}: {title}, {counted(len(report.packed), 'example')}"))
