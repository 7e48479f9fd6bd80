"""`axial evaluate`: bits/dim of a data set."""

import tyro

from axial.cli.parsing import Name, Switches
from axial.data.sources.options import HeldOutOptions
from axial.evaluation.config import EvaluateConfig


def evaluate(
    checkpoint: tyro.conf.Positional[str],
    scoring: Switches[EvaluateConfig] = EvaluateConfig(),  # noqa: B008
    device: Name = None,
    reading: Switches[HeldOutOptions] = HeldOutOptions(),  # noqa: B008
) -> None:
    """Score a data set: exact bits/dim over all elements of all examples, with standard error.

    Args:
        checkpoint: The folder of a training run, a folder written by `axial.save` or
            `axial import`, or the name of a shipped model.
        scoring: What to score, how, and what to write.
        device: cpu, cuda or cuda:N; default: a GPU if there is one.
        reading: How to read a source that is not packed yet.

    Examples:
        axial evaluate runs/mine --data test.npy --map bits.png
        axial evaluate cifar10 --data cifar-10-python.tar.gz --limit 200 --json score.json
    """
    from axial.evaluation.evaluate import report

    report(checkpoint, scoring, reading, device)
