import io
import json
import os
import signal
import subprocess
import sys
import time

import datasets
import formats
import numpy as np
import pytest

from axial.data.decoding import _Pieces
from axial.data.packed import open_packed
from axial.data.packing import command, open_data, pack
from axial.data.sources.options import ReadOptions
from axial.data.sources.record import CHUNK, Record
from axial.data.statistics import survey
from axial.errors import DataError


def folder_of_pictures(tmp_path, count=200):
    """Enough pictures for several pieces, in two folders."""
    names = [f"{'ab'[i % 2]}/{i:04}.png" for i in range(count)]
    return formats.picture_folder(tmp_path / "in", formats.pictures(count, 8), names)


def test_two_runs_are_byte_identical_whatever_the_number_of_workers(tmp_path):
    folder = folder_of_pictures(tmp_path, 600)
    outs = [tmp_path / f"{name}.npy" for name in ("one", "again", "two", "three")]
    for out, workers in zip(outs, (1, 1, 2, 3), strict=True):
        pack(folder, out, workers=workers)
    for out in outs[1:]:
        for ending in (".npy", ".labels.npy"):
            first, other = (path.with_suffix(ending).read_bytes() for path in (outs[0], out))
            assert first == other
        first, other = (
            json.loads(path.with_suffix(".json").read_text()) for path in (outs[0], out)
        )
        assert {name for name in first if first[name] != other[name]} == {"command", "checksum"}
    wanted = formats.pictures(600, 8)
    assert np.array_equal(open_packed(outs[0]).array, np.concatenate([wanted[::2], wanted[1::2]]))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_bad_picture_is_named_whatever_the_number_of_workers(tmp_path, workers):
    folder = folder_of_pictures(tmp_path)
    for name in ("a/0150.png", "b/0011.png"):
        (folder / name).write_bytes((folder / name).read_bytes()[:90])
    with pytest.raises(DataError, match=r"a/0150\.png: damaged or cut short near byte 90"):
        pack(folder, tmp_path / "out" / "x.npy", workers=workers)
    assert not (tmp_path / "out").exists()
    report = pack(folder, tmp_path / "out" / "x.npy", ReadOptions(skip_bad=True), workers=workers)
    assert len(report.packed) == 198 and report.packed.description.skipped == 2
    assert "skipped     2 records\n" in str(report)
    assert "note        2 skipped, the first: a/0150.png: damaged or cut" in str(report)
    assert len(report.packed.labels) == 198


def test_what_skipped_counts_is_said_where_it_is_counted(tmp_path):
    """An array cut in the middle is one record, of however many examples."""
    np.save(tmp_path / "a.npy", formats.pictures(100, 8))
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(60 * 8 * 8 * 3)
    report = pack(tmp_path / "a.npy", tmp_path / "b.npy", ReadOptions(skip_bad=True))
    assert len(report.packed) == 59 and "skipped     1 record\n" in str(report)
    reason = "1 skipped: a.npy: damaged or cut short at byte "
    assert reason in str(report)
    said = "a skipped record is a picture, a clip or the rest of a file: one example or more"
    assert said in str(report)
    about = json.loads((tmp_path / "b.json").read_text())
    assert about["skipped"] == 1 and said in about["notes"]
    assert any(note.startswith(reason) for note in about["notes"])
    assert "skipped     1 record" in survey(report.packed)
    again = pack(tmp_path / "b.npy", tmp_path / "d.npy")
    assert again.packed.description.skipped == 1 and again.packed.description.notes.count(said) == 1
    assert "skipped     1 record\n" in str(again) and str(again).count(reason) == 1
    whole = pack(folder_of_pictures(tmp_path), tmp_path / "c.npy", ReadOptions(skip_bad=True))
    assert "skipped" not in str(whole)


def test_what_was_skipped_is_told_by_reason_the_most_frequent_first(tmp_path):
    """However many pictures there are; also in the description, and of those that just differ."""
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(12, 8))
    formats.picture_folder(folder, formats.pictures(2, 8, 1), ["0.png", "00005.png"])
    for i, length in ((3, 60), (4, 61), (9, 40)):
        path = folder / f"{i:05}.png"
        path.write_bytes(path.read_bytes()[:length])
    formats.picture_folder(folder, formats.pictures(3, 9, 1), ["0a.png", "x.png", "y.png"])
    (folder / "z.png").write_text("no picture")
    report = pack(folder, tmp_path / "a.npy", ReadOptions(skip_bad=True), workers=2)
    assert len(report.packed) == 2 and report.packed.description.skipped == 15
    *told, last = report.packed.description.notes
    assert [line.split(":")[0] for line in told] == [
        "8 skipped, the first",
        "3 skipped, the first",
        "3 skipped, the first",
        "1 skipped",
    ]
    differ, bad, other, none = [line.partition(": ")[2] for line in told]
    assert differ == (
        "00000.png: is in colour, but 0.png is grey; use --convert rgb or grey to make all alike"
    )
    assert other.startswith("0a.png: is 9 x 9 x 1, but 0.png is 8 x 8 x 1")
    assert bad.startswith("00003.png: damaged or cut short near byte 60")
    assert none == "z.png: is no picture that can be read; give another file"
    assert "--skip-bad" not in " ".join(told) and last.startswith("a skipped record is")
    assert all(f"note        {line}" in str(report) for line in told)
    assert all(f"note        {line}" in survey(report.packed) for line in told)


def test_a_picture_of_another_size_and_kind_needs_both_options(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(1, 8, 1))
    formats.picture_folder(folder, formats.pictures(1, 9), ["a.png"])
    message = formats.refused(folder, tmp_path)
    assert message.endswith(
        "a.png: is 9 x 9 x 3, but " + str(folder / "00000.png") + " is 8 x 8 x 1; use --convert "
        "rgb or grey, with --size or --patches to make all alike, or with --any-size to keep their "
        "sizes, or go on without it by --skip-bad"
    )


def test_what_differs_or_is_bad_can_be_skipped_and_the_message_says_so(tmp_path):
    """But for a picture alone, without which there is nothing."""
    skip = ", or go on without it by --skip-bad"
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2, 8))
    formats.picture_folder(folder, formats.pictures(1, 9), ["a.png"])
    assert formats.refused(folder, tmp_path).endswith(f"to keep them as they are{skip}")
    (folder / "00000.png").write_bytes(formats.png_16())
    told = "00000.png: has more than 8 bits a channel; --convert rgb or grey keeps the upper 8"
    assert formats.refused(folder, tmp_path).endswith(told + skip)
    assert formats.refused(folder / "00000.png", tmp_path).endswith(told)
    small = formats.refused(folder, tmp_path, size=9, patches=True, convert="rgb")
    assert small.endswith("smaller than a patch of 9; go on without it by --skip-bad")
    with pytest.raises(DataError) as caught:  # where the command has no such option
        pack(folder, tmp_path / "x.npy", skippable=False)
    assert caught.value.as_written.endswith(told)


def test_when_everything_is_bad_the_first_is_named(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2, 8))
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"no examples; the first of 2 bad ones: .*00000\.png"):
        pack(folder, tmp_path / "x.npy", ReadOptions(skip_bad=True))


def source_damaged_after(tmp_path, form, kept):
    """A source of 8 x 8 pictures of which only the first `kept` can be read, and these."""
    x = formats.pictures(kept + 3, 8)
    files = {f"{i:05}.png": formats.png(picture) for i, picture in enumerate(x)}
    files |= {name: data[:60] for name, data in list(files.items())[kept:]}
    if form == "folder":
        (tmp_path / "in").mkdir()
        for name, data in files.items():
            (tmp_path / "in" / name).write_bytes(data)
        return tmp_path / "in", x[:kept]
    if form == "tar":
        return formats.tar(tmp_path / "a.tar", files), x[:kept]
    row = 8 * 8 * 3
    more = CHUNK // row * row  # what is read at once is whole
    x = np.concatenate([x[:kept], np.zeros((more // row, 8, 8, 3), np.uint8)])
    np.save(tmp_path / "a.npy", x)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate((tmp_path / "a.npy").stat().st_size - 10)
    return tmp_path / "a.npy", x[:kept]


@pytest.mark.parametrize("form", ["folder", "tar", "npy"])
@pytest.mark.parametrize("workers", [1, 2])
def test_with_a_limit_nothing_beyond_it_is_decoded(tmp_path, form, workers):
    source, x = source_damaged_after(tmp_path, form, 5)
    found = pack(source, tmp_path / "b.npy", workers=workers, limit=5).packed
    assert np.array_equal(found.array, x) and found.description.beginning
    assert open_packed(found.path).description == found.description
    with pytest.raises(DataError, match="damaged or cut short"):
        pack(source, tmp_path / "c.npy", workers=workers, limit=6 if form != "npy" else None)


def test_a_limit_counts_what_can_be_read_and_is_no_beginning_if_that_is_all(tmp_path):
    folder = folder_of_pictures(tmp_path, 20)
    (folder / "a/0002.png").write_bytes(b"")
    skip = ReadOptions(skip_bad=True)
    wanted = formats.pictures(20, 8)
    order = [0, *range(4, 20, 2), *range(1, 20, 2)]  # a/ before b/, without the bad one
    for limit in (1, 2, 7, 19, 30):
        found = pack(folder, tmp_path / f"{limit}.npy", skip, workers=2, limit=limit).packed
        assert np.array_equal(found.array, wanted[order[:limit]])
        assert found.description.beginning == (limit < 19)
        assert found.description.labels.classes == 2 and len(found.labels) == len(found)
        assert found.description.skipped == (limit > 1)
    options = ReadOptions(skip_bad=True, size=4, patches=True)
    cut = pack(folder, tmp_path / "x.npy", options, limit=6).packed
    patches = wanted[[0, 4]].reshape(2, 2, 4, 2, 4, 3).swapaxes(2, 3).reshape(8, 4, 4, 3)
    assert np.array_equal(cut.array, patches[:6]) and cut.description.beginning
    assert cut.labels.tolist() == [0] * 6


def test_a_limit_leaves_the_number_of_classes_as_it_is(tmp_path):
    np.savez(tmp_path / "a.npz", x=formats.pictures(9, 4), y=np.arange(9) % 5)
    found = pack(tmp_path / "a.npz", tmp_path / "b.npy", limit=2).packed
    assert found.shape.classes == 5 and found.labels.tolist() == [0, 1]
    rows = {"image": list(formats.pictures(9, 4)), "label": [0, 1, 2] * 3}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "hub")
    found = pack(tmp_path / "hub", tmp_path / "c.npy", limit=2).packed
    assert found.shape.classes == 3 and len(found) == 9 and not found.description.beginning


def test_the_command_says_what_was_asked_and_makes_the_same_again(tmp_path):
    options = ReadOptions(size=4, patches=True, convert="grey", skip_bad=True)
    assert command("my pets", "a.npy", options, 3) == (
        "axial data 'my pets' --out a.npy --size 4 --patches --convert grey --skip-bad --workers 3"
    )
    folder = folder_of_pictures(tmp_path, 4)
    made = pack(folder, tmp_path / "a.npy", options).packed
    words = made.description.command.split()
    again = [sys.executable, "-m", *words[:4], str(tmp_path / "b.npy"), *words[5:]]
    subprocess.run(again, check=True, capture_output=True)
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def labelled(tmp_path, labels):
    np.savez(tmp_path / "pets.npz", x=formats.pictures(4), y=np.array(labels))
    return tmp_path / "pets.npz"


def test_classes_can_be_named(tmp_path):
    source = labelled(tmp_path, [1, 0, 1, 1])
    bare = pack(source, tmp_path / "bare.npy", workers=1)
    assert bare.packed.description.labels.names is None
    assert "2 classes without names; --class-names gives some" in str(bare)
    report = pack(source, tmp_path / "a.npy", workers=1, class_names=("cat", "dog", "owl"))
    labels = report.packed.description.labels
    assert (labels.classes, labels.names) == (3, ("cat", "dog", "owl"))
    assert "3 classes: cat, dog, owl" in str(report)
    assert report.packed.description.command.endswith("--class-names cat dog owl")
    again = pack(tmp_path / "a.npy", tmp_path / "b.npy", workers=1, class_names=("c", "d", "o"))
    assert again.packed.description.labels.names == ("c", "d", "o")


@pytest.mark.parametrize(
    ("labels", "names", "told"),
    [
        ([0, 2, 1, 1], ("cat", "dog"), "holds the label 2, but --class-names names 2 classes"),
        ([0, 1, 1, 1], ("cat", "cat"), "give names that all differ"),
        (None, ("cat", "dog"), "holds no labels, but --class-names names 2 classes; leave"),
    ],
)
def test_names_that_are_not_those_of_the_classes_are_refused(tmp_path, labels, names, told):
    source = formats.picture_folder(tmp_path / "pets", formats.pictures(2))
    if labels is not None:
        source = labelled(tmp_path, labels)
    with pytest.raises(DataError) as caught:
        pack(source, tmp_path / "a.npy", workers=1, class_names=names)
    assert told in caught.value.as_written and not (tmp_path / "a.npy").exists()


def test_any_source_can_be_opened_as_data(tmp_path):
    packed = open_data("digits", tmp_path, asked := ReadOptions(split="test"))
    assert len(packed) == 300
    again = open_data(packed.path, tmp_path / "never used", asked)
    assert np.array_equal(again.array, packed.array) and not (tmp_path / "never used").exists()


def test_what_a_packed_array_cannot_heed_is_refused(tmp_path):
    np.save(tmp_path / "plain.npy", np.zeros((2, 3, 4), np.uint8))
    pack(tmp_path / "plain.npy", tmp_path / "whole.npy", workers=1)
    part = pack("digits", tmp_path / "part.npy", ReadOptions(split="test"), workers=1).packed.path
    for name, told in (("size", 8), ("channels_last", True), ("frames", 4)):
        words = f"{name}= does not apply to a packed array"
        with pytest.raises(DataError, match=words):
            open_data(part, tmp_path, ReadOptions(**{name: told}))
    other = ReadOptions(split="train")
    for name, found in (("whole", "is not divided into parts"), ("part", "holds 'test'")):
        told = f"{name}.npy: has no split 'train', for it {found}; leave split= out, or give other"
        for opened in (open_data, pack):
            with pytest.raises(DataError, match=told):
                opened(tmp_path / f"{name}.npy", tmp_path / "again.npy", other)


def test_no_workers_are_refused(tmp_path):
    with pytest.raises(DataError, match="workers is 0"):
        pack("digits", tmp_path / "a.npy", workers=0)
    assert list(tmp_path.iterdir()) == []


PEAK = """
import resource, sys
from axial.data.packing import pack
pack(sys.argv[1], sys.argv[2], workers=1, overwrite=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path):
    data = formats.png(formats.pictures(1, 64)[0])
    peaks = []
    for count in (400, 4000):
        path = formats.tar(tmp_path / "a.tar", {f"{i:05}.png": data for i in range(count)})
        arguments = [sys.executable, "-c", PEAK, str(path), str(tmp_path / "a.npy")]
        ended = subprocess.run(arguments, check=True, capture_output=True, text=True)
        peaks.append(int(ended.stdout))
    # 3,600 more pictures are 44 MB of pixels and as much in PNG.
    assert peaks[1] - peaks[0] < 10_000


def test_a_bar_is_drawn_only_where_someone_looks(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    folder = folder_of_pictures(tmp_path)
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        pack(folder, tmp_path / f"{drawn}.npy", progress=True, workers=1)
        assert ("packing: 200 of 200" in stream.getvalue()) == drawn


def test_a_piece_is_short_where_pictures_are_large(tmp_path):
    """A piece is decoded at once: a few large pictures, or many small ones."""
    for side, longest in ((8, 64), (1024, 5)):
        record = Record("here", None)
        pieces = _Pieces(iter([record] * 1000))
        lengths = []
        for piece in pieces:
            lengths.append(len(piece))
            picture = np.zeros((1, side, side, 3), np.uint8)
            pieces.learn([record._replace(data=picture) for _ in piece])
        assert max(lengths) == longest and sum(lengths) == 1000


def processes_of(group):
    """How many processes of a group still run."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return sum(row[0] == str(group) and not row[1].startswith("Z") for row in rows)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def many_pictures(tmp_path_factory):
    data = formats.png(formats.pictures(1, 64)[0])
    path = tmp_path_factory.mktemp("many") / "a.tar"
    return formats.tar(path, {f"{i:05}.png": data for i in range(20_000)})


@pytest.fixture
def packing(many_pictures, tmp_path):
    """`axial data` of many pictures to out/a.npy, which has just started to write it."""
    command = f"-m axial data {many_pictures} --out {tmp_path}/out/a.npy --workers 2".split()
    run = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: [*tmp_path.glob("out/.*/a.npy")])
    yield run
    said = run.communicate(timeout=60)[1]
    wait_until(lambda: not processes_of(run.pid))
    assert not (tmp_path / "out" / "a.npy").exists()
    if run.returncode != -signal.SIGKILL:
        assert said == "" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_being_ended_leaves_nothing_and_no_workers(tmp_path, packing, how):
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("out/.*/a.npy")))
    packing.send_signal(how)
    assert packing.wait(60) in (143, -how)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_an_interrupt_while_the_workers_start_is_quiet_and_leaves_nothing(packing, seconds):
    """It goes to every process of the command, as from a terminal."""
    time.sleep(seconds)
    os.killpg(packing.pid, signal.SIGINT)
    assert packing.wait(60) == 130


def test_a_second_interrupt_ends_it_too(tmp_path, packing):
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("out/.*/a.npy")))
    for _ in range(2):
        os.killpg(packing.pid, signal.SIGINT)
        time.sleep(0.1)
    assert packing.wait(60) in (130, -signal.SIGINT)
