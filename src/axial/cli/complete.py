"""`axial complete`: continuations of pictures, video or volumes."""

from pathlib import Path

import tyro

from axial.cli.parsing import Name, Switches
from axial.data.sources.options import ClipOptions
from axial.sampling.config import CompleteConfig, SampleConfig


def complete(
    checkpoint: tyro.conf.Positional[str],
    source: tyro.conf.Positional[str],
    out: Path,
    completing: CompleteConfig = CompleteConfig(),  # noqa: B008
    drawing: Switches[SampleConfig] = SampleConfig(count=4),  # noqa: B008
    device: Name = None,
    reading: Switches[ClipOptions] = ClipOptions(),  # noqa: B008
) -> None:
    """Draw several continuations of pictures, video or volumes, beside the originals.

    Leading channels, so leading frames of a video whose frames are stacked as channels, and
    leading rows of a grey picture are continued by the exact conditional. Leading rows of a
    colour picture are not: red is drawn whole before the kept rows of green are looked at. Nor
    are leading frames of a colour video whose frames are an axis, but for those the model is
    given. There --particles K carries K versions through all channels, and comes nearer as K
    grows.

    Clips may have any number of frames, if those to keep are there.

    Args:
        checkpoint: The folder of a training run, a folder written by `axial.save` or
            `axial import`, or the name of a shipped model.
        source: A packed .npy file or any source that `axial data` takes.
        out: As for `axial sample`; .npy and a folder hold the continuations alone.
        completing: What to keep, and how to continue it.
        drawing: How to draw.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.
        reading: How to read a source that is not packed yet.

    Examples:
        axial complete cifar10 mine.jpg --size 32 --convert rgb --keep 16 --particles 16 --out c.png
        axial complete runs/pets test.npy --keep 8 --label dog --count 2 --out dogs.png
    """
    from axial.sampling.continuations import continue_

    continue_(checkpoint, source, out, completing, drawing, device, reading)
