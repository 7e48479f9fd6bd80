"""`axial sample`: draw from a checkpoint."""

from pathlib import Path

import tyro

from axial.cli.parsing import File, Name, Switches
from axial.sampling.config import SampleConfig


def sample(
    checkpoint: tyro.conf.Positional[str],
    out: Path,
    drawing: Switches[SampleConfig] = SampleConfig(),  # noqa: B008
    trace: File = None,
    device: Name = None,
) -> None:
    """Draw from a checkpoint: a sheet, a folder of PNGs, an array, or for video a moving picture.

    Args:
        checkpoint: The folder of a training run, a folder written by `axial.save` or
            `axial import`, or the name of a shipped model.
        out: A .png sheet, a .npy array, a .gif or .mp4 of video, or without an ending a folder
            of PNGs; how it was drawn is written beside it.
        drawing: How to draw.
        trace: Show the first pictures being drawn, as a .gif.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.

    Examples:
        axial sample cifar10 --count 4 --out samples.png
        axial sample runs/pets --label cat dog --count 8 --seed 1 --out pets.png
    """
    from axial.sampling.sample import sample

    sample(checkpoint, out, drawing, trace, device)
