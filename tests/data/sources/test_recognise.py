"""Which reader a source gets, and what every source is told or refused."""

import hashlib
import json
import os
import subprocess
import sys

import formats
import numpy as np
import pytest
from formats import packed, refused
from PIL import Image

from axial.data.packed import open_packed
from axial.data.packing import pack
from axial.data.sources.record import natural


@pytest.mark.parametrize("name", ["holiday.jpeg", "a.tif", "a.WEBP", "my/b.avif", "c.MP4", "d.NPY"])
def test_a_file_that_is_not_there_is_not_sought_elsewhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = refused(name, tmp_path, frames=1)
    assert message == f"{name}: no such file or folder; check the path"


def test_options_that_mean_nothing_to_a_source_are_refused(tmp_path):
    assert "digits: --size does not apply to this source (built in" in refused(
        "digits", tmp_path, size=4
    )
    formats.picture_folder(tmp_path / "in", formats.pictures(2, 8))
    assert "--channels-last does not apply" in refused(
        tmp_path / "in", tmp_path, channels_last=True
    )
    np.save(tmp_path / "a.npy", formats.pictures(2, 8))
    for options in ({"frames": 4}, {"key": "x"}):
        assert f"--{next(iter(options))} does not apply" in refused(
            tmp_path / "a.npy", tmp_path, **options
        )


def test_the_word_digits_goes_before_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(tmp_path / "digits/a.png")
    assert packed("digits", tmp_path).array.shape == (1497, 8, 8, 1)
    assert packed("./digits", tmp_path).array.shape == (1, 5, 6, 1)


def test_what_is_nothing_is_refused(tmp_path):
    assert "no such file or folder" in refused(tmp_path / "nowhere", tmp_path)
    assert "no such file or folder" in refused("nowhere.tar", tmp_path)
    assert "cannot be read (File name too long)" in refused("x" * 5000, tmp_path)
    (tmp_path / "noise").write_bytes(bytes(range(1, 256)))
    assert "noise: is not a format axial reads" in refused(tmp_path / "noise", tmp_path)
    formats.zipped(tmp_path / "a.zip", {"a.txt": b"hello"})
    assert "a.zip: is no zip of ImageNet batches" in refused(tmp_path / "a.zip", tmp_path)
    formats.tar(tmp_path / "a.tar", {"a.txt": b"hello"})
    assert "holds neither CIFAR-10 batches nor pictures" in refused(tmp_path / "a.tar", tmp_path)


def test_a_source_without_parts_has_no_split(tmp_path):
    x = formats.pictures(2, 4)
    classes = formats.picture_folder(tmp_path / "pets", x, ["cat/a.png", "dog/a.png"])
    formats.tar(tmp_path / "pets.tar", {"a.png": formats.png(x[0]), "b.png": formats.png(x[1])})
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "a.npz", x=x)
    np.savez(tmp_path / "b.npz", x_train=x, x_test=x)
    formats.idx(tmp_path / "odd-idx3-ubyte", x[..., 0])
    formats.video(tmp_path / "a.mkv", formats.pictures(2, 16))
    (tmp_path / "some").mkdir()
    example = formats.bair_example({"main": np.zeros((30, 64, 64, 3), np.uint8)})
    (tmp_path / "some" / "a.tfrecords").write_bytes(formats.tfrecord([example]))
    told = {
        classes: {},
        classes / "cat" / "a.png": {},
        tmp_path / "pets.tar": {},
        tmp_path / "a.npy": {},
        tmp_path / "a.npz": {},
        tmp_path / "b.npz": {"key": "x_train"},
        tmp_path / "odd-idx3-ubyte": {},
        tmp_path / "a.mkv": {"frames": 2},
        tmp_path / "some": {},
    }
    for source, options in told.items():
        assert packed(source, tmp_path, **options).description.split is None
        assert refused(source, tmp_path, split="test", **options) == (
            f"{source}: has no split 'test', for it is not divided into parts; leave --split out, "
            f"or give the folder or file of that part"
        )


def test_the_description_says_what_the_array_is(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2, 4), ["a/1.png", "b/1.png"])
    out = tmp_path / "out" / "packed.npy"
    pack(folder, out)
    found = json.loads(out.with_suffix(".json").read_text())
    assert found == {
        "format": 1,
        "shape": [2, 4, 4, 3],
        "source": "in",
        "version": None,
        "split": None,
        "axes": [4, 4],
        "channels": 3,
        "values": 256,
        "count": 2,
        "dtype": "uint8",
        "labels": found["labels"],
        "sha256": hashlib.sha256(open_packed(out).array.tobytes()).hexdigest(),
        "skipped": 0,
        "notes": [],
        "command": f"axial data {folder} --out {out}",
        "checksum": found["checksum"],
    }
    assert found["labels"]["names"] == ["a", "b"] and found["labels"]["classes"] == 2


def test_digits_that_are_no_decimals_are_sorted_as_text():
    assert sorted(["²", "a10", "a2"], key=natural) == ["a2", "a10", "²"]
    assert natural("1²2") == ("", 1, "²", 2, "")


def test_pipes_where_a_file_of_a_data_set_is_expected_are_not_waited_for(tmp_path):
    folders = {
        "mnist": ["train-images-idx3-ubyte"],
        "labels": ["train-labels-idx1-ubyte"],
        "cifar": ["data_batch_1.bin"],
        "old": ["train_32x32.tar"],
        "new": ["train_data_batch_1"],
        "bair": ["traj.tfrecords"],
        "arrow": ["data-00000-of-00001.arrow"],
        "parquet": ["train.parquet"],
        "videos": ["a.mkv"],
        "pictures": ["a.png"],
    }
    for folder, names in folders.items():
        (tmp_path / folder).mkdir()
        for name in names:
            os.mkfifo(tmp_path / folder / name)
    formats.idx(tmp_path / "labels" / "train-images-idx3-ubyte", formats.pictures(2, 4)[..., 0])
    state = {"_data_files": [{"filename": folders["arrow"][0]}]}
    (tmp_path / "arrow" / "state.json").write_text(json.dumps(state))
    code = f"""if True:
        from pathlib import Path
        from axial import AxialError, ReadOptions, pack
        for folder in {list(folders)}:
            try:
                out = Path("{tmp_path}", "out", folder + ".npy")
                packed = pack(Path("{tmp_path}", folder), out, workers=1).packed
                print(folder, "has labels" if packed.labels is not None else "has none")
            except AxialError as error:
                print(folder, error)"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == list(folders), ended.stderr
    assert "labels has none" in ended.stdout.splitlines()
