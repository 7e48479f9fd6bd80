"""The published data sets in their official files: CIFAR-10, ImageNet, BAIR."""

import gzip
import io
import pickle
import zipfile

import formats
import numpy as np
import pytest
from formats import LABELS, MEGABYTE, packed, refused

from axial.data.sources.bair import find_records

ROWS = np.arange(2 * 48, dtype=np.uint8).reshape(2, 48)


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


def test_damaged_cifar_batches_name_the_record_and_the_byte(tmp_path):
    data = formats.cifar_binary(formats.pictures(2, 32), LABELS[:2])
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(data[:-10])
    assert f"cut short at byte {len(data) - 10}, inside record 1" in refused(path, tmp_path)
    assert len(packed(path, tmp_path, skip_bad=True)) == 1
    path.write_bytes(b"\x0b" + data[1:])
    assert "record 0 has label 11, not 0 to 9" in refused(path, tmp_path)
    path = tmp_path / "test_batch"
    path.write_bytes(formats.cifar_python(formats.pictures(2, 32), LABELS[:2] + 10, "x"))
    assert "test_batch: record 0 has label 10, not 0 to 9" in refused(path, tmp_path)
    path.write_bytes(formats.cifar_python(formats.pictures(2, 32), LABELS[:2], "x")[:-400])
    assert "test_batch: damaged or cut short near byte" in refused(path, tmp_path)


@pytest.mark.parametrize("end", ["", ".bin"])
def test_what_is_named_like_a_cifar_batch_but_is_no_file_is_one_line(tmp_path, end):
    x, y = formats.pictures(2, 32), np.array([1, 2])
    write = formats.cifar_binary if end else formats.cifar_python
    folder = tmp_path / "cifar"
    folder.mkdir()
    (folder / f"data_batch_1{end}").write_bytes(write(x, y, "1"))
    odd = folder / f"data_batch_2{end}"
    for make in (odd.mkdir, lambda: odd.symlink_to("nowhere")):
        make()
        assert f"data_batch_2{end}: is named like a batch but is no file" in refused(
            folder, tmp_path
        )
        found = packed(folder, tmp_path, skip_bad=True)
        assert len(found) == 2 and found.description.skipped == 1
        odd.rmdir() if odd.is_dir() else odd.unlink()


def test_a_tiny_archive_of_huge_cifar_batches_is_refused_before_memory_is_full(tmp_path):
    path = tmp_path / "cifar.tar.gz"
    heads = [formats.tar_header(b"data_batch_%d.bin" % i, 100 << 20) for i in range(3)]
    path.write_bytes(b"".join(gzip.compress(head) + MEGABYTE * 100 for head in heads))
    assert "cifar.tar.gz: its batches take more than 268,435,456 bytes" in refused(path, tmp_path)


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


def test_a_changed_imagenet_is_not_called_like_the_official_one(tmp_path):
    files = {f"{i}.png": formats.png(x) for i, x in enumerate(formats.pictures(2, 64))}
    path = formats.tar(tmp_path / "train_64x64.tar", files)
    for options, how, count in (
        ({"size": 32}, "shrunk to 32", 2),
        ({"size": 32, "patches": True}, "patches of 32", 8),
        ({"size": 32, "convert": "grey"}, "shrunk to 32 in grey", 2),
    ):
        about = packed(path, tmp_path, **options).description
        assert about.title == f"ImageNet64 {how} old (van den Oord) train"
        assert f"{how}, so not the official ImageNet32" in about.notes and about.count == count
    grey = packed(path, tmp_path, convert="grey").description
    assert grey.title == "ImageNet64 in grey old (van den Oord) train"
    assert "in grey, so not the official ImageNet64" in grey.notes
    for options in ({}, {"size": 64}, {"convert": "rgb"}):
        about = packed(path, tmp_path, **options).description
        assert about.title == "ImageNet64 old (van den Oord) train" and len(about.notes) == 1


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


@pytest.mark.parametrize(
    "labels",
    [
        np.array([5000, 1]),
        np.array([0, 1]),
        np.float32([1, 2]),
        np.ones((2, 3), int),
        np.array([1]),
        np.int64(3),
    ],
    ids=str,
)
def test_imagenet_labels_are_integers_from_1_to_1000(tmp_path, labels):
    path = formats.npz(tmp_path / "val_data.npz", data=ROWS, labels=labels)
    assert "labels" in refused(path, tmp_path)


def test_imagenet_pictures_without_pixels_are_refused(tmp_path):
    labels = np.array([1, 2])
    for data in (ROWS[:, :0], ROWS[:, 0], ROWS[:, :47], np.zeros((2, 0, 4, 3), np.uint8)):
        refused(formats.npz(tmp_path / "val_data.npz", data=data, labels=labels), tmp_path)
    for data, own in ((ROWS[:0], labels[:0]), (np.uint8(3), np.int64(3))):
        path = formats.npz(tmp_path / "val_data.npz", data=data, labels=own)
        assert f"for data of shape {data.shape}" in refused(path, tmp_path)
    made = pickle.dumps({"data": ROWS[:, :0], "labels": [1, 2]})
    (tmp_path / "train_data_batch_1").write_bytes(made)
    assert "rows of 0 bytes" in refused(tmp_path / "train_data_batch_1", tmp_path)


def test_labels_beyond_the_pictures_are_refused_before_they_are_unpacked(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (1 << 27,)}
    np.lib.format.write_array_header_1_0(head, shape)
    path = formats.npz(tmp_path / "val_data.npz", zipfile.ZIP_DEFLATED, data=ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", head.getvalue() + bytes(1 << 20))
    assert "labels of shape (134217728,) for data of shape (2, 48)" in refused(path, tmp_path)


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


def test_a_store_of_links_keeps_the_splits_of_bair_apart(tmp_path):
    (tmp_path / "blobs").mkdir()
    for split in ("train", "test"):
        (tmp_path / "blobs" / split).write_bytes(b"")
        (tmp_path / "bair" / split).mkdir(parents=True)
        (tmp_path / "bair" / split / "a.tfrecords").symlink_to(tmp_path / "blobs" / split)
    found = find_records(tmp_path / "bair")
    assert found == {s: [tmp_path / "bair" / s / "a.tfrecords"] for s in ("train", "test")}


def test_a_pickle_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path):
    made = pickle.dumps({"data": np.zeros((1, 3 * 5000 * 5000), np.uint8), "labels": [1]})
    path = formats.zipped(tmp_path / "Imagenet5000_train.zip", {"train_data_batch_1": made})
    assert "unpacks to 75,000," in refused(path, tmp_path)
