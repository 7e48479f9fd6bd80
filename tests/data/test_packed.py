import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import formats
import numpy as np
import pytest
from packed_arrays import FACTS, write

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
    return str(caught.value)


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
    np.save(path, formats.pictures(6, 4))
    assert "holds uint8 (6, 4, 4, 3), but its description says uint8 (7, 4, 4, 3)" in refusal(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "a.npy: cannot be opened as an array" in refusal(path)
    (tmp_path / "a.json").unlink()
    assert "a.json: no such file; `axial data` makes" in refusal(path)
    path.unlink()
    assert "a.npy: no such file" in refusal(path)


def test_descriptions_that_say_too_little_or_are_too_new_are_refused(tmp_path):
    path = write(tmp_path / "a.npy", formats.pictures(7, 4))
    whole = json.loads((tmp_path / "a.json").read_text())
    for change, words in (
        ({"format": 2}, "format 2 is not one this version knows"),
        ({"surprise": 1}, "is no description"),
        ({"axes": None}, "is no description"),
    ):
        (tmp_path / "a.json").write_text(json.dumps(whole | change))
        assert words in refusal(path)
    (tmp_path / "a.json").write_text("[1, 2]")
    assert "is no description" in refusal(path)


def test_files_of_the_users_own_are_never_replaced(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(DataError, match=r"a\.json: is no description"):
        write(tmp_path / "a.npy", formats.pictures(2, 4))
    np.save(tmp_path / "b.labels.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"b\.labels\.npy: stands in the way"):
        write(tmp_path / "b.npy", formats.pictures(2, 4))
    assert files(tmp_path) == ["a.json", "b.labels.npy"]
    with pytest.raises(DataError, match=r"a packed array is a \.npy file; call it"):
        write(tmp_path / "c.dat", formats.pictures(2, 4))


def test_labels_of_the_users_own_beside_an_array_without_any_are_never_removed(tmp_path):
    path = write(tmp_path / "a.npy", np.zeros((2, 4, 4, 1), np.uint8))
    np.save(tmp_path / "a.labels.npy", np.arange(2))
    before = files(tmp_path)
    with pytest.raises(DataError, match=r"a\.labels\.npy: stands in the way"):
        write(path, np.ones((2, 4, 4, 1), np.uint8))
    assert files(tmp_path) == before and np.load(tmp_path / "a.labels.npy").tolist() == [0, 1]
    assert not open_packed(path).array.any()


def test_an_error_while_writing_leaves_nothing_and_the_old_array_whole(tmp_path):
    old = formats.pictures(7, 4)
    path = write(tmp_path / "a.npy", old)
    with pytest.raises(ZeroDivisionError), PackedWriter(path) as writer:
        writer.append(formats.pictures(3, 5))
        raise ZeroDivisionError
    assert files(tmp_path) == ["a.json", "a.npy"]
    assert np.array_equal(open_packed(path).array, old)


@pytest.mark.parametrize("classes", [1, 2, 256, 257, 70_000])
def test_the_last_of_any_number_of_classes_comes_through(tmp_path, classes):
    labels = np.array([0, classes - 1])
    found = open_packed(write(tmp_path / "a.npy", formats.pictures(2, 4), labels, classes))
    assert found.labels.tolist() == [0, classes - 1] and found.shape.classes == classes


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


DIED = """
import os, sys
from axial.data.packed_writer import PackedWriter
import numpy as np
with PackedWriter(sys.argv[1]) as writer:
    writer.append(np.zeros((2000, 4, 4, 3), np.uint8))
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    path = tmp_path / "a.npy"
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", DIED, str(path)], check=False)
        assert ended.returncode == -signal.SIGKILL and not path.exists() and files(tmp_path)
    x = formats.pictures(6, 4)
    write(path, x)
    assert files(tmp_path) == ["a.json", "a.npy"] and np.array_equal(open_packed(path).array, x)


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


KILLED = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import numpy as np
    sys.path.insert(0, sys.argv[3])
    import packed_arrays
    step, seen = int(sys.argv[2]), 0
    def counted(action):
        def act(*args, **kwargs):
            global seen
            if seen == step:
                os.kill(os.getpid(), 9)
            seen += 1
            return action(*args, **kwargs)
        return act
    Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
    packed_arrays.write(Path(sys.argv[1]), np.ones((5, 4, 4, 3), np.uint8), np.ones(5, int), 2)
""")


@pytest.mark.parametrize("step", range(5))
def test_killed_between_any_two_renames_no_pair_passes_that_does_not_belong(tmp_path, step):
    old = np.zeros((5, 4, 4, 3), np.uint8)
    path = write(tmp_path / "a.npy", old, np.zeros(5, int), 2)
    here = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", KILLED, str(path), str(step), here]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        assert step == 4 and open_packed(path).array.all()
        return
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    try:
        found = open_packed(path)
    except DataError:
        return
    assert np.array_equal(found.array, old) and not found.labels.any()


def test_a_real_disk_that_is_full_leaves_nothing(tmp_path):
    """On a small tmpfs where we may mount one; the test above needs no such right."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk here")
    try:
        folder = formats.picture_folder(tmp_path / "in", formats.pictures(600, 8))
        with pytest.raises(DataError, match="No space left on device"):
            pack(folder, disk / "a.npy")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_array_of_the_users_own_is_never_replaced(tmp_path):
    own = tmp_path / "mine.npy"
    np.save(own, np.arange(12, dtype=np.int32).reshape(3, 4))
    before = own.read_bytes()
    with pytest.raises(DataError, match="the very file it is made from"):
        pack(own, own)
    with pytest.raises(DataError, match="stands in the way"):
        pack("digits", own)
    pack("digits", tmp_path / "d.npy")
    with pytest.raises(DataError, match="the name of an array's labels"):
        pack("digits", tmp_path / "d.labels.npy")
    assert own.read_bytes() == before
    assert open_packed(tmp_path / "d.npy").labels is not None


def test_packing_a_packed_array_again_keeps_its_name_and_labels(tmp_path):
    pack("digits", tmp_path / "a.npy", ReadOptions(split="test"))
    pack(tmp_path / "a.npy", tmp_path / "b.npy")
    first, second = open_packed(tmp_path / "a.npy"), open_packed(tmp_path / "b.npy")
    assert second.description.title == first.description.title == "digits test"
    assert second.shape == first.shape and (second.labels == first.labels).all()


def test_packing_a_packed_array_again_keeps_its_channels(tmp_path):
    x = formats.pictures(4, 5, channels=6)
    np.save(tmp_path / "x.npy", x)
    pack(tmp_path / "x.npy", tmp_path / "a.npy", ReadOptions(channels_last=True))
    again = pack(tmp_path / "a.npy", tmp_path / "b.npy").packed
    assert again.shape == open_packed(tmp_path / "a.npy").shape
    assert again.shape.axes == (5, 5) and np.array_equal(again.array, x)


def test_labels_of_any_size_come_back(tmp_path):
    x, y = np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 70_000, 5])
    np.savez(tmp_path / "a.npz", x=x, y=y)
    report = pack(tmp_path / "a.npz", tmp_path / "b.npy")
    assert report.packed.labels.tolist() == y.tolist()
    assert report.packed.shape.classes == 70_001


def test_labels_that_number_no_classes_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 2, 1), np.uint8), y=np.array([0, 10**12]))
    with pytest.raises(DataError, match="holds the label 1,000,000,000,000, so that"):
        pack(tmp_path / "a.npz", tmp_path / "b.npy")
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"values": "x"},
        {"values": 10**13},
        {"count": 0},
        {"format": 0},
        {"axes": 3},
        {"axes": []},
        {"axes": [8.0, 8]},
        {"source": 5},
        {"split": ["test"]},
        {"skipped": "none"},
        {"notes": [1]},
        {"labels": {"classes": "10", "names": None, "sha256": ""}},
        {"labels": {"classes": 10, "names": ["zero", "one"], "sha256": ""}},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path, change):
    pack("digits", tmp_path / "a.npy")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=r"a\.json: "):
        open_packed(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.labels.npy", "a.json"])
@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\0\x10\0{'descr': ("])
def test_a_damaged_file_of_the_three_is_refused(tmp_path, name, data):
    pack("digits", tmp_path / "a.npy")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as caught:
        open_packed(tmp_path / "a.npy")
    assert "\n" not in str(caught.value)
