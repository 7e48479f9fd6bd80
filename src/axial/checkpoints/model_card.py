"""The model card of a checkpoint: what a run knows of itself, as Markdown."""

import json
from pathlib import Path

from axial.checkpoints.run_folder import Run
from axial.checkpoints.run_summary import RunSummary
from axial.models.describe import describe
from axial.models.family_config import FamilyConfig
from axial.system.terminal import printable

_TAGS = ("axial-transformer", "autoregressive", "density-estimation")


def model_card(
    name: str, config: FamilyConfig, mark: str, run: Run | None, *, samples: bool
) -> str:
    """The card of a model that others load as `hub:name`.

    `mark` is its fingerprint; `samples` says whether samples.png lies beside it. Of paths only the
    last part is told: where a source lay is nobody's business.
    """
    parts = [_head(config), f"# {name.split('/')[-1]}", _use(name, config)]
    if samples:
        parts.append("![Samples, not selected](samples.png)\n\n*Samples, not selected.*")
    summary = None if run is None else RunSummary.of(run)
    parts.append(_facts(config, mark, summary))
    if summary is not None:
        parts += [_data(summary), _training(summary)]
    parts += [f"## Model\n\n```text\n{describe(config)}\n```", _limits(config)]
    return printable("\n\n".join(parts)) + "\n"


def _head(config: FamilyConfig) -> str:
    tags = "".join(f"\n- {tag}" for tag in _TAGS)
    pictures = len(config.axes) == 2 and config.channels in (1, 3) and not config.classes
    task = "\npipeline_tag: unconditional-image-generation" if pictures else ""
    return f"---\nlibrary_name: axial-transformers{task}\ntags:{tags}\n---"


def _use(name: str, config: FamilyConfig) -> str:
    shape = " x ".join(map(str, (*config.axes, config.channels)))
    kind = f"conditioned on {config.classes} classes" if config.classes else "unconditional"
    return (
        f"A model of arrays of {shape} integers below {config.values}, {kind}, with exact "
        f"likelihood. `pip install axial-transformers[hf]`, then\n\n"
        f"    axial sample hub:{name} --out samples.png\n"
        f"    axial evaluate hub:{name} --data test.npy\n\n"
        f'or in Python `axial.load("hub:{name}")`.'
    )


def _facts(config: FamilyConfig, mark: str, summary: RunSummary | None) -> str:
    rows = {"parameters": f"{config.parameters():,}"}
    if summary is not None:
        score = "not scored" if summary.best is None else f"**{summary.score} bits/dim**"
        at = "" if summary.best_step is None else f", after {summary.best_step:,} steps"
        rows |= {"held-out examples": score + at}
        rows |= {"steps": summary.length, "time of training": summary.time}
        versions = summary.run.about.get("versions", {})
        rows |= {"versions": ", ".join(f"{k} {v}" for k, v in dict(versions).items())}
    rows["fingerprint"] = f"`{mark}`"
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items() if v)])


def _data(summary: RunSummary) -> str:
    data = summary.run.about["data"]
    lines = [f"{summary.data}, sha256 `{data['sha256']}`."]
    lines += ["Some of them were held out of training for the score above; no test set was used."]
    if names := data.get("names"):
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(names))
        used = "" if summary.run.about["model"].get("classes") else " The model is not told which."
        lines.append(f"Classes: {listed}.{used}")
    return "## Data\n\n" + " ".join(lines)


def _training(summary: RunSummary) -> str:
    about = summary.run.about
    source = about["data"].get("source")
    data = f" --data {Path(source).name}" if source else ""
    settings = {name: value for name, value in about["training"].items() if value is not None}
    if "max_minutes" in settings:  # the number of steps followed from it
        settings.pop("steps", None)
    return (
        f"## Training\n\n    axial train {about['preset']}{data} --out RUN\n\nwith the settings\n\n"
        f"```json\n{json.dumps(settings, indent=2)}\n```"
    )


def _limits(config: FamilyConfig) -> str:
    shape = " x ".join(map(str, config.axes))
    return (
        f"## Limits\n\nIt knows arrays of {shape} like those it was trained on, and nothing of "
        f"others. A likelihood does not measure what a picture shows, and a low one does not prove "
        f"that a picture is out of place. It has the biases of its data, and a sample may come "
        f"close to an example it was trained on."
    )
