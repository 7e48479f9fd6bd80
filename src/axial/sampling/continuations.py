"""What `axial complete` does: opens clips or pictures, draws what is missing, shows all of it."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axial.checkpoints.trained_on import class_title
from axial.data.compatibility import conform_clips, listed, open_clips
from axial.data.packed import Array, Examples
from axial.data.sources.options import ClipOptions
from axial.errors import ConfigError, DataError
from axial.media.output import Output, Shown
from axial.models.causal import lines
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model
from axial.sampling.complete import complete, is_exact, kept_part
from axial.sampling.config import CompleteConfig, SampleConfig
from axial.sampling.extend import Sliding, prolong
from axial.sampling.sample import Sampler, Trace, blank
from axial.shape import ClassNames, DataShape
from axial.system.files import check_apart, temporary_folder
from axial.system.ranks import ranks
from axial.system.terminal import printable
from axial.validation import counted


def continue_(
    checkpoint: Path | str,
    source: str,
    out: Path,
    what: CompleteConfig,
    how: SampleConfig,
    device: str | None,
    reading: ClipOptions,
) -> None:
    """Complete examples of a source, and write them beside the originals."""
    with ranks(device) as team, temporary_folder() as scratch:
        sampler = Sampler(checkpoint, how, team)
        task = _Task(sampler.config, what, labels=how.label is None)
        check_apart(out, source)
        output = Output(out, task.result, overwrite=how.overwrite)
        packed = task.open(source, scratch, reading, sampler.class_names)
        originals = packed.rows(range(min(what.examples, len(packed)))).astype(np.int64)
        known = torch.from_numpy(task.known(originals))
        count = len(originals) * how.count
        of = np.arange(count) // how.count
        label = sampler.labels(
            torch.arange(count), None if packed.labels is None else packed.labels[of]
        )
        captions = sampler.captions(label)
        missing = blank(count, task.result)
        output.check_size(task.shown(originals, known.numpy(), missing, captions))
        if team.is_rank0:
            for line in _remarks(sampler, task, what, packed):
                print(printable(line), file=sys.stderr)
        versions, trace = 1 if task.exact else what.particles, Trace(None, task.result)
        sampler.load(count * versions)

        def run(number: Tensor, **settings: Any) -> Tensor:
            own = None if label is None else label[number]
            settings |= {"label": own, "particles": what.particles}
            return task.draw(sampler.model, known[number // how.count], **settings)

        x = sampler.shared(count, run, trace, task.lines, versions)
        if team.is_rank0:
            data = {"source": source, "reading": reading.given}
            data |= {"data": packed.description.sha256}
            about = sampler.about(label) | data | asdict(what)
            output.write(x, about, task.shown(originals, known.numpy(), x, captions))
            examples = counted(len(originals), "example")
            each = f"{counted(how.count, 'continuation')} of each"
            print(printable(f"{out}: {examples}, {each}"))


def _remarks(sampler: Sampler, task: "_Task", what: CompleteConfig, packed: Examples) -> list[str]:
    """What a careful user should know of what is about to be drawn."""
    found, config = [], sampler.config
    if what.particles == 1 and not task.exact:
        later = "channels" if config.channels_in_turn else "elements"
        line = f"what is kept of later {later} is forced on what is drawn before it: not the "
        line += "exact conditional"
        if config.channels_in_turn:
            line += "; --particles K comes nearer as K grows"
        found.append(line)
    if config.data.frame_channels == 3 and 0 < (what.keep_channels or 0) < 3:
        kept = "red is" if what.keep_channels == 1 else "red and green are"
        found.append(
            f"{kept} kept, as the first of three channels; to colour grey pictures, train a model "
            f"of grey and colour: docs/sampling.md"
        )
    if config.classes:
        if sampler.classes is not None:
            names = [class_title(sampler.class_names, number) for number in sampler.classes]
            found.append(f"class{'es' * (len(names) > 1)}: {listed(names)}, as asked for")
        elif packed.labels is not None:
            found.append("classes: those of the examples")
        else:
            found.append(
                f"classes: the source has no labels, so each of the {config.classes} in turn; "
                f"--label names one"
            )
    return found


class _Task:
    """What is kept of each example, and how many frames a clip is to have in the end.

    `labels` tells whether those of the examples matter, or another was asked for.
    """

    def __init__(self, config: FamilyConfig, what: CompleteConfig, *, labels: bool) -> None:
        self.config, self.shape, self.count = config, config.data, what.examples
        self.wanted = self.shape if labels else replace(self.shape, classes=0)
        self.frames = what.frames or self.shape.window
        self.slide: Sliding | None = None
        if what.frames is not None or what.overlap is not None:
            self.slide = Sliding(config, what.overlap)
        self.mask = self._mask(what)
        self.windows: list[tuple[Tensor, int]] = []
        """What is kept of a window, and how many keep that."""
        if not self.mask.all():
            self.windows.append((torch.from_numpy(self.mask[0]), 1))
        if self.slide is not None and self.frames is not None:
            initial = self.shape.frames_in(self.mask.shape)
            if initial >= self.frames and self.mask[self.shape.frames_at(0, self.frames)].all():
                raise ConfigError(f"frames is {self.frames}, and all of them are kept: use more")
            if further := self.slide.windows(initial, self.frames):
                self.windows.append((self.slide.kept, further))

    @property
    def result(self) -> DataShape:
        """The shape of what is drawn."""
        return self.shape if self.frames is None else self.shape.lasting(self.frames)

    def _mask(self, what: CompleteConfig) -> Array:
        """What is kept of the first window, or of more than one, all of it: (1, *axes, c)."""
        if self.slide is not None and what.keep is not None and what.keep >= self.slide.length:
            if what.keep_channels is not None:
                raise ConfigError("keep_channels is for one window: leave it out, or keep less")
            longer = self.shape.lasting(what.keep)
            return np.ones((1, *longer.axes, longer.channels), bool)
        kept = kept_part(self.config, keep=what.keep, keep_channels=what.keep_channels)
        return kept.numpy()[None]

    @property
    def exact(self) -> bool:
        """Whether every window is drawn from the exact conditional."""
        return all(is_exact(self.config, kept) for kept, _ in self.windows)

    @property
    def lines(self) -> int:
        """How many lines have something to draw, in all windows."""
        return sum(
            count * int((~kept.flatten()[lines(self.config)]).any(1).sum())
            for kept, count in self.windows
        )

    def open(self, source: str, scratch: Path, reading: ClipOptions, names: ClassNames) -> Examples:
        """The examples to continue: clips of any length that hold what is to be kept."""
        if self.shape.window is None:
            pictures = open_clips(source, scratch, reading, [1], limit=self.count)
            return conform_clips(pictures, self.wanted, names)
        least = 1 + int(np.flatnonzero(self._by_frame(self.mask).any(1))[-1])
        lengths = {max(least, length or 1) for length in (1, self.shape.window, self.frames)}
        clips = open_clips(source, scratch, reading, lengths, limit=self.count)
        packed = conform_clips(clips, self.wanted, names)
        found = self.shape.frames_in((len(packed), *packed.row_shape))
        if found < least:
            raise DataError(
                f"{source}: has clips of {found} frames, fewer than the {least} to keep; use a "
                f"smaller --keep, or longer clips"
            )
        return packed

    def known(self, originals: Array) -> Array:
        """What is kept of the originals, -1 elsewhere."""
        if self.shape.window is None:
            return np.where(self.mask, originals, -1)
        initial = self.shape.frames_in(self.mask.shape)
        return np.where(self.mask, self._lasting(originals, initial), -1)

    def draw(self, model: Model, known: Tensor, **how: Any) -> Tensor:
        """Complete what is known, in one window or in several."""
        if self.slide is None or self.frames is None:
            return complete(model, known, **how)
        return prolong(model, known, self.frames, overlap=self.slide.overlap, **how)

    def shown(
        self, originals: Array, known: Array, drawn: Array, captions: tuple[str, ...] | None = None
    ) -> Shown:
        """Each original, what was kept of it unless marks show that, and its continuations."""
        parts, kept = [originals, known], None
        if self.frames is not None:
            parts = [self._lasting(part, self.frames) for part in parts]
            kept = self._lasting(np.where(self.mask, 0, -1), self.frames)[0] == 0
            each = self._by_frame(kept[None])
            parts = parts[:1] if (each.all(1) | ~each.any(1)).all() else parts
        drawn = drawn.reshape(len(originals), -1, *drawn.shape[1:])
        x = np.concatenate([*(part[:, None] for part in parts), drawn], 1)
        if captions is not None:
            each, before = drawn.shape[1], ("original", "kept")[: len(parts)]
            rows = (captions[i : i + each] for i in range(0, len(captions), each))
            captions = tuple(caption for row in rows for caption in (*before, *row))
        shape = x.reshape(-1, *x.shape[2:])
        return Shown(x=shape, kept=kept, group=x.shape[1], captions=captions)

    def _lasting(self, x: Array, frames: int) -> Array:
        """Clips cut to so many frames, or with -1 for those that are missing."""
        longer = self.shape.lasting(frames)
        out = np.full((len(x), *longer.axes, longer.channels), -1)
        both = self.shape.frames_at(0, min(frames, self.shape.frames_in(x.shape)))
        out[both] = x[both]
        return out

    def _by_frame(self, mask: Array) -> Array:
        """The elements of each frame (t, n) of a mask (1, *axes, c)."""
        frames = range(self.shape.frames_in(mask.shape))
        return np.stack([mask[self.shape.frames_at(t, t + 1)].reshape(-1) for t in frames])
