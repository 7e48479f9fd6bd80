"""Files made to do harm: each is refused in one line, at once, and with nothing left behind."""

import gzip
import io
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from functools import partial

import formats
import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from axial.data.packing import pack
from axial.data.sources.archives import Entry, open_zip, tar_entries
from axial.data.sources.bair import find_records
from axial.data.sources.options import ReadOptions
from axial.data.sources.pickled import read_batch
from axial.data.sources.record import natural
from axial.errors import DataError

END = bytes(1024)
PICTURES = formats.pictures(3, 8)
PNG = formats.png(PICTURES[0])
packed, refused = (partial(one, workers=1) for one in (formats.packed, formats.refused))


def header(name, size, kind=b"0"):
    """The header block of a tar entry; a size of bytes is written as it is."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def entry(name, data=PNG, kind=b"0"):
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def pax(key, value):
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 2 if len(body) < 98 else len(body) + 3
    return entry(b"pax", str(length).encode() + body, b"x")


def tar(tmp_path, *parts):
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(parts) + END)
    return path


def batch(data):
    """A pickled batch, read."""
    return read_batch(io.BytesIO(data), "batch")


def no_batch(data):
    with pytest.raises(DataError) as caught:
        batch(data)
    assert str(caught.value).isprintable()
    return str(caught.value)


class Forged:
    """Pickled as a call of something with a state to set afterwards."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def forged_array(kind, shape=(2,), raw=b"A" * 16):
    make = np.zeros(1).__reduce__()[0]
    return Forged(make, (np.ndarray, (0,), b"b"), (1, shape, kind, False, raw))


ROWS = np.arange(2 * 48, dtype=np.uint8).reshape(2, 48)


@pytest.mark.parametrize("flags", [0, 1, 2, 0x18])
def test_a_pickle_with_a_forged_dtype_cannot_reach_into_memory(tmp_path, flags):
    state = (3, "|", None, ("f",), {"f": (np.dtype("O"), 0)}, 8, 1, flags)
    kind = Forged(np.dtype, ("V8", False, True), state)
    path = tmp_path / "data_batch_1"
    path.write_bytes(
        pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": forged_array(kind)}, 2)
    )
    words = [sys.executable, "-m", "axial", "data", str(path), "--out", str(tmp_path / "x.npy")]
    found = subprocess.run(words, capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr.count("\n") == 1, found.stderr
    assert "asks for numpy.dtype" in found.stderr


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


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_honest_batches_are_read_from_every_protocol_and_order(protocol, order):
    for labels in ([3, 4], np.array([3, 4]), np.array([3, 4], np.uint16)):
        made = {b"data": np.asarray(ROWS, order=order), b"labels": labels, "mean": ROWS.mean(0)}
        data, found = batch(pickle.dumps(made, protocol))
        assert np.array_equal(data, ROWS) and found.tolist() == [3, 4]


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


def test_a_small_pickle_takes_little_memory():
    again = b"c_codecs\nencode\n(X\x00\x00\x01\x00" + b"a" * 65536 + b"X\x06\0\0\0latin1tq\x00R0"
    bombs = {
        "memo": b"\x80\x02]r\xff\xff\xff\x03.",
        "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
        "encoded": b"\x80\x02" + again + b"(" + b"c_codecs\nencode\nh\x00R" * 5000 + b"l.",
    }
    for name, data in bombs.items():
        tracemalloc.start()
        no_batch(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20, name


def test_names_in_a_pickle_are_shown_without_control_characters():
    name = "\x1b[31m\n"
    made = b"\x80\x04\x8c\x02os\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    assert "asks for 'os.\\x1b[31m\\n'" in no_batch(made)


def test_a_hole_of_zeros_in_a_tar_is_damage_and_not_its_end(tmp_path):
    first = entry(b"a.png")
    path = tar(tmp_path, first, bytes(2048), entry(b"b.png"))
    message = refused(path, tmp_path)
    assert f"a.tar: damaged at byte {len(first) + 2048}: there is more after the end" in message
    assert len(packed(path, tmp_path, skip_bad=True)) == 1
    assert len(packed(tar(tmp_path, first, bytes(10240)), tmp_path)) == 1


@pytest.mark.parametrize(
    ("kind", "word"), [(b"1", "hard link"), (b"2", "symbolic link"), (b"S", "sparse file")]
)
def test_links_and_sparse_files_in_a_tar_are_refused_or_counted(tmp_path, kind, word):
    path = tar(tmp_path, entry(b"a.png"), entry(b"b.png", b"", kind), entry(b"notes", b"", kind))
    assert f"a.tar: entry 2 (b.png) is a {word}, which is not read" in refused(path, tmp_path)
    found = packed(path, tmp_path, skip_bad=True)
    assert len(found) == 1 and found.description.skipped == 1


def test_a_sparse_file_that_pax_announces_is_refused(tmp_path):
    path = tar(tmp_path, entry(b"a.png"), pax(b"GNU.sparse.major", b"1"), entry(b"b.png"))
    assert "(b.png) is a sparse file" in refused(path, tmp_path)


@pytest.mark.parametrize("size", [b"9" * 15, b"9" * 30, b"-1024", b"x"])
def test_absurd_sizes_in_pax_headers_are_refused_at_once(tmp_path, size):
    path = tar(tmp_path, entry(b"a.png"), pax(b"size", size), entry(b"b.png"))
    began = time.process_time()
    refused(path, tmp_path)
    assert time.process_time() - began < 5
    path = tar(tmp_path, entry(b"a.png"), header(b"b.png", b"-0000002000\0"))
    assert "entry 2 at byte" in refused(path, tmp_path)


def test_long_headers_of_a_tar_are_read_in_linear_time_and_have_an_end(tmp_path):
    many = b"6 a=b\n" * 160_000
    path = tar(tmp_path, entry(b"pax", many, b"x"), entry(b"a.png"))
    began = time.process_time()
    assert len(packed(path, tmp_path)) == 1
    assert time.process_time() - began < 3
    for kind in (b"x", b"L"):
        path = tar(tmp_path, entry(b"a.png"), entry(b"long", bytes(1 << 21), kind))
        assert "has a name of 2,097,152 bytes" in refused(path, tmp_path)
    path = tar(tmp_path, entry(b"a.png"), entry(b"long", b"1" * 5000 + b".png", b"L"), entry(b"b"))
    assert "entry 3 is named by 5,004 characters" in refused(path, tmp_path)


def test_a_huge_entry_of_a_tiny_archive_is_never_held(tmp_path):
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(entry(b"a.png") + header(b"b.png", 200 << 20))
        for _ in range(200):
            file.write(bytes(1 << 20))
        file.write(entry(b"c.png") + END)
    tracemalloc.start()
    found = list(tar_entries(path, lambda name: True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert [one.name for one in found if isinstance(one, Entry)] == ["a.png", "c.png"]
    assert "entry 2 (b.png) has 209,715,200 bytes" in str(found[1])


def test_names_in_a_tar_are_shown_without_control_characters(tmp_path):
    path = tar(tmp_path, entry(b"a.png"), entry(b"b\n\x1b[31mhi.png", PNG[:60]))
    assert "entry 2, 'b\\n\\x1b[31mhi.png', at byte" in refused(path, tmp_path)


def npz(path, method=zipfile.ZIP_STORED, **arrays):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, x in arrays.items():
            stream = io.BytesIO()
            np.save(stream, x)
            archive.writestr(f"{name}.npy", stream.getvalue())
    return path


@pytest.mark.parametrize("how", ["encrypted", "unknown method", "lzma", "bzip2"])
def test_zips_that_cannot_be_unpacked_are_one_line(tmp_path, how):
    method = {"lzma": zipfile.ZIP_LZMA, "bzip2": zipfile.ZIP_BZIP2}.get(how, zipfile.ZIP_STORED)
    labels = np.array([1, 2])
    path = npz(tmp_path / "val_data.npz", method, labels=labels, data=ROWS)
    data = bytearray(path.read_bytes())
    listed = data.find(b"PK\x01\x02")
    if how == "encrypted":
        data[6] |= 1
        data[listed + 8] |= 1
    elif how == "unknown method":
        data[8] = data[listed + 10] = 97
    else:
        data[52] ^= 0xFF
        data[60] ^= 0xFF
    path.write_bytes(data)
    assert "val_data.npz" in refused(path, tmp_path)


def test_a_zip_cut_after_an_absurd_size_is_one_line(tmp_path):
    for packed_size in (2**64 - 1, 2**63, 2**62):
        extra = bytes(4) + struct.pack("<QQ", 0, packed_size)
        lengths = struct.pack("<IIHH", 0xFFFFFFFF, 0, 2, len(extra))
        (tmp_path / "a.npz").write_bytes(
            b"PK\x03\x04" + bytes(14) + lengths + b"\n\x1b" + extra + b"abc"
        )
        with pytest.raises(DataError) as caught:
            open_zip(tmp_path / "a.npz", "a.npz")
        assert "in or after member 1, '\\n\\x1b', which begins at byte 52" in str(caught.value)


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
    path = npz(tmp_path / "val_data.npz", data=ROWS, labels=labels)
    assert "labels" in refused(path, tmp_path)


def test_imagenet_pictures_without_pixels_are_refused(tmp_path):
    labels = np.array([1, 2])
    for data in (ROWS[:, :0], ROWS[:, 0], ROWS[:, :47], np.zeros((2, 0, 4, 3), np.uint8)):
        refused(npz(tmp_path / "val_data.npz", data=data, labels=labels), tmp_path)
    for data, own in ((ROWS[:0], labels[:0]), (np.uint8(3), np.int64(3))):
        path = npz(tmp_path / "val_data.npz", data=data, labels=own)
        assert f"has data of shape {data.shape}" in refused(path, tmp_path)
    made = pickle.dumps({"data": ROWS[:, :0], "labels": [1, 2]})
    (tmp_path / "train_data_batch_1").write_bytes(made)
    assert "rows of 0 bytes" in refused(tmp_path / "train_data_batch_1", tmp_path)


def test_labels_beyond_the_pictures_are_refused_before_they_are_unpacked(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (1 << 27,)}
    np.lib.format.write_array_header_1_0(head, shape)
    path = npz(tmp_path / "val_data.npz", zipfile.ZIP_DEFLATED, data=ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.npy", head.getvalue() + bytes(1 << 20))
    assert "labels of shape (134217728,) for data of shape (2, 48)" in refused(path, tmp_path)


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


def test_a_store_of_links_keeps_the_splits_of_bair_apart(tmp_path):
    (tmp_path / "blobs").mkdir()
    for split in ("train", "test"):
        (tmp_path / "blobs" / split).write_bytes(b"")
        (tmp_path / "bair" / split).mkdir(parents=True)
        (tmp_path / "bair" / split / "a.tfrecords").symlink_to(tmp_path / "blobs" / split)
    found = find_records(tmp_path / "bair")
    assert found == {s: [tmp_path / "bair" / s / "a.tfrecords"] for s in ("train", "test")}


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
    with gzip.open(path, "wb", 1) as file:
        for i in range(6):
            file.write(header(b"data_batch_%d.bin" % i, 100 << 20))
            for _ in range(100):
                file.write(bytes(1 << 20))
        file.write(END)
    assert "cifar.tar.gz: its batches take more than 268,435,456 bytes" in refused(path, tmp_path)


def test_digits_that_are_no_decimals_are_sorted_as_text():
    assert sorted(["²", "a10", "a2"], key=natural) == ["a2", "a10", "²"]
    assert natural("1²2") == ("", 1, "²", 2, "")


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
    assert report.packed.description.skipped == 1 and "in or after example" in report.bad[0]


def test_a_picture_never_starts_another_program(tmp_path, monkeypatch):
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    (tmp_path / "in").mkdir()
    Image.fromarray(PICTURES[0]).save(tmp_path / "in" / "cat.png", "EPS")
    for source in (tmp_path / "in", tmp_path / "in" / "cat.png"):
        assert "cat.png: is no picture that can be read" in refused(source, tmp_path)
    assert not (tmp_path / "started").exists()
