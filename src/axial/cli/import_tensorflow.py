"""`axial import`: a TensorFlow checkpoint of the authors' becomes one of ours."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from axial.cli.parsing import Count
from axial.models.describe import describe
from axial.system.terminal import printable


def import_(
    folder: tyro.conf.Positional[Path],
    heads: Annotated[int, tyro.conf.arg(metavar="N")],
    out: Path,
    channels: Count = None,
    weights: Literal["ema", "raw"] = "ema",
) -> None:
    """Convert a TensorFlow checkpoint of the authors to a folder that `axial.load` reads.

    Args:
        folder: The folder of the checkpoint, or the path of its files without their suffixes.
        heads: Number of attention heads, which the files do not tell (released models: 16).
        out: The folder to write.
        channels: Number of channels of a stacked-rows model, which the files do not tell either.
        weights: The EMA weights, which the authors evaluate, or the raw weights.

    Examples:
        axial import imagenet32/ --heads 16 --out imagenet32-authors
        axial import imagenet32/ --heads 16 --weights raw --out imagenet32-raw
    """
    from axial.checkpoints.model_folder import check_new, fingerprint, save
    from axial.checkpoints.tensorflow import load_tensorflow

    check_new(out)
    model = load_tensorflow(folder, heads=heads, channels=channels, ema=weights == "ema")
    save(model, out)
    print(describe(model.config), file=sys.stderr)
    print(printable(f"{out}: {weights} weights of {folder}, fingerprint {fingerprint(model)}"))
