"""Arrays of integers: .npy, .npz, IDX files and the digits."""

import struct
import tracemalloc

import formats
import numpy as np
import pytest
from formats import LABELS, packed, refused

from axial.data.packing import pack
from axial.data.sources.array_stream import npy_stream
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
    for options, words in (
        ({"channels_last": True, "channels_none": True}, "exclude each other"),
        ({"values": 65_537}, "values is 65537: a model tells at most 65536 apart"),
    ):
        with pytest.raises(DataError, match=words):
            ReadOptions(**options)
    assert ReadOptions(values=65_536).values == 65_536


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
def test_an_array_stored_by_columns_is_read_without_copies_of_it(tmp_path, form):
    x = formats.pictures(1, 128, 2).repeat(1000, axis=0)  # 32 MB that are soon packed
    x[:, 0, 0, 0] = np.arange(1000) % 251
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


def test_an_array_is_streamed_in_pieces(tmp_path):
    x = formats.pictures(9000, 16)
    np.save(tmp_path / "a.npy", x)
    with (tmp_path / "a.npy").open("rb") as file:
        pieces = list(npy_stream(file, "a").chunks())
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


def test_damaged_arrays_name_example_and_byte(tmp_path):
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
    (tmp_path / "b.npz").write_bytes(whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:])
    assert "clips: damaged or cut short (Bad CRC-32" in refused(tmp_path / "b.npz", tmp_path)


def test_an_array_stored_by_columns_that_was_cut_is_one_line(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.asfortranarray(formats.pictures(50, 8)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    assert "damaged or cut short at byte 9500 of its 9,600" in refused(path, tmp_path)


def npy_file(path, shape, data=b"", dtype="|u1", header=None, version=1):
    """A .npy that claims any shape."""
    told = {"descr": dtype, "fortran_order": False, "shape": shape}
    header = repr(told).encode() if header is None else header
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + header + data)
    return path


def test_an_array_that_ends_within_a_number_is_one_line(tmp_path):
    path = npy_file(tmp_path / "a.npy", (4,), bytes(29), "<i8")
    with path.open("rb") as file, pytest.raises(DataError, match="at byte 29 of its 32"):
        npy_stream(file, "a").all()


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,4",
        b"  {'descr': '|u1'\n x",
        b"{'descr': '|u1', 1: False, 'shape': (3,4)}",
        b"-" * 9000 + b"1",
        b"[" * 190 + b"]" * 190,
        b"{'descr': '|S0', 'fortran_order': False, 'shape': (3, 4)}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (True, 2, 2)}",
    ],
    ids=lambda header: header[:20].decode(),
)
def test_a_damaged_header_of_an_array_is_one_line(tmp_path, header):
    for version in (1, 2):
        path = npy_file(tmp_path / "a.npy", None, b"1234" * 3, header=header, version=version)
        assert "a.npy: " in refused(path, tmp_path)


def test_a_header_that_claims_to_be_endless_is_one_line(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xffabc")
    assert "a.npy: is no array" in refused(tmp_path / "a.npy", tmp_path)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x09\x00\x10\x00abc")
    assert "a.npy: is no array" in refused(tmp_path / "a.npy", tmp_path)


@pytest.mark.parametrize(
    "shape",
    [(1, -1), (5, -1), (-1, -1, 5), (0, 4), (3, 0), (3, 2**62, 4), (3, 2**40, 4), (10**15, 10**6)],
    ids=str,
)
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_impossible_shapes_are_refused_before_anything_is_read(tmp_path, shape, form):
    path = npy_file(tmp_path / "x.npy", shape, b"12345" * 5)
    if form == "npz":
        path = formats.zipped(tmp_path / "a.npz", {"x.npy": path.read_bytes()})
    message = refused(path, tmp_path)
    assert "shape" in message or "cut short at byte 25 of its" in message


@pytest.mark.parametrize(
    "shape", [(3, 0, 4), (0, 4, 4), (5,), (2, 2**32 - 1, 2**32 - 1), (1, 2**20, 2**18)], ids=str
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_impossible_idx_shapes_are_refused(tmp_path, shape, end):
    path = formats.idx(tmp_path / f"a{end}", *shape, data=b"12345")
    message = refused(path, tmp_path)
    assert "claims the shape" in message or "cut short at byte 5 of its" in message


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((0,), "holds nothing"),
        ((1,), "holds more than the 1 bytes"),
        ((2**32 - 1,), "but 1 labels are needed"),
        ((1, 3), "but 1 labels are needed"),
    ],
    ids=str,
)
def test_empty_and_huge_files_of_labels_are_refused(tmp_path, shape, says):
    formats.idx(tmp_path / "a" / "train-images-idx3-ubyte", 1, 2, 2, data=b"1234")
    formats.idx(tmp_path / "a" / "train-labels-idx1-ubyte", *shape, data=b"123")
    assert says in refused(tmp_path / "a", tmp_path)


def test_more_than_a_header_tells_of_is_noticed(tmp_path):
    path = npy_file(tmp_path / "a.npy", (2, 2, 2), bytes(12))
    assert "holds 12 bytes, but its header tells of 8" in refused(path, tmp_path)
    path = formats.idx(tmp_path / "a.idx", 2, 2, 2, data=bytes(12))
    assert "holds more than the 8 bytes" in refused(path, tmp_path)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_a_wrong_checksum_and_a_cut_trailer_of_a_gzipped_idx_are_noticed(tmp_path, name):
    mnist = tmp_path / "mnist"
    mnist.mkdir()
    formats.idx(mnist / "train-images-idx3-ubyte.gz", formats.pictures(10, 4, 1)[..., 0])
    formats.idx(mnist / "train-labels-idx1-ubyte.gz", LABELS[:10].astype(np.uint8))
    whole = (mnist / name).read_bytes()
    for damaged in (whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:], whole[:-5]):
        (mnist / name).write_bytes(damaged)
        assert f"{name}: damaged somewhere (" in refused(mnist, tmp_path)


@pytest.mark.parametrize("form", ["npy", "int64.npy", "npz", "idx", "idx.gz"])
def test_what_lies_before_a_cut_is_kept_when_the_bad_is_skipped(tmp_path, form):
    x = formats.pictures(100, 4, 1)[..., 0]
    path = tmp_path / f"a.{form}"
    cut = x[:99].tobytes() + b"12345"
    if form == "npz":
        member = npy_file(tmp_path / "x.npy", x.shape, cut).read_bytes()
        formats.zipped(path, {"x.npy": member})
    elif form == "int64.npy":
        npy_file(path, x.shape, x[:99].astype("<i8").tobytes() + b"12345", "<i8")
    elif form == "npy":
        npy_file(path, x.shape, cut)
    else:
        formats.idx(path, *x.shape, data=cut)
    assert "cut short" in (message := refused(path, tmp_path))
    assert "example 99 of 100" in message
    found = packed(path, tmp_path, skip_bad=True)
    assert np.array_equal(found.array[..., 0], x[:99])
    assert found.description.skipped == 1


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_an_npz_cut_short_gives_what_it_still_holds_when_the_bad_is_skipped(tmp_path, save, share):
    x = np.random.default_rng(0).integers(0, 256, (500, 16, 16, 3), dtype=np.uint8)
    save(tmp_path / "whole.npz", clips=x)
    data = (tmp_path / "whole.npz").read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"cut short at byte .*, in or after member 1, clips\.npy"):
        pack(cut, tmp_path / "a.npy")
    report = pack(cut, tmp_path / "a.npy", ReadOptions(skip_bad=True))
    kept = report.packed.array
    assert abs(len(kept) - share * len(x)) < 5 and (kept == x[: len(kept)]).all()
    assert report.packed.description.skipped == 1 and "in or after example" in str(report)


def test_a_gzipped_idx_that_was_cut_itself_gives_what_it_holds(tmp_path):
    x = formats.pictures(200, 16, 1)[..., 0]
    whole = formats.idx(tmp_path / "a.gz", *x.shape, data=x.tobytes()).read_bytes()
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    assert "cut short at byte" in refused(tmp_path / "a.gz", tmp_path)
    found = packed(tmp_path / "a.gz", tmp_path, skip_bad=True)
    assert 90 < len(found) < 110 and found.description.skipped == 1
    assert np.array_equal(found.array[..., 0], x[: len(found)])


def test_labels_of_an_idx_that_was_cut_stay_with_their_examples(tmp_path):
    x, y = formats.pictures(10, 4, 1)[..., 0], np.arange(10, dtype=np.uint8)
    data = x[:7].tobytes()
    formats.idx(tmp_path / "a" / "train-images-idx3-ubyte", *x.shape, data=data)
    formats.idx(tmp_path / "a" / "train-labels-idx1-ubyte", 10, data=y.tobytes())
    found = packed(tmp_path / "a", tmp_path, skip_bad=True)
    assert list(found.labels) == list(range(7))


def test_little_that_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path):
    columns = b"{'descr': '|u1', 'fortran_order': True, 'shape': (1048576, 1024)}"
    for header, words in (
        (None, "536,870,912 bytes an example, but 268,435,456 are the most"),
        (columns, "has 1,073,741,824 bytes that can only be unpacked at once"),
    ):
        member = npy_file(tmp_path / "x.npy", (1, 1 << 29), bytes(1 << 20), header=header)
        path = formats.zipped(tmp_path / "a.npz", {"x.npy": member.read_bytes()})
        assert words in refused(path, tmp_path)
    mnist = tmp_path / "mnist"
    for name, shape in (("images-idx3", (1 << 30, 1, 1)), ("labels-idx1", (1 << 30,))):
        path = formats.idx(mnist / f"train-{name}-ubyte.gz", *shape, data=bytes(1 << 20))
        path.write_bytes(path.read_bytes() + formats.MEGABYTE * 1023)
    assert "labels-idx1-ubyte.gz: has 1,073,741,824 bytes that can only be unpacked" in refused(
        mnist, tmp_path
    )
