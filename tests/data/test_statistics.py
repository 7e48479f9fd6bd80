import io
import math

import formats
import numpy as np
import pytest
from packed_arrays import write
from PIL import Image

from axial.data.packed import open_packed
from axial.data.packing import pack
from axial.data.sources.options import ReadOptions
from axial.data.statistics import codec_bits, duplicates, survey, value_counts
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
    with pytest.raises(DataError, match="compare arrays of one shape"):
        duplicates(train, opened(tmp_path / "c.npy", formats.pictures(3, 5)))


def size_of(picture, **how):
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, **how)
    return len(stream.getvalue())


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_codecs_are_measured_with_their_headers(tmp_path, channels):
    x = formats.pictures(3, 16, channels)
    found = codec_bits(opened(tmp_path / "a.npy", x))
    parts = x if channels == 3 else [one[..., c] for one in x for c in range(channels)]
    png = sum(size_of(part, format="PNG", optimize=True) for part in parts)
    assert found["PNG"] == 8 * png / x.size
    # Noise cannot be compressed, and every file has its header.
    assert all(bits > 8 for bits in found.values()) and "WebP" in found


def test_clips_are_measured_frame_by_frame_and_lines_not_at_all(tmp_path):
    x = np.random.default_rng(0).integers(0, 9, (2, 3, 16, 16, 3), np.uint8)
    clips = codec_bits(opened(tmp_path / "a.npy", x))
    frames = codec_bits(opened(tmp_path / "b.npy", x.reshape(6, 16, 16, 3)))
    assert clips == frames
    assert codec_bits(opened(tmp_path / "c.npy", x[0, 0])) == {}


def test_a_survey_says_everything(tmp_path):
    x = formats.pictures(20, 8)
    text = survey(opened(tmp_path / "a.npy", x, np.arange(20) % 4, 4))
    for words in (
        "toy train",
        "20 of 8 x 8, 3 channels",
        "4 classes, 5 to 5 examples each",
        "(checked)",
        "by hand",
        f"{x[..., 0].mean():.3f}",
        "uniform 8.000, PNG ",
        "(on 20 examples)",
        "240-255",
    ):
        assert words in text
    shares = [float(line.split()[-1].rstrip("%")) for line in text.splitlines()[-16:]]
    assert math.isclose(sum(shares), 100, abs_tol=0.1)


def test_lines_too_long_for_webp_are_measured_by_the_others(tmp_path):
    long = open_packed(write(tmp_path / "a.npy", np.zeros((2, 3, 20_000, 1), np.uint8)))
    assert "WebP" not in codec_bits(long) and "PNG" in codec_bits(long)
    assert "WebP holds no more than 16,383 pixels a side" in survey(long)
