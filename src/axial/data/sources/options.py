"""How to read a source: the options of the command line; imports no numpy."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from axial.errors import DataError
from axial.shape import MOST_VALUES


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """How to read a source whose clips have the length that a model needs."""

    split: str | None = None
    """Which split: train, test, valid, or one of the source's own. Default: train, or the first."""
    size: int | None = None
    """Crop pictures to the central square and shrink it to N x N pixels, by averaging areas."""
    patches: bool = False
    """Cut pictures into patches of --size instead, without resizing; the rest is dropped."""
    any_size: bool = False
    """Keep pictures of different sizes as they are; a model takes crops or tiles of them."""
    camera: Literal["main", "aux1"] = "main"
    """Camera of the BAIR robot."""
    channels_last: bool = False
    """The last axis of an array holds the channels."""
    channels_none: bool = False
    """An array has no channel axis."""
    values: int | None = None
    """Number of values that an element of an array can take. Default: inferred from the array."""
    key: str | None = None
    """Name of an array in an .npz file, or of a column of a Hugging Face data set."""
    convert: Literal["rgb", "grey"] | None = None
    """Convert pictures to 8 bits of this kind, on white. Default: refuse those that differ."""
    skip_bad: bool = False
    """Skip what cannot be read, or differs from the first example, and count it by reason."""

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
        if self.any_size and self.size:
            raise DataError(
                "--any-size keeps pictures as they are, and --size makes them alike: give one"
            )


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ClipOptions):
    """How to read a source."""

    frames: int | None = None
    """Cut video into clips of N frames."""


@dataclass(frozen=True, kw_only=True)
class HeldOutOptions(ReadOptions):
    """How to read a source that a model is evaluated on."""

    split: str | None = None
    """Which split. Default: test, if there are splits; a packed file has one already."""
