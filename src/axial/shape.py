"""The shape of an example: what a model and its data must agree on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from axial.validation import as_lengths

MOST_VALUES = 1 << 16
"""More than that many values no model tells apart."""
MOST_LAYERS, MOST_ELEMENTS = 1 << 12, 1 << 26
"""More layers, and more elements of an example, no model has; a file may say anything."""

ClassNames = tuple[str, ...] | None
"""What a model's classes are called, in its order; None where no one says."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a preset has to know about the data it will model."""

    axes: tuple[int, ...]
    """Lengths of the grid, slowest first: height and width for an image."""
    channels: int = 1
    """Channels of each element; 3 for RGB, 3 * frames for a channel-stacked video."""
    values: int = 256
    """How many values an element can take."""
    classes: int = 0
    """How many labels there are; 0 for unlabelled data."""
    frames: int | None = None
    """Frames that lie in the channels; by default 6, 9, 12 ... of a picture are RGB frames."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", as_lengths("axes", self.axes))

    @property
    def stacked_frames(self) -> int:
        """Frames that lie in the channels, one after another; 1 where they hold no video."""
        if self.frames is not None:
            return self.frames
        rgb = len(self.axes) == 2 and self.channels > 3 and self.channels % 3 == 0
        return self.channels // 3 if rgb else 1

    @property
    def window(self) -> int | None:
        """Frames of a clip, or steps of a volume's slowest axis; None for pictures and lines."""
        if self.stacked_frames > 1:
            return self.stacked_frames
        return self.axes[0] if len(self.axes) > 2 else None

    @property
    def frame_channels(self) -> int:
        """Channels of one frame."""
        return self.channels // self.stacked_frames

    def lasting(self, frames: int) -> "DataShape":
        """The same with clips of another length."""
        if self.stacked_frames > 1:
            return replace(self, channels=frames * self.frame_channels, frames=frames)
        return replace(self, axes=(frames, *self.axes[1:]))

    def frames_at(self, start: int, stop: int) -> tuple[Any, ...]:
        """Where frames `start` to `stop` lie in clips (b, *axes, c) of any length: an index."""
        if self.stacked_frames > 1:
            return (..., slice(start * self.frame_channels, stop * self.frame_channels))
        return (slice(None), slice(start, stop))

    def frames_in(self, clips: Sequence[int]) -> int:
        """How many frames clips of a shape (b, *axes, c) have."""
        return clips[-1] // self.frame_channels if self.stacked_frames > 1 else clips[1]
