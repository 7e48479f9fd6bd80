"""Clips that go on beyond the length of a model: its window slides over what was drawn.

b clips, *axes the data axes, c channels; both forms of video: frames as the slowest axis, or
stacked in the channels.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from axial.errors import ConfigError, InputError
from axial.models.attention import check_tensors
from axial.models.causal import given as always_given
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model, check_integers, check_model
from axial.sampling.complete import complete, kept_part, needs_particle_filter
from axial.validation import as_integer, as_temperature

_NEXT_WINDOW = 1 << 40
"""From the number whose noise draws a window of a clip to that of its next window."""


class Sliding:
    """How far a model sees, and how much each further window keeps of what there is."""

    def __init__(self, config: FamilyConfig, overlap: int | None = None) -> None:
        self.config, self.shape = config, config.data
        if self.shape.window is None:
            raise ConfigError("this model has no frames: --frames is for video and volumes")
        self.length = self.shape.window
        least = self._given_frames()
        if overlap is None:
            overlap = max(least, self.length // 2)
        overlap = as_integer("overlap", overlap, at_least=0)
        if not least <= overlap < self.length:
            raise ConfigError(
                f"overlap is {overlap}: a window of {self.length} frames can keep {least} to "
                f"{self.length - 1} of those before"
            )
        self.overlap = overlap

    @property
    def kept(self) -> Bool[Tensor, "*axes c"]:
        """What a further window keeps."""
        return kept_part(self.config, keep=self.overlap, keep_channels=None)

    def windows(self, reached: int, frames: int) -> int:
        """How many further windows lead from `reached` frames to at least `frames`."""
        return max(0, -(-(frames - reached) // (self.length - self.overlap)))

    def initial_frames(self, start: Shaped[Tensor, "..."]) -> int:
        """How many frames some clips have; refused if they are none that the model takes."""
        check_tensors(start=start)
        count = self.shape.frames_in(start.shape) if start.ndim > 1 else 0
        wanted = self.shape.lasting(max(1, count))
        if not count or start.shape[1:] != (*wanted.axes, wanted.channels):
            one = self.shape.lasting(1)
            raise InputError(
                f"start has shape {tuple(start.shape)}: one frame of each clip is (batch, "
                f"{', '.join(map(str, (*one.axes, one.channels)))}) to this model"
            )
        check_integers("start", start, at_least=-1, below=self.config.values)
        return count

    def window(self, initial: Int[Tensor, " b *shorter"]) -> Int[Tensor, "b *axes c"]:
        """A window that begins with some frames, and -1 for those that are to be drawn."""
        whole = (len(initial), *self.config.axes, self.config.channels)
        window = torch.full(whole, -1, device=initial.device)
        window[self.shape.frames_at(0, self.shape.frames_in(initial.shape))] = initial
        return window

    def _given_frames(self) -> int:
        """The fewest leading frames that hold all the model has to be given; at least one."""
        if self.length == 1:
            raise ConfigError("this model sees one frame at a time: no frame follows from another")
        given = always_given(self.config)[None]
        for count in range(1, self.length):
            if not given[self.shape.frames_at(count, self.length)].any():
                return count
        raise ConfigError(
            f"this model cannot go on beyond its {self.length} frames: it is given a part of each"
        )


def prolong(
    model: Model,
    start: Shaped[Tensor, " b *shorter"],
    frames: int,
    *,
    overlap: int | None = None,
    first: int = 0,
    **how: Any,
) -> Int[Tensor, " b *longer"]:
    """Continue clips to `frames` frames, the model's window sliding over what was drawn.

    `start` holds the first frames of each clip, at least those that the model is given, in the
    form that it takes: (b, t, h, w, c), or (b, h, w, t * c) with frames as channels. Up to one
    window of them may hold -1 where a value is to be drawn. Each further window keeps the last
    `overlap` frames of what there is; default: half of its own. `how` goes to `complete`.
    Window w of clip i takes the noise of image i + w * 2**40, so that no two share any.
    """
    check_model(model)
    if how.get("noise") is not None:
        raise ConfigError("noise= is supported for one window only: use seed= for clips of several")
    slide, frames = Sliding(model.config, overlap), as_integer("frames", frames, at_least=1)
    initial = slide.initial_frames(start)
    shape = slide.shape
    x, number = start.long().to(next(model.parameters()).device), first
    whole = bool((x >= 0).all())
    if initial > slide.length and not whole:
        raise InputError(
            f"start holds -1 in {initial} frames: only {slide.length}, one window, can be completed"
        )
    if slide.windows(max(initial, slide.length), frames):  # all is refused before any is drawn
        particles = as_integer("particles", how.get("particles", 1), at_least=1)
        temperature = as_temperature(how.get("temperature", 1.0))
        needs_particle_filter(model.config, slide.kept[None], particles, temperature)
    if initial < slide.length or not whole:
        x = complete(model, slide.window(x), first=number, **how)
        number += _NEXT_WINDOW
    while (reached := shape.frames_in(x.shape)) < frames:
        last = x[shape.frames_at(reached - slide.overlap, reached)]
        drawn = complete(model, slide.window(last), first=number, **how)
        new = drawn[shape.frames_at(slide.overlap, slide.length)]
        x = torch.cat([x, new], -1 if shape.stacked_frames > 1 else 1)
        number += _NEXT_WINDOW
    return x[shape.frames_at(0, frames)]
