"""A run can be killed at any moment, and resumes as if it had not been."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
from conftest import refused
from processes import Process, ranks, run_to_end
from small_runs import ALONE, COMMON, STEPS, assert_same_ending, losses, plan, step_of

import axial
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.data.packing import pack
from axial.training.loop import train
from axial.training.start import create

KILLED = """
import os, runpy, signal
from axial.training.trainer import Trainer

def dies(self, number, batch):
    if number == 12:  # of every rank; what was to be written is perhaps, perhaps not on the disk
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, number, batch)

step, Trainer.step = Trainer.step, dies
runpy.run_module("axial", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def killed(tmp_path):
    """The folder of a run of the digits that is killed in its thirteenth step."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)

    def start(*flags, count=1):
        flags = ["train", "digits", "--out", tmp_path / "run", *COMMON, *flags]
        job = ranks(count, *flags, script=script) if count > 1 else [Process(*flags, script=script)]
        assert [process.wait() for process in job] == [-signal.SIGKILL] * count
        assert step_of(tmp_path / "run") in (5, 10)
        return tmp_path / "run"

    return start


def test_a_killed_process_loses_nothing_but_time(killed, alone):
    folder = killed()
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_two_ranks_resume_bit_for_bit_with_dropout(tmp_path, killed):
    few = ["--steps", 20]
    run_to_end(2, "train", "digits", "--out", tmp_path / "whole", *COMMON, *few)
    cut = killed(*few, count=2)
    run_to_end(2, "train", "--resume", cut)
    assert_same_ending(cut, tmp_path / "whole", steps=20)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_find_what_one_finds_and_one_resumes_theirs(killed, exact, parallel):
    folder = killed("--dropout", 0, "--parallel", parallel, count=2)
    np.testing.assert_allclose(losses(folder), losses(exact)[: len(losses(folder))], 0, 1e-5)
    main(["train", "--resume", str(folder)])
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)


RANKS_AND_DISK = """
import runpy, time
import axial.training.loop
from axial.errors import CheckpointError

def slow(model, folder):
    time.sleep(1)
    save(model, folder)

def full(model, folder):
    raise CheckpointError(f"{folder}: is full")

save, axial.training.loop.save = axial.training.loop.save, DISK
runpy.run_module("axial", run_name="__main__", alter_sys=True)
"""


def with_disk(disk, folder, *flags):
    """Status and words of two ranks with shards, the only score and model at the last step."""
    script = folder.with_suffix(".py")
    script.write_text(RANKS_AND_DISK.replace("DISK", disk))
    few = [*COMMON, "--steps", 3, "--parallel", "fsdp", *flags]
    job = ranks(2, "train", "digits", "--out", folder, *few, script=script)
    return [(process.wait(), process.err) for process in job]


def test_ranks_agree_on_what_is_on_a_slow_disk(tmp_path):
    (status, said), (other, _) = with_disk("slow", tmp_path / "run")
    assert status == other == 0, said
    assert (tmp_path / "run/samples.png").exists()


def test_a_disk_that_is_full_on_rank_0_ends_all_with_one_line(tmp_path):
    (status, said), (other, quiet) = with_disk(
        "full", tmp_path / "run", "--validate-every", 1, "--save-every", 1
    )
    assert (status, other, quiet) == (1, 1, "") and said.count("is full") == 1
    assert said.endswith(f"`axial train --resume {tmp_path / 'run'}` resumes from there\n")


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_being_asked_to_end_saves_first(tmp_path, number, status):
    folder = tmp_path / "run"
    rare = ["--save-every", 100000, "--validate-every", 100000, "--steps", 100000]
    process = Process("train", "digits", "--out", folder, *COMMON, *rare)
    while not (folder / "log.jsonl").exists() or len(Run(folder).log()) < 3:
        time.sleep(0.01)
    process.kill(number)
    assert process.wait() == status
    assert f"`axial train --resume {folder}` resumes it" in process.out
    assert step_of(folder) == Run(folder).log()[-1]["step"] >= 3
    axial.load(folder)


def test_a_run_whose_reader_goes_away_trains_and_saves_to_its_end(tmp_path):
    folder, (mine, theirs) = tmp_path / "run", os.pipe()
    process = Process("train", "digits", "--out", folder, *COMMON, err=theirs)
    os.close(theirs)
    os.read(mine, 1)
    os.close(mine)
    assert process.wait() == 0
    assert step_of(folder) == STEPS and (folder / "samples.png").is_file()


def test_a_finished_run_that_lost_its_model_leaves_one_again(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    (folder / "model.safetensors").unlink()
    main(["train", "--resume", str(folder)])
    assert (folder / "model.safetensors").is_file()


def test_a_run_from_before_a_setting_came_resumes(tmp_path):
    folder = tmp_path / "run"
    create(plan(), folder, ALONE)
    about = json.loads((folder / "run.json").read_text())
    del about["training"]["cuda_graph"], about["checksum"]  # which came later still
    (folder / "run.json").write_text(json.dumps(about))
    main(["train", "--resume", str(folder)])
    assert "was started with cuda_graph True, not False" in refused(
        "train", "--resume", folder, "--no-cuda-graph"
    )


def test_a_resume_with_other_settings_or_other_data_is_refused(tmp_path, alone):
    wrong = {
        "was started with init None, not": ["--init", tmp_path],
        "was started with stack_frames False, not True": ["--stack-frames"],
        "was started with split None, not test": ["--split", "test"],
        "ends at steps 60, and may get more, but not fewer": ["--steps", 50],
        "ends after 60 steps; lengthen it by --steps": ["--max-minutes", 1],
        "was started with width 16, not 32": ["--width", 32],
        "was started with decoder_layers [2, 1], not [2, 2]": ["--decoder-layers", 2, 2],
        "was started with seed 0, not 1": ["--seed", 1],
    }
    for message, flags in wrong.items():
        assert message in refused("train", "--resume", alone, *flags)
    assert "with preset digits, not small" in refused("train", "small", "--resume", alone)
    other = tmp_path / "other.npy"
    pack("digits", other, axial.ReadOptions(split="test"))
    message = refused("train", "--resume", alone, "--data", other)
    assert "is not what" in message and "sha256" in message
    same = tmp_path / "same.npy"
    pack("digits", same)
    main(["train", "--resume", str(alone), "--data", str(same), "--width", "16"])


def test_elements_changed_under_their_description_are_refused(tmp_path):
    data, out = tmp_path / "data.npy", tmp_path / "run"
    pack("digits", data)
    main(["train", "digits", "--out", str(out), "--data", str(data), *COMMON])
    x = np.load(data)
    x[-1, 0, 0, 0] ^= 1
    np.save(data, x)
    for start in (["--resume", out], ["digits", "--out", tmp_path / "new", "--data", data]):
        assert "is not the array its description names" in refused("train", *start)
    assert not (tmp_path / "new").exists()


def test_a_run_resumes_with_the_data_it_was_started_with(tmp_path, monkeypatch):
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).integers(0, 3, (40, 4, 4)))
    monkeypatch.chdir(tmp_path)
    sizes = ["--width", "8", "--heads", "2", "--steps", "4", "--batch", "4"]
    main(["train", "small", "--data", "mine.npy", "--out", "run", *sizes])
    main(["train", "small", "--data", "mine.npy", "--resume", "run"])
    np.save(tmp_path / "other.npy", np.zeros((40, 4, 4), int))
    assert "is no packed array; give --data" in refused(
        "train", "--data", "other.npy", "--resume", "run"
    )


def test_the_seconds_of_a_resumed_run_are_added_up(tmp_path):
    run, packed = create(plan(log_every=1), tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    state, tensors = run.newest()
    shutil.rmtree(run.checkpoints()[-1])
    kept = {name: state[name] for name in ("best", "best_step", "skipped")}
    run.save(4, tensors, kept | {"seconds": 1000.0}, keep=1)
    train(run, packed, ALONE)
    assert 1000 < run.newest()[0]["seconds"] < 2000
    assert run.log()[-1]["step"] == 6 and run.newest()[0]["step"] == 6
