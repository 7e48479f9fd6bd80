"""Requests into tasks: what was asked for and sent, checked against the model that it is for.

Imported when the first model is loaded, for it needs torch.
"""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from axial.data.packed import Array
from axial.errors import AxialError
from axial.models.causal import given as always_given
from axial.models.family_config import FamilyConfig
from axial.sampling.complete import kept_part
from axial.studio.catalogue import Entry
from axial.studio.codec import CompressTask, DecompressTask
from axial.studio.config import Limits
from axial.studio.drawing import DrawTask
from axial.studio.errors import RequestError, bad_request, bad_upload
from axial.studio.inside import BitsTask, PixelTask
from axial.studio.uploads import Upload, reader_for


def draw_task(entry: Entry, *, label: int | None, **how: Any) -> DrawTask:
    """Pictures of a seed."""
    config = entry.ready()
    if config.given_channels or config.given_steps:
        raise bad_request("this model continues what it is given: use complete")
    _check_label(config, label)
    return DrawTask(source=entry.source, label=label, **how)


def complete_task(
    entry: Entry,
    limits: Limits,
    pictures: Sequence[Upload],
    mask: Sequence[Upload],
    keep: int | None,
    keep_channels: int | None,
    *,
    label: int | None,
    particles: int,
    **how: Any,
) -> DrawTask:
    """Continuations of an uploaded picture."""
    config = entry.ready()
    _check_label(config, label)
    reader = reader_for(config.data, limits)
    original, there = reader.example(pictures)
    kept = always_given(config).numpy()
    if keep is not None or keep_channels is not None:
        try:
            kept = kept_part(config, keep=keep, keep_channels=keep_channels).numpy()
        except AxialError as error:
            raise bad_request(error) from error
    if mask:
        kept = kept | reader.mask(mask[0])
    if not kept.any() or kept.all():
        what = "everything" if kept.any() else "nothing"
        raise bad_request(f"{what} is kept: keep some of the picture, and leave some to draw")
    if (kept & ~there).any():
        raise bad_upload("frames are kept that were not sent: send them, or keep fewer")
    task = DrawTask(
        source=entry.source,
        label=label,
        particles=particles,
        original=original,
        kept=kept,
        reading="" if mask else _reading(config, pictures, keep, keep_channels),
        **how,
    )
    task.how(config)  # refuse now what a particle filter cannot do
    return task


def _reading(
    config: FamilyConfig,
    pictures: Sequence[Upload],
    keep: int | None,
    keep_channels: int | None,
) -> str:
    """The words of `axial complete` that name the input and what is kept of it."""
    if len(pictures) > 1:
        return ""
    words = [shlex.quote(pictures[0].name)]
    words += ["--keep", str(keep)] * (keep is not None)
    words += ["--keep-channels", str(keep_channels)] * (keep_channels is not None)
    if not pictures[0].is_array:
        if config.values != 256 or config.data.window is not None:
            return ""
        words += ["--convert", "rgb" if config.channels == 3 else "grey"]
        words += ["--size", str(config.axes[-1])] * (config.axes[0] == config.axes[-1])
    return " ".join(words)


def bits_task(
    entry: Entry, limits: Limits, pictures: Sequence[Upload], label: int | None
) -> BitsTask:
    """Where the bits of an uploaded picture go."""
    x = _whole(entry, limits, pictures, label)
    return BitsTask(x=x, label=label)


def pixel_task(
    entry: Entry, limits: Limits, pictures: Sequence[Upload], label: int | None, place: str
) -> PixelTask:
    """What the model expects of one of its pixels."""
    config = entry.ready()
    try:
        at = tuple(int(part) for part in place.split(","))
    except ValueError:
        at = ()
    inside = all(0 <= i < length for i, length in zip(at, config.axes, strict=False))
    if len(at) != len(config.axes) or not inside:
        ranges = ", ".join(f"0 to {length - 1}" for length in config.axes)
        raise bad_request(f"place is {place[:40]!r}: give an index for each axis, from {ranges}")
    return PixelTask(x=_whole(entry, limits, pictures, label), label=label, place=at)


def compress_task(
    entry: Entry, limits: Limits, pictures: Sequence[Upload], label: int | None
) -> CompressTask:
    """Uploaded pictures, of any size, as one file."""
    config = entry.ready()
    _need_label(config, label)
    found = reader_for(config.data, limits).any_size(pictures)
    pixels = sum(x[..., 0].size for x in found)
    if pixels > limits.coded_pixels:
        raise RequestError(
            413,
            "too_large",
            f"{pixels:,} pixels were sent, and at most {limits.coded_pixels:,} are compressed "
            f"here; use `axial compress`",
        )
    names = _apart([upload.name for upload in pictures[: len(found)]])
    return CompressTask(pictures=found, names=names, label=label)


def decompress_task(entry: Entry, limits: Limits, data: bytes) -> DecompressTask:
    """The pictures of an uploaded file."""
    most = limits.coded_pixels * entry.ready().channels
    return DecompressTask(data=data, most_elements=most)


def _whole(entry: Entry, limits: Limits, pictures: Sequence[Upload], label: int | None) -> Array:
    config = entry.ready()
    _need_label(config, label)
    x, there = reader_for(config.data, limits).example(pictures)
    if not there.all():
        raise bad_upload(f"{len(pictures)} frames were sent: send all {config.data.window}")
    return np.ascontiguousarray(x)


def _check_label(config: FamilyConfig, label: int | None) -> None:
    if label is not None and not config.classes:
        raise bad_request("this model has no classes: leave label out")
    if label is not None and not 0 <= label < config.classes:
        raise bad_request(f"label is {label}: use 0 to {config.classes - 1}")


def _need_label(config: FamilyConfig, label: int | None) -> None:
    _check_label(config, label)
    if label is None and config.classes:
        raise bad_request(f"this model has {config.classes} classes: give the label")


def _apart(names: list[str]) -> list[str]:
    """The same names, with numbers where two are equal."""
    found: list[str] = []
    for name in names:
        number, new = 1, name
        while new in found:
            number += 1
            stem, dot, ending = name.rpartition(".")
            new = f"{stem}-{number}{dot}{ending}" if dot else f"{name}-{number}"
        found.append(new)
    return found
