"""Whether data conforms to a model: its shape, frames and classes; and which part is scored.

A model takes examples of its own size; larger pictures are scored tile by tile.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from axial.data.crops import Size, Tiles
from axial.data.description import Labels
from axial.data.packed import Examples, Packed, hash_integers, is_packed, open_packed
from axial.data.packing import open_data
from axial.data.sources.options import ClipOptions, ReadOptions
from axial.data.sources.recognise import is_video, open_source
from axial.errors import AxialError, DataError, InputError
from axial.shape import ClassNames, DataShape
from axial.validation import counted

_LISTED = 10


def conform_clips(packed: Packed, wanted: DataShape, names: ClassNames = None) -> Examples:
    """As `conform`, what is to be continued: any number of frames, and it may have no labels."""
    if packed.labels is None:
        wanted = replace(wanted, classes=0)
    if packed.sizes is not None:
        return tiles_for(packed, wanted, names)
    length = _length(packed.shape, wanted)
    return conform(packed, wanted if length is None else wanted.lasting(length), names)


def open_clips(
    what: str | Path, scratch: Path, options: ClipOptions, lengths: Iterable[int], **how: Any
) -> Packed:
    """What is to be continued; video in the longest clips, of these lengths, that it has."""
    whole = ReadOptions(**asdict(options))
    *longer, shortest = sorted(lengths, reverse=True)
    if not longer and shortest == 1 and is_video(what, clips=False):
        raise no_pictures(what)
    if not is_video(what, clips=bool(longer) or shortest > 1):
        return open_data(what, scratch, whole, **how)
    for length in longer:
        with suppress(DataError):  # the shortest says what is wrong
            return open_data(what, scratch, replace(whole, frames=length), **how)
    return open_data(what, scratch, replace(whole, frames=shortest), **how)


def no_pictures(what: str | Path) -> InputError:
    """What to say of video to a model without frames."""
    return InputError(
        f"{what}: is video, which this model does not take; save its frames as pictures"
    )


def tiles_for(packed: Packed, wanted: DataShape, names: ClassNames = None) -> Tiles:
    """The tiles of larger pictures that have the size which the model takes."""
    size = picture_size(packed, wanted)
    return Tiles(conform_pictures(packed, wanted, names), size)


def picture_size(packed: Packed, wanted: DataShape) -> Size:
    """The size of the pictures that a model takes; one that takes none is refused."""
    if len(wanted.axes) != 2:
        raise InputError(
            f"{packed.description.title}: holds pictures, but the model takes {_words(wanted)}; "
            f"give other data"
        )
    height, width = wanted.axes
    return height, width


def conform_pictures(packed: Packed, wanted: DataShape, names: ClassNames = None) -> Packed:
    """As `conform`, pictures of any size, of which the model takes parts."""
    found = replace(packed.shape, axes=wanted.axes)
    if found.channels != wanted.channels or found.values > wanted.values:
        raise InputError(
            f"{packed.description.title}: has pictures with {_kinds(found)}, but the model takes "
            f"{_kinds(wanted)}; {_cure(found, wanted)}"
        )
    return _conform_labels(packed, wanted, names)


def conform(packed: Packed, wanted: DataShape, names: ClassNames = None) -> Packed:
    """The data as the model takes it, frames stacked if need be; refused if it does not fit.

    Labels are then counted as the model counts them: by their names, where both have names.
    """
    shape, about = packed.shape, packed.description
    assert packed.sizes is None
    frames, *axes = shape.axes
    stacked = (tuple(axes), frames * shape.channels) == (wanted.axes, wanted.channels)
    if stacked and len(axes) > 1 and frames == wanted.stacked_frames:
        packed = open_packed(packed.path, stack_frames=True)
        shape = packed.shape
    same = shape.axes == wanted.axes and shape.channels == wanted.channels
    if not same and (length := _length(shape, wanted)) is not None:
        raise InputError(
            f"{about.title}: has clips of {length} frames, but the model takes {wanted.window}; "
            f"give other data"
        )
    if not same or shape.values > wanted.values:
        raise InputError(
            f"{about.title}: has examples of {_words(about.shape)}, but the model takes "
            f"{_words(wanted)}; {_cure(about.shape, wanted)}"
        )
    return _conform_labels(packed, wanted, names)


def _conform_labels(packed: Packed, wanted: DataShape, names: ClassNames) -> Packed:
    if wanted.classes and names:
        packed = remap_labels(packed, names)
    shape = packed.shape
    if wanted.classes and shape.classes != wanted.classes:
        found = f"{shape.classes} classes" if shape.classes else "no labels"
        raise InputError(
            f"{packed.description.title}: has {found}, but the model is conditioned on "
            f"{wanted.classes} classes; give other data"
        )
    return packed


def remap_labels(packed: Packed, names: tuple[str, ...]) -> Packed:
    """The data with labels that count these names, if its own are among them."""
    own = packed.description.labels
    if packed.labels is None or own is None or own.names in (None, names):
        return packed
    if unknown := [name for name in own.names if name not in names]:
        raise InputError(
            f"{packed.description.title}: has the class {unknown[0]!r}, but the model was trained "
            f"on {listed(names)}; call it as there, or give other data"
        )
    number = np.array([names.index(name) for name in own.names])
    found = open_packed(packed.path, stack_frames=packed.stack_frames)
    found.labels = number[packed.labels]
    about = Labels(classes=len(names), names=names, sha256=hash_integers(found.labels))
    found.description = replace(packed.description, labels=about)
    found.shape = replace(packed.shape, classes=len(names))
    return found


def listed(names: Sequence[str]) -> str:
    """Names in one line, which a thousand are too many for."""
    first = ", ".join(map(repr, names[:_LISTED]))
    return first if len(names) <= _LISTED else f"{first} and {len(names) - _LISTED:,} more"


def _cure(found: DataShape, wanted: DataShape) -> str:
    """How pictures of another size, or of another number of channels, come to fit."""
    height, width = wanted.axes[-2:] if len(wanted.axes) > 1 else (0, 0)
    same_kind = len(found.axes) == len(wanted.axes) and found.values == wanted.values == 256
    sizes = found.axes[-2:] != wanted.axes[-2:]
    colours = {1: "grey", 3: "rgb"}
    both = {found.channels, wanted.channels}
    if (
        not same_kind
        or (sizes and not 0 < height == width)
        or (len(both) > 1 and both != set(colours))
    ):
        return "give other data"
    if sizes and min(found.axes[-2:]) < width:
        return f"pictures are never enlarged: give some of at least {width} x {width}"
    words = [f"--size {width}"] * sizes
    words += [f"--convert {colours[wanted.channels]}"] * (len(both) > 1)
    return f"pictures are read with {' '.join(words)}, if that is meant"


def _length(found: DataShape, wanted: DataShape) -> int | None:
    """How many frames there are, where they are frames of the wanted kind."""
    stacked, each = wanted.stacked_frames > 1, wanted.frame_channels
    if wanted.window is None:
        return None
    if (found.axes[1:], found.channels) == (wanted.axes if stacked else wanted.axes[1:], each):
        return found.axes[0]
    if stacked and found.axes == wanted.axes and found.channels % each == 0:
        return found.channels // each
    return None


def open_test(
    what: str | Path, scratch: Path, options: ReadOptions, *, trained: bool = False, **how: Any
) -> Packed:
    """A packed array as it is; of any other source its test part, or the part asked for.

    With `trained` it is what the model was trained on, which must have such a part.
    """
    return open_data(what, scratch, _choose_split(what, options, trained=trained), **how)


def _words(shape: DataShape) -> str:
    return f"{' x '.join(map(str, shape.axes))}, {_kinds(shape)}"


def _kinds(shape: DataShape) -> str:
    return f"{counted(shape.channels, 'channel')}, {shape.values} values"


def _choose_split(what: str | Path, options: ReadOptions, *, trained: bool) -> ReadOptions:
    """Test, if there are parts and none was named."""
    if options.split is not None or (is_packed(what) and not trained):
        return options
    if not is_packed(what) and _has_parts(what, options):  # a packed array is one part
        return replace(options, split="test")
    if trained:
        raise DataError(f"{what}: was trained on and has no test part; give --data")
    return options


def _has_parts(what: str | Path, options: ReadOptions) -> bool:
    """Whether a source is divided: one that is not has no split."""
    try:
        return open_source(what, options).split is not None
    except AxialError:  # an .npz may need to be told; what is wrong comes out on opening it
        return True
