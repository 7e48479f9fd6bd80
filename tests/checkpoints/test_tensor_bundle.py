import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from tensor_bundle import field, write_bundle, write_index

from axial.checkpoints.tensor_bundle import _uncompress_snappy, find_bundle, read_index, read_tensor
from axial.errors import CheckpointError

RECORDED = Path(__file__).parents[1] / "parity" / "tf_checkpoint"
ARRAYS = {
    "model/a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "model/ab": np.arange(4, dtype=np.float64),
    "model/step": np.array(7, dtype=np.int64),
    "model/wide/b": np.arange(3, dtype=np.int32),
    "model/wide/half": np.arange(3, dtype=np.float16),
}


def read_all(folder):
    prefix = find_bundle(folder)
    entries = read_index(prefix.with_name(prefix.name + ".index"))
    return {name: read_tensor(prefix, name, entry) for name, entry in entries.items()}


@pytest.fixture
def recorded(tmp_path):
    """A copy of the recorded checkpoint that a test may damage."""
    return Path(shutil.copytree(RECORDED, tmp_path / "checkpoint"))


def refused(folder, message):
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_every_recorded_variable_is_read_with_its_name_shape_and_type():
    found = read_all(RECORDED)
    lines = (RECORDED / "variables.txt").read_text().splitlines()[1:]
    listed = {name: (shape, dtype) for name, shape, dtype in (line.split("\t") for line in lines)}
    assert len(found) == 431
    assert {n: (str(list(v.shape)), str(v.dtype)) for n, v in found.items()} == listed
    assert found["global_step"] == 25


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_written_comes_back(tmp_path, shards, compression):
    write_bundle(tmp_path / "model.ckpt", ARRAYS, shards=shards, compression=compression)
    found = read_all(tmp_path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert (found[name] == array).all()


def test_bfloat16_is_read_as_float32(tmp_path):
    half = (np.array([1.0, -2.5, 1e30], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    write_bundle(tmp_path / "m", {"a": half.view(np.float16)}, kinds={"a": 14})
    found = read_all(tmp_path)["a"]
    np.testing.assert_allclose(found, [1.0, -2.5, 1e30], rtol=1e-2)
    assert found.dtype == np.float32


def test_snappy_as_the_library_compresses_it():
    text = b"axial attention along one axis, axial attention along another axis; "
    packed = bytes.fromhex(
        "d40378617869616c20617474656e74696f6e20616c6f6e67206f6e6520617869732c01064a200018616e"
        "6f74686572011e0c733b2000fe0100fe0100fe0100fe0100ae0100f0620102030405060708090a0b0c0d"
        "0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637"
        "38393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f6061"
        "6263"
    )
    assert _uncompress_snappy(packed) == text + bytes(300) + bytes(range(100))
    # By hand: copies with an offset of one byte beyond 255, of two bytes and of four.
    start = bytes([61 << 2, 0x2B, 0x01]) + bytes(i % 251 for i in range(300))
    near, middle, far = (
        b"\x25\x2c",
        bytes([4 << 2 | 2, 0x2C, 1]),
        bytes([4 << 2 | 3, 0x2C, 1, 0, 0]),
    )
    for copy in (near, middle, far):
        whole = _uncompress_snappy(b"\xb1\x02" + start + copy)
        assert whole == start[3:] + start[3:8]
    with pytest.raises(ValueError, match="instead of 468"):
        _uncompress_snappy(packed[:-3])
    with pytest.raises(ValueError, match="outside"):
        _uncompress_snappy(b"\x04\x01\x05")
    with pytest.raises(ValueError, match="a Snappy block of 8589934592 bytes"):
        _uncompress_snappy(b"\x80\x80\x80\x80\x20" + bytes(9))
    with pytest.raises(ValueError, match="instead of 4"):  # it stops where it should have ended
        _uncompress_snappy(b"\x04\x00a" + b"\xfe\x01\x00" * 1_000_000)


def test_a_bundle_is_found_by_folder_state_file_or_path(tmp_path):
    write_bundle(tmp_path / "model.ckpt-5", ARRAYS)
    assert find_bundle(tmp_path) == tmp_path / "model.ckpt-5"
    write_bundle(tmp_path / "model.ckpt-9", ARRAYS)
    with pytest.raises(CheckpointError, match=r"found model.ckpt-5, model.ckpt-9; name it as"):
        find_bundle(tmp_path)
    assert find_bundle(tmp_path / "model.ckpt-9") == tmp_path / "model.ckpt-9"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/their/disk/model.ckpt-5"\n')
    assert find_bundle(tmp_path) == tmp_path / "model.ckpt-5"
    with pytest.raises(CheckpointError, match="no such TensorFlow checkpoint"):
        find_bundle(tmp_path / "nowhere")
    (tmp_path / "empty" / "folder.index").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="found none"):
        find_bundle(tmp_path / "empty")


def test_every_bit_flip_in_the_index_and_a_short_one_are_noticed(recorded):
    path = recorded / "model.ckpt.index"
    whole = path.read_bytes()
    # The last 48 bytes point to blocks and are padded: flips in the padding change nothing.
    for place in [*range(0, len(whole) - 48, 509), len(whole) - 48, len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="index"):
            read_index(path)
    for keep in (0, 47, 48, 5000, -1):
        path.write_bytes(whole[:keep])
        refused(recorded, "not a TensorFlow checkpoint index, or cut short")


def test_truncated_missing_and_flipped_data_is_refused_by_the_name_of_the_variable(recorded):
    path = recorded / "model.ckpt.data-00000-of-00001"
    whole = path.read_bytes()
    path.write_bytes(whole[:5000])
    refused(recorded, "cut short in variable ar_decoder/")
    path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    refused(recorded, "the checksum of variable ar_decoder/")
    path.unlink()
    refused(recorded, "No such file")


def test_what_is_not_supported_is_said(tmp_path):
    for how, message in (
        ({"endianness": 1}, "big-endian"),
        ({"compression": 2}, "unknown compression 2"),
        ({"kinds": {"model/ab": 7}}, "variable model/ab is stored of TensorFlow type 7"),
        ({"kinds": {"model/ab": 1}}, "variable model/ab has 32 bytes for (4,)"),
        ({"extra": bytes([7 << 3 | 2, 0])}, "stored in slices"),
    ):
        write_bundle(tmp_path / "m", ARRAYS, **how)
        refused(tmp_path, message)


def write_entry(folder, dims, size, offset=0, name="a"):
    """An index with good checksums that says absurd things of one variable."""
    write_bundle(folder / "m", {name: np.zeros(1, np.float32)})
    shape = b"".join(field(2, field(1, dim)) for dim in dims)
    row = field(1, 1) + field(2, shape) + field(4, offset) + field(5, size)
    header = field(1, 1) + field(3, field(1, 1))
    write_index(folder / "m.index", [[(b"", header), (name.encode(), row)]])


@pytest.mark.parametrize(
    ("dims", "size", "offset", "message"),
    [
        ([1 << 40], 1 << 42, 0, "cut short"),
        ([1 << 62], 1 << 64, 0, "cut short"),
        ([0, 1 << 62], 0, 0, ""),
        ([0, 1 << 63], 0, 0, ""),
        ([1] * 100, 4, 0, "has 100 dimensions"),
        ([1], 4, 1 << 63, "cut short"),
        ([1], 4, (1 << 64) - 1, "cut short"),
        ([2], 4, 0, "has 4 bytes for (2,)"),
    ],
)
def test_an_index_that_says_absurd_things_is_refused(tmp_path, dims, size, offset, message):
    write_entry(tmp_path, dims, size, offset)
    refused(tmp_path, message)


def test_names_that_would_not_fit_a_line_are_cut(tmp_path):
    write_entry(tmp_path, [2], 4, name="two\nlines" + "x" * 10_000)
    with pytest.raises(CheckpointError) as caught:
        read_all(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"\xff" * 4_000_000, "more than 64 bits"),
        (b"\x08\x01\x12\x02\x10\x05", "a dimension that is no message"),
        (b"\x08\x01\x12\x0a\x10" + b"\xff" * 8 + b"\x7f", "a dimension that is no message"),
    ],
    ids=["endless", "small", "huge"],
)
def test_a_row_of_bare_numbers_is_refused_at_once(tmp_path, row, message):
    write_index(tmp_path / "m.index", [[(b"", b"")], [(b"a", row)]])
    refused(tmp_path, message)


def test_an_index_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_index(tmp_path)
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{"a" * 300}"\n')
    write_bundle(tmp_path / "m", ARRAYS)
    assert read_all(tmp_path).keys() == ARRAYS.keys()
    with pytest.raises(CheckpointError, match="no such TensorFlow checkpoint"):
        find_bundle(tmp_path / ("a" * 300))


def test_a_block_that_reaches_beyond_the_file_is_refused(tmp_path):
    write_bundle(tmp_path / "m", ARRAYS)
    path = tmp_path / "m.index"
    far = b"\xff\xff\xff\x7f" * 4
    path.write_bytes(
        path.read_bytes()[:-48] + far.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    )
    refused(tmp_path, "reaches beyond the file")
