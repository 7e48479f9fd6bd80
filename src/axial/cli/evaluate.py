"""`axial evaluate`: bits/dim of a data set."""

from typing import Annotated, Literal

import tyro

from axial.cli.parsing import Count, File, Model, Name, Switch, Testing
from axial.data.sources.options import HeldOutOptions


def evaluate(
    checkpoint: Model,
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")] = None,
    weights: Literal["ema", "raw"] = "ema",
    json: File = None,
    map: File = None,
    per_example: File = None,
    resume: File = None,
    batch: Count = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    device: Name = None,
    limit: Count = None,
    overwrite: Switch = False,
    reading: Testing = HeldOutOptions(),  # noqa: B008
) -> None:
    """Score a data set: exact bits/dim over all elements of all examples, with standard error.

    Args:
        checkpoint: The folder of a training run, a folder written by `axial.save` or
            `axial import`, or the name of a shipped model.
        data: A packed .npy file, or any source that `axial data` takes.
            Default: the test split of what the run was trained on.
        weights: The EMA weights of a run, or the raw weights.
        json: Write all figures at full precision, also by channel and by row. Progress is kept
            beside this file, and repeating an interrupted command resumes it.
        map: Write a .png of a few examples and of where their bits go.
        per_example: Write the bits of each example to this .npy file.
        resume: Keep the progress in this file (default: beside the --json file).
        batch: Examples scored together, over all ranks (default: what fits memory).
        precision: Precision of the model. Sums are always in float64.
        device: cpu, cuda, cuda:1 ... (default: a GPU if there is one).
        limit: Score only the first N examples, and say so.
        overwrite: Replace files that exist already.
        reading: How to read the source.
    """
    from axial.evaluation.evaluate import Outputs, Request, report

    request = Request(
        checkpoint=checkpoint,
        data=data,
        weights=weights,
        precision=precision,
        batch=batch,
        limit=limit,
        reading=reading,
    )
    outputs = Outputs(
        json=json, map=map, per_example=per_example, resume=resume, overwrite=overwrite
    )
    report(request, outputs, device)
