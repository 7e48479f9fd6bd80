import io

import formats
import numpy as np
import pytest
from packed_arrays import write
from PIL import Image

from axial.data.classical import codec_bits, codec_bytes, picture_encoders
from axial.data.packed import open_packed


def opened(path, x, **how):
    return open_packed(write(path, x), **how)


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


def test_given_frames_are_left_out_wherever_the_frames_lie(tmp_path):
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((3, 1, 16, 16, 3)), rng.integers(0, 256, (3, 4, 16, 16, 3))], 1)
    x = x.astype(np.uint8)
    clips = opened(tmp_path / "a.npy", x)
    stacked = opened(tmp_path / "a.npy", x, stack_frames=True)
    later = codec_bits(opened(tmp_path / "b.npy", x[:, 1:].reshape(12, 16, 16, 3)))
    assert codec_bits(clips, given=1) == codec_bits(stacked, given=1) == later
    assert codec_bits(clips)["PNG"] < 0.9 * later["PNG"]
    assert codec_bits(stacked) == codec_bits(clips)


def test_only_the_chosen_examples_are_measured(tmp_path):
    x = np.concatenate([np.zeros((5, 16, 16, 1), np.uint8), formats.pictures(5, 16, 1)])
    packed = opened(tmp_path / "a.npy", x)
    dull, noisy = codec_bits(packed, [0, 1, 2]), codec_bits(packed, np.array([7, 9]))
    assert dull["PNG"] < 4 and noisy["PNG"] > 8
    seen = []
    codec_bits(packed, [0, 9], progress=seen.append)
    assert seen == [2]


def test_pictures_of_any_size_are_added_up():
    pictures = [formats.pictures(1, side, 3)[0] for side in (3, 17, 40)]
    encoders = picture_encoders()
    wanted = {name: sum(map(encode, pictures)) for name, encode in encoders.items()}
    assert codec_bytes(pictures) == wanted
    assert codec_bytes(iter(pictures * 200))["PNG"] == 200 * wanted["PNG"]


def test_values_beyond_eight_bits_have_no_codec(tmp_path):
    wide = np.random.default_rng(0).integers(0, 300, (2, 8, 8, 1), np.uint16)
    assert codec_bits(open_packed(write(tmp_path / "a.npy", wide, values=300))) == {}


def test_lines_too_long_for_webp_are_measured_by_the_others(tmp_path):
    long = opened(tmp_path / "a.npy", np.zeros((2, 3, 20_000, 1), np.uint8))
    assert "WebP" not in codec_bits(long) and "PNG" in codec_bits(long)


def test_jpeg_xl_gives_back_what_it_was_given():
    codecs = pytest.importorskip("imagecodecs")
    picture = formats.pictures(1, 24, 3)[0]
    coded = codecs.jpegxl_encode(picture, lossless=True, effort=9)
    assert np.array_equal(codecs.jpegxl_decode(coded), picture)
    assert codec_bytes([picture])["JPEG XL"] == len(coded)
