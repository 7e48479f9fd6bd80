"""Drawing and completing for several jobs at once: one batch, each job's pictures its own.

n pictures, e elements of one.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axial.data.packed import Array, dtype_for
from axial.errors import AxialError
from axial.models.causal import lines
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model
from axial.sampling.complete import complete, is_exact, needs_particle_filter
from axial.sampling.draw import draws_at_once
from axial.sampling.stream import stream
from axial.studio.canvas import Canvas
from axial.studio.errors import bad_request
from axial.studio.jobs import Job
from axial.studio.wire import packed
from axial.studio.worker import Pause

_NOTES = {
    "exact": "What is kept comes first in the order of prediction: drawn from the exact "
    "conditional.",
    "particles": "A particle filter: it comes nearer to the exact conditional as particles grow.",
    "forced": "What is kept of later elements was not known when earlier ones were drawn: forced, "
    "not the exact conditional.",
}


class _CancelledError(Exception):
    """Nobody waits for what is being drawn."""


@dataclass(frozen=True, kw_only=True)
class DrawTask:
    """Some pictures of a seed, whole or completed."""

    source: str
    """The model as the user named it."""
    count: int
    seed: int
    temperature: float
    label: int | None
    first: int
    particles: int = 1
    original: Array | None = None
    """The picture to complete (*axes, c), and what is kept of it."""
    kept: Array | None = None
    reading: str = ""
    """For the command that does the same: its input, and the options that say what is kept."""
    quick: bool = field(default=False, init=False)

    def batch_key(self) -> object:
        """Equal settings; completions keep the same part, and a particle filter stands alone."""
        if self.particles > 1:
            return None
        return self.temperature, None if self.kept is None else self.kept.tobytes()

    def size(self) -> int:
        """Pictures."""
        return self.count

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Draw what all the jobs ask for as one batch."""
        _Batch(model, jobs, pause).run()

    def labels(self, classes: int) -> Tensor | None:
        """The class of each picture."""
        if not classes:
            return None
        if self.label is not None:
            return torch.full((self.count,), self.label)
        return torch.arange(self.first, self.first + self.count) % classes

    def given(self, config: FamilyConfig) -> Tensor:
        """What is known of each picture, -1 elsewhere."""
        if self.original is None or self.kept is None:
            return torch.full((self.count, *config.axes, config.channels), -1)
        known = np.where(self.kept, self.original, -1)
        return torch.from_numpy(known).expand(self.count, *known.shape)

    def how(self, config: FamilyConfig) -> str | None:
        """Whether what is kept makes the conditional exact; None where nothing is."""
        if self.kept is None:
            return None
        mask = torch.from_numpy(self.kept)
        if is_exact(config, mask):
            return "exact"
        try:
            filtered = needs_particle_filter(config, mask[None], self.particles, self.temperature)
        except AxialError as error:
            raise bad_request(error) from error
        return "particles" if filtered else "forced"


class _Batch:
    """Jobs that are drawn together."""

    def __init__(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        self.model, self.config, self.jobs, self.pause = model, model.config, jobs, pause
        self.tasks: list[DrawTask] = [job.task for job in jobs]
        given = torch.cat([task.given(self.config) for task in self.tasks])
        self.given, self.count = given, len(given)
        self.particles = self.tasks[0].particles
        self.how = self.tasks[0].how(self.config)
        if self.how != "particles":
            self.particles = 1
        self.batch = min(self.count * self.particles, draws_at_once(model))
        self.canvas = Canvas(given.flatten(1).numpy())
        every = lines(self.config)
        missing = (given.flatten(1) < 0).any(0)
        self.todo = every[missing[every].any(1)]
        """The lines that have something to draw."""
        self.passes = -(-self.count * self.particles // self.batch)
        self.done, self.of = 0, len(self.todo) * self.passes

    def run(self) -> None:
        """Draw, show each line, and hand out the pictures."""
        if self._start():
            x = self._filtered() if self.particles > 1 else self._streamed()
            if x is not None:
                self.canvas.update(x.flatten(1).cpu().numpy())
                self._finish(x.cpu().numpy())

    def _start(self) -> bool:
        start = 0
        for job, task in zip(self.jobs, self.tasks, strict=True):
            job.canvas, job.rows = self.canvas, slice(start, start + task.count)
            start += task.count
            job.progress = (0, self.of)
            told = {"lines": self.of, "batch": self.count * self.particles}
            job.start(told | _completion(task, self.how, self.config))
        return not all(job.ended for job in self.jobs)

    def _settings(self) -> dict[str, Any]:
        labels = [task.labels(self.config.classes) for task in self.tasks]
        known = [label for label in labels if label is not None]
        return {
            "temperature": self.tasks[0].temperature,
            "label": torch.cat(known) if known else None,
            "batch": self.batch,
        }

    def _streamed(self) -> Tensor | None:
        """Line after line, by `axial.stream`; None if nobody waits any more."""
        each = torch.tensor([task.count for task in self.tasks])
        seed = torch.tensor([task.seed for task in self.tasks]).repeat_interleave(each)
        first = torch.cat([torch.arange(t.first, t.first + t.count) for t in self.tasks])
        try:
            items = stream(
                self.model, self.count, seed=seed, first=first, given=self.given, **self._settings()
            )
        except AxialError as error:
            raise bad_request(error) from error
        x = None
        for x in items:
            if not self._show(x):
                items.close()
                return None
        return x

    def _filtered(self) -> Tensor | None:
        """The same by a particle filter, of which the first particles are shown."""
        task, config = self.tasks[0], self.config
        planes = (self.todo[:, 0] % config.channels).tolist()  # channels come in turn
        shown = self.given.clone()

        def finished(x: Tensor) -> None:
            channel = planes[min(self.done // self.passes, len(planes) - 1)]
            shown[..., : channel + 1] = x[:: self.particles, ..., : channel + 1].cpu()
            if not self._show(shown.clone()):
                raise _CancelledError

        how = self._settings() | {"seed": task.seed, "first": task.first}
        try:
            return complete(
                self.model, self.given, particles=self.particles, finished=finished, **how
            )
        except _CancelledError:
            return None

    def _show(self, x: Tensor) -> bool:
        """Show what there is after a line; False if nobody waits any more."""
        self.done += 1
        self.canvas.update(x.flatten(1).cpu().numpy())
        for job in self.jobs:
            job.advance(self.done, self.of)
        return self.pause()

    def _finish(self, x: Array) -> None:
        dtype = dtype_for(self.config.values)
        for job, task in zip(self.jobs, self.tasks, strict=True):
            own = x[job.rows].astype(dtype)
            job.pictures = list(own)
            labels = task.labels(self.config.classes)
            found = {
                "model": job.model,
                "shape": list(own.shape),
                "dtype": str(dtype),
                "values": packed(own, dtype),
                "labels": None if labels is None else labels.tolist(),
                "command": command(task, self.config, self.model),
                "python": python(task, self.config),
            }
            found |= links(job, self.config, labels)
            job.finish(found | _completion(task, self.how, self.config))


def _completion(task: DrawTask, how: str | None, config: FamilyConfig) -> dict[str, Any]:
    """What is said of a completion beside what is said of a drawing."""
    if how is None or task.original is None or task.kept is None:
        return {}
    original = packed(task.original, dtype_for(config.values))
    return {
        "how": how,
        "note": _NOTES[how],
        "original": original,
        "kept": packed(task.kept, np.uint8),
    }


def links(job: Job, config: FamilyConfig, labels: Tensor | None) -> dict[str, Any]:
    """Where the pictures of a job can be fetched."""
    base = f"/api/jobs/{job.id}"
    moving = config.data.window is not None
    pictures = [
        {
            "png": f"{base}/{i}.png",
            "npy": f"{base}/{i}.npy",
            "gif": f"{base}/{i}.gif" if moving else None,
            "label": None if labels is None else int(labels[i]),
        }
        for i in range(len(job.pictures))
    ]
    return {"sheet": f"{base}/sheet.png", "array": f"{base}/all.npy", "pictures": pictures}


def command(task: DrawTask, config: FamilyConfig, model: Model) -> str | None:
    """The command line that makes the same pictures again; None for a painted mask."""
    if task.original is not None and not task.reading:
        return None
    words = ["axial", "sample", shlex.quote(task.source), "--out", "samples.png"]
    if task.original is not None:
        words = ["axial", "complete", shlex.quote(task.source), task.reading]
        words += ["--out", "completed.png"]
        words += ["--particles", str(task.particles)] * (task.particles > 1)
    total = task.first + task.count
    words += ["--count", str(total), "--seed", str(task.seed), "--batch", str(task.count)]
    words += ["--temperature", f"{task.temperature:g}"] * (task.temperature != 1)
    words += ["--label", str(task.label)] * (task.label is not None)
    words += ["--precision", "float32"] * (next(model.parameters()).device.type == "cuda")
    return " ".join(words)


def python(task: DrawTask, config: FamilyConfig) -> str:
    """The Python that makes the same array again; `given` is what was kept, -1 elsewhere."""
    model = f"axial.load({task.source!r})"
    how = [f"seed={task.seed}"]
    how += [f"temperature={task.temperature!r}"] * (task.temperature != 1)
    how += [f"first={task.first}"] * (task.first > 0)
    if config.classes and task.label is not None:
        how.append(f"label=torch.tensor([{task.label}])")
    elif config.classes:
        stop = task.first + task.count
        how.append(f"label=torch.arange({task.first}, {stop}) % {config.classes}")
    if task.original is None:
        return f"axial.draw({model}, {task.count}, {', '.join(how)})"
    how += [f"particles={task.particles}"] * (task.particles > 1)
    repeat = f"given.expand({task.count}, {', '.join(['-1'] * (len(config.axes) + 1))})"
    return f"axial.complete({model}, {repeat}, {', '.join(how)})"
