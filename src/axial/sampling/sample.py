"""What `axial sample` does, and how `axial complete` draws too: in batches, shared by the ranks.

A picture depends on the model, the seed, its number and the batch size: not on how many are drawn,
nor on how many ranks draw them.
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
from axial.checkpoints.model_folder import fingerprint, load
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
        config = sampler.model.config
        output = Output(out, config.data, overwrite=how.overwrite)
        output.check_size(Shown(x=blank(how.count, config.data)))
        frames = Trace(trace, config.data, overwrite=how.overwrite)
        if trace is not None and resolved(trace) == resolved(out):
            raise DataError(f"{trace}: is what is drawn itself; name another file for the trace")
        if config.given_channels or config.given_steps:
            raise ConfigError(f"{checkpoint}: continues what it is given; use axial complete")

        def run(number: Tensor, **settings: Any) -> Tensor:
            return draw(sampler.model, len(number), label=sampler.label(number), **settings)

        lines = math.prod(config.axes) * config.channels // config.line
        x = sampler.shared(how.count, run, frames, lines)
        if team.is_rank0:
            output.write(x, sampler.about())
            frames.write()
            print(printable(f"{out}: {how.count} drawn, batch {sampler.batch}, seed {how.seed}"))


def blank(count: int, shape: DataShape) -> Array:
    """Examples (n, *axes, c) that are not drawn yet; they take no memory."""
    return np.broadcast_to(np.int64(0), (count, *shape.axes, shape.channels))


class Sampler:
    """A model in its precision on its device, and the settings of `draw`."""

    def __init__(self, checkpoint: Path | str, how: SampleConfig, team: Ranks) -> None:
        self.asked, self.team, self.checkpoint = how, team, checkpoint
        model = load(checkpoint, device=team.device)
        self.fingerprint = fingerprint(model)
        on_cpu = team.device.type == "cpu"
        self.precision = how.precision or ("float32" if on_cpu else "bfloat16")
        self.model: Model = model.to(getattr(torch, self.precision))
        batch = how.batch or (_BATCH_CPU if on_cpu else _BATCH)
        self.batch = min(batch, draws_at_once(self.model))
        self.how: dict[str, Any] = {
            "seed": how.seed,
            "temperature": how.temperature,
            "method": how.method,
            "batch": self.batch,
        }
        self._check_label()

    def _check_label(self) -> None:
        """Refuse a label that the model does not take, before anything else is said."""
        if self.asked.label is not None:
            config = self.model.config
            x = torch.zeros(1, *config.axes, config.channels, dtype=torch.long)
            self.model.check(x, self.label(torch.zeros(1)))

    def label(self, number: Tensor, known: Array | None = None) -> Tensor | None:
        """The label asked for, or that of the example, or each class in turn."""
        if self.asked.label is not None:
            return torch.full((len(number),), self.asked.label)
        if not self.model.config.classes:
            return None
        return (
            number % self.model.config.classes if known is None else torch.from_numpy(known).long()
        )

    def shared(
        self, count: int, run: Callable[..., Tensor], trace: "Trace", lines: int, versions: int = 1
    ) -> Array:
        """Let each rank draw some whole batches, of so many lines; all of it on every rank.

        `run` is given the numbers of the examples, each drawn in so many versions, and how.
        """
        shape, team = trace.shape, self.team
        x = torch.zeros(count, *shape.axes, shape.channels, dtype=torch.long, device=team.device)
        if self.asked.batch is None and (few := count * versions) < self.batch and team.is_rank0:
            print(
                f"a batch of {self.batch} is padded to draw {few}; --batch {few} takes less time, "
                f"but rounding may change a picture",
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

    def about(self) -> dict[str, Any]:
        """How the pictures came about: nothing that could differ between equal pictures."""
        return {
            "checkpoint": str(self.checkpoint),
            "fingerprint": self.fingerprint,
            "count": self.asked.count,
            "label": self.asked.label,
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
                shown = x[:_SHOWN].clamp(min=0).cpu().numpy()
                frames = self.shape.stacked_frames
                self.frames.append(sheet_pixels(shown, values=self.shape.values, frames=frames))

        return finished

    def write(self) -> None:
        """Write the file, if one was asked for."""
        if self.path is not None:
            write_moving(self.path, self.frames)
