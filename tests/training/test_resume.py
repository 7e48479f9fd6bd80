"""A run can be killed at any moment, and resumes as if it had not been."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from small_runs import (
    ALONE,
    COMMON,
    STEPS,
    assert_same_ending,
    command,
    fails,
    losses,
    plan,
    run_to_end,
    step_of,
)

import axial
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.data.packing import pack
from axial.training.loop import train
from axial.training.start import create


def kill_in_the_middle(folder, *args, ranks=1, at=20):
    """Start a run, and kill every process of it once a checkpoint of step `at` is there."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command(*args, ranks=ranks), env=env, stdout=quiet, stderr=quiet, start_new_session=True
    ) as process:
        while not (folder / f"checkpoints/step-{at:08d}").exists():
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.002)
        for pid in [process.pid, *descendants(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
    before = len(Run(folder).log())
    time.sleep(0.3)
    assert len(Run(folder).log()) == before, "someone is still training"


def descendants(pid):
    """All processes that a process has started; torchrun's workers are in sessions of their own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def test_a_killed_process_loses_nothing_but_time(tmp_path, alone):
    folder = tmp_path / "run"
    kill_in_the_middle(folder, "train", "digits", "--out", folder, *COMMON)
    assert 20 <= step_of(folder) < STEPS
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_two_ranks_resume_bit_for_bit_with_dropout(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_to_end("train", "digits", "--out", whole, *COMMON, ranks=2)
    kill_in_the_middle(cut, "train", "digits", "--out", cut, *COMMON, ranks=2)
    assert 20 <= step_of(cut) < STEPS
    run_to_end("train", "--resume", cut, ranks=2)
    assert_same_ending(cut, whole)


def test_two_ranks_find_what_one_finds_and_one_resumes_theirs(tmp_path, exact):
    flags = ["--dropout", "0", *COMMON]
    folder = tmp_path / "run"
    kill_in_the_middle(folder, "train", "digits", "--out", folder, *flags, ranks=2)
    assert 20 <= step_of(folder) < STEPS
    np.testing.assert_allclose(losses(folder), losses(exact)[: len(losses(folder))], 0, 1e-5)
    main(["train", "--resume", str(folder)])
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)


def test_shards_find_the_same_and_resume_whole(tmp_path, exact):
    folder = tmp_path / "run"
    flags = ["--dropout", "0", *COMMON, "--parallel", "fsdp"]
    run_to_end("train", "digits", "--out", folder, *flags, ranks=2)
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)
    for old in Run(folder).checkpoints()[1:]:
        shutil.rmtree(old)
    (folder / "model.safetensors").unlink()
    main(["train", "--resume", str(folder)])
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)


RANKS_AND_DISK = """
import os, sys, time
import axial.training.loop
from axial.cli.main import main
from axial.errors import CheckpointError

def slow(model, folder):
    time.sleep(1)
    save(model, folder)

def full(model, folder):
    raise CheckpointError(f"{folder}: is full")

save, axial.training.loop.save = axial.training.loop.save, DISK
main(sys.argv[1:])
os._exit(0)  # as `python -m axial` does
"""


def with_disk(disk, folder, *flags):
    """Train on two ranks in shards, the only score and model at the last step."""
    script = folder.with_suffix(".py")
    script.write_text(RANKS_AND_DISK.replace("DISK", disk))
    start = ["timeout", "300", *command(ranks=2)[:-2], str(script)]
    args = ["train", "digits", "--out", folder, *COMMON, "--steps", 3, "--parallel", "fsdp", *flags]
    return subprocess.run(
        [*start, *map(str, args)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ranks_agree_on_what_is_on_a_slow_disk(tmp_path):
    done = with_disk("slow", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/samples.png").exists()


def test_a_disk_that_is_full_on_rank_0_ends_all_with_one_line(tmp_path):
    done = with_disk("full", tmp_path / "run", "--validate-every", 1, "--save-every", 1)
    assert done.returncode == 1
    assert "[rank" not in done.stderr and done.stderr.count("is full") == 1
    assert f"`axial train --resume {tmp_path / 'run'}` resumes from there" in done.stderr


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_being_asked_to_end_saves_first(tmp_path, number, status):
    folder = tmp_path / "run"
    rare = ["--save-every", "100000", "--validate-every", "100000", "--steps", "100000"]
    args = ["train", "digits", "--out", folder, *COMMON, *rare]
    process = subprocess.Popen(
        command(*args), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    while not (folder / "log.jsonl").exists() or len(Run(folder).log()) < 3:
        time.sleep(0.01)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == status
    assert f"`axial train --resume {folder}` resumes it" in out
    assert step_of(folder) == Run(folder).log()[-1]["step"] >= 3
    axial.load(folder)


def test_a_run_whose_reader_goes_away_trains_and_saves_to_its_end(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        command("train", "digits", "--out", folder, *COMMON),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        process.stderr.readline()
        process.stderr.close()
    assert step_of(folder) == STEPS and (folder / "samples.png").is_file()
    assert process.returncode == 0


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
    del about["training"]["cuda_graph"]
    (folder / "run.json").write_text(json.dumps(about))
    main(["train", "--resume", str(folder)])
    assert "was started with cuda_graph True, not False" in fails(
        "train", "--resume", folder, "--no-cuda-graph"
    )


def test_a_resume_with_other_settings_or_other_data_is_refused(tmp_path, alone):
    wrong = {
        "was started with init None, not": ["--init", tmp_path],
        "was started with stack_frames False, not True": ["--stack-frames"],
        "was started with split None, not test": ["--split", "test"],
        "was started with steps 60, not 70": ["--steps", 70],
        "was started with width 16, not 32": ["--width", 32],
        "was started with decoder_layers [2, 1], not [2, 2]": ["--decoder-layers", 2, 2],
        "was started with seed 0, not 1": ["--seed", 1],
    }
    for message, flags in wrong.items():
        assert message in fails("train", "--resume", alone, *flags)
    assert "with preset digits, not small" in fails("train", "small", "--resume", alone)
    other = tmp_path / "other.npy"
    pack("digits", other, axial.ReadOptions(split="test"))
    message = fails("train", "--resume", alone, "--data", other)
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
        assert "is not the array its description names" in fails("train", *start)
    assert not (tmp_path / "new").exists()


def test_a_run_resumes_with_the_data_it_was_started_with(tmp_path, monkeypatch):
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).integers(0, 3, (40, 4, 4)))
    monkeypatch.chdir(tmp_path)
    sizes = ["--width", "8", "--heads", "2", "--steps", "4", "--batch", "4"]
    main(["train", "small", "--data", "mine.npy", "--out", "run", *sizes])
    main(["train", "small", "--data", "mine.npy", "--resume", "run"])
    np.save(tmp_path / "other.npy", np.zeros((40, 4, 4), int))
    assert "is no packed array; give --data" in fails(
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
