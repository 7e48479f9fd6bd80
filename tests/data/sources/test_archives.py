"""Tars and zips: read strictly, however they are packed; hostile ones are refused in one line."""

import gzip
import io
import lzma
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib

import formats
import numpy as np
import pytest
from formats import END, MEGABYTE, packed, refused
from formats import tar_entry as entry
from formats import tar_header as header

from axial.data.sources.archives import Entry, open_unpacked, tar_entries
from axial.data.sources.zips import open_zip
from axial.errors import DataError


def pax(key, value):
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 2 if len(body) < 98 else len(body) + 3
    return entry(b"pax", str(length).encode() + body, b"x")


def tar(tmp_path, *parts):
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(parts) + END)
    return path


@pytest.mark.parametrize("end", ["gz", "bz2", "xz"])
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
    if end == "gz":  # the others give nothing of a block that is not whole
        path.write_bytes(again.read_bytes()[:-300])
        assert 0 < len(packed(path, tmp_path, skip_bad=True)) < 4
    path.write_bytes(again.read_bytes()[:100] + bytes(50) + again.read_bytes()[150:])
    assert f"cut.tar.{end}: damaged or cut short" in refused(path, tmp_path)
    y = np.arange(12) % 10
    batches = formats.cifar_files(formats.pictures(12, 32), y, "binary")
    cifar = packed(formats.tar(tmp_path / f"cifar-10-binary.tar.{end}", batches), tmp_path)
    assert np.array_equal(cifar.labels, y[:10])


def test_long_names_in_tars_are_read(tmp_path):
    x = formats.pictures(2, 8)
    name = "folder/" * 30 + "picture.png"
    files = {name: formats.png(x[0]), "b.png": formats.png(x[1])}
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
            for own, data in files.items():
                info = tarfile.TarInfo(own)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        assert np.array_equal(packed(tmp_path / "a.tar", tmp_path).array, x)


def test_a_tar_packed_in_a_way_python_cannot_read_is_named(tmp_path):
    path = tmp_path / "a.tar.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(2000))
    told = refused(path, tmp_path)
    assert told.endswith("a.tar.zst: is packed by Zstandard; unpack it and give what comes out")


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
    for start in (0, third):
        damaged = bytearray(whole)
        damaged[start + 20] ^= 1
        (tmp_path / "a.tar").write_bytes(damaged)
        assert f"a.tar: damaged at byte {start}: no header" in refused(tmp_path / "a.tar", tmp_path)


def test_a_hole_of_zeros_in_a_tar_is_damage_and_not_its_end(tmp_path):
    first = entry(b"a.png")
    path = tar(tmp_path, first, bytes(2048), entry(b"b.png"))
    message = refused(path, tmp_path)
    assert f"a.tar: damaged at byte {len(first) + 2048}: there is more after the end" in message
    assert len(packed(path, tmp_path, skip_bad=True)) == 1
    assert len(packed(tar(tmp_path, first, bytes(10240)), tmp_path)) == 1


def test_a_tar_entry_that_points_outside_is_refused_and_never_written(tmp_path):
    x = formats.pictures(2, 8)
    for name in ("../../x.png", "/tmp/x.png", "a/../../x.png"):
        files = {"good.png": formats.png(x[0]), name: formats.png(x[1])}
        formats.tar(tmp_path / "a.tar", files)
        message = refused(tmp_path / "a.tar", tmp_path)
        assert f"entry 2 is named {name!r}, which points outside" in message
        assert len(packed(tmp_path / "a.tar", tmp_path, skip_bad=True)) == 1
    assert not list(tmp_path.parent.glob("x.png")) and not list(tmp_path.rglob("x.png"))


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([entry(b"b.png", b"", b"1")], "a hard link"),
        ([entry(b"b.png", b"", b"2")], "a symbolic link"),
        ([entry(b"b.png", b"", b"S")], "a sparse file"),
        ([pax(b"GNU.sparse.major", b"1"), entry(b"b.png")], "a sparse file"),
    ],
    ids=["hard link", "symbolic link", "sparse", "sparse by pax"],
)
def test_links_and_sparse_files_in_a_tar_are_refused_or_counted(tmp_path, parts, what):
    path = tar(tmp_path, entry(b"a.png"), *parts, entry(b"notes", b"", b"2"))
    assert f"(b.png) is {what}, which is not read" in refused(path, tmp_path)
    found = packed(path, tmp_path, skip_bad=True)
    assert len(found) == 1 and found.description.skipped == 1


@pytest.mark.parametrize("size", [b"9" * 15, b"9" * 30, b"-1024", b"x"])
def test_absurd_sizes_in_pax_headers_are_refused_at_once(tmp_path, size):
    path = tar(tmp_path, entry(b"a.png"), pax(b"size", size), entry(b"b.png"))
    began = time.process_time()
    refused(path, tmp_path)
    assert time.process_time() - began < 5
    path = tar(tmp_path, entry(b"a.png"), header(b"b.png", b"-0000002000\0"))
    assert "entry 2 before byte" in refused(path, tmp_path)


def test_long_headers_of_a_tar_are_read_in_linear_time_and_have_an_end(tmp_path):
    many = b"6 a=b\n" * 160_000
    path = tar(tmp_path, entry(b"pax", many, b"x"), entry(b"a.png"))
    began = time.process_time()
    assert len(packed(path, tmp_path)) == 1
    assert time.process_time() - began < 3
    for kind in (b"x", b"L"):
        path = tar(tmp_path, entry(b"a.png"), entry(b"long", bytes(1 << 21), kind))
        assert "claims 2.09715e+06 bytes, not 0 to 1,048,576" in refused(path, tmp_path)
    path = tar(tmp_path, entry(b"a.png"), entry(b"long", b"1" * 5000 + b".png", b"L"), entry(b"b"))
    assert "entry 3 is named by 5,004 characters" in refused(path, tmp_path)


def test_a_huge_entry_of_a_tiny_archive_is_never_held(tmp_path):
    path = tmp_path / "a.tar.gz"
    first, last = entry(b"a.png") + header(b"b.png", 200 << 20), entry(b"c.png") + END
    path.write_bytes(gzip.compress(first) + MEGABYTE * 200 + gzip.compress(last))
    tracemalloc.start()
    found = list(tar_entries(path, lambda name: True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert [one.name for one in found if isinstance(one, Entry)] == ["a.png", "c.png"]
    assert "entry 2 (b.png) has 209,715,200 bytes" in str(found[1])


def test_names_in_a_tar_are_shown_without_control_characters(tmp_path):
    path = tar(tmp_path, entry(b"a.png"), entry(b"b\n\x1b[31mhi.png", b"no"))
    assert "entry 2, 'b\\n\\x1b[31mhi.png', at byte" in refused(path, tmp_path)


@pytest.mark.parametrize("how", ["encrypted", "unknown method", "lzma", "bzip2"])
def test_zips_that_cannot_be_unpacked_are_one_line(tmp_path, how):
    method = {"lzma": zipfile.ZIP_LZMA, "bzip2": zipfile.ZIP_BZIP2}.get(how, zipfile.ZIP_STORED)
    rows, labels = np.arange(2 * 48, dtype=np.uint8).reshape(2, 48), np.array([1, 2])
    path = formats.npz(tmp_path / "val_data.npz", method, labels=labels, data=rows)
    data = bytearray(path.read_bytes())
    listed = data.find(b"PK\x01\x02")
    if how == "encrypted":
        data[6] |= 1
        data[listed + 8] |= 1
    elif how == "unknown method":
        data[8] = data[listed + 10] = 97
    for name in ("val_data.npz", "any.npz"):  # a batch of ImageNet, and an array
        (tmp_path / name).write_bytes(data)
        assert name in refused(tmp_path / name, tmp_path)


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


@pytest.mark.parametrize(("place", "bit"), [(46, 1), (33, 0x80)], ids=["name", "comment"])
def test_a_member_that_is_missing_from_the_list_of_a_zip_is_noticed(tmp_path, place, bit):
    """Of an .npz that would be its labels, without a word."""
    x, y = formats.pictures(3, 4), np.arange(3)
    arrays = {"y": y, "x": x} if place == 46 else {"x": x, "y": y}
    path = formats.npz(tmp_path / "a.npz", **arrays)
    assert packed(path, tmp_path).labels.tolist() == [0, 1, 2]
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + place] ^= bit
    path.write_bytes(data)
    assert "a.npz: damaged or cut short (" in refused(path, tmp_path)


def test_an_xz_that_asks_for_much_memory_is_refused(tmp_path):
    path = formats.tar(tmp_path / "a.tar.xz", {"a.png": formats.png(formats.pictures(1)[0])})
    assert len(packed(path, tmp_path)) == 1
    data = bytearray(path.read_bytes())
    end = 12 + 4 * data[12]  # of the header of the first block, before its checksum
    place = data.index(b"\x21\x01", 12) + 2
    data[place] = 36  # a dictionary of 1 GB
    data[end : end + 4] = struct.pack("<I", zlib.crc32(data[12:end]))
    path.write_bytes(data)
    assert "Memory usage limit exceeded" in refused(path, tmp_path)
    path.write_bytes(lzma.compress(bytes(512)) + bytes(4) + lzma.compress(bytes(512)))
    with open_unpacked(path) as file:
        assert file.read() == bytes(1024)
