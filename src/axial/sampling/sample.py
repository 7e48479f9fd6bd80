"""What `axial sample` does, and how `axial complete` draws too: in batches, shared by the ranks.

A picture depends on the model, the seed and its number, not on how many ranks draw it. In bfloat16
it depends on the batch size too, which is one and the same for any request.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import axial
from axial.checkpoints.model_folder import class_names, config_of, fingerprint, load
from axial.checkpoints.trained_on import class_numbers, class_title
from axial.data.packed import Array
from axial.errors import ConfigError, DataError
from axial.media.moving import write_moving
from axial.media.output import Output, Shown
from axial.media.sheets import sheet_pixels
from axial.models.protocol import Model
from axial.sampling.config import SampleConfig
from axial.sampling.draw import draw, draws_at_once
from axial.shape import DataShape
from axial.system.files import check_place, resolved
from axial.system.progress import counting
from axial.system.ranks import Ranks, ranks
from axial.system.terminal import printable

_BATCH_CPU, _BATCH = 16, 64
_SHOWN, _FRAMES = 16, 100
"""How many pictures a trace shows, and at most how many times."""


def sample(
    checkpoint: Path | str, out: Path, how: SampleConfig, trace: Path | None, device: str | None
) -> None:
    """Draw examples from a checkpoint, and write them."""
    with ranks(device) as team:
        sampler = Sampler(checkpoint, how, team)
        config = sampler.config
        label = sampler.labels(torch.arange(how.count)) if config.classes else None
        captions = sampler.captions(label)
        output = Output(out, config.data, overwrite=how.overwrite)
        output.check_size(Shown(x=blank(how.count, config.data), captions=captions))
        frames = Trace(trace, config.data, overwrite=how.overwrite)
        if trace is not None and resolved(trace) == resolved(out):
            raise DataError(f"{trace}: is what is drawn itself; name another file for the trace")
        if config.given_channels or config.given_steps:
            raise ConfigError(f"{checkpoint}: continues what it is given; use axial complete")
        sampler.load(how.count)

        def run(number: Tensor, **settings: Any) -> Tensor:
            own = None if label is None else label[number]
            return draw(sampler.model, len(number), label=own, **settings)

        lines = math.prod(config.axes) * config.channels // config.line
        x = sampler.shared(how.count, run, frames, lines)
        if team.is_rank0:
            output.write(x, sampler.about(label), Shown(x=x, captions=captions))
            frames.write()
            if trace is not None:
                print(printable(f"{trace}: written"), file=sys.stderr)
            print(printable(f"{out}: {how.count} drawn, batch {sampler.batch}, seed {how.seed}"))


def blank(count: int, shape: DataShape) -> Array:
    """Examples (n, *axes, c) that are not drawn yet; they take no memory."""
    return np.broadcast_to(np.int64(0), (count, *shape.axes, shape.channels))


class Sampler:
    """A checkpoint, the settings of `draw`, and after `load` the model itself.

    Its configuration is read at once, so that a request is refused before the weights are read.
    """

    model: Model
    batch: int

    def __init__(self, checkpoint: Path | str, how: SampleConfig, team: Ranks) -> None:
        self.asked, self.team, self.checkpoint = how, team, checkpoint
        self.config, self.class_names = config_of(checkpoint), class_names(checkpoint)
        self.classes: tuple[int, ...] | None = None
        """The classes that were asked for."""
        if how.label is not None:
            self.classes = class_numbers(
                checkpoint, how.label, self.config.classes, self.class_names
            )
        on_cpu = team.device.type == "cpu"
        self.precision = how.precision or ("float32" if on_cpu else "bfloat16")
        self._most = _BATCH_CPU if on_cpu else _BATCH

    def load(self, count: int) -> None:
        """Read the model, to draw so many: in bfloat16 a picture depends on how many at once."""
        model = load(self.checkpoint, device=self.team.device)
        self.fingerprint = fingerprint(model)
        self.model = model.to(getattr(torch, self.precision))
        most = min(self.asked.batch or self._most, draws_at_once(self.model))
        if self.asked.batch is None and self.precision != "bfloat16":
            most = -(-count // -(-count // most))  # as many batches as before, none of them padded
        self.batch = most
        self.how: dict[str, Any] = {
            "seed": self.asked.seed,
            "temperature": self.asked.temperature,
            "method": self.asked.method,
            "batch": self.batch,
        }

    def labels(self, number: Tensor, known: Array | None = None) -> Tensor | None:
        """The class of each: that asked for, or the example's own, or each in turn."""
        if not self.config.classes:
            return None
        if self.classes is None and known is not None:
            return torch.from_numpy(known).long()
        classes = torch.tensor(self.classes or range(self.config.classes))
        return classes[number % len(classes)]

    def captions(self, label: Tensor | None) -> tuple[str, ...] | None:
        """What is written below each picture."""
        if label is None:
            return None
        return tuple(class_title(self.class_names, number) for number in label.tolist())

    def shared(
        self, count: int, run: Callable[..., Tensor], trace: "Trace", lines: int, versions: int = 1
    ) -> Array:
        """Let each rank draw some whole batches, of so many lines; all of it on every rank.

        `run` is given the numbers of the examples, each drawn in so many versions, and how.
        """
        shape, team = trace.shape, self.team
        x = torch.zeros(count, *shape.axes, shape.channels, dtype=torch.long, device=team.device)
        padded = self.asked.batch is None and (few := count * versions) < self.batch
        if padded and team.is_rank0:
            print(
                f"a batch of {self.batch} is padded to draw {few}; --batch {few} takes less time, "
                f"but in {self.precision} another batch rounds to other pictures",
                file=sys.stderr,
            )
        mine = team.share(count, self.batch)
        own = mine.stop - mine.start
        lines *= -(-own * versions // self.batch)
        if own:
            with counting("lines drawn", lines, shown=team.is_rank0) as tell:
                how = self.how | {"first": mine.start, "finished": trace.progress(tell, lines)}
                x[mine] = run(torch.arange(mine.start, mine.stop), **how)
        return team.sum(x).cpu().numpy()

    def about(self, label: Tensor | None) -> dict[str, Any]:
        """How the pictures came about: nothing that could differ between equal pictures."""
        return {
            "checkpoint": str(self.checkpoint),
            "fingerprint": self.fingerprint,
            "count": self.asked.count,
            "label": None if label is None else label.tolist(),
            "precision": self.precision,
            "device": self.team.device.type,
            "versions": {"axial": axial.__version__, "torch": torch.__version__},
            **self.how,
        }


class Trace:
    """The first pictures while they are drawn, written as a .gif."""

    def __init__(self, path: Path | None, shape: DataShape, *, overwrite: bool = False) -> None:
        if path is not None and (path.suffix.lower() != ".gif" or not path.parent.is_dir()):
            raise DataError(f"{path}: not a .gif path in an existing folder; name one for --trace")
        if path is not None:
            check_place(path, overwrite=overwrite)
        self.path, self.shape = path, shape
        self.frames: list[Array] = []

    def progress(self, tell: Callable[[int], None], lines: int) -> Callable[[Tensor], None]:
        """What `draw` is to call after each of its lines."""
        done, every = 0, -(-lines // _FRAMES)

        def finished(x: Tensor) -> None:
            nonlocal done
            done += 1
            tell(done)
            if self.path is not None and (done % every == 0 or done == lines):
                shown = x[:_SHOWN].cpu().numpy()
                frames = self.shape.stacked_frames
                self.frames.append(sheet_pixels(shown, values=self.shape.values, frames=frames))

        return finished

    def write(self) -> None:
        """Write the file, if one was asked for."""
        if self.path is not None:
            write_moving(self.path, self.frames)
