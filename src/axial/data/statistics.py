"""What a packed array holds: values, means, duplicates, and what classical codecs make of it."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from axial.data.classical import WEBP_LONGEST, codec_bits
from axial.data.packed import Array, Packed, size_range, spread
from axial.errors import DataError
from axial.validation import counted

_SAMPLE = 256
_BARS = 16


def survey(packed: Packed, other: Packed | None = None) -> str:
    """Everything `axial info` says of a packed array, after reading all of it."""
    about = packed.description
    histogram, means = value_counts(packed)
    shape = " x ".join(map(str, about.axes))
    if packed.sizes is not None:
        shape = size_range(packed.sizes)
    rows = [
        ("data", about.title),
        (
            "examples" if packed.sizes is None else "pictures",
            f"{about.count:,} of {shape}, {counted(about.channels, 'channel')}",
        ),
        *([("pixels", f"{about.sizes.pixels:,}")] if about.sizes else []),
        ("values", f"{about.values}, stored as {about.dtype}"),
        ("labels", _labels(packed)),
        ("sha256", f"{about.sha256} (checked)"),
        ("made by", about.command),
        *([("skipped", about.left_out)] if about.skipped else []),
        *(("note", note) for note in about.notes),
        ("mean", ", ".join(f"{mean:.3f}" for mean in means[:12]) + ", ..." * (len(means) > 12)),
    ]
    if other is not None:
        within, across = duplicates(packed, other)
        rows += [
            ("duplicates", f"{counted(within, 'example')} repeat{_s(within)} an earlier one"),
            ("", f"{counted(across, 'example')} stand{_s(across)} in {other.path} too"),
        ]
    rows += [("bits/dim", _codecs(packed))]
    lines = [f"{name:<12}{text}" for name, text in rows]
    return "\n".join([*lines, "", *_bars(histogram)])


def value_counts(packed: Packed) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How often each value occurs, and the mean of each channel; the hash is checked on the way."""
    counts = np.zeros(packed.shape.values, np.int64)
    sums = np.zeros(packed.description.channels)
    for rows in packed.checked():
        if int(rows.max()) >= len(counts):
            raise DataError(f"{packed.path}: holds {rows.max()}, beyond its {len(counts)} values")
        counts += np.bincount(rows.reshape(-1), minlength=len(counts))
        sums += rows.reshape(-1, rows.shape[-1]).sum(axis=0, dtype=np.float64)
    return counts, sums / (counts.sum() / len(sums))


def duplicates(packed: Packed, other: Packed) -> tuple[int, int]:
    """Examples that repeat an earlier one, and examples that stand in `other` too."""
    if packed.row_shape != other.row_shape:
        found = [
            one.row_shape if one.sizes is None else "of different sizes" for one in (other, packed)
        ]
        raise DataError(
            f"{other.path}: examples are {found[0]}, those of {packed.path} {found[1]}; compare "
            f"arrays of one shape"
        )
    mine, theirs = _hashes(packed), _hashes(other)
    return len(mine) - len(np.unique(mine)), int(np.isin(mine, theirs).sum())


def _hashes(packed: Packed) -> Array:
    """16 bytes for each example: with a billion of them, two that collide are not to be found."""
    examples = (row for rows in packed.checked() for row in rows)
    if packed.sizes is not None:
        packed.check()
        examples = (packed.example(i) for i in range(len(packed)))
    wide = (row.astype("<u2").tobytes() for row in examples)  # alike in arrays of either type
    sizes = [b""] * len(packed) if packed.sizes is None else [s.tobytes() for s in packed.sizes]
    marks = (
        hashlib.blake2b(size + row, digest_size=16).hexdigest()
        for size, row in zip(sizes, wide, strict=True)
    )
    return np.fromiter(marks, "S32", len(packed))


def _codecs(packed: Packed) -> str:
    """What each codec needs, and for which of the examples."""
    count = min(_SAMPLE, len(packed))
    found = codec_bits(packed, spread(len(packed), count))
    uniform = f"uniform {np.log2(packed.shape.values):.3f}"
    if not found:
        return uniform
    texts = [f"{name} {bits:.3f}" for name, bits in found.items()]
    if "WebP" not in found:
        texts.append(f"WebP holds no more than {WEBP_LONGEST:,} pixels a side")
    some = f"{count:,} of {len(packed):,}, evenly spread" if count < len(packed) else f"all {count}"
    return ", ".join([uniform, *texts]) + f"; a file each, {some}"


def _labels(packed: Packed) -> str:
    about = packed.description.labels
    if about is None or packed.labels is None:
        return "none"
    counts = np.bincount(packed.labels, minlength=about.classes)
    least, most = int(counts.min()), int(counts.max())
    many = f"{least:,} to " * (least < most) + counted(most, "example")
    return f"{counted(about.classes, 'class')}, {many} each"


def _s(number: int) -> str:
    """The ending of a verb of which there are so many."""
    return "s" if number == 1 else ""


def _bars(histogram: NDArray[np.int64]) -> list[str]:
    """The histogram in a few lines of text."""
    bars = len(histogram) if len(histogram) <= 2 * _BARS else _BARS
    edges = np.unique(np.linspace(0, len(histogram), bars + 1).astype(int))
    sums = np.add.reduceat(histogram, edges[:-1])
    lines = []
    for low, high, count in zip(edges[:-1], edges[1:] - 1, sums, strict=True):
        name = f"{low}" if low == high else f"{low}-{high}"
        share = count / histogram.sum()
        lines.append(f"{name:>12}  {'#' * round(40 * count / sums.max()):<40} {share:6.2%}")
    return lines
