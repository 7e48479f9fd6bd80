"""Pickled batches: honest ones are read, and no other runs code, reaches memory or fills it."""

import io
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from formats import refused

from axial.data.sources.pickled import read_batch
from axial.errors import DataError

ROWS = np.arange(2 * 48, dtype=np.uint8).reshape(2, 48)


def batch(data):
    """A pickled batch, read."""
    return read_batch(io.BytesIO(data), "batch")


def no_batch(data):
    with pytest.raises(DataError) as caught:
        batch(data)
    assert str(caught.value).isprintable()
    return caught.value.as_written


class Forged:
    """Pickled as a call of something with a state to set afterwards."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def forged_array(kind, shape=(2,), raw=b"A" * 16):
    make = np.zeros(1).__reduce__()[0]
    return Forged(make, (np.ndarray, (0,), b"b"), (1, shape, kind, False, raw))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(("order", "piece"), [("C", 16), ("F", 1 << 20)])
def test_honest_batches_are_read_from_every_protocol_and_order(protocol, order, piece, monkeypatch):
    monkeypatch.setattr("axial.data.sources.pickled._PIECE", piece)
    for labels in ([3, 4], np.array([3, 4]), np.array([3, 4], np.uint16)):
        made = {b"data": np.asarray(ROWS, order=order), b"labels": labels, "mean": ROWS.mean(0)}
        data, found = batch(pickle.dumps(made, protocol))
        assert np.array_equal(data, ROWS) and found.tolist() == [3, 4]


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


@pytest.mark.parametrize("flags", [0, 1, 2, 0x18])
def test_a_pickle_with_a_forged_dtype_cannot_reach_into_memory(flags):
    state = (3, "|", None, ("f",), {"f": (np.dtype("O"), 0)}, 8, 1, flags)
    kind = Forged(np.dtype, ("V8", False, True), state)
    made = pickle.dumps({"data": ROWS, "labels": forged_array(kind)}, 2)
    assert "asks for numpy.dtype" in no_batch(made)


def test_a_dtype_is_never_given_fields_nor_another_order_of_bytes():
    for state in ((3, ">", None, None, None, -1, -1, 0), (3, "|", None, ("f",), {}, 8, 1, 0)):
        kind = Forged(np.dtype, ("i8", False, True), state)
        message = no_batch(pickle.dumps({"data": ROWS, "labels": forged_array(kind)}))
        assert "a numpy.dtype of no plain numbers" in message


def test_an_array_must_have_the_size_of_its_bytes():
    for shape in ((3,), (-2,), (2**62, 2**62), (1 << 40,), "no"):
        kind = Forged(np.dtype, ("i8", False, True), (3, "<", None, None, None, -1, -1, 0))
        made = pickle.dumps({"data": ROWS, "labels": forged_array(kind, shape)})
        assert "batch: damaged or cut short" in no_batch(made)


def test_labels_that_are_no_list_of_integers_are_refused():
    deep = [0] * 10
    for _ in range(8):
        deep = [deep] * 10  # a thousand million labels in a few hundred bytes
    for labels in ([[1], 2], deep, ["1", "2"], [1.0, 2.0], [True, False], [1, 1 << 70], 7, None):
        made = pickle.dumps({"data": ROWS, "labels": labels})
        assert "`labels` are no list of integers" in no_batch(made)
    for labels in ([1], [1, 2, 3], np.ones((2, 1), int)):
        assert "2 pictures but other labels" in no_batch(
            pickle.dumps({"data": ROWS, "labels": labels})
        )


def test_keys_that_are_no_text_do_not_break_the_reader():
    data, _ = batch(pickle.dumps({b"data": ROWS, b"labels": [1, 2], b"\xff": 1}))
    assert np.array_equal(data, ROWS)
    # Python hashes a key to its full depth, and falls over the end of its stack.
    made = b"\x80\x02})" + b"\x85" * 250_000 + b"K\x01s."
    assert "tuple in a place where it cannot be" in no_batch(made)


def test_a_small_pickle_takes_little_memory(tmp_path):
    again = b"c_codecs\nencode\n(X\x00\x00\x01\x00" + b"a" * 65536 + b"X\x06\0\0\0latin1tq\x00R0"
    bombs = {
        "memo": b"\x80\x02]r\xff\xff\xff\x03.",
        "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
        "some bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 28),
        "encoded": b"\x80\x02" + again + b"(" + b"c_codecs\nencode\nh\x00R" * 5000 + b"l.",
    }
    for name, data in bombs.items():
        (tmp_path / "batch").write_bytes(data)  # a file takes the room for all that it is asked for
        tracemalloc.start()
        with pytest.raises(DataError), (tmp_path / "batch").open("rb") as file:
            read_batch(file, "batch")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20, name


def test_what_follows_a_pickle_is_noticed():
    made = pickle.dumps({"data": ROWS, "labels": [1, 2]})
    assert len(batch(made)[0]) == 2
    assert "there is more after its end" in no_batch(made + b"\0")


def test_names_in_a_pickle_are_shown_without_control_characters():
    name = "\x1b[31m\n"
    made = b"\x80\x04\x8c\x02os\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    assert "asks for 'os.\\x1b[31m\\n'" in no_batch(made)
