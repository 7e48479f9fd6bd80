import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import formats
import numpy as np
import pytest
from packed_arrays import FACTS, write

from axial.data.description import MOST_CLASSES, Description
from axial.data.packed import open_packed
from axial.data.packed_writer import PackedWriter
from axial.data.packing import pack
from axial.data.sources.options import ReadOptions
from axial.errors import DataError
from axial.shape import DataShape


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def refusal(path, **how):
    with pytest.raises(DataError) as caught:
        open_packed(path, **how)
    assert "\n" not in str(caught.value)
    return caught.value.as_written


def edit(path, **changes):
    """Change what a description says, as if an older version had written it."""
    found = json.loads(path.read_text()) | changes
    del found["checksum"]
    path.write_text(json.dumps(found))


def test_what_is_written_is_an_ordinary_numpy_file(tmp_path):
    x = formats.pictures(7, 4)
    path = write(tmp_path / "a.npy", x)
    assert np.array_equal(np.load(path), x)
    assert files(tmp_path) == ["a.json", "a.npy"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))


def test_an_array_is_opened_with_its_shape_and_labels(tmp_path):
    x, labels = formats.pictures(7, 4), np.array([0, 1, 2, 0, 1, 2, 3])
    found = open_packed(write(tmp_path / "a.npy", x, labels, 4))
    assert found.shape == DataShape(axes=(4, 4), channels=3, values=256, classes=4)
    assert isinstance(found.array, np.memmap) and np.array_equal(found.array, x)
    assert np.array_equal(found.labels, labels) and len(found) == 7
    assert np.array_equal(found.rows([6, 0, 0]), x[[6, 0, 0]])
    with pytest.raises(IndexError):
        found.rows([7])


def test_frames_stacked_as_channels_are_frame_major(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 6, 3), np.uint8)
    found = open_packed(write(tmp_path / "a.npy", x), stack_frames=True)
    assert found.shape == DataShape(axes=(4, 6), channels=15, frames=5)
    rows = found.rows([2, 0])
    for i, clip in enumerate((2, 0)):
        for t in range(5):
            assert np.array_equal(rows[i, ..., 3 * t : 3 * t + 3], x[clip, t])
    write(tmp_path / "b.npy", x[:, 0])
    assert "no time to stack" in refusal(tmp_path / "b.npy", stack_frames=True)


def test_replacing_an_array_leaves_nothing_of_the_old_one(tmp_path):
    write(tmp_path / "a.npy", formats.pictures(7, 4), np.zeros(7, int), 1)
    x = formats.pictures(3, 5)
    found = open_packed(write(tmp_path / "a.npy", x))
    assert np.array_equal(found.array, x) and found.labels is None
    assert files(tmp_path) == ["a.json", "a.npy"]


def test_an_array_that_is_not_the_described_one_is_refused(tmp_path):
    path = write(tmp_path / "a.npy", formats.pictures(7, 4), np.arange(7), 7)
    np.save(tmp_path / "labels.npy", np.arange(7)[::-1])
    (tmp_path / "labels.npy").replace(tmp_path / "a.labels.npy")
    assert "a.labels.npy: does not belong to a.npy" in refusal(path)
    (tmp_path / "a.labels.npy").unlink()
    told = "a.labels.npy: labels cannot be read (No such file or directory); pack again"
    assert refusal(path) == f"{tmp_path}/{told}"
    np.save(path, formats.pictures(6, 4))
    assert "holds uint8 (6, 4, 4, 3), but its description says uint8 (7, 4, 4, 3)" in refusal(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "a.npy: cannot be opened as an array" in refusal(path)
    (tmp_path / "a.json").unlink()
    told = f"{path}: is no packed array, without a description beside it; "
    assert refusal(path) == told + f"`axial data {path} --out NEW.npy` packs it"
    (tmp_path / "a.json").mkdir()
    assert "a.json: is no file" in refusal(path)
    (tmp_path / "a.json").rmdir()
    path.unlink()
    assert "a.npy: no such file" in refusal(path)


def test_labels_and_sizes_are_no_packed_array(tmp_path):
    path = write(tmp_path / "a.npy", formats.pictures(7, 4), np.arange(7), 7)
    labels = tmp_path / "a.labels.npy"
    assert refusal(labels) == f"{labels}: holds the labels of {path}; give that"
    np.save(tmp_path / "a b.labels.npy", np.arange(3))
    told = f"`axial data '{tmp_path}/a b.labels.npy' --out NEW.npy` packs it"
    assert told in refusal(tmp_path / "a b.labels.npy")


def test_files_of_the_users_own_are_never_replaced(tmp_path):
    x = formats.pictures(2, 4)
    write(tmp_path / "packed.npy", x)
    write(tmp_path / "labelled.npy", x, np.arange(2), 2)
    for name in ("packed.labels.npy", "mine.npy", "labels.labels.npy"):
        np.save(tmp_path / name, np.zeros((3, 4), np.uint8))
    (tmp_path / "words.json").write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for name, words in (
        ("packed.npy", "packed.labels.npy: stands in the way"),
        ("mine.npy", "mine.npy: stands in the way"),
        ("labels.npy", "labels.labels.npy: stands in the way"),
        ("words.npy", "words.json: is no description"),
        ("labelled.labels.npy", "the name of an array's labels"),
        ("c.dat", "a packed array is a .npy file; call it"),
    ):
        with pytest.raises(DataError, match=re.escape(words)):
            write(tmp_path / name, x)
    for name in ("mine.npy", "packed.npy"):
        with pytest.raises(DataError, match="the very file it is made from"):
            pack(tmp_path / name, tmp_path / name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_error_while_writing_leaves_nothing_and_the_old_array_whole(tmp_path):
    old = formats.pictures(7, 4)
    path = write(tmp_path / "a.npy", old)
    with pytest.raises(ZeroDivisionError), PackedWriter(path, overwrite=True) as writer:
        writer.append(formats.pictures(3, 5))
        raise ZeroDivisionError
    assert files(tmp_path) == ["a.json", "a.npy"]
    assert np.array_equal(open_packed(path).array, old)


def test_of_two_who_write_one_array_the_second_is_refused_and_the_first_ends_whole(tmp_path):
    x = formats.pictures(6, 4)
    path = tmp_path / "a.npy"
    with PackedWriter(path) as writer:
        writer.append(x)
        with pytest.raises(DataError, match=r"a\.npy: another process is writing it; wait"):
            write(path, x[:2])
        writer.append(x)
        writer.finish(None, 0, None, **FACTS)
    assert np.array_equal(open_packed(path).array, np.concatenate([x, x]))
    assert files(tmp_path) == ["a.json", "a.npy"]
    write(path, x[:2])
    assert np.array_equal(open_packed(path).array, x[:2])


def test_a_disk_without_locks_is_written_to(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)  # as a cluster's disk may
    x = formats.pictures(6, 4)
    write(tmp_path / "a.npy", x)
    assert np.array_equal(open_packed(tmp_path / "a.npy").array, x)


def test_a_file_cut_short_while_it_is_open_is_an_error_and_no_crash(tmp_path):
    path = write(tmp_path / "a.npy", formats.pictures(7, 4))
    found = open_packed(path)
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(DataError, match="inside example 6, though it was whole when opened"):
        found.rows([0, 6])


LIMITED = """
import resource, signal, sys
from axial.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
main(["data", sys.argv[1], "--out", sys.argv[2]])
"""


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(300, 8))
    out = tmp_path / "out"
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), str(out / "a.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert "a.npy: cannot be written (File too large)" in ended.stderr
    assert not out.exists()


def test_a_packed_array_packed_again_keeps_what_it_is(tmp_path):
    first = pack("digits", tmp_path / "a.npy", ReadOptions(split="test")).packed
    second = pack(tmp_path / "a.npy", tmp_path / "b.npy", ReadOptions(split="test")).packed
    command = f"axial data {tmp_path}/a.npy --out {tmp_path}/b.npy --split test"
    assert second.description == replace(first.description, command=command)
    assert second.shape.values == 17 and (second.labels == first.labels).all()
    x = formats.pictures(4, 5, channels=6)
    again = pack(write(tmp_path / "c.npy", x), tmp_path / "d.npy").packed
    assert again.shape.axes == (5, 5) and np.array_equal(again.array, x)


@pytest.mark.parametrize("last", [0, 1, 255, 256, 70_000, 10**12])
def test_labels_of_any_size_come_back_unless_they_number_no_classes(tmp_path, last):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 2, 1), np.uint8), y=np.array([0, last]))
    if last < MOST_CLASSES:
        found = pack(tmp_path / "a.npz", tmp_path / "b.npy").packed
        assert found.labels.tolist() == [0, last] and found.shape.classes == last + 1
        return
    with pytest.raises(DataError, match=r"holds the label 1,000,000,000,000, and has"):
        pack(tmp_path / "a.npz", tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": 3},
        {"surprise": 1},
        {"axes": None},
        {"axes": 3},
        {"axes": []},
        {"axes": [8.0, 8]},
        {"values": "x"},
        {"values": 10**13},
        {"count": 0},
        {"source": 5},
        {"split": ["test"]},
        {"skipped": "none"},
        {"skipped": True},
        {"notes": [1]},
        {"beginning": 1},
        {"labels": {"classes": "10", "names": None, "sha256": ""}},
        {"labels": {"classes": 10, "names": ["zero", "one"], "sha256": ""}},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path, change):
    """Those that older versions wrote carry no checksum."""
    path = write(tmp_path / "a.npy", formats.pictures(7, 4))
    edit(tmp_path / "a.json", **change)
    new = "a.json: format 3 is not one this version knows (up to 2); upgrade"
    assert (new if change == {"format": 3} else "a.json: ") in refusal(path)


def test_a_description_without_a_checksum_still_opens(tmp_path):
    path = write(tmp_path / "a.npy", formats.pictures(7, 4))
    edit(tmp_path / "a.json", source="another name")
    assert open_packed(path).description.title == "another name train"


def test_any_flipped_bit_of_a_description_is_noticed(tmp_path):
    names = ["cat", "dog", "eel"]
    path = write(tmp_path / "a.npy", formats.pictures(3, 2), np.arange(3), 3, names, version="v2")
    whole = (tmp_path / "a.json").read_bytes()
    about = open_packed(path).description
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a.json").write_bytes(data)
        with suppress(DataError):  # or it is white space that is another
            assert Description.from_json(tmp_path / "a.json") == about, f"bit {bit}"


def test_classes_have_names_of_their_own(tmp_path):
    x, labels = formats.pictures(3, 2), np.arange(3)
    path = write(tmp_path / "a.npy", x, labels, 3, ["crane", "eel", "crane"])
    assert open_packed(path).description.labels.names == ("crane (0)", "eel", "crane (2)")
    about = json.loads((tmp_path / "a.json").read_text())["labels"]
    edit(tmp_path / "a.json", labels=about | {"names": ["crane", "eel", "crane"]})
    assert "two classes have one name" in refusal(path)


@pytest.mark.parametrize("name", ["a.npy", "a.labels.npy", "a.json", "a.json.pending"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, name):
    path = write(tmp_path / "a.npy", formats.pictures(2, 4), np.arange(2), 2)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    if name == "a.json.pending":
        open_packed(path)
    else:
        assert f"{name}: " in refusal(path) and "is no file" in refusal(path)


def test_a_packed_array_is_replaced_when_that_is_asked_for(tmp_path):
    first = pack("digits", tmp_path / "a.npy", ReadOptions(split="test")).packed.description
    with pytest.raises(DataError, match=r"a\.npy: exists already; .* or add overwrite="):
        pack("digits", tmp_path / "a.npy")
    assert open_packed(tmp_path / "a.npy").description == first
    assert len(pack("digits", tmp_path / "a.npy", overwrite=True).packed) == 1497


@pytest.mark.parametrize("name", ["a.npy", "a.labels.npy", "a.json"])
@pytest.mark.parametrize(
    "data", [b"", b"[1, 2]", b"PK\x03\x04", b"\x93NUMPY\x01\0\x10\0{'descr': ("]
)
def test_a_damaged_file_of_the_three_is_refused(tmp_path, name, data):
    path = write(tmp_path / "a.npy", formats.pictures(2, 4), np.arange(2), 2)
    (tmp_path / name).write_bytes(data)
    assert f"{name}: " in refusal(path)
