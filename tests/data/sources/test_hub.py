"""Hugging Face data sets: pictures, arrays and labels from local folders, and names nobody has."""

import os
import subprocess
import sys

import datasets
import formats
import numpy as np
import pytest
from formats import packed, refused
from PIL import Image


def test_hugging_face_data_sets_are_read_from_a_local_folder(tmp_path):
    x, y = formats.pictures(6, 8), [0, 1, 2, 0, 1, 2]
    features = datasets.Features(
        {"picture": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    rows = {"picture": [Image.fromarray(one) for one in x], "label": y}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(tmp_path / "one")
    found = packed(tmp_path / "one", tmp_path)
    assert np.array_equal(found.array, x) and found.labels.tolist() == y
    assert found.description.labels.names == ("a", "b", "c")
    parts = datasets.DatasetDict({"train": whole, "test": whole.select([5])})
    parts.save_to_disk(tmp_path / "two")
    assert np.array_equal(packed(tmp_path / "two", tmp_path, split="test").array, x[5:])
    assert "has no split 'dev'" in refused(tmp_path / "two", tmp_path, split="dev")
    assert "has no column 'z'" in refused(tmp_path / "one", tmp_path, key="z")


@pytest.mark.parametrize("kind", ["string", "int64"])
def test_hugging_face_labels_and_their_names_are_of_one_column(tmp_path, kind):
    features = {"picture": datasets.Image(), "label": datasets.Value(kind)}
    features["fine_label"] = datasets.ClassLabel(names=["a", "b", "c"])
    rows = {"picture": [Image.fromarray(one) for one in formats.pictures(3, 8)]}
    rows |= {"label": ["0", "0", "1"] if kind == "string" else [0, 0, 1], "fine_label": [2, 1, 0]}
    found = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    found.save_to_disk(tmp_path / "one")
    found = packed(tmp_path / "one", tmp_path)
    assert found.description.labels.names == ("a", "b", "c")
    assert found.labels.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("labels", "told"), [(["p", "q"], "string"), ([0.5, 1.0], "float64"), ([True, False], None)]
)
def test_hugging_face_labels_that_are_no_integers_are_told_of(tmp_path, labels, told):
    x = formats.pictures(2, 4, channels=1)[..., 0]
    datasets.Dataset.from_dict({"grid": x.tolist(), "label": labels}).save_to_disk(tmp_path / "one")
    found = packed(tmp_path / "one", tmp_path)
    notes = [note for note in found.description.notes if note.startswith("labels")]
    if told is None:
        assert found.labels.tolist() == labels and not notes
    else:
        assert found.labels is None
        assert notes == [f"labels left out: column 'label' holds {told}, no integers"]


def test_hugging_face_columns_of_integers_are_arrays(tmp_path):
    x = np.random.default_rng(0).integers(0, 9, (5, 4, 6))
    x[0, 0, 0] = 8
    datasets.Dataset.from_dict({"grid": x.tolist()}).save_to_disk(tmp_path / "grids")
    found = packed(tmp_path / "grids", tmp_path)
    assert np.array_equal(found.array[..., 0], x) and found.shape.values == 9
    rows = [[[1, 2], [3, 4]], [[5, 6], [7, 300]]]
    datasets.Dataset.from_dict({"x": rows}).save_to_disk(tmp_path / "large")
    found = packed(tmp_path / "large", tmp_path, values=512)
    assert found.array.dtype == np.uint16 and np.array_equal(found.array[..., 0], rows)
    assert "row 1: 'x' holds 300, beyond 255" in refused(tmp_path / "large", tmp_path)


def test_a_name_that_nobody_has_is_told_before_and_after_asking(tmp_path):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-m", "axial", "data", "no-such-name", "--out", "a.npy"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    first, last = ended.stderr.splitlines()
    assert first == "no-such-name: no such file or folder; asking Hugging Face ..."
    assert "no-such-name: no such file or folder, nor a Hugging Face data set" in last
    assert ended.returncode == 1
