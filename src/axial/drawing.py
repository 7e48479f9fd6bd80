"""What `axial sample` and `axial complete` do: draw in batches of one size, shared by the ranks.

A picture depends on the model, the seed, its number and the batch size: not on how many are drawn,
nor on how many ranks draw them.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import axial
from axial.checkpoint import fingerprint, load
from axial.completion import complete, is_exact, kept_part
from axial.config import CompleteConfig, SampleConfig
from axial.data import Array
from axial.errors import ConfigError, DataError
from axial.fitting import as_modelled
from axial.model import AxialTransformer
from axial.output import Output, write_moving
from axial.packing import open_data
from axial.pictures import sheet
from axial.progress import counting
from axial.ranks import Ranks, ranks
from axial.sample import draw, draws_at_once
from axial.sources.options import ReadOptions

_BATCH = {"cpu": 16}
_BATCH_GPU = 64
_SHOWN, _FRAMES = 16, 100
"""How many pictures a trace shows, and at most how many times."""


def sample(
    checkpoint: Path, out: Path, how: SampleConfig, trace: Path | None, device: str | None
) -> None:
    """Draw examples from a checkpoint, and write them."""
    with ranks(device) as team:
        studio = _Studio(checkpoint, how, team)
        config = studio.model.config
        output = Output(out, config)
        growing = _Growing(trace, config.values)
        if config.given_channels or config.given_steps:
            raise ConfigError(f"{checkpoint}: continues what it is given; use axial complete")

        def run(first: int, count: int, finished: Callable[[Tensor], None]) -> Tensor:
            label = studio.label(torch.arange(first, first + count))
            return draw(
                studio.model, count, first=first, label=label, finished=finished, **studio.how
            )

        x = studio.shared(how.count, run, growing)
        if team.main:
            output.write(x, studio.about())
            growing.write()
            print(f"{out}: {how.count} drawn, batch {studio.batch}, seed {how.seed}")


def continue_(
    checkpoint: Path,
    source: str,
    out: Path,
    what: CompleteConfig,
    how: SampleConfig,
    device: str | None,
    reading: ReadOptions,
) -> None:
    """Complete examples of a source, and write them beside the originals."""
    with ranks(device) as team, TemporaryDirectory(prefix="axial-") as scratch:
        studio = _Studio(checkpoint, how, team)
        config = studio.model.config
        output = Output(out, config)
        mask = kept_part(config, keep=what.keep, keep_channels=what.keep_channels)
        packed = as_modelled(open_data(source, Path(scratch), reading), config)
        originals = packed.rows(range(min(what.examples, len(packed)))).astype(np.int64)
        known = torch.from_numpy(originals).masked_fill(~mask, -1)
        if what.candidates == 1 and team.main and not is_exact(config, mask):
            print(
                "kept rows of later channels are forced on what is drawn before them: not the "
                "exact conditional; --candidates K comes nearer as K grows",
                file=sys.stderr,
            )

        def run(first: int, count: int, finished: Callable[[Tensor], None]) -> Tensor:
            number = torch.arange(first, first + count)
            of = number // how.count
            label = studio.label(
                number, None if packed.labels is None else packed.labels[of.numpy()]
            )
            more = {} if what.candidates > 1 else {"finished": finished}
            settings = {"first": first, "label": label, **studio.how, **more}
            return complete(studio.model, known[of], candidates=what.candidates, **settings)

        x = studio.shared(len(originals) * how.count, run, _Growing(None, config.values))
        if team.main:
            about = studio.about() | {"source": source} | asdict(what)
            beside = _beside(originals, known.clamp(min=0).numpy(), x)
            shown = x if output.kind in (".npy", "") else beside
            output.write(shown, about, columns=how.count + 2)
            print(f"{out}: {len(originals)} examples, {how.count} continuations of each")


def _beside(originals: Array, known: Array, drawn: Array) -> Array:
    """Each original, what was kept of it, and its continuations."""
    rows = drawn.reshape(len(originals), -1, *originals.shape[1:])
    return np.concatenate([originals[:, None], known[:, None], rows], 1).reshape(
        -1, *originals.shape[1:]
    )


class _Studio:
    """A model in its precision on its device, and the settings of `draw`."""

    def __init__(self, checkpoint: Path, how: SampleConfig, team: Ranks) -> None:
        self.asked, self.team, self.checkpoint = how, team, checkpoint
        model = load(checkpoint, device=team.device)
        self.fingerprint = fingerprint(model)
        usual = "float32" if team.device.type == "cpu" else "bfloat16"
        self.precision = how.precision or usual
        self.model: AxialTransformer = model.to(getattr(torch, self.precision))
        asked = how.batch or _BATCH.get(team.device.type, _BATCH_GPU)
        self.batch = min(asked, draws_at_once(self.model))
        self.how: dict[str, Any] = {
            "seed": how.seed,
            "temperature": how.temperature,
            "method": how.method,
            "batch": self.batch,
        }

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
        self,
        count: int,
        run: Callable[[int, int, Callable[[Tensor], None]], Tensor],
        growing: "_Growing",
    ) -> Array:
        """Let each rank draw some whole batches; all of it on every rank."""
        config, team = self.model.config, self.team
        x = torch.zeros(count, *config.axes, config.channels, dtype=torch.long, device=team.device)
        first, stop = share(count, self.batch, team.rank, team.count)
        lines = x[0].numel() // config.plane_axes[-1] * -(-(stop - first) // self.batch)
        if first < stop:
            with counting("lines drawn", lines, shown=team.main) as tell:
                x[first:stop] = run(first, stop - first, growing.watch(tell, lines))
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


def share(count: int, batch: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first image of a rank and the first that is not its own: whole batches, in order."""
    batches = -(-count // batch)
    first, stop = (batches * part // ranks * batch for part in (rank, rank + 1))
    return min(first, count), min(stop, count)


class _Growing:
    """Looks at the first pictures while they are drawn, and writes what it saw as a .gif."""

    def __init__(self, path: Path | None, values: int) -> None:
        if path is not None and (path.suffix.lower() != ".gif" or not path.parent.is_dir()):
            raise DataError(f"{path}: no place for a trace; name a .gif in a folder that is there")
        self.path, self.values = path, values
        self.frames: list[Array] = []

    def watch(self, tell: Callable[[int], None], lines: int) -> Callable[[Tensor], None]:
        """What `draw` is to call after each of its lines."""
        done, every = 0, -(-lines // _FRAMES)

        def finished(x: Tensor) -> None:
            nonlocal done
            done += 1
            tell(done)
            if self.path is not None and (done % every == 0 or done == lines):
                shown = x[:_SHOWN].clamp(min=0).cpu().numpy()
                self.frames.append(sheet(shown, values=self.values))

        return finished

    def write(self) -> None:
        if self.path is not None:
            write_moving(self.path, self.frames)
