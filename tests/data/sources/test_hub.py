"""Hugging Face data sets: pictures, arrays and labels from local folders, and names nobody has."""

import json
import os
import pickle
import socket
import subprocess
import sys
import urllib.request

import datasets
import formats
import huggingface_hub
import numpy as np
import pyarrow.parquet
import pytest
from formats import packed, refused
from PIL import Image

from axial.data.sources import hub
from axial.data.sources.options import ReadOptions
from axial.data.sources.picture_decoder import Decoder
from axial.errors import DataError

(X,) = formats.pictures(1)


class Evil:
    """What makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


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
    ("labels", "told"), [(["p", "q"], "string"), ([0.5, 1.0], "double"), ([True, False], None)]
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
    assert "row 1: holds 300, beyond 255" in refused(tmp_path / "large", tmp_path)


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


@pytest.mark.parametrize(
    "proxies, address, offline",
    [({}, False, True), ({}, True, False), ({"https": "http://proxy"}, False, False)],
)
def test_where_the_hub_has_no_address_nobody_waits_for_it(
    proxies, address, offline, tmp_path, monkeypatch
):
    settings, seen = (datasets.config, huggingface_hub.constants), []

    def look_up(*given):
        if not address:
            raise socket.gaierror(-2, "Name or service not known")

    def ask(what):
        seen.append([each.HF_HUB_OFFLINE for each in settings])
        raise ConnectionError("no answer")

    for each in settings:
        monkeypatch.setattr(each, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "getproxies", lambda: proxies)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(datasets, "load_dataset_builder", ask)
    assert "(ConnectionError: no answer)" in refused("no-such-name", tmp_path)
    assert seen == [[offline] * 2] and not any(each.HF_HUB_OFFLINE for each in settings)


def test_tables_in_a_folder_are_read_by_split_and_nothing_beside_them(tmp_path):
    x = formats.pictures(5, 8)
    folder, outside = tmp_path / "in", tmp_path / "secret.parquet"
    (folder / "data").mkdir(parents=True)
    for name, part in (("train-00000", x[:2]), ("train-00001", x[2:4]), ("test-00000", x[4:])):
        rows = {"image": [Image.fromarray(one) for one in part]}
        found = datasets.Dataset.from_dict(rows)
        found.to_parquet(folder / "data" / f"{name}-of-00002.parquet")
    found.to_parquet(outside)
    told = "---\nconfigs:\n- config_name: default\n  data_files: ../secret.parquet\n---\n"
    (folder / "README.md").write_text(told)
    assert "'../secret.parquet', which is not inside of it" in refused(folder, tmp_path)
    (folder / "README.md").unlink()
    train = packed(folder, tmp_path)
    assert np.array_equal(train.array, x[:4]) and train.description.split == "train"
    assert np.array_equal(packed(folder, tmp_path, split="test").array, x[4:])
    assert "has no split 'dev'" in refused(folder, tmp_path, split="dev")


def tables(folder, *names):
    """A table of one picture under each name; the pictures."""
    x = formats.pictures(len(names), 8)
    for name, one in zip(names, x, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"image": [Image.fromarray(one)]}).to_parquet(folder / name)
    return x


def test_splits_have_the_names_that_the_library_knows(tmp_path):
    x = tables(tmp_path / "in", "training.parquet", "x-eval.parquet", "val.parquet", "z.parquet")
    for number, split in enumerate(("train", "test", "validation")):
        found = packed(tmp_path / "in", tmp_path, split=split)
        assert np.array_equal(found.array[0], x[number]) and found.description.split == split
    assert "1 table whose name tells no split left out" in found.description.notes
    x = tables(tmp_path / "all", "a.parquet", "b.parquet")
    found = packed(tmp_path / "all", tmp_path)
    assert np.array_equal(found.array, x) and found.description.split == "train"
    assert "2 tables whose names tell no split taken together as train" in found.description.notes


def test_a_readme_says_which_tables_are_which_split(tmp_path):
    folder = tmp_path / "in"
    x = tables(folder, "part1.parquet", "part2.parquet")
    files = "  - split: train\n    path: part1.parquet\n  - split: test\n    path: [part2.*]\n"
    head = "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n"
    (folder / "README.md").write_text(f"{head}{files}---\n# words\n")
    for number, split in enumerate(("train", "test")):
        assert np.array_equal(packed(folder, tmp_path, split=split).array[0], x[number])
    for odd, told in (
        (f"{head}{files}- config_name: b\n  data_files: x\n---\n", "lists 2 data sets"),
        (f"{head}  - split: train\n    path: none.parquet\n---\n", "holds no such table"),
        (f"{head}  - split: train\n---\n", "README.md"),
        (f"{head}  {{[\n---\n", "README.md"),
    ):
        (folder / "README.md").write_text(odd)
        assert told in refused(folder, tmp_path)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_picture_named_by_its_path_lies_inside_the_folder(tmp_path, form):
    x = formats.pictures(2, 8)
    formats.picture_folder(tmp_path, x, ["in/mine.png", "secret.png"])
    for name in ("mine.png", "../secret.png", str(tmp_path / "secret.png"), "/dev/zero", "."):
        kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        table = pyarrow.table({"image": pyarrow.array([{"bytes": None, "path": name}], kind)})
        if form == "parquet":
            pyarrow.parquet.write_table(table, tmp_path / "in" / "a.parquet")
        else:
            with pyarrow.ipc.new_stream(tmp_path / "in" / "a.arrow", table.schema) as file:
                file.write(table)
        if name == "mine.png":
            assert np.array_equal(packed(tmp_path / "in", tmp_path).array, x[:1])
        else:
            assert f"row 0: names {name!r}, which is no" in refused(tmp_path / "in", tmp_path)


def test_what_save_to_disk_lists_lies_inside_the_folder(tmp_path):
    found = datasets.Dataset.from_dict({"grid": formats.pictures(2, 4)[..., 0].tolist()})
    found.save_to_disk(tmp_path / "secret")
    (tmp_path / "in").mkdir()
    for name in ("../secret/data-00000-of-00001.arrow", "/dev/zero", 7):
        state = {"_data_files": [{"filename": name}]}
        (tmp_path / "in" / "state.json").write_text(json.dumps(state))
        assert f"in: names './{name}', which is no" in refused(tmp_path / "in", tmp_path)
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["../secret"]}')
    assert "in: names '../secret/state.json', which is not inside" in refused(
        tmp_path / "in", tmp_path
    )
    for text in ('{"splits": []}', '{"splits": "a"}', '{"splits": [', "[" * 100_000, "3"):
        (tmp_path / "in" / "dataset_dict.json").write_text(text)
        assert str(tmp_path / "in") in refused(tmp_path / "in", tmp_path)


def test_what_lies_in_tars_never_reaches_an_unpickler(tmp_path):
    mark = tmp_path / "it ran"
    evil = pickle.dumps(Evil(str(mark)))
    (tmp_path / "in").mkdir()
    formats.tar(tmp_path / "in" / "train.tar", {"0.pth": evil, "0.png": formats.png(X)})
    (tmp_path / "in" / "dataset_info.json").write_text("{}")
    refused(tmp_path / "in", tmp_path)
    with pytest.raises(DataError, match="is kept as webdataset"):
        hub._remote(str(tmp_path / "in"))
    assert not mark.exists()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_damaged_tables_are_one_line(tmp_path, form):
    rows = {"image": [Image.fromarray(x) for x in formats.pictures(20, 8)]}
    found = datasets.Dataset.from_dict(rows | {"label": [0, 1] * 10})
    path = tmp_path / "in" / f"data-00000-of-00001.{form}"  # as save_to_disk calls it
    found.to_parquet(path) if form == "parquet" else found.save_to_disk(path.parent)
    whole = path.read_bytes()
    for damaged in (whole[:100], whole[: len(whole) // 2], whole[:-10], bytes(500), b""):
        path.write_bytes(damaged)
        assert str(path.parent) in refused(path.parent, tmp_path)
    for place in range(0, len(whole), len(whole) // 30):  # some of it only names of the pictures
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            packed(path.parent, tmp_path, skip_bad=True)
        except DataError as error:
            assert str(error).isprintable()


@pytest.mark.parametrize("names", [[1, 2], [None, "b"], "ab", {"a": 0}, None])
def test_names_of_classes_that_are_no_text_are_one_line(tmp_path, names):
    said = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pyarrow.table({"grid": [[[1, 2]], [[0, 1]]], "label": [0, 1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(said)})
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "in" / "a.parquet")
    assert "the names of 'label' are no text" in refused(tmp_path / "in", tmp_path)


def test_what_the_library_fetched_is_read_as_tables_are(tmp_path):
    x = formats.pictures(3, 8)
    rows = {"image": [Image.fromarray(one) for one in x], "label": [2, 0, 1]}
    table = hub._fetched(datasets.Dataset.from_dict(rows), tmp_path)
    found = list(hub._records("name", table, "image", "label", None))
    assert [record.label for record in found] == [2, 0, 1]
    assert np.array_equal([Decoder(ReadOptions())(record)[0] for record in found], x)


def test_tables_that_unpack_to_much_are_refused_before_they_are_unpacked(tmp_path):
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    table = pyarrow.table({"image": pyarrow.array([{"bytes": bytes(1 << 26), "path": None}], kind)})
    (tmp_path / "arrow").mkdir()
    (tmp_path / "parquet").mkdir()
    many = pyarrow.concat_tables([table] * 5)
    how = {"use_dictionary": False, "compression": "zstd"}
    pyarrow.parquet.write_table(many, tmp_path / "parquet" / "a.parquet", **how)
    assert "as no pictures do" in refused(tmp_path / "parquet", tmp_path)
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    path = tmp_path / "arrow" / "a.arrow"
    with pyarrow.ipc.new_stream(path, table.schema, options=options) as file:
        file.write(table)
    assert "packed batches" in refused(tmp_path / "arrow", tmp_path)
