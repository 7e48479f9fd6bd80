"""The comparison of crops: rows are what they promise, run one by one, and are resumed."""

import io
import json
import sys

import formats
import numpy as np
import pytest
from conftest import load_script

import axial
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry
from axial.presets import PRESETS
from axial.shape import DataShape

photos = load_script("experiments/photos.py")
photo_rows = sys.modules["photo_rows"]


def command(*words):
    """Run the script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["photos.py", *map(str, words)])
        photos.main()


@pytest.mark.parametrize("name", photo_rows.ROWS)
def test_rows_have_equal_elements_a_step_and_fit_the_package(name, capsys):
    row, settings = photo_rows.ROWS[name], photo_rows.settings_of(name)
    assert settings["batch"] * settings["crop"] ** 2 == 16 * 64**2
    shape = DataShape(axes=(row.crop, row.crop), channels=3)
    recipe = PRESETS["photos"](shape)
    assert 2 * recipe.model.parameters() <= 30e6
    if row.init is not None:  # it fits the model that it starts from
        assert axial.load(row.init).config.axes == (row.crop, row.crop)
    command("rows")
    assert f"{name} " in capsys.readouterr().out


def test_rows_are_trained_measured_on_whole_pictures_and_resumed(tmp_path, capsys):
    x = [formats.pictures(1, 24, seed=i)[0][: 9 + i % 5, : 20 - i % 7] for i in range(24)]
    for part, some in (("train", x[:20]), ("valid", x[20:]), ("test", x[:1])):
        formats.picture_folder(tmp_path / "in" / part, some)
    run = ["run", tmp_path / "in", "--out", tmp_path / "out", "--tiny", "--limit", 3]
    command(*run, "--rows", "crop-32")
    first = (tmp_path / "out/results/crop-32-0.json").read_bytes()
    found = json.loads(first)
    assert found["crop"] == 4 and found["test"] is None and len(found["valid"]["bytes"]) == 3
    model = axial.load(tmp_path / "out/crop-32-0")
    codec, sizes, elements = Codec(model), [], 0
    for picture in (x[20], x[22], x[23]):  # evenly spread
        file = io.BytesIO()
        entry = Entry(name="0", grid=picture.shape[:-1])
        codec.write(file, codec.contents(), [(entry, [Example(picture)])])
        sizes.append(len(file.getvalue()))
        elements += picture.size
    assert np.abs(np.subtract(found["valid"]["bytes"], sizes)).max() <= 1  # for the name
    assert found["valid"]["bits_per_dim"] == 8 * sum(found["valid"]["bytes"]) / elements
    assert {"PNG", "WebP"} <= found["valid"]["codecs"].keys()
    capsys.readouterr()
    command(*run, "--rows", "crop-32", "crop-32-init", "--test", tmp_path / "in" / "test")
    again = json.loads((tmp_path / "out/results/crop-32-0.json").read_text())
    assert again["steps"] == found["steps"] and again["valid"]["bytes"] == found["valid"]["bytes"]
    assert len(again["test"]["bytes"]) == 1
    out = capsys.readouterr().out
    assert "| crop-32-init | smaller tiles, started from cifar10 | 0 |" in out
    command("table", tmp_path / "out/results", "--out", tmp_path / "table.md")
    told = (tmp_path / "table.md").read_text()
    assert "valid, 3 pictures: PNG" in told and "test, 1 pictures: PNG" in told
    command(*run, "--rows", "crop-32")
    assert capsys.readouterr().out.endswith(told), "nothing is left to do"
