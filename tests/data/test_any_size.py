"""Pictures of different sizes in one packed file: written whole, read back, checked, described."""

import json
import shutil

import formats
import numpy as np
import pytest
from conftest import refused, run
from packed_arrays import write, write_pictures
from PIL import Image

import axial.data.packed
from axial.data.description import Description
from axial.data.packed import hash_integers, open_packed
from axial.data.packing import pack
from axial.data.sources.options import ReadOptions
from axial.data.statistics import duplicates, survey
from axial.errors import DataError

SIZES = [(5, 9), (12, 4), (4, 4), (7, 7)]


def some_pictures(count=4, channels=3):
    rng = np.random.default_rng(0)
    shape = [(*SIZES[i % 4], channels) for i in range(count)]
    return [rng.integers(0, 256, one, np.uint8) for one in shape]


def folder_of(tmp_path, x, names=None):
    return formats.picture_folder(tmp_path / "in", x, names)


def refusal(path):
    with pytest.raises(DataError) as caught:
        open_packed(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_of_any_sizes_is_packed_with_labels_in_one_order(tmp_path, workers):
    x = some_pictures(90)
    folder = folder_of(tmp_path, x, [f"{'ab'[i > 40]}/{i:04}.png" for i in range(90)])
    report = pack(folder, tmp_path / "x.npy", ReadOptions(any_size=True), workers=workers)
    found = report.packed
    assert all(np.array_equal(found.example(i), x[i]) for i in range(90))
    assert found.labels.tolist() == [0] * 41 + [1] * 49 and len(found) == 90
    assert found.sizes.tolist() == [list(one.shape[:2]) for one in x]
    assert "90 of 4 x 4 to 7 x 7 (median 12 x 4), 3 channels, 256 values" in str(report)
    found.check()
    assert np.load(tmp_path / "x.npy").shape == (found.sizes.prod(1).sum(), 3)
    about = json.loads((tmp_path / "x.json").read_text())
    assert about["format"] == 2, "older versions ask for an upgrade"
    assert about["command"].endswith("--any-size --workers 1" if workers == 1 else "--workers 2")


def test_files_of_one_size_are_described_as_before(tmp_path):
    write(tmp_path / "a.npy", formats.pictures(2, 4))
    about = json.loads((tmp_path / "a.json").read_text())
    assert about["format"] == 1 and "sizes" not in about


def test_pictures_that_differ_are_refused_with_the_ways_out(tmp_path):
    folder = folder_of(tmp_path, some_pictures())
    message = refused("data", folder, "--out", tmp_path / "x.npy")
    assert "--size or --patches to make all alike, or --any-size to keep them as they" in message
    grey = formats.png(np.zeros((6, 3, 1), np.uint8))
    (folder / "00001.png").write_bytes(grey)
    message = refused("data", folder, "--any-size", "--out", tmp_path / "x.npy")
    assert "00001.png: is grey, but" in message and "use --convert rgb or grey" in message
    run("data", folder, "--any-size", "--skip-bad", "--out", tmp_path / "x.npy")
    assert open_packed(tmp_path / "x.npy").description.skipped == 1
    message = refused("data", folder, "--any-size", "--size", "4", "--out", tmp_path / "y.npy")
    assert "--any-size keeps pictures as they are, and --size makes them alike" in message
    message = refused("data", tmp_path / "x.npy", "--out", tmp_path / "y.npy")
    assert "packed already, in sizes that differ; give the source it was made from" in message
    message = refused("data", "digits", "--any-size", "--out", tmp_path / "y.npy")
    assert "--any-size does not apply to this source" in message


def test_sizes_that_are_damaged_cut_short_or_anothers_are_refused(tmp_path):
    path = write_pictures(tmp_path / "a.npy", some_pictures())
    sizes = tmp_path / "a.sizes.npy"
    whole = sizes.read_bytes()
    for data in (b"", whole[:-1], b"PK\x03\x04", whole[:70]):
        sizes.write_bytes(data)
        assert "a.sizes.npy: sizes cannot be read" in refusal(path)
    swapped = np.array(SIZES)[:, ::-1]  # the same pixels in other shapes
    for other in (swapped, SIZES[:3], [*SIZES[:3], (49, 1)], [(-5, -9), *SIZES[1:]], [1.5, 2.0]):
        np.save(sizes, other)
        assert "a.sizes.npy: does not belong to a.npy; pack again" in refusal(path)
    sizes.unlink()
    assert "a.sizes.npy: sizes cannot be read" in refusal(path)
    sizes.write_bytes(whole)
    np.save(path, np.load(path)[:-1])
    assert "holds uint8 (157, 3), but its description says uint8 (158, 3)" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": None},
        {"sizes": {"pixels": 158}},
        {"sizes": {"pixels": "158", "sha256": ""}},
        {"sizes": {"pixels": 159, "sha256": ""}},
        {"axes": [2, 79]},
        {"count": 5},
    ],
    ids=str,
)
def test_a_description_of_sizes_that_makes_no_sense_is_refused(tmp_path, change):
    path = write_pictures(tmp_path / "a.npy", some_pictures())
    about = json.loads((tmp_path / "a.json").read_text())
    del about["checksum"]
    (tmp_path / "a.json").write_text(json.dumps(about | change))
    refusal(path)


def test_sizes_whose_sum_is_too_large_for_an_integer_are_refused(tmp_path, monkeypatch):
    """2 ** 64 pixels more than there are would come round to as many."""
    monkeypatch.setattr(axial.data.packed, "LONGEST", 1 << 31)
    path = write_pictures(tmp_path / "a.npy", some_pictures())
    sizes = np.array([*SIZES, *[(1 << 31, 1 << 31)] * 4])
    np.save(tmp_path / "a.sizes.npy", sizes)
    about = json.loads((tmp_path / "a.json").read_text())
    del about["checksum"]
    about |= {"count": 8, "sizes": {"pixels": 158, "sha256": hash_integers(sizes)}}
    (tmp_path / "a.json").write_text(json.dumps(about))
    assert "a.sizes.npy: does not belong to a.npy; pack again" in refusal(path)


def test_other_elements_are_noticed(tmp_path):
    path = write_pictures(tmp_path / "a.npy", some_pictures())
    x = np.load(path)
    np.save(path, x[::-1].copy())
    with pytest.raises(DataError, match="is not the array its description names"):
        open_packed(path).check()


def test_sizes_come_and_go_with_their_array_and_others_stay(tmp_path):
    path = write_pictures(tmp_path / "a.npy", some_pictures(), np.arange(4), 4)
    names = {"a.npy", "a.json", "a.labels.npy", "a.sizes.npy"}
    assert {file.name for file in tmp_path.iterdir()} == names
    write(path, formats.pictures(3, 4))
    assert {file.name for file in tmp_path.iterdir()} == {"a.npy", "a.json"}
    np.save(tmp_path / "a.sizes.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"a\.sizes\.npy: stands in the way"):
        write_pictures(path, some_pictures())
    with pytest.raises(DataError, match="is the name of an array's sizes"):
        write_pictures(tmp_path / "b.sizes.npy", some_pictures())
    assert np.array_equal(np.load(tmp_path / "a.sizes.npy"), np.zeros(3))


def test_info_tells_sizes_pixels_codecs_and_duplicates(tmp_path, capsys):
    x = some_pictures()
    first = open_packed(write_pictures(tmp_path / "a.npy", [*x, x[0]]))
    turned = [x[1].reshape(4, 12, 3), x[2]]  # the same pixels are not the same picture
    other = open_packed(write_pictures(tmp_path / "b.npy", turned))
    assert duplicates(first, other) == (1, 1)
    run("info", tmp_path / "a.npy", "--duplicates", tmp_path / "b.npy")
    told = capsys.readouterr().out
    assert "pictures    5 of 4 x 4 to 7 x 7 (median 5 x 9), 3 channels" in told
    assert "pixels      203" in told and "PNG" in told and "a file each, all 5" in told
    assert "mean        " in survey(other)
    ordinary = open_packed(write(tmp_path / "c.npy", formats.pictures(2, 4)))
    with pytest.raises(DataError, match=r"those of .* of different sizes; compare arrays of one"):
        duplicates(first, ordinary)


def test_a_preview_shows_whole_pictures(tmp_path):
    folder = folder_of(tmp_path, some_pictures())
    out = ["--out", tmp_path / "x.npy", "--preview", tmp_path / "x.png"]
    run("data", folder, "--any-size", *out)
    shown = np.asarray(Image.open(tmp_path / "x.png"))
    for picture in some_pictures():
        assert (shown == picture[0, 0]).all(-1).any()


def test_any_flipped_bit_of_a_description_of_sizes_is_noticed(tmp_path):
    write_pictures(tmp_path / "a.npy", some_pictures())
    about = Description.from_json(tmp_path / "a.json")
    whole = (tmp_path / "a.json").read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a.json").write_bytes(data)
        try:
            found = Description.from_json(tmp_path / "a.json")
        except DataError:
            continue
        assert found == about, f"bit {bit}"


def test_a_writer_that_died_half_way_leaves_the_old_or_the_new(tmp_path):
    """Its array is in place and the rest pending: sizes are those of the array that is there."""
    x = some_pictures()
    path = write(tmp_path / "a.npy", formats.pictures(2, 4))
    new = write_pictures(tmp_path / "new" / "a.npy", x)
    for name in ("a.sizes.npy", "a.json"):
        shutil.copy(new.with_name(name), tmp_path / f"{name}.pending")
    assert open_packed(path).sizes is None
    shutil.copy(new, path)
    found = open_packed(path)
    assert found.sizes.tolist() == [list(one.shape[:2]) for one in x]
    assert np.array_equal(found.example(3), x[3])


def test_what_a_writer_that_died_had_yet_to_remove_stands_in_no_ones_way(tmp_path):
    x = formats.pictures(2, 4)
    path = write_pictures(tmp_path / "a.npy", some_pictures(), np.arange(4), 4)
    new = write(tmp_path / "new" / "a.npy", x)
    shutil.copy(new.with_name("a.json"), tmp_path / "a.json.pending")
    shutil.copy(new, path)
    write(path, x)
    found = {file.name for file in tmp_path.iterdir() if file.is_file()}
    assert found == {"a.npy", "a.json"}
