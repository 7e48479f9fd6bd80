"""Arrays of integers: .npy, .npz, IDX files and the digits."""

import tracemalloc

import formats
import numpy as np
import pytest
from formats import LABELS, packed, refused

from axial.data.packing import pack
from axial.data.sources.arrays import NpyStream
from axial.data.sources.options import ReadOptions
from axial.errors import DataError


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
    assert found.description.split == "test"
    assert "has no split 'banana'; it holds x_train, y_train, x_test, y_test; choose" in refused(
        tmp_path / "a.npz", tmp_path, split="banana"
    )
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
    np.savez(tmp_path / "c.npz", x=x, y=np.array([0.5, 1, 2]))
    found = packed(tmp_path / "c.npz", tmp_path)
    assert found.labels is None
    assert "labels left out: 'y' holds float64, no integers" in found.description.notes
    odd, flags = np.array([0.5, 1, 2]), np.array([True, False, True])
    for name, arrays in (("d", {"y": odd, "label": flags}), ("f", {"y": flags, "label": odd})):
        np.savez(tmp_path / f"{name}.npz", x=x, **arrays)
        assert packed(tmp_path / f"{name}.npz", tmp_path).labels.tolist() == [1, 0, 1]
    np.savez(tmp_path / "e.npz", x=x, labels=np.arange(2), y=np.int64(3))
    message = refused(tmp_path / "e.npz", tmp_path)
    assert "'labels' has 2 labels for 3 examples" in message and "by --key x" in message
    assert packed(tmp_path / "e.npz", tmp_path, key="x").labels is None


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
    np.save(path, np.full((2, 3, 3), 300))  # 44 in one byte
    assert "holds the value 300, beyond --values 100" in refused(path, tmp_path, values=100)
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


def test_an_array_is_streamed_in_pieces(tmp_path):
    x = formats.pictures(9000, 16)
    np.save(tmp_path / "a.npy", x)
    with (tmp_path / "a.npy").open("rb") as file:
        pieces = list(NpyStream(file, "a").chunks())
    assert len(pieces) == 2 and np.array_equal(np.concatenate(pieces), x)


def test_the_digits_are_split_by_every_sixth(tmp_path):
    train, test = (packed("digits", tmp_path / s, split=s) for s in ("train", "test"))
    assert (len(train), len(test)) == (1497, 300)
    assert train.shape.values == test.shape.values == 17 and train.shape.classes == 10
    both = np.empty((1797, 8, 8, 1), np.uint8)
    both[::6] = test.array
    both[[i for i in range(1797) if i % 6]] = train.array
    from sklearn.datasets import load_digits

    assert np.array_equal(both[..., 0], load_digits().images)
