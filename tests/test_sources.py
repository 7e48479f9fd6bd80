import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc

import av
import datasets
import formats
import numpy as np
import pytest
from PIL import Image

from axial.data import open_packed
from axial.errors import DataError
from axial.packing import pack
from axial.sources.arrays import NpyStream
from axial.sources.options import ReadOptions

LABELS = np.arange(12) % 10


def packed(source, tmp_path, **options):
    """The array a source gives, read back from the file it was packed into."""
    return pack(source, tmp_path / "out" / "packed.npy", ReadOptions(**options)).packed


def refused(source, tmp_path, **options):
    """The one line with which a source is refused; nothing may be left behind."""
    out = tmp_path / "refused"
    with pytest.raises(DataError) as caught:
        pack(source, out / "packed.npy", ReadOptions(**options))
    assert "\n" not in str(caught.value)
    assert not out.exists()
    return str(caught.value)


def test_cifar_is_the_same_array_from_every_official_form(tmp_path):
    x, y = formats.pictures(12, 32), LABELS
    for form, folder in (("python", "cifar-10-batches-py"), ("binary", "cifar-10-batches-bin")):
        files = formats.cifar_files(x, y, form)
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
        # The official archive holds its batches in another order.
        shuffled = {f"{folder}/{name}": files[name] for name in sorted(files, reverse=True)}
        formats.tar(tmp_path / f"cifar-10-{form}.tar.gz", shuffled)
        for source in (folder, f"cifar-10-{form}.tar.gz"):
            train = packed(tmp_path / source, tmp_path)
            assert np.array_equal(train.array, x[:10]) and np.array_equal(train.labels, y[:10])
            assert train.description.title == "CIFAR-10 train"
            assert train.description.labels.names[:2] == ("airplane", "automobile")
            assert "10 examples, but the official split has 50,000" in train.description.notes
            test = packed(tmp_path / source, tmp_path, split="test")
            assert np.array_equal(test.array, x[10:]) and np.array_equal(test.labels, y[10:])


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path):
    mark = tmp_path / "it ran"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    for name in ("data_batch_1", "train_data_batch_1"):
        (tmp_path / name).write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
        message = refused(tmp_path / name, tmp_path)
        assert f"{name}: is a pickle that asks for posix.mkdir" in message
    assert not mark.exists()
    (tmp_path / "any.pickle").write_bytes(pickle.dumps({"data": Evil()}))
    assert "a pickle, which can run code" in refused(tmp_path / "any.pickle", tmp_path)


def test_damaged_cifar_batches_name_the_record_and_the_byte(tmp_path):
    data = formats.cifar_binary(formats.pictures(2, 32), LABELS[:2])
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(data[:-10])
    assert f"cut short at byte {len(data) - 10}, inside record 1" in refused(path, tmp_path)
    assert len(packed(path, tmp_path, skip_bad=True)) == 1
    path.write_bytes(b"\x0b" + data[1:])
    assert "record 0 at byte 0 has label 11" in refused(path, tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(formats.cifar_python(formats.pictures(2, 32), LABELS[:2], "x")[:-400])
    assert "test_batch: damaged or cut short near byte" in refused(path, tmp_path)


def test_the_old_imagenet_is_read_from_tars_and_folders_and_says_so(tmp_path):
    x = formats.pictures(5, 32)
    files = {f"train_32x32/{i:05}.png": formats.png(picture) for i, picture in enumerate(x)}
    formats.tar(tmp_path / "train_32x32.tar", files)
    formats.tar(tmp_path / "valid_32x32.tar", {"valid_32x32/1.png": formats.png(x[4])})
    formats.picture_folder(tmp_path / "unpacked" / "train_32x32", x)
    for source in ("train_32x32.tar", "unpacked", "unpacked/train_32x32", "."):
        train = packed(tmp_path / source, tmp_path)
        assert np.array_equal(train.array, x), source
        assert train.description.title == "ImageNet32 old (van den Oord) train"
        assert "5 examples, but the official split has 1,281,149" in train.description.notes
        assert train.labels is None
    valid = packed(tmp_path, tmp_path, split="test")
    assert valid.description.split == "valid" and np.array_equal(valid.array, x[4:])
    assert "has no split 'valid'" in refused(tmp_path / "train_32x32.tar", tmp_path, split="valid")


@pytest.mark.parametrize("form", ["npz", "pickled"])
def test_the_new_imagenet_is_read_from_batches_folders_and_zips_and_says_so(tmp_path, form):
    x, y = formats.pictures(12, 8), np.arange(12) + 988
    dump = formats.imagenet_npz if form == "npz" else formats.imagenet_pickle
    end = ".npz" if form == "npz" else ""
    # Batch 10 comes after batch 2.
    names = [f"train_data_batch_{i}{end}" for i in (1, 2, 10)]
    parts = zip(names, np.split(x, 3), np.split(y, 3), strict=True)
    files = {name: dump(*part) for name, *part in parts}
    formats.zipped(tmp_path / "Imagenet8_train_npz.zip", files)
    (tmp_path / "folder").mkdir()
    for name, data in files.items():
        (tmp_path / "folder" / name).write_bytes(data)
    (tmp_path / "folder" / f"val_data{end}").write_bytes(dump(x[:3], y[:3]))
    for source in ("Imagenet8_train_npz.zip", "folder"):
        train = packed(tmp_path / source, tmp_path)
        assert np.array_equal(train.array, x) and np.array_equal(train.labels, y)
        assert train.description.title == "ImageNet8 new (Chrabaszcz) train"
        assert train.shape.classes == 1000
        assert "12 examples, but the official split has 1,281,167" in train.description.notes
    valid = packed(tmp_path / "folder" / f"val_data{end}", tmp_path)
    assert valid.description.split == "val" and np.array_equal(valid.array, x[:3])


def test_truncated_imagenet_batches_name_the_member_and_can_be_skipped(tmp_path):
    x, y = formats.pictures(12, 8), LABELS
    for i in (1, 2):
        (tmp_path / f"train_data_batch_{i}.npz").write_bytes(formats.imagenet_npz(x, y))
    first = tmp_path / "train_data_batch_1.npz"
    first.write_bytes(first.read_bytes()[:1000])
    message = refused(tmp_path, tmp_path)
    assert (
        "train_data_batch_1.npz: cut short at byte 1000, in or after member 1, data.npy" in message
    )
    found = packed(tmp_path, tmp_path, skip_bad=True)
    assert np.array_equal(found.array, x) and found.description.skipped == 1


@pytest.mark.parametrize("camera", ["main", "aux1"])
def test_bair_trajectories_are_read_from_either_camera(tmp_path, camera):
    rng = np.random.default_rng(0)
    clips = rng.integers(0, 256, (3, 2, 4, 64, 64, 3), np.uint8)
    records = [formats.bair_example({"main": a, "aux1": b}) for a, b in clips]
    for split, part in (("train", records[:2]), ("test", records[2:])):
        folder = tmp_path / "softmotion30_44k" / split
        folder.mkdir(parents=True)
        (folder / "traj_0_to_255.tfrecords").write_bytes(formats.tfrecord(part))
    mine = clips[:, ["main", "aux1"].index(camera)]
    train = packed(tmp_path, tmp_path, camera=camera)
    assert np.array_equal(train.array, mine[:2]) and train.shape.axes == (4, 64, 64)
    test = packed(tmp_path, tmp_path, camera=camera, split="test", frames=3)
    assert np.array_equal(test.array, mine[2:, :3])
    assert ("aux1" in test.description.title) == (camera == "aux1")
    assert "has 4 frames of camera" in refused(tmp_path, tmp_path, camera=camera, frames=5)


def test_every_flipped_bit_of_a_tfrecord_is_noticed(tmp_path):
    clip = np.zeros((1, 64, 64, 3), np.uint8)
    record = formats.bair_example({"main": clip})
    whole = formats.tfrecord([record, record, record])
    size = len(whole) // 3
    path = tmp_path / "traj.tfrecords"
    for byte in (0, 5, 9, 12, 5000, size - 2):
        damaged = bytearray(whole)
        damaged[size + byte] ^= 4
        path.write_bytes(damaged)
        message = refused(path, tmp_path)
        assert f"traj.tfrecords: record 1 at byte {size}: " in message and "checksum" in message
        found = packed(path, tmp_path, skip_bad=True)
        assert found.description.skipped == 1
        # After a damaged length nothing more can be found in the file.
        assert len(found) == (2 if byte >= 12 else 1)


def test_a_truncated_tfrecord_names_record_and_byte(tmp_path):
    record = formats.bair_example({"main": np.zeros((1, 64, 64, 3), np.uint8)})
    whole = formats.tfrecord([record, record])
    path = tmp_path / "traj.tfrecords"
    for end in (len(whole) - 1, len(whole) // 2 + 5):
        path.write_bytes(whole[:end])
        message = refused(path, tmp_path)
        assert f"record 1 at byte {len(whole) // 2}: cut short at byte {end}" in message
        assert len(packed(path, tmp_path, skip_bad=True)) == 1


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_are_read_with_their_labels_gzipped_or_not(tmp_path, end):
    x = formats.pictures(12, 28, 1)[..., 0]
    mnist = tmp_path / "mnist"
    mnist.mkdir()
    formats.idx(mnist / f"train-images-idx3-ubyte{end}", x[:8])
    formats.idx(mnist / f"train-labels-idx1-ubyte{end}", LABELS[:8].astype(np.uint8))
    formats.idx(mnist / f"t10k-images-idx3-ubyte{end}", x[8:])
    train = packed(mnist, tmp_path)
    assert np.array_equal(train.array[..., 0], x[:8]) and np.array_equal(train.labels, LABELS[:8])
    assert train.description.title == "mnist train" and train.shape.values == 256
    test = packed(mnist / f"t10k-images-idx3-ubyte{end}", tmp_path)
    assert np.array_equal(test.array[..., 0], x[8:]) and test.description.split == "test"
    path = mnist / f"t10k-images-idx3-ubyte{end}"
    path.write_bytes(path.read_bytes()[:-9])
    assert "t10k-images" in (message := refused(path, tmp_path)) and "cut short at byte" in message


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
    assert "is 12 x 8, smaller than --size 9" in refused(folder, tmp_path, size=9)


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
    start = time.monotonic()
    assert "bomb.png: claims more than" in refused(tmp_path / "in", tmp_path)
    assert time.monotonic() - start < 2
    # Pillow only warns of this one, and pytest would make an error of that.
    (tmp_path / "in" / "bomb.png").write_bytes(formats.png_header(10_000, 10_000))
    command = [sys.executable, "-m", "axial", "data", str(tmp_path / "in"), "--out", "a.npy"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "bomb.png: claims more than" in ended.stderr


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


@pytest.mark.parametrize("shape", [(4, 7), (4, 3, 5), (4, 2, 3, 5), (4, 2, 3, 4, 5)], ids=str)
def test_arrays_of_any_number_of_axes_are_read(tmp_path, shape):
    x = np.random.default_rng(0).integers(0, 9, shape)
    x.flat[0] = 8
    np.save(tmp_path / "grid.npy", x)
    found = packed(tmp_path / "grid.npy", tmp_path, channels_none=True)
    assert np.array_equal(found.array[..., 0], x) and found.array.dtype == np.uint8
    assert found.shape.axes == shape[1:] and found.shape.values == 9
    if len(shape) > 2:
        found = packed(tmp_path / "grid.npy", tmp_path, channels_last=True, values=12)
        assert np.array_equal(found.array, x) and found.shape.values == 12
        assert found.shape.channels == shape[-1]
    np.save(tmp_path / "grid.npy", np.asfortranarray(x))
    assert np.array_equal(
        packed(tmp_path / "grid.npy", tmp_path, channels_none=True).array[..., 0], x
    )


def test_many_values_are_stored_in_two_bytes_and_bytes_have_256(tmp_path):
    x = np.random.default_rng(0).integers(0, 4000, (3, 4, 4))
    x[0, 0, 0] = 3999
    np.save(tmp_path / "a.npy", x)
    found = packed(tmp_path / "a.npy", tmp_path)
    assert found.array.dtype == np.uint16 and found.shape.values == 4000
    assert np.array_equal(found.array[..., 0], x)
    np.save(tmp_path / "a.npy", (x % 200).astype(np.uint8))
    assert packed(tmp_path / "a.npy", tmp_path).shape.values == 256
    np.save(tmp_path / "a.npy", x > 7)
    assert packed(tmp_path / "a.npy", tmp_path).shape.values == 2


def test_an_npz_is_read_by_its_key_with_its_labels(tmp_path):
    x, y = formats.pictures(5, 4), np.arange(5)
    np.savez_compressed(tmp_path / "a.npz", pictures=x, labels=y, names=np.array(["n"] * 5))
    found = packed(tmp_path / "a.npz", tmp_path)
    assert np.array_equal(found.array, x) and np.array_equal(found.labels, y)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    assert "holds x_train, y_train, x_test, y_test; choose one" in refused(
        tmp_path / "a.npz", tmp_path
    )
    found = packed(tmp_path / "a.npz", tmp_path, split="test")
    assert np.array_equal(found.array, x[:2]) and np.array_equal(found.labels, y[:2])
    assert np.array_equal(packed(tmp_path / "a.npz", tmp_path, key="x_train").array, x)
    assert "has no array 'z'" in refused(tmp_path / "a.npz", tmp_path, key="z")


def test_labels_that_are_left_out_are_told_of(tmp_path):
    x = formats.pictures(3, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([0, -1, 1]))
    found = packed(tmp_path / "a.npz", tmp_path)
    assert found.labels is None
    assert "labels left out: not every example has one" in found.description.notes
    np.savez(tmp_path / "b.npz", x=x, y=np.arange(3))
    found = packed(tmp_path / "b.npz", tmp_path, key="x")
    assert found.labels is None
    assert "labels left out: --key takes 'x' alone" in found.description.notes


def test_more_values_than_any_model_tells_apart_are_refused():
    assert ReadOptions(values=65_536).values == 65_536
    with pytest.raises(DataError, match="--values is 65537: a model tells at most 65536 apart"):
        ReadOptions(values=65_537)


def test_arrays_that_are_no_integers_from_zero_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    for x, words in (
        (np.zeros((2, 3, 3)), "holds float64"),
        (np.full((2, 3, 3), -1), "holds -1"),
        (np.full((2, 3, 3), 70_000), "holds 70000, beyond the 65,536 values"),
        (np.zeros((0, 3, 3), int), "has shape (0, 3, 3)"),
        (np.zeros(5, int), "has shape (5,)"),
        (np.array([[object()]]), "Python objects, which can run code"),
    ):
        np.save(path, x, allow_pickle=True)
        assert words in refused(path, tmp_path)
    np.save(path, np.full((2, 3, 3), 9, np.uint8))
    assert "holds the value 9, beyond --values 5" in refused(path, tmp_path, values=5)
    with pytest.raises(DataError, match="exclude each other"):
        ReadOptions(channels_last=True, channels_none=True)


def test_truncated_arrays_name_example_and_byte(tmp_path):
    np.save(tmp_path / "a.npy", formats.pictures(4, 8))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-200])
    assert f"at byte {4 * 192 - 200} of its {4 * 192}, in or after example 2 of 4" in refused(
        tmp_path / "a.npy", tmp_path
    )
    np.savez(tmp_path / "b.npz", first=np.zeros(9), clips=formats.pictures(40, 8))
    whole = (tmp_path / "b.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(whole[:3000])
    assert "b.npz: cut short at byte 3000, in or after member 2, clips.npy" in refused(
        tmp_path / "b.npz", tmp_path
    )


def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path):
    np.savez(tmp_path / "b.npz", clips=formats.pictures(40, 8))
    damaged = bytearray((tmp_path / "b.npz").read_bytes())
    damaged[3000] ^= 1
    (tmp_path / "b.npz").write_bytes(damaged)
    message = refused(tmp_path / "b.npz", tmp_path)
    assert "clips: damaged or cut short (Bad CRC-32" in message


def test_an_array_is_streamed_in_pieces(tmp_path):
    x = formats.pictures(9000, 16)
    np.save(tmp_path / "a.npy", x)
    with (tmp_path / "a.npy").open("rb") as file:
        pieces = list(NpyStream(file, "a").chunks())
    assert len(pieces) == 2 and np.array_equal(np.concatenate(pieces), x)


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
def test_an_array_stored_by_columns_is_read_without_copies_of_it(tmp_path, form):
    x = np.random.default_rng(0).integers(0, 200, (1000, 128, 128, 2), np.uint8)
    stored = np.asfortranarray(x)
    path = tmp_path / f"a.{form[:3].replace('com', 'npz')}"
    {"npy": np.save, "npz": np.savez, "compressed": np.savez_compressed}[form](path, stored)
    del stored
    tracemalloc.start()
    try:
        report = pack(path, tmp_path / "b.npy", ReadOptions(channels_last=True), workers=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(report.packed.array, x)
    whole = 0 if form == "npy" else 1.3 * x.nbytes  # a packed member can only be read whole
    assert peak < whole + 24 * 2**20


def test_an_array_stored_by_columns_that_was_cut_is_one_line(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.asfortranarray(formats.pictures(50, 8)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    assert "damaged or cut short at byte 9500 of its 9,600" in refused(path, tmp_path)


def video(path, frames, codec="ffv1", pix_fmt="bgr0", rate=8):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pix_fmt
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def test_videos_are_cut_into_clips(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (2, 11, 16, 24, 3), np.uint8)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    video(tmp_path / "in" / "a.mkv", frames[0])
    video(tmp_path / "in" / "deep" / "b.mkv", frames[1])
    found = packed(tmp_path / "in", tmp_path, frames=5).array
    assert np.array_equal(found, frames[:, :10].reshape(4, 5, 16, 24, 3))
    small = packed(tmp_path / "in" / "a.mkv", tmp_path, frames=5, size=8).array
    middle = frames[0, :5, :, 4:20].reshape(5, 8, 2, 8, 2, 3).mean(axis=(2, 4))
    assert np.abs(small[0] - middle).max() <= 1
    assert "say how many frames" in refused(tmp_path / "in", tmp_path)
    assert "a.mkv: has 11 frames, fewer than a clip" in refused(
        tmp_path / "in", tmp_path, frames=12
    )


def test_folders_of_videos_named_after_splits_are_splits(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 16, 16, 3), np.uint8)
    for name, x in zip(("train/a.mkv", "test/b.mkv", "c.mkv"), frames, strict=True):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        video(tmp_path / "in" / name, x)
    for split, x in (("test", frames[1]), (None, frames[0])):
        found = packed(tmp_path / "in", tmp_path, frames=4, split=split)
        assert np.array_equal(found.array, x[None])
        assert found.description.split == (split or "train")
        assert "1 other files ignored" in found.description.notes


@pytest.mark.parametrize(
    ("pix_fmt", "form", "says"),
    [
        ("gray16le", np.uint16, "has more than 8 bits a channel"),
        ("bgra", np.uint8, "has an alpha channel and is transparent"),
    ],
)
def test_videos_that_8_bits_of_colour_do_not_hold_are_refused(tmp_path, pix_fmt, form, says):
    shape = (4, 16, 16, 4) if pix_fmt == "bgra" else (4, 16, 16)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = 16, 16, pix_fmt
        for x in np.zeros(shape, form):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(x, pix_fmt)))
        container.mux(stream.encode())
    assert f"a.mkv: frame 0: {says}" in refused(tmp_path / "a.mkv", tmp_path, frames=2)
    converted = packed(tmp_path / "a.mkv", tmp_path, frames=2, convert="rgb").array
    assert (converted == (255 if pix_fmt == "bgra" else 0)).all()


def test_a_video_is_turned_the_way_its_camera_was_held(tmp_path):
    ramp = np.arange(16 * 32, dtype=np.uint16).reshape(16, 32, 1) // 2
    frames = np.repeat(ramp.astype(np.uint8), 3, axis=-1)[None].repeat(4, 0)
    path = video(tmp_path / "a.mp4", frames, "libx264rgb", "rgb24")
    upright = packed(path, tmp_path, frames=4).array.copy()
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44  # clockwise by a quarter
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    turned = packed(path, tmp_path, frames=4).array
    assert np.array_equal(turned, np.rot90(upright, -1, axes=(2, 3)))


def test_animated_pictures_are_video(tmp_path):
    (tmp_path / "in").mkdir()
    frames = [Image.fromarray(x) for x in formats.pictures(4, 16)]
    frames[0].save(tmp_path / "in" / "a.gif", save_all=True, append_images=frames[1:], duration=100)
    assert "a.gif: is animated; cut it into clips by --frames" in refused(tmp_path / "in", tmp_path)
    assert packed(tmp_path / "in", tmp_path, frames=2).array.shape == (2, 2, 16, 16, 3)
    frames[0].save(tmp_path / "in" / "a.gif")
    (tmp_path / "in" / "a.gif").rename(tmp_path / "in" / "A.GIF")
    assert packed(tmp_path / "in", tmp_path).array.shape == (1, 16, 16, 3)


def test_bad_videos_are_one_line(tmp_path):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    assert "sound.mp4: holds no video, only audio" in refused(
        tmp_path / "sound.mp4", tmp_path, frames=2
    )
    pieces = [formats.pictures(3, 16), formats.pictures(1, 32)]
    stream = formats.io.BytesIO()
    for x in (x for piece in pieces for x in piece):
        Image.fromarray(x).save(stream, "JPEG")
    (tmp_path / "grows.mjpeg").write_bytes(stream.getvalue())
    assert "grows.mjpeg: frame 3 is 32 x 32, but the video began with 16 x 16" in refused(
        tmp_path / "grows.mjpeg", tmp_path, frames=2
    )
    (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 10)
    assert "noise.mp4: cannot be decoded at frame 0" in refused(
        tmp_path / "noise.mp4", tmp_path, frames=2
    )


CONTAINERS = {
    "mkv": ("ffv1", "bgr0"),
    "webm": ("libvpx", "yuv420p"),
    "flv": ("flv1", "yuv420p"),
    "avi": ("mpeg4", "yuv420p"),
    "ts": ("libx264", "yuv420p"),
    "mp4": ("libx264", "yuv420p"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_video_cut_in_the_middle_is_noticed(tmp_path, kind):
    path = video(tmp_path / f"a.{kind}", formats.pictures(40, 32), *CONTAINERS[kind])
    assert len(packed(path, tmp_path, frames=1)) == 40
    data = path.read_bytes()
    for share in (0.5, 0.7):
        path.write_bytes(data[: int(len(data) * share)])
        assert f"a.{kind}: cannot be decoded at frame " in refused(path, tmp_path, frames=1)
    if kind != "mp4":  # what the pictures are comes last there
        found = packed(path, tmp_path, frames=1, skip_bad=True)
        assert 10 < len(found) < 35 and found.description.skipped == 1


def test_a_video_whose_sound_goes_on_is_whole(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        picture, sound = container.add_stream("ffv1", rate=8), container.add_stream("aac", 8000)
        picture.width, picture.height, picture.pix_fmt = 16, 16, "bgr0"
        for x in formats.pictures(8, 16):
            container.mux(picture.encode(av.VideoFrame.from_ndarray(x, "rgb24")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 40_000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux([*picture.encode(), *sound.encode(frame), *sound.encode()])
    assert len(packed(tmp_path / "a.mkv", tmp_path, frames=8)) == 1


def test_hugging_face_data_sets_are_read_from_a_local_folder(tmp_path):
    x, y = formats.pictures(6, 8), [0, 1, 2, 0, 1, 2]
    features = datasets.Features(
        {"picture": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    rows = {"picture": [Image.fromarray(one) for one in x], "label": y}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(tmp_path / "one")
    found = packed(tmp_path / "one", tmp_path)
    assert np.array_equal(found.array, x) and found.labels.tolist() == y
    assert found.description.labels.names == ("a", "b", "c")
    parts = datasets.DatasetDict({"train": whole, "test": whole.select([5])})
    parts.save_to_disk(tmp_path / "two")
    assert np.array_equal(packed(tmp_path / "two", tmp_path, split="test").array, x[5:])
    assert "has no split 'dev'" in refused(tmp_path / "two", tmp_path, split="dev")
    assert "has no column 'z'" in refused(tmp_path / "one", tmp_path, key="z")


def test_hugging_face_columns_of_integers_are_arrays(tmp_path):
    x = np.random.default_rng(0).integers(0, 9, (5, 4, 6))
    x[0, 0, 0] = 8
    datasets.Dataset.from_dict({"grid": x.tolist()}).save_to_disk(tmp_path / "grids")
    found = packed(tmp_path / "grids", tmp_path)
    assert np.array_equal(found.array[..., 0], x) and found.shape.values == 9


def test_a_name_that_nobody_has_is_one_line(tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-m", "axial", "data", "no-such-name", "--out", "a.npy"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "no-such-name: no such file or folder, nor a Hugging Face data set" in ended.stderr


@pytest.mark.parametrize("name", ["holiday.jpeg", "a.tif", "a.WEBP", "my/b.avif", "c.MP4", "d.NPY"])
def test_a_file_that_is_not_there_is_not_sought_elsewhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = refused(name, tmp_path, frames=1)
    assert message == f"{name}: no such file or folder; check the path"


def test_options_that_mean_nothing_to_a_source_are_refused(tmp_path):
    assert "digits: --size means nothing to the reader of this" in refused(
        "digits", tmp_path, size=4
    )
    formats.picture_folder(tmp_path / "in", formats.pictures(2, 8))
    assert "--channels-last means nothing" in refused(tmp_path / "in", tmp_path, channels_last=True)
    np.save(tmp_path / "a.npy", formats.pictures(2, 8))
    assert "--frames means nothing" in refused(tmp_path / "a.npy", tmp_path, frames=4)


def test_the_digits_are_split_by_every_sixth(tmp_path):
    train, test = (packed("digits", tmp_path / s, split=s) for s in ("train", "test"))
    assert (len(train), len(test)) == (1497, 300)
    assert train.shape.values == test.shape.values == 17 and train.shape.classes == 10
    both = np.empty((1797, 8, 8, 1), np.uint8)
    both[::6] = test.array
    both[[i for i in range(1797) if i % 6]] = train.array
    from sklearn.datasets import load_digits

    assert np.array_equal(both[..., 0], load_digits().images)


def test_the_word_digits_goes_before_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(tmp_path / "digits/a.png")
    assert packed("digits", tmp_path).array.shape == (1497, 8, 8, 1)
    assert packed("./digits", tmp_path).array.shape == (1, 5, 6, 1)


def test_what_is_nothing_is_refused(tmp_path):
    assert "no such file or folder" in refused(tmp_path / "nowhere", tmp_path)
    assert "no such file or folder" in refused("nowhere.tar", tmp_path)
    assert "cannot be read (File name too long)" in refused("x" * 5000, tmp_path)
    (tmp_path / "noise").write_bytes(bytes(range(1, 256)))
    assert "noise: is nothing axial reads" in refused(tmp_path / "noise", tmp_path)
    formats.zipped(tmp_path / "a.zip", {"a.txt": b"hello"})
    assert "a.zip: is no zip of ImageNet batches" in refused(tmp_path / "a.zip", tmp_path)
    formats.tar(tmp_path / "a.tar", {"a.txt": b"hello"})
    assert "holds neither CIFAR-10 batches nor pictures" in refused(tmp_path / "a.tar", tmp_path)


def test_the_description_says_what_the_array_is(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2, 4), ["a/1.png", "b/1.png"])
    out = tmp_path / "out" / "packed.npy"
    pack(folder, out)
    found = json.loads(out.with_suffix(".json").read_text())
    assert found == {
        "format": 1,
        "shape": [2, 4, 4, 3],
        "source": "in",
        "version": None,
        "split": None,
        "axes": [4, 4],
        "channels": 3,
        "values": 256,
        "count": 2,
        "dtype": "uint8",
        "labels": found["labels"],
        "sha256": hashlib.sha256(open_packed(out).array.tobytes()).hexdigest(),
        "skipped": 0,
        "notes": [],
        "command": f"axial data {folder} --out {out}",
    }
    assert found["labels"]["names"] == ["a", "b"] and found["labels"]["classes"] == 2
