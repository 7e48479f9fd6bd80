"""Classes by name: which are drawn, what is written below them, what is refused."""

import json

import formats
import numpy as np
import pytest
import torch
from conftest import config, refused, tiny_model
from conftest import run as run_command
from packed_arrays import write
from PIL import Image

import axial
from axial.checkpoints.run_folder import write_run
from axial.cli.main import main

NAMES = ("cat", "dog", "Owl", "7")


def run(*arguments):
    run_command(*arguments, "--device", "cpu")


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A model that knows what its classes are called."""
    folder = tmp_path_factory.mktemp("pets") / "run"
    axial.save(tiny_model(config((3, 3), classes=4, values=9), dtype=torch.float32), folder)
    data = {"title": "pets", "file": "x.npy", "examples": 9, "reading": {}, "stack_frames": False}
    data |= {"sha256": "", "labels": "", "source": None, "names": NAMES}
    about = {"preset": "small", "family": "axial", "init": None, "data": data}
    about |= {"model": config((3, 3), classes=4, values=9).to_json()}
    write_run(folder, about | {"training": {"save_every": 1}})
    return folder


@pytest.mark.parametrize(
    ("words", "classes"),
    [
        (["dog"], [1, 1, 1, 1, 1]),
        (["DOG"], [1, 1, 1, 1, 1]),
        (["cat", "owl"], [0, 2, 0, 2, 0]),
        (["3", "1"], [3, 1, 3, 1, 3]),
        (["7"], [3, 3, 3, 3, 3]),  # a name goes before a number
        (["all"], [0, 1, 2, 3, 0]),
        ([], [0, 1, 2, 3, 0]),
    ],
)
def test_classes_are_drawn_by_name_by_number_or_all_in_turn(pets, tmp_path, words, classes):
    out = tmp_path / "a.npy"
    run("sample", pets, "--out", out, "--count", 5, *(["--label", *words] if words else []))
    model = axial.load(pets)
    assert np.array_equal(np.load(out), axial.draw(model, 5, label=torch.tensor(classes)).numpy())
    assert json.loads((tmp_path / "a.npy.json").read_text())["label"] == classes


@pytest.mark.parametrize(
    "order",
    [
        ["--label", "cat", "dog", "MODEL", "--count", 2, "--out", "OUT"],
        ["--count", 2, "--out", "OUT", "--label", "cat", "dog", "MODEL"],
        ["--label", "cat", "dog", "--out", "OUT", "MODEL", "--count", 2],
    ],
)
def test_classes_may_stand_before_the_model(pets, tmp_path, order):
    out = tmp_path / "a.npy"
    run("sample", *({"MODEL": pets, "OUT": out}.get(word, word) for word in order))
    assert json.loads((tmp_path / "a.npy.json").read_text())["label"] == [0, 1]


def test_classes_may_stand_between_the_model_and_what_it_completes(pets, tmp_path):
    np.save(tmp_path / "x.npy", formats.pictures(2, 3, 1) % 9)
    how = ["--channels-last", "--values", 9, "--keep", 1, "--out", tmp_path / "a.npy"]
    run("complete", pets, "--label", "dog", "cat", tmp_path / "x.npy", *how, "--examples", 1)
    assert json.loads((tmp_path / "a.npy.json").read_text())["label"] == [1, 0, 1, 0]


def test_a_model_that_is_not_there_is_not_taken_from_a_lone_class(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run("sample", "--label", "cat", "--out", tmp_path / "a.npy")
    assert "missing: checkpoint" in capsys.readouterr().err


def test_a_model_that_is_saved_again_keeps_its_names(pets, tmp_path, capsys):
    model = axial.load(pets)
    assert model.class_names == NAMES
    axial.save(model, tmp_path / "copy")
    run("sample", tmp_path / "copy", "--label", "owl", "--count", 1, "--out", tmp_path / "a.npy")
    assert json.loads((tmp_path / "a.npy.json").read_text())["label"] == [2]
    main(["info", str(tmp_path / "copy")])
    assert "classes     0 cat, 1 dog, 2 Owl, 3 7\n" in capsys.readouterr().out
    x = torch.zeros(1, 3, 3, 1, dtype=torch.long)
    assert axial.evaluate(axial.load(tmp_path / "copy"), x, label="dog").label == "dog"


def test_a_model_matches_classes_of_data_by_name(pets, tmp_path):
    x = formats.pictures(4, 3, 1) % 9
    model, labels = axial.load(pets), np.array([0, 1, 1, 0])
    other = write(tmp_path / "x.npy", x, labels, 2, names=("dog", "cat"), values=9)
    found = axial.evaluate(model, axial.open_packed(other))
    wanted = axial.bits(model, torch.from_numpy(x).long(), torch.tensor([1, 0, 0, 1]))
    torch.testing.assert_close(torch.from_numpy(found.bits), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("dgo", "--label is 'dgo', and there is no such class; did you mean dog?"),
        ("zebra", "use 'cat', 'dog', 'Owl', '7', or 0 to 3, or all"),
        ("4", "or 0 to 3, or all"),
        ("-1", "or 0 to 3, or all"),
    ],
)
def test_a_class_that_there_is_not_is_refused_before_the_weights_are_read(
    pets, tmp_path, monkeypatch, word, told
):
    monkeypatch.setattr("axial.sampling.sample.load", lambda *a, **k: pytest.fail("was read"))
    (tmp_path / "a.npy").touch()
    for command in (["sample", pets], ["complete", pets, "digits", "--keep", 1]):
        message = refused(*command, "--out", tmp_path / "b.npy", f"--label={word}")
        assert told in message
    assert "exists already" in refused("sample", pets, "--out", tmp_path / "a.npy")


def test_sheets_say_which_class_each_picture_is(pets, tmp_path):
    for words in (["cat"], ["dog"]):
        run("sample", pets, "--out", tmp_path / f"{words[0]}.png", "--count", 1, "--label", *words)
    cat, dog = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("cat", "dog"))
    assert not np.array_equal(cat[66:], dog[66:]) and (cat[66:] < 128).any()


def test_completing_says_which_classes_it_used(pets, tmp_path, capsys):
    x = formats.pictures(2, 3, 1) % 9
    x[0, 0, 0, 0] = 8
    np.savez(tmp_path / "bare.npz", x=x)
    how = ["--channels-last", "--values", 9, "--keep", 1, "--count", 3]
    for flags, told in (
        ([], "classes: the source has no labels, so each of the 4 in turn; --label names one"),
        (["--label", "dog"], "class: 'dog', as asked for"),
        (["--label", "dog", "owl"], "classes: 'dog', 'Owl', as asked for"),
    ):
        out = tmp_path / f"{len(flags)}.png"
        run("complete", pets, tmp_path / "bare.npz", "--out", out, *how, *flags)
        assert told in capsys.readouterr().err
        label = json.loads(out.with_name(f"{out.name}.json").read_text())["label"]
        assert label == {0: [0, 1, 2, 3, 0, 1], 2: [1] * 6, 3: [1, 2, 1, 2, 1, 2]}[len(flags)]


def test_info_lists_the_classes(pets, capsys):
    main(["info", str(pets)])
    assert "classes     0 cat, 1 dog, 2 Owl, 3 7" in capsys.readouterr().out
