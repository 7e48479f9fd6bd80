"""How to read a source: what a user may say on the command line; imports no numpy."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from axial.models.config import MOST_VALUES
from axial.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """How to read a source whose clips are as long as a model asks."""

    split: str | None = None
    """Which part: train (the default where there are parts), test, valid, or the source's own."""
    size: int | None = None
    """Centre-crop pictures to a square and shrink them to this many pixels, by area."""
    patches: bool = False
    """Cut pictures into exact patches of --size instead; what is left at the edges is dropped."""
    camera: Literal["main", "aux1"] = "main"
    """Which camera of the BAIR robot."""
    channels_last: bool = False
    """The last axis of an array is its channels."""
    channels_none: bool = False
    """An array has no axis of channels."""
    values: int | None = None
    """How many values an array's elements can take; found by looking unless told."""
    key: str | None = None
    """Which array of an .npz, or which column of a Hugging Face data set."""
    convert: Literal["rgb", "grey"] | None = None
    """Turn every picture into this, on white, with 8 bits; unless told, odd ones are refused."""
    skip_bad: bool = False
    """Go on after what cannot be read, and count it."""

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        every = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in every.items() if value != default}

    def __post_init__(self) -> None:
        for name in ("size", "frames", "values"):
            value, least = getattr(self, name, None), 2 if name == "values" else 1
            if value is not None and value < least:
                raise DataError(f"--{name} is {value}: use at least {least}")
        if self.values is not None and self.values > MOST_VALUES:
            raise DataError(f"--values is {self.values}: a model tells at most {MOST_VALUES} apart")
        if self.channels_last and self.channels_none:
            raise DataError("--channels-last and --channels-none exclude each other: give one")
        if self.patches and not self.size:
            raise DataError("--patches needs to know how large they are: give --size too")


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ClipOptions):
    """How to read a source."""

    frames: int | None = None
    """Cut video into clips of this many frames."""


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(ReadOptions):
    """How to read a source that a model is evaluated on."""

    split: str | None = None
    """Which part: test where there are parts, unless told; a packed file has its own."""
