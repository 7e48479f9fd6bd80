"""Models that come with the package are found by name, wherever one is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import config, tiny_model

import axial
from axial import CheckpointError
from axial.checkpoints import shipped
from axial.cli.main import main

SIZES = config((3, 4), channels=2, values=5)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A model that comes with the package, in bfloat16; the folder one works in is empty."""
    model = tiny_model(SIZES).bfloat16()
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")
    axial.save(model, shipped.MODELS / "toy")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return model


def test_a_name_gives_the_weights_that_are_kept_in_float32(toy):
    found = axial.load("toy")
    assert found.config == toy.config
    kept = toy.state_dict()
    for name, value in found.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, kept[name].float())


def test_a_model_or_run_of_that_name_goes_first_and_nothing_else_does(toy, tmp_path):
    mine, theirs = tiny_model(SIZES, seed=1), axial.fingerprint(axial.load("toy"))
    here = tmp_path / "work" / "toy"
    here.touch()
    assert axial.fingerprint(axial.load("toy")) == theirs
    here.unlink()
    here.mkdir()  # of data, say
    assert axial.fingerprint(axial.load("toy")) == theirs
    for file in ("run.json", "config.json"):  # of a run, or of a model that lost its weights
        (here / file).touch()
        assert shipped.shipped_folder("toy") is None
        (here / file).unlink()
    axial.save(mine, "toy")
    assert axial.fingerprint(axial.load("toy")) == axial.fingerprint(mine)


def test_a_path_is_no_name(toy, tmp_path):
    for path in (Path("toy"), "./toy", "toy/", str(tmp_path / "work" / "toy")):
        with pytest.raises(CheckpointError, match="toy: no such checkpoint"):
            axial.load(path)
    with pytest.raises(SystemExit, match="toy: no such checkpoint"):
        main(["sample", "./toy", "--out", "drawn.png"])


def test_what_no_model_is_called_is_refused_with_those_that_there_are(toy, tmp_path):
    (shipped.MODELS / "cut").mkdir()  # without weights it is none
    for name in ("toi", "cut", "models/toy", "../models"):
        with pytest.raises(CheckpointError, match=r"no such checkpoint.*comes with axial \(toy\)"):
            axial.load(name)
    with pytest.raises(CheckpointError, match="one set of weights only"):
        axial.load("toy", weights="raw")


def test_every_command_takes_the_name(toy, tmp_path, capsys):
    main(["info", "toy"])
    assert f"fingerprint {axial.fingerprint(axial.load('toy'))}" in capsys.readouterr().out
    main(["sample", "toy", "--count", "3", "--out", "drawn.npy"])
    main(["evaluate", "toy", "--data", "drawn.npy"])
    assert "bits/dim" in capsys.readouterr().out
    main(["complete", "toy", "drawn.npy", "--keep-channels", "1", "--out", "more.npy"])
    assert (tmp_path / "work" / "more.npy").exists()
    np.savez("mine.npz", x=np.zeros((12, 3, 4, 2), np.uint8))
    train = ["train", "small", "--data", "mine.npz", "--init", "toy", "--out", "run"]
    main([*train, "--no-labels", "--batch", "2", "--steps", "2", "--sample-every", "0"])
    main(["train", "--resume", "run", "--init", "toy"])
    assert axial.load("run").config == SIZES


def test_a_preset_of_the_same_name_says_where_the_trained_one_is(toy, capsys):
    main(["info", "digits"])
    assert "comes with axial" not in capsys.readouterr().out
    axial.save(toy, shipped.MODELS / "digits")
    main(["info", "digits"])
    out = capsys.readouterr().out
    assert str(shipped.MODELS / "digits" / "README.md") in out
    preset, _, trained = out.partition("trained     ")
    assert "data        8 x 8" in preset and "data        3 x 4, 2 channels" in trained
    assert f"fingerprint {axial.fingerprint(axial.load('digits'))}" in out
    axial.save(toy, "digits")
    main(["info", "digits"])
    assert "here, in ./digits" in capsys.readouterr().out
