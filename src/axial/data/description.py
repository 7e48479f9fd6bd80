"""What a packed array holds and where it came from: the text of the file beside it."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from axial.errors import DataError
from axial.shape import MOST_VALUES, DataShape
from axial.system.files import open_file
from axial.validation import counted

FORMAT = 2
"""The newest layout of the description this version reads; of pictures of different sizes, the one
it writes. All else is written in layout 1, which older versions read too."""
MOST_CLASSES = 1 << 20
"""What has more kinds than that is numbered by something else than its kind."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What the labels of an array are; the labels themselves lie in a file of their own."""

    classes: int
    """How many there are: labels are 0 .. classes - 1."""
    names: tuple[str, ...] | None
    """The name of each, where the source tells."""
    sha256: str
    """Hash of the labels as little-endian int64."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the sizes of pictures are in all; they lie in a file of their own."""

    pixels: int
    """Of all pictures together."""
    sha256: str
    """Hash of heights and widths as little-endian int64."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a packed array holds and where it came from; no time and no place of a machine."""

    source: str
    """The data set, as people call it."""
    version: str | None
    """Which of several incompatible versions, where there are such."""
    split: str | None
    """Train, test, or whatever the source calls its parts."""
    axes: tuple[int, ...]
    """Lengths of the grid, slowest first; none where pictures have sizes of their own."""
    channels: int
    """Channels of each element."""
    values: int
    """How many values an element can take."""
    count: int
    """How many examples there are."""
    dtype: str
    """Type of the elements in the file."""
    labels: Labels | None
    """What the labels are, if there are any."""
    sha256: str
    """Hash of the elements in the file's order, without its header."""
    skipped: int
    """Records left out because they could not be read: a picture, a clip, the rest of a file."""
    notes: tuple[str, ...]
    """What a careful reader should know."""
    command: str
    """The command that made the file."""
    beginning: bool = False
    """Whether these are only the first examples of a source that goes on after them."""
    sizes: Sizes | None = None
    """What the sizes of pictures are in all, if they differ."""

    @property
    def title(self) -> str:
        """Data set, version and split, as every printed bits/dim names them."""
        return " ".join(filter(None, (self.source, self.version, self.split)))

    @property
    def left_out(self) -> str:
        """How much was skipped, in words."""
        return counted(self.skipped, "record")

    @property
    def shape(self) -> DataShape:
        """What a preset has to know of the array."""
        classes = self.labels.classes if self.labels else 0
        return DataShape(
            axes=self.axes, channels=self.channels, values=self.values, classes=classes
        )

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array in the file: (n, *axes, c), or (pixels, c) where sizes differ."""
        if self.sizes is not None:
            return (self.sizes.pixels, self.channels)
        return (self.count, *self.axes, self.channels)

    def to_json(self) -> str:
        """The text of the file beside the array."""
        version = 1 if self.sizes is None else FORMAT
        found = {"format": version, "shape": self.array_shape, **asdict(self)}
        if not self.beginning:
            del found["beginning"]  # only what is read for one command is ever cut
        if self.sizes is None:
            del found["sizes"]
        return json.dumps(found | {"checksum": _checksum(found)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> "Description":
        """The description in a file; anything else is refused."""
        try:
            with open_file(path) as file:
                found = json.load(file)
            checksum = found.pop("checksum", None)  # which older versions did not write
            if checksum not in (None, _checksum(found)):
                raise DataError(f"{path}: was changed since it was written; pack again")
            version = found.pop("format")
            found.pop("shape")
            if type(version) is not int or not 1 <= version <= FORMAT:
                raise DataError(
                    f"{path}: format {version} is not one this version knows (up to {FORMAT}); "
                    f"upgrade axial-transformers"
                )
            return cls.of_facts(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"{path}: is no description of a packed array ({reason}); `axial data` writes one"
            ) from error

    @classmethod
    def of_facts(cls, found: dict[str, Any]) -> "Description":
        """The description of what JSON holds; a ValueError, KeyError or TypeError if it is none."""
        if found["labels"] is not None:
            found = found | {"labels": _checked(Labels, found["labels"])}
        if found.get("sizes") is not None:
            found = found | {"sizes": _checked(Sizes, found["sizes"])}
        about: Description = _checked(cls, found)
        one_kind = bool(about.axes) == (about.sizes is None)
        if not (one_kind and 2 <= about.values <= MOST_VALUES and about.count > 0):
            raise ValueError(
                f"axes, values and count are {about.axes}, {about.values} and {about.count}"
            )
        labels = about.labels
        if labels and labels.names is not None:
            if len(labels.names) != labels.classes:
                raise ValueError(f"{labels.classes} classes have {len(labels.names)} names")
            if len(set(labels.names)) != labels.classes:
                raise ValueError("two classes have one name")
        return about


def _checksum(found: dict[str, Any]) -> str:
    """Hash of all that a description says, however it is laid out."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _checked(cls: Any, found: dict[str, Any]) -> Any:
    """A dataclass of what JSON holds, every field of the type that it is declared with."""
    about = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    for name, kind in get_type_hints(cls).items():
        if not _is(getattr(about, name), kind):
            raise ValueError(f"{name} is {getattr(about, name)!r}")
    return about


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a type: a class, a union, or a tuple of any length."""
    if isinstance(kind, UnionType):
        return any(_is(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(_is(item, get_args(kind)[0]) for item in value)
    return type(value) is kind


def description_path(path: Path | str) -> Path:
    """Where the description of a packed array lies."""
    return Path(path).with_suffix(".json")


def labels_path(path: Path | str) -> Path:
    """Where the labels of a packed array lie."""
    return Path(path).with_suffix(".labels.npy")


def sizes_path(path: Path | str) -> Path:
    """Where the sizes of pictures lie that have different ones."""
    return Path(path).with_suffix(".sizes.npy")
