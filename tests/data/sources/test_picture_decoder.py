"""What one picture becomes: read exactly, or refused in one line that says why."""

import struct
import subprocess
import sys
import time
import warnings

import formats
import numpy as np
import pytest
from formats import packed, refused
from PIL import EpsImagePlugin, Image

from axial.data.sources.options import ReadOptions
from axial.errors import DataError

FILM = "read it as clips by `axial data --frames`, in a folder without pictures"


def saved(path, image, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **how)
    return path


def wide(mode="RGB", seed=0):
    """A picture of 10 x 6."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 65536, (6, 10)).astype(np.uint16))
    return Image.fromarray(rng.integers(0, 256, (6, 10, 3), np.uint8)).convert(mode)


def several(path, **how):
    """Three pictures in one file."""
    first, *others = [Image.fromarray(x) for x in formats.pictures(3, 16)]
    path.parent.mkdir(exist_ok=True)
    first.save(path, save_all=True, append_images=others, **how)
    return path


def sgi(path, width, *, packed_rows=False):
    """An SGI picture of 2 x 2 with samples of one or two bytes."""
    head = struct.pack(">HBBHHHHII", 474, packed_rows, width, 3, 2, 2, 3, 0, 255)
    path.write_bytes(head.ljust(512, b"\0") + bytes(range(12 * width)))
    return path


ENCODE = """
import sys, av, numpy as np
path, kind, codec, pixels = sys.argv[1:]
x = np.random.default_rng(0).integers(0, 1 << 16, (64, 64, 3)).astype(np.uint16)
with av.open(path, "w", format=kind) as container:
    stream = container.add_stream(codec, rate=1)
    stream.width, stream.height, stream.pix_fmt = 64, 64, pixels
    container.mux(stream.encode(av.VideoFrame.from_ndarray(x, "rgb48le")))
    container.mux(stream.encode())
"""


def deep_picture(path):
    """A picture of noise with more than 8 bits a channel, which Pillow opens as if it had 8.

    Made by a process of its own: SVT-AV1 gives whoever is root real-time priority, which would
    stay with the tests and all that they start.
    """
    how = {".jp2": ("image2", "jpeg2000", "rgb48le"), ".avif": ("avif", "libsvtav1", "yuv420p10le")}
    subprocess.run([sys.executable, "-c", ENCODE, str(path), *how[path.suffix]], check=True)
    return path


def test_a_picture_never_starts_another_program(tmp_path, monkeypatch):
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (tmp_path / "in").mkdir()
    Image.fromarray(formats.pictures(1)[0]).save(tmp_path / "in" / "cat.png", "EPS")
    for source in (tmp_path / "in", tmp_path / "in" / "cat.png"):
        assert "cat.png: is no picture that can be read" in refused(source, tmp_path)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "I;16"])
@pytest.mark.parametrize("end", ["png", "tif"])
def test_pictures_are_turned_before_they_are_converted(tmp_path, mode, end):
    turn = Image.Exif()
    turn[0x0112] = 6
    plain = packed(saved(tmp_path / f"a.{end}", wide(mode)), tmp_path, convert="rgb").array
    path = saved(tmp_path / f"b.{end}", wide(mode), exif=turn)
    assert np.array_equal(packed(path, tmp_path, convert="rgb").array, np.rot90(plain, 3, (1, 2)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_pictures_are_turned_the_way_their_camera_meant(tmp_path, mode):
    turn = Image.Exif()
    turn[0x0112] = 8
    path = saved(tmp_path / "a.png", wide(mode), exif=turn)
    assert np.array_equal(packed(path, tmp_path).array[0], np.rot90(np.asarray(wide())))


def test_a_tiff_is_judged_by_its_samples_not_by_its_sizes(tmp_path):
    for size in (8, 16, 40):  # with 16 a number Pillow notes has a 16 in it
        (x,) = formats.pictures(1, size)
        path = saved(tmp_path / "a.tif", Image.fromarray(x), compression="tiff_lzw")
        assert np.array_equal(packed(path, tmp_path).array[0], x)
    x = np.zeros((160, 160, 3), np.uint8)
    for compression in (None, "tiff_lzw", "tiff_adobe_deflate"):
        path = saved(tmp_path / "a.tif", Image.fromarray(x), compression=compression)
        assert np.array_equal(packed(path, tmp_path).array[0], x)


@pytest.mark.parametrize("kind", ["P6 2 2 65535", "P6 2 2 100", "P5 2 2 100", "P5 2 2 1000"])
def test_pixmaps_that_count_to_another_number_are_refused_unless_converted(tmp_path, kind):
    path = tmp_path / "a.ppm"
    path.write_bytes(kind.encode() + b"\n" + bytes(24))
    assert "--convert rgb or grey" in refused(path, tmp_path)
    assert packed(path, tmp_path, convert="grey").array.shape == (1, 2, 2, 1)


def test_pixmaps_in_digits_are_read_only_if_they_count_to_255(tmp_path):
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P2 2 2 255\n0 50 99 255\n")
    assert packed(path, tmp_path).array.ravel().tolist() == [0, 50, 99, 255]
    path.write_bytes(b"P2 2 2 100\n0 50 99 100\n")
    assert "a.pgm: counts to 100, not 255" in refused(path, tmp_path)
    path.write_bytes(b"P1 2 2\n0 1 1 0\n")
    assert packed(path, tmp_path).array.ravel().tolist() == [255, 0, 0, 255]


def test_sgi_pictures_of_two_bytes_a_sample_are_refused(tmp_path):
    assert "has more than 8 bits a channel" in refused(sgi(tmp_path / "a.sgi", 2), tmp_path)
    path = sgi(tmp_path / "b.sgi", 2, packed_rows=True)
    assert "has more than 8 bits a channel" in refused(path, tmp_path)
    assert packed(sgi(tmp_path / "c.sgi", 1), tmp_path).array.shape == (1, 2, 2, 3)


def test_pictures_of_fractions_are_refused_even_with_convert(tmp_path):
    path = saved(tmp_path / "a.tif", Image.fromarray(np.full((4, 4), 0.5, np.float32)))
    for options in ({}, {"convert": "rgb"}, {"convert": "grey"}):
        assert "a.tif: holds fractions" in refused(path, tmp_path, **options)


def test_files_of_several_pictures_are_told_as_what_they_are(tmp_path):
    """--frames would leave the other pictures of a folder out."""
    each = "not one picture; save each as a file of its own"
    for name, told in (
        ("a.tif", f"3 pages, {each}"),
        ("a.png", f"3 frames, {each}"),
        ("a.webp", f"3 frames, {each}"),
    ):
        path = several(tmp_path / "in" / name)
        assert refused(path, tmp_path).endswith(f"in/{name}: holds {told}")
        assert refused(tmp_path / "in", tmp_path).endswith(f"in/{name}: holds {told}")
        path.unlink()
    path = several(tmp_path / "in" / "a.gif", duration=100)
    assert refused(path.parent, tmp_path).endswith(f"in/a.gif: holds 3 frames, {each}, or {FILM}")
    assert packed(path.parent, tmp_path, frames=3).array.shape == (1, 3, 16, 16, 3)
    inside = formats.tar(tmp_path / "a.tar", {"a.gif": path.read_bytes()})
    skip = ", or go on without it by --skip-bad"
    assert refused(inside, tmp_path).endswith(f": holds 3 frames, {each}{skip}")
    formats.picture_folder(path.parent, formats.pictures(2, 16))
    message = refused(path.parent, tmp_path)
    assert message.endswith(f"in/a.gif: holds 3 frames, {each}, or {FILM}{skip}")
    found = packed(path.parent, tmp_path, skip_bad=True)
    assert len(found) == 2 and found.description.notes[0].startswith("1 skipped: ")


@pytest.mark.parametrize("kind", ["jp2", "avif"])
def test_deep_pictures_that_pillow_cuts_to_8_bits_are_refused_unless_converted(tmp_path, kind):
    path = deep_picture(tmp_path / f"a.{kind}")
    assert "has more than 8 bits a channel" in refused(path, tmp_path)
    assert packed(path, tmp_path, convert="rgb").array.shape == (1, 64, 64, 3)
    Image.fromarray(formats.pictures(1, 64)[0]).save(path)
    assert packed(path, tmp_path).array.shape == (1, 64, 64, 3)


def test_values_beyond_16_bits_are_not_converted(tmp_path):
    values = np.full((4, 4), 65_535, np.int32)
    Image.fromarray(values + 1).save(tmp_path / "a.tif")
    message = refused(tmp_path / "a.tif", tmp_path, convert="grey")
    assert "holds values from 65536 to 65536, beyond 16 bits" in message
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert (packed(tmp_path / "a.tif", tmp_path, convert="grey").array == 255).all()


def test_size_crops_the_centre_and_takes_the_mean_of_each_area(tmp_path):
    x = formats.pictures(1, 12)[:, :8]  # 8 high, 12 wide
    folder = formats.picture_folder(tmp_path / "in", x)
    middle = x[0, :, 2:10].reshape(4, 2, 4, 2, 3).mean(axis=(1, 3))
    found = packed(folder, tmp_path, size=4).array[0]
    assert np.abs(found - middle).max() <= 1  # Pillow rounds after each axis
    assert np.array_equal(packed(folder, tmp_path, size=8).array[0], x[0, :, 2:10])
    smaller = (
        "is 12 x 8, smaller than --size 9, and pictures are never enlarged: give one of at least "
        "9 x 9, or use --size 8 at most, with a model of that size"
    )
    assert refused(folder, tmp_path, size=9).endswith(smaller)


def test_patches_are_exact_and_in_reading_order(tmp_path):
    x = formats.pictures(1, 12)[:, :9]
    folder = formats.picture_folder(tmp_path / "in", x)
    wanted = [x[0, i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4, 8)]
    for source in (folder, folder / "00000.png"):
        assert np.array_equal(packed(source, tmp_path, size=4, patches=True).array, wanted)
    with pytest.raises(DataError, match="give size= too"):
        ReadOptions(patches=True)


def test_an_alpha_channel_is_refused_unless_it_hides_nothing(tmp_path):
    x = formats.pictures(2, 8, 4)
    x[..., 3] = 255
    folder = formats.picture_folder(tmp_path / "in", x)
    assert np.array_equal(packed(folder, tmp_path).array, x[..., :3])
    x[1, 0, 0, 3] = 0
    formats.picture_folder(folder, x)
    assert "00001.png: has an alpha channel" in refused(folder, tmp_path)
    found = packed(folder, tmp_path, convert="rgb").array
    assert np.array_equal(found[0], x[0, ..., :3]) and found[1, 0, 0].tolist() == [255] * 3
    assert len(packed(folder, tmp_path, skip_bad=True)) == 1


def test_pictures_of_16_bits_are_refused_unless_converted(tmp_path):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    (tmp_path / "in").mkdir()
    Image.fromarray(deep).save(tmp_path / "in" / "grey.png")
    assert "grey.png: has more than 8 bits" in refused(tmp_path / "in", tmp_path)
    found = packed(tmp_path / "in", tmp_path, convert="grey").array
    assert np.array_equal(found[0, ..., 0], deep >> 8)
    (tmp_path / "in" / "colour.png").write_bytes(formats.png_16())
    assert "colour.png: has more than 8 bits" in refused(tmp_path / "in", tmp_path)


def test_a_picture_of_ten_thousand_million_pixels_is_refused_at_once(tmp_path):
    start = time.process_time()
    for side in (100_000, 10_000):  # Pillow only warns of the second
        (tmp_path / "bomb.png").write_bytes(formats.png_header(side, side))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert "bomb.png: claims more than" in refused(tmp_path / "bomb.png", tmp_path)
    assert time.process_time() - start < 2


def test_what_is_no_picture_is_called_so_and_skipped_only_beside_others(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2, 8))
    text, cut = folder / "text.png", folder / "00001.png"
    text.write_text("hello")
    skip = "or go on without it by --skip-bad"
    assert refused(text, tmp_path) == f"{text}: is no picture that can be read; give another file"
    told = f"{text}: is no picture that can be read; give another file, {skip}"
    assert refused(folder, tmp_path) == told
    for length in (100, 12):  # a PNG by its first bytes
        cut.write_bytes(cut.read_bytes()[:length])
        assert refused(folder, tmp_path).startswith(f"{cut}: damaged or cut short near byte")
        assert refused(folder, tmp_path).endswith(f"fetch it again, {skip}")
        assert refused(cut, tmp_path).endswith("; fetch it again")
        found = packed(folder, tmp_path, skip_bad=True)
        assert len(found) == 1 and found.description.skipped == 2
    only = tmp_path / "only"
    only.mkdir()
    text.rename(only / "text.png")
    assert skip not in refused(only, tmp_path)


def test_palettes_and_single_bits_are_read_exactly(tmp_path):
    (tmp_path / "p").mkdir()
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (16, 3), np.uint8)
    index = rng.integers(0, 16, (8, 8), np.uint8)
    image = Image.fromarray(index)
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "p" / "a.png")
    assert np.array_equal(packed(tmp_path / "p", tmp_path).array[0], colours[index])
    (tmp_path / "b").mkdir()
    Image.fromarray(index > 7).save(tmp_path / "b" / "a.png")
    assert np.array_equal(packed(tmp_path / "b", tmp_path).array[0, ..., 0], (index > 7) * 255)


def test_every_flipped_bit_of_a_png_is_noticed(tmp_path):
    (x,) = formats.pictures(1, 4)
    path = tmp_path / "a.png"
    whole = formats.png(x)
    path.write_bytes(whole)
    assert np.array_equal(packed(path, tmp_path).array[0], x)
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert "a.png: " in refused(path, tmp_path), bit
