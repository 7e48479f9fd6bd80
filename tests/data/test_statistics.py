import math

import formats
import numpy as np
import pytest
from packed_arrays import write

from axial.data.classical import codec_bits
from axial.data.packed import open_packed, spread
from axial.data.packing import pack
from axial.data.sources.options import ReadOptions
from axial.data.statistics import duplicates, survey, value_counts
from axial.errors import DataError


def opened(path, x, labels=None, classes=0):
    return open_packed(write(path, x, labels, classes))


def test_values_are_counted_and_channels_averaged(tmp_path):
    x = formats.pictures(50, 7)
    counts, means = value_counts(opened(tmp_path / "a.npy", x))
    assert np.array_equal(counts, np.bincount(x.ravel(), minlength=256))
    np.testing.assert_allclose(means, x.mean(axis=(0, 1, 2)), rtol=1e-12)


def test_an_array_that_was_changed_is_noticed(tmp_path):
    x = formats.pictures(50, 7)
    packed = opened(tmp_path / "a.npy", x)
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[-1] ^= 1
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataError, match="is not the array its description names"):
        survey(packed)


def test_duplicates_are_counted_within_and_across(tmp_path):
    x = formats.pictures(10, 4)
    train = opened(tmp_path / "a.npy", x[[0, 1, 2, 2, 2, 3]])
    test = opened(tmp_path / "b.npy", x[[3, 2, 7, 8]])
    assert duplicates(train, test) == (2, 4)
    assert duplicates(test, train) == (0, 2)
    text = survey(train, test)
    assert "2 examples repeat an earlier one" in text and "4 examples stand in" in text
    np.save(tmp_path / "plain.npy", x[[3, 2, 7, 8]])
    wide = pack(tmp_path / "plain.npy", tmp_path / "w.npy", ReadOptions(values=300)).packed
    assert wide.array.dtype == np.uint16
    assert duplicates(train, wide) == (2, 4) and duplicates(wide, train) == (0, 2)
    text = survey(*(opened(tmp_path / f"{name}.npy", x[:2], np.zeros(2, int), 1) for name in "de"))
    assert "0 examples repeat an earlier one" in text and "1 class, 2 examples each" in text
    text = survey(*(opened(tmp_path / f"{name}.npy", x[[0, 0]], np.arange(2), 2) for name in "fg"))
    assert "1 example repeats an earlier one" in text and "2 classes, 1 example each" in text
    with pytest.raises(DataError, match="compare arrays of one shape"):
        duplicates(train, opened(tmp_path / "c.npy", formats.pictures(3, 5)))


def test_a_survey_says_everything(tmp_path):
    x = formats.pictures(20, 8)
    text = survey(opened(tmp_path / "a.npy", x, np.arange(20) % 4, 4))
    for words in (
        "toy train",
        "20 of 8 x 8, 3 channels",
        "4 classes, 5 examples each",
        "(checked)",
        "by hand",
        f"{x[..., 0].mean():.3f}",
        "uniform 8.000, PNG ",
        "; a file each, all 20",
        "240-255",
    ):
        assert words in text
    shares = [float(line.split()[-1].rstrip("%")) for line in text.splitlines()[-16:]]
    assert math.isclose(sum(shares), 100, abs_tol=0.1)


def test_codecs_are_measured_on_examples_spread_over_the_array_and_it_says_so(tmp_path):
    dull, noisy = np.zeros((900, 8, 8, 1), np.uint8), formats.pictures(100, 8, 1)
    packed = opened(tmp_path / "a.npy", np.concatenate([dull, noisy]))
    text = survey(packed)
    assert "; a file each, 256 of 1,000, evenly spread" in text
    chosen = spread(1000, 256)
    assert 20 < (chosen >= 900).sum() < 30
    assert f"PNG {codec_bits(packed, chosen)['PNG']:.3f}" in text


def test_lines_too_long_for_webp_are_said_to_be(tmp_path):
    long = open_packed(write(tmp_path / "a.npy", np.zeros((2, 3, 20_000, 1), np.uint8)))
    assert "WebP holds no more than 16,383 pixels a side" in survey(long)
