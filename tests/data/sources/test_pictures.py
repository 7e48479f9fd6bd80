"""Pictures in folders and tars: what they become, and which are refused."""

import subprocess
import sys
import time

import formats
import numpy as np
import pytest
from formats import packed, refused
from PIL import Image

from axial.data.sources.options import ReadOptions
from axial.errors import DataError


def test_a_folder_of_pictures_has_labels_from_its_subfolders(tmp_path):
    x = formats.pictures(4, 6)
    names = ["cat/a.png", "cat/deep/b.png", "dog/c.png", "dog/d.bmp"]
    folder = formats.picture_folder(tmp_path / "pets", x[:3], names[:3])
    Image.fromarray(x[3]).save(folder / names[3])
    (folder / "dog" / "notes.txt").write_text("not a picture")
    found = packed(folder, tmp_path)
    assert np.array_equal(found.array, x)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.description.labels.names == ("cat", "dog")
    assert found.description.source == "pets" and "1 other files ignored" in found.description.notes


def test_subfolders_named_after_splits_are_splits(tmp_path):
    x = formats.pictures(3, 6)
    names = ["train/cat/1.png", "train/dog/1.png", "test/cat/1.png"]
    folder = formats.picture_folder(tmp_path / "pets", x, names)
    assert packed(folder, tmp_path).labels.tolist() == [0, 1]
    assert np.array_equal(packed(folder, tmp_path, split="test").array, x[2:])
    assert "has no split 'dev'" in refused(folder, tmp_path, split="dev")


def test_folders_named_after_splits_in_a_tar_are_splits(tmp_path):
    x = formats.pictures(4, 8)
    names = ["./train/a.png", "test/b.png", "test/deep/c.png", "beside.png"]
    files = {name: formats.png(picture) for name, picture in zip(names, x, strict=True)}
    path = formats.tar(tmp_path / "a.tar", files)
    found = packed(path, tmp_path, split="test")
    assert np.array_equal(found.array, x[1:3]) and found.description.split == "test"
    assert "1 other files ignored" in found.description.notes
    found = packed(path, tmp_path)
    assert np.array_equal(found.array, x[:1]) and found.description.split == "train"
    assert "has no split 'valid'; there are test, train" in refused(path, tmp_path, split="valid")


def test_pictures_beside_splits_and_in_linked_folders_are_told_of(tmp_path):
    x = formats.pictures(4, 8)
    names = ["in/train/a.png", "in/more/b.png", "in/c.png", "elsewhere/d.png"]
    formats.picture_folder(tmp_path, x, names)
    (tmp_path / "in" / "train" / "linked").symlink_to(tmp_path / "elsewhere")
    found = packed(tmp_path / "in", tmp_path)
    assert np.array_equal(found.array, x[:1])
    assert "3 other files ignored" in found.description.notes


def test_size_crops_the_centre_and_takes_the_mean_of_each_area(tmp_path):
    x = formats.pictures(1, 12)[:, :8]  # 8 high, 12 wide
    folder = formats.picture_folder(tmp_path / "in", x)
    middle = x[0, :, 2:10].reshape(4, 2, 4, 2, 3).mean(axis=(1, 3))
    found = packed(folder, tmp_path, size=4).array[0]
    assert np.abs(found - middle).max() <= 1  # Pillow rounds after each axis
    assert np.array_equal(packed(folder, tmp_path, size=8).array[0], x[0, :, 2:10])
    smaller = (
        "is 12 x 8, smaller than --size 9, and nothing is blown up: give a larger picture, or "
    )
    assert smaller + "--size 8 at most where the model" in refused(folder, tmp_path, size=9)


def test_patches_are_exact_and_in_reading_order(tmp_path):
    x = formats.pictures(1, 12)[:, :9]
    folder = formats.picture_folder(tmp_path / "in", x)
    found = packed(folder, tmp_path, size=4, patches=True).array
    wanted = [x[0, i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4, 8)]
    assert np.array_equal(found, wanted)
    with pytest.raises(DataError, match="give --size too"):
        ReadOptions(patches=True)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    assert "in: the folder is empty" in refused(tmp_path / "in", tmp_path)
    (tmp_path / "in" / "readme.txt").write_text("nothing here")
    assert "in: holds no pictures" in refused(tmp_path / "in", tmp_path)
    (tmp_path / "none.png").write_bytes(b"")
    assert "none.png: is empty" in refused(tmp_path / "none.png", tmp_path)


def test_mixed_sizes_name_the_first_odd_one(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(4, 8))
    (folder / "00002.png").write_bytes(formats.png(formats.pictures(1, 9)[0]))
    message = refused(folder, tmp_path)
    assert "00002.png: is 9 x 9 x 3, but " in message and "00000.png is 8 x 8 x 3" in message
    found = packed(folder, tmp_path, skip_bad=True)
    assert len(found) == 3 and found.description.skipped == 1


def test_grey_pictures_among_colour_ones_are_refused_unless_converted(tmp_path):
    x = formats.pictures(3, 8)
    folder = formats.picture_folder(tmp_path / "in", x)
    grey = formats.pictures(1, 8, 1)[0]
    (folder / "00001.png").write_bytes(formats.png(grey))
    message = refused(folder, tmp_path)
    assert "00001.png: is grey, but " in message and "00000.png is in colour" in message
    found = packed(folder, tmp_path, convert="rgb").array
    assert np.array_equal(found[0], x[0]) and np.array_equal(found[1], grey.repeat(3, axis=-1))
    assert packed(folder, tmp_path, convert="grey").shape.channels == 1


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
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bomb.png").write_bytes(formats.png_header(100_000, 100_000))
    start = time.process_time()
    assert "bomb.png: claims more than" in refused(tmp_path / "in", tmp_path)
    assert time.process_time() - start < 5
    # Pillow only warns of this one, and pytest would make an error of that.
    (tmp_path / "in" / "bomb.png").write_bytes(formats.png_header(10_000, 10_000))
    command = [sys.executable, "-m", "axial", "data", str(tmp_path / "in"), "--out", "a.npy"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "bomb.png: claims more than" in ended.stderr


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
    only = tmp_path / "only"
    only.mkdir()
    text.rename(only / "text.png")
    assert skip not in refused(only, tmp_path)


def test_a_truncated_png_is_named_and_can_be_skipped(tmp_path):
    x = formats.pictures(3, 8)
    folder = formats.picture_folder(tmp_path / "in", x)
    data = (folder / "00001.png").read_bytes()
    (folder / "00001.png").write_bytes(data[:100])
    message = refused(folder, tmp_path)
    assert "00001.png: damaged or cut short near byte 100" in message
    found = packed(folder, tmp_path, skip_bad=True)
    assert np.array_equal(found.array, x[[0, 2]]) and found.description.skipped == 1


def test_a_truncated_tar_names_entry_and_byte_wherever_it_is_cut(tmp_path):
    x = formats.pictures(3, 8)
    files = {f"{i}.png": formats.png(picture) for i, picture in enumerate(x)}
    whole = formats.tar(tmp_path / "whole.tar", files).read_bytes()
    third = 512 * 2 * 2  # each entry is a header and one block
    for cut in (third, third + 100, third + 512, third + 700):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        entry = 2 if cut < third + 512 else 3
        message = refused(tmp_path / "a.tar", tmp_path)
        assert f"a.tar: cut short at byte {cut}, in or after entry {entry}" in message
        found = packed(tmp_path / "a.tar", tmp_path, skip_bad=True)
        assert np.array_equal(found.array, x[:2]) and found.description.skipped == 1
    damaged = bytearray(whole)
    damaged[third + 20] ^= 1
    (tmp_path / "a.tar").write_bytes(damaged)
    assert f"a.tar: damaged at byte {third}" in refused(tmp_path / "a.tar", tmp_path)


def test_a_truncated_gzipped_tar_is_one_line(tmp_path):
    files = {f"{i}.png": formats.png(x) for i, x in enumerate(formats.pictures(20, 8))}
    path = formats.tar(tmp_path / "a.tar.gz", files)
    path.write_bytes(path.read_bytes()[:2000])
    assert "a.tar.gz: damaged or cut short in entry" in refused(path, tmp_path)
    assert 0 < len(packed(path, tmp_path, skip_bad=True)) < 20


@pytest.mark.parametrize("end", ["bz2", "xz"])
def test_tars_are_read_however_they_are_packed(tmp_path, end):
    x = formats.pictures(4, 8)
    files = {f"{i}.png": formats.png(picture) for i, picture in enumerate(x)}
    path = formats.tar(tmp_path / f"a.tar.{end}", files)
    assert np.array_equal(packed(path, tmp_path).array, x)
    again = path.rename(tmp_path / "mine")  # known by what is in it
    assert np.array_equal(packed(again, tmp_path).array, x)
    path = tmp_path / f"cut.tar.{end}"
    path.write_bytes(again.read_bytes()[:-20])
    assert f"cut.tar.{end}: damaged or cut short" in refused(path, tmp_path)
    path.write_bytes(again.read_bytes()[:100] + bytes(50) + again.read_bytes()[150:])
    assert f"cut.tar.{end}: damaged or cut short" in refused(path, tmp_path)
    y = np.arange(12) % 10
    batches = formats.cifar_files(formats.pictures(12, 32), y, "binary")
    cifar = packed(formats.tar(tmp_path / f"cifar-10-binary.tar.{end}", batches), tmp_path)
    assert np.array_equal(cifar.labels, y[:10])


def test_a_tar_packed_in_a_way_python_cannot_read_is_named(tmp_path):
    path = tmp_path / "a.tar.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(2000))
    told = refused(path, tmp_path)
    assert told.endswith("a.tar.zst: is packed by Zstandard; unpack it and give what comes out")


def test_a_tar_entry_that_points_outside_is_refused_and_never_written(tmp_path):
    x = formats.pictures(2, 8)
    for name in ("../../x.png", "/tmp/x.png", "a/../../x.png"):
        files = {"good.png": formats.png(x[0]), name: formats.png(x[1])}
        formats.tar(tmp_path / "a.tar", files)
        message = refused(tmp_path / "a.tar", tmp_path)
        assert f"entry 2 is named {name!r}, which points outside" in message
        assert len(packed(tmp_path / "a.tar", tmp_path, skip_bad=True)) == 1
    assert not list(tmp_path.parent.glob("x.png")) and not list(tmp_path.rglob("x.png"))


def test_long_names_in_tars_are_read(tmp_path):
    x = formats.pictures(2, 8)
    name = "folder/" * 30 + "picture.png"
    files = {name: formats.png(x[0]), "b.png": formats.png(x[1])}
    for kind in (formats.tarfile.GNU_FORMAT, formats.tarfile.PAX_FORMAT):
        with formats.tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
            for own, data in files.items():
                info = formats.tarfile.TarInfo(own)
                info.size = len(data)
                archive.addfile(info, formats.io.BytesIO(data))
        assert np.array_equal(packed(tmp_path / "a.tar", tmp_path).array, x)


def test_pictures_are_turned_the_way_their_camera_meant(tmp_path):
    x = formats.pictures(1, 8)[0, :, :6]
    exif = Image.Exif()
    exif[0x0112] = 3
    (tmp_path / "in").mkdir()
    Image.fromarray(x).save(tmp_path / "in" / "a.png", exif=exif)
    assert np.array_equal(packed(tmp_path / "in", tmp_path).array[0], x[::-1, ::-1])


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
