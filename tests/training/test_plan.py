"""How long a run is, what is said of it at its start, and what an interrupted one leaves."""

import json
import os
import signal
import time
from dataclasses import replace

import numpy as np
import torch
from conftest import refused
from small_runs import ALONE, COMMON, losses, plan, step_of

import axial
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.presets import PRESETS
from axial.training.loop import train
from axial.training.start import create, open_run
from axial.training.trainer import Trainer


def test_more_steps_lengthen_a_run_and_the_rest_is_as_if_it_had_been_planned(tmp_path, capsys):
    """Without a schedule that looks ahead, ten steps and ten more are twenty."""
    how = ["--schedule", "constant", "--ema", "0.9", "--dropout", "0", *COMMON]
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    main(["train", "digits", "--out", str(whole), *how, "--steps", "20"])
    main(["train", "digits", "--out", str(grown), *how, "--steps", "10"])
    capsys.readouterr()
    main(["train", "--resume", str(grown), "--steps", "20"])
    said = capsys.readouterr()
    assert "20 steps of 8 examples" in said.err and "lengthened at step 10" in said.err
    assert ", 20 steps" in said.out
    assert losses(whole) == losses(grown)
    (_, one), (_, other) = (Run(folder).newest() for folder in (whole, grown))
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    about = json.loads((grown / "run.json").read_text())
    assert about["training"]["steps"] == 10
    assert about["lengthened"] == [{"at": 10, "steps": 20}]
    main(["train", "--resume", str(grown)])  # as it is now
    said = capsys.readouterr()
    assert ", 20 steps" in said.out
    assert f"all steps are done; --resume {grown} --steps N adds some" in said.err
    assert "may get more, but not fewer" in refused("train", "--resume", grown, "--steps", 15)
    axial.train(out=grown, resume=True, steps=22)
    assert step_of(grown) == 22 and axial.load(grown) is not None


def test_minutes_are_lengthened_by_minutes(tmp_path, capsys):
    folder = tmp_path / "run"
    create(plan(max_minutes=0.01, steps=6), folder, ALONE)
    assert "ends after 0.01 minutes; lengthen it by --max-minutes" in refused(
        "train", "--resume", folder, "--steps", 9
    )
    main(["train", "--resume", str(folder)])
    before = step_of(folder)
    capsys.readouterr()
    main(["train", "--resume", str(folder)])
    said = capsys.readouterr().err
    assert "all steps are done; " in said and "--max-minutes N adds some" in said
    main(["train", "--resume", str(folder), "--max-minutes", "0.03"])
    assert step_of(folder) > before


def test_a_run_that_holds_nothing_out_says_how(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 5, (19, 3, 3), np.uint8))
    few = replace(plan(), name="small", preset=PRESETS["small"], data=str(tmp_path / "x.npy"))
    open_run(few, tmp_path / "run", ALONE)
    line = (
        "19 examples: 19 to train on, 0 held out, so nothing is scored: --validation N holds some"
    )
    assert line in capsys.readouterr().err


def test_epochs_are_passes_over_what_is_trained_on(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 5, (50, 3, 3), np.uint8))
    common = ["--data", str(tmp_path / "x.npy"), "--batch", "8", "--sample-every", "0"]
    common += ["--validation", "10", "--width", "8", "--heads", "1"]
    main(["train", "small", "--out", str(tmp_path / "a"), *common, "--epochs", "1.5"])
    said = capsys.readouterr()
    assert "50 examples: 40 to train on, 10 held out\n" in said.err
    assert "8 steps of 8 examples: 1.6 passes" in said.err and ", 8 steps" in said.out
    main(["train", "--resume", str(tmp_path / "a"), "--epochs", "2"])
    assert ", 10 steps" in capsys.readouterr().out
    message = refused(
        "train", "small", "--out", tmp_path / "b", *common, "--epochs", 1, "--steps", 2
    )
    assert "give --steps or --epochs, but not both" in message
    message = refused("train", "small", "--out", tmp_path / "b", *common, "--epochs", 0)
    assert "--epochs is 0.0: use a positive number" in message and not (tmp_path / "b").exists()
    x = rng.integers(0, 5, (50, 3, 3, 1))
    how = {"batch": 8, "validation": 10, "width": 8, "heads": 1, "sample_every": 0}
    assert axial.train("small", data=x, out=tmp_path / "c", epochs=1, **how).step == 5


def test_a_run_says_what_is_other_than_in_the_preset_and_no_more(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 5, (50, 3, 3), np.uint8))
    data = ["--data", str(tmp_path / "x.npy"), "--out"]
    how = ["--steps", "1", "--width", "8", "--heads", "1", "--sample-every", "0"]
    main(["train", "small", *data, str(tmp_path / "a"), *how])
    said = capsys.readouterr().err
    changed = next(line for line in said.splitlines() if line.startswith("changed"))
    assert changed.split(maxsplit=1)[1] == (
        "steps 1 (2000), sample_every 0 (250), width 8 (128), heads 1 (4)"
    )
    assert "learning_rate" not in said and f"all in {tmp_path / 'a' / 'run.json'}" in said
    main(["train", "--resume", str(tmp_path / "a")])
    assert changed in capsys.readouterr().err


def test_ctrl_c_leaves_samples_and_a_curve(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    run, packed = create(plan(steps=50, validation=20), folder, ALONE)
    step = Trainer.step

    def interrupted(self, number, batch):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, number, batch)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train(run, packed, ALONE)
    assert outcome.signal == signal.SIGINT and outcome.step == 4
    assert (folder / "samples.png").is_file() and (folder / "curve.png").is_file()
    assert "drawing samples, which Ctrl-C leaves out" in capsys.readouterr().err
    monkeypatch.undo()
    assert train(run, packed, ALONE).step == 50


def test_a_second_ctrl_c_leaves_the_samples_out(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run, packed = create(plan(steps=50), folder, ALONE)
    step = Trainer.step

    def interrupted(self, number, batch):
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, number, batch)

    def never(*args):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(Trainer, "step", interrupted)
    monkeypatch.setattr("axial.training.loop.draw_sheet", never)
    assert train(run, packed, ALONE).signal == signal.SIGINT
    assert not (folder / "samples.png").exists() and (folder / "curve.png").is_file()
