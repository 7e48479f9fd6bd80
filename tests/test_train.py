"""A run learns, can be killed at any moment, and goes on as if it had not been."""

import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from conftest import both_ranks

import axial
from axial import CheckpointError, ConfigError, DataError, TrainConfig
from axial.batches import split
from axial.begin import Plan, _create, begin, open_again
from axial.cli import main
from axial.config import Sizes
from axial.errors import TrainingError
from axial.evaluation import evaluate
from axial.packing import pack
from axial.presets import PRESETS
from axial.ranks import Ranks
from axial.readings import Readings
from axial.runs import Run
from axial.train import draw_some, train
from axial.trainer import SliceBits

ALONE = Ranks(rank=0, count=1, device=torch.device("cpu"))
TINY = ["--width", "16", "--heads", "2", "--decoder-layers", "2", "1"]
STEPS = 60
COMMON = [*TINY, "--steps", str(STEPS), "--batch", "8", "--warmup", "5", "--log-every", "1"]
COMMON += ["--save-every", "5", "--validate-every", "20", "--sample-every", "0"]


def command(*args, ranks=1):
    """How a shell would start it; every process with one thread, as in this one."""
    launch = ["-m", "axial"]
    if ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        launch += ["-m", "axial"]
    return [sys.executable, *launch, *map(str, args)]


def run_to_end(*args, ranks=1):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(*args, ranks=ranks), env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def step_of(folder):
    return int(Run(folder).checkpoints()[-1].name.removeprefix("step-"))


def losses(folder):
    return [record["loss"] for record in Run(folder).log() if "loss" in record]


def assert_same_ending(one, other):
    """Tensors, losses, scores and exported weights, to the last bit."""
    (state, tensors), (state2, tensors2) = (Run(folder).newest() for folder in (one, other))
    assert tensors.keys() == tensors2.keys() and state["step"] == state2["step"] == STEPS
    for name, tensor in tensors.items():
        assert torch.equal(tensor, tensors2[name]), name
    assert losses(one) == losses(other) and len(losses(one)) == STEPS
    assert state["best"] == state2["best"]
    assert axial.fingerprint(axial.load(one)) == axial.fingerprint(axial.load(other))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Sixty steps without interruption, dropout on."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    main(["train", "digits", "--out", str(folder), *COMMON])
    return folder


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Sixty steps without dropout: what any number of ranks must find."""
    folder = tmp_path_factory.mktemp("exact") / "run"
    main(["train", "digits", "--out", str(folder), "--dropout", "0", *COMMON])
    return folder


def test_a_run_leaves_a_model_samples_a_curve_and_a_log(alone, capsys):
    assert losses(alone)[0] == pytest.approx(math.log2(17), abs=0.02)
    assert losses(alone)[-1] < 3.2
    for name in ("samples.png", "curve.png"):
        assert (alone / name).stat().st_size > 1000
    scored = [record for record in Run(alone).log() if "validation" in record]
    assert [record["step"] for record in scored] == [20, 40, 60]
    best = min(scored, key=lambda record: record["validation"])
    packed = axial.open_packed(alone / "data/data.npy")
    _, held_out = split(1497, 74, "spread")
    x = torch.from_numpy(packed.rows(held_out).astype(np.int64))
    label = torch.from_numpy(packed.labels[held_out])
    found = axial.bits_per_dim(axial.load(alone), x, label).mean()
    assert float(found) == pytest.approx(best["validation"], abs=1e-6)
    assert len(Run(alone).checkpoints()) == 2


def test_a_killed_process_loses_nothing_but_time(tmp_path, alone):
    folder = tmp_path / "run"
    kill_in_the_middle(folder, "train", "digits", "--out", folder, *COMMON)
    assert 20 <= step_of(folder) < STEPS
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_two_ranks_go_on_bit_for_bit_with_dropout(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_to_end("train", "digits", "--out", whole, *COMMON, ranks=2)
    kill_in_the_middle(cut, "train", "digits", "--out", cut, *COMMON, ranks=2)
    assert 20 <= step_of(cut) < STEPS
    run_to_end("train", "--resume", cut, ranks=2)
    assert_same_ending(cut, whole)


def test_two_ranks_find_what_one_finds_and_one_goes_on_with_theirs(tmp_path, exact):
    flags = ["--dropout", "0", *COMMON]
    folder = tmp_path / "run"
    kill_in_the_middle(folder, "train", "digits", "--out", folder, *flags, ranks=2)
    assert 20 <= step_of(folder) < STEPS
    np.testing.assert_allclose(losses(folder), losses(exact)[: len(losses(folder))], 0, 1e-5)
    main(["train", "--resume", str(folder)])
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)


def test_shards_find_the_same_and_go_on_whole(tmp_path, exact):
    folder = tmp_path / "run"
    flags = ["--dropout", "0", *COMMON, "--parallel", "fsdp"]
    run_to_end("train", "digits", "--out", folder, *flags, ranks=2)
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)
    for old in Run(folder).checkpoints()[1:]:
        shutil.rmtree(old)
    (folder / "model.safetensors").unlink()
    main(["train", "--resume", str(folder)])
    np.testing.assert_allclose(losses(folder), losses(exact), rtol=0, atol=1e-5)


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
    assert f"`axial train --resume {folder}` goes on" in out
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


def test_a_pickle_in_a_run_folder_is_never_opened(tmp_path, alone):
    class Poison:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'opened'}",))

    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    last = Run(folder).checkpoints()[-1]
    for place in (folder, last, folder / "checkpoints"):
        for name in ("optimizer.pt", "state.pkl", ".metadata", "pytorch_model.bin", "rng.pickle"):
            (place / name).write_bytes(pickle.dumps(Poison()))
    shutil.rmtree(last)
    main(["train", "--resume", str(folder)])
    axial.load(folder, weights="raw")
    (Run(folder).checkpoints()[-1] / "training.safetensors").write_bytes(pickle.dumps(Poison()))
    for use in (lambda: axial.load(folder, weights="raw"), lambda: Run(folder).newest()):
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            use()
    assert not (tmp_path / "opened").exists()
    pickle.loads(pickle.dumps(Poison()))
    assert (tmp_path / "opened").exists()  # the poison works, had anyone taken it


def fails(*args):
    with pytest.raises(SystemExit) as caught:
        main([str(arg) for arg in args])
    message = str(caught.value.code)
    assert message.startswith("axial: ") and "\n" not in message
    return message


def test_a_poisoned_checkpoint_is_refused_and_the_one_before_it_named(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    tensors = Run(folder).checkpoints()[-1] / "training.safetensors"
    raw = bytearray(tensors.read_bytes())
    raw[-5] ^= 64
    tensors.write_bytes(raw)
    message = fails("train", "--resume", folder)
    assert "step-00000060: was changed since it was written" in message
    assert f"remove {tensors.parent} to go on" in message
    tensors.write_bytes(raw[:1000])
    assert "damaged or cut short" in fails("train", "--resume", folder)
    tensors.unlink()
    assert "damaged or cut short" in fails("train", "--resume", folder)
    (tensors.parent / "state.json").write_text("[]")
    assert "holds no JSON object" in fails("train", "--resume", folder)
    shutil.rmtree(tensors.parent)
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_an_edited_state_and_a_strangers_checkpoint_are_refused(tmp_path, alone, exact):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    last = Run(folder).checkpoints()[-1]
    text = (last / "state.json").read_text()
    for old, new in (('"step": 60', '"step": 30'), ('"skipped": 0', '"skipped": -1')):
        (last / "state.json").write_text(text.replace(old, new))
        assert "was changed since it was written" in fails("train", "--resume", folder)
    (last / "state.json").write_text(text.replace('"format": 1', '"format": 99'))
    assert "format 99 is not one this version knows" in fails("train", "--resume", folder)
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(exact / "checkpoints", folder / "checkpoints")
    assert "belongs to another run" in fails("train", "--resume", folder)


def test_a_folder_moved_away_while_training_is_not_made_anew(tmp_path):
    run, packed = begin(plan(save_every=1, steps=200), tmp_path / "run", ALONE)

    class Moving(type(packed)):
        def rows(self, *args, **named):
            if run.folder.exists() and run.checkpoints():
                run.folder.rename(tmp_path / "moved")
            return super().rows(*args, **named)

    packed.__class__ = Moving
    with pytest.raises(CheckpointError, match="was moved or removed while it was trained"):
        train(run, packed, ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    assert Run(tmp_path / "moved").newest() is not None


def test_of_two_that_start_in_one_folder_one_wins_and_the_other_harms_nothing(tmp_path):
    out = tmp_path / "run"
    one = subprocess.Popen(
        command("train", "digits", "--out", out, *COMMON),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    two = subprocess.Popen(
        command("train", "digits", "--out", out, *COMMON, "--seed", "7"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    said = [process.communicate()[1] for process in (one, two)]
    status = [one.returncode, two.returncode]
    assert sorted(status) == [0, 1]
    loser = said[status.index(1)].splitlines()[-1]
    assert "holds a run already" in loser or "another process is starting a run here" in loser
    assert Run(out).about["training"]["seed"] == (0 if one.returncode == 0 else 7)
    assert Run(out).newest()[0]["step"] == STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_finished_run_that_lost_its_model_leaves_one_again(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    (folder / "model.safetensors").unlink()
    main(["train", "--resume", str(folder)])
    assert (folder / "model.safetensors").is_file()


def test_a_model_that_gives_no_numbers_has_no_score(tmp_path, alone):
    model = axial.load(alone)
    torch.nn.init.constant_(model.to_logits.bias, math.nan)
    axial.save(model, tmp_path / "bad")
    message = fails("evaluate", tmp_path / "bad", "--data", alone / "data/data.npy")
    assert "gives probabilities that are no numbers" in message


def test_a_run_that_does_not_fit_memory_says_so(tmp_path):
    run, packed = begin(plan(), tmp_path / "run", ALONE)

    class Full(type(packed)):
        def rows(self, *args, **named):
            raise MemoryError

    packed.__class__ = Full
    with pytest.raises(TrainingError, match="does not fit memory; start anew with a smaller"):
        train(run, packed, ALONE)


def test_a_run_from_before_a_setting_came_goes_on(tmp_path):
    folder = tmp_path / "run"
    begin(plan(), folder, ALONE)
    about = json.loads((folder / "run.json").read_text())
    del about["training"]["record"]
    (folder / "run.json").write_text(json.dumps(about))
    main(["train", "--resume", str(folder)])
    assert "was started with record True, not False" in fails(
        "train", "--resume", folder, "--no-record"
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


def test_an_out_folder_in_use_is_left_alone(tmp_path, alone):
    before = sorted(path.name for path in alone.rglob("*"))
    assert "holds a run already; `axial train --resume" in fails(
        "train", "digits", "--out", alone, *COMMON
    )
    assert sorted(path.name for path in alone.rglob("*")) == before
    (tmp_path / "mine.txt").write_text("keep")
    assert "not empty" in fails("train", "digits", "--out", tmp_path, *COMMON)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "/: is there already and not empty" in fails("train", "digits", "--out", "/", *COMMON)
    with Run(alone).locked():
        assert "another process is training here" in fails("train", "--resume", alone)


def test_two_ranks_tell_once_that_another_process_trains_in_the_folder(alone):
    with Run(alone).locked():
        ended = both_ranks("train", "--resume", alone, "--device", "cpu")
    (status, _, said), (other, _, nothing) = ended
    assert status == 1 and other == 1 and nothing == "", nothing
    assert said.splitlines()[-1].startswith(f"axial: {alone}: another process is training here")
    assert "Traceback" not in said


def test_a_run_may_begin_in_an_empty_folder_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    run, packed = begin(plan(), Path(), ALONE)
    assert train(run, packed, ALONE).step == run.about["training"]["steps"]
    assert tmp_path.stat().st_ino == inode, "a mount point could not be replaced"
    assert not list(tmp_path.glob(".*-*"))
    axial.load(tmp_path)


@pytest.mark.parametrize("there", [False, True])
def test_what_a_start_that_was_killed_left_goes_with_the_next_and_a_living_one_is_let_be(
    tmp_path, there
):
    picture = formats.png(formats.pictures(1, 64)[0])
    many = formats.tar(tmp_path / "a.tar", {f"{i:05}.png": picture for i in range(20_000)})
    out = tmp_path / "runs" / "run"
    out.parent.mkdir()
    if there:
        out.mkdir()
    process = subprocess.Popen(
        command("train", "small", "--data", many, "--out", out, *COMMON),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    packed = lambda: [path for path in out.parent.rglob("*.npy*") if path.stat().st_size]  # noqa: E731
    while not packed():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        kept = packed()
        with pytest.raises(ConfigError, match="another process is starting a run here"):
            begin(plan(), out, ALONE)
        assert kept and packed() == kept
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    begin(plan(), out, ALONE)
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    assert {path.name for path in out.iterdir()} - {".lock"} == {"data", "run.json"}


def test_an_empty_folder_stays_empty_where_a_run_cannot_begin(tmp_path):
    assert "give --data" in fails("train", "cifar10", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_trained_is_said_in_one_line_and_leaves_nothing(tmp_path, capsys):
    out = tmp_path / "run"
    lines = {
        "did you mean digits?": ["digit", "--out", out],
        "needs --out": ["digits"],
        "name a preset": ["--out", out],
        "give --data": ["cifar10", "--out", out],
        "no such file": ["small", "--out", out, "--data", tmp_path / "nothing"],
        "cannot be read (File name too long)": [
            "small",
            "--out",
            out,
            "--data",
            tmp_path / ("x" * 300 + ".npy"),
        ],
        "does not split into 5 heads": ["digits", "--out", out, "--heads", 5],
        "steps is 0": ["digits", "--out", out, "--steps", 0],
        "leave some to train on": ["digits", "--out", out, "--validation", 2000],
        "bair stacks 16 frames": ["bair", "--out", out, "--data", "digits"],
        "holds no training run": ["--resume", tmp_path / "nothing"],
        "no such checkpoint": ["digits", "--out", out, "--init", tmp_path / "nothing"],
        "cannot be used here": ["digits", "--out", out, "--device", "cuda:7"],
        "cannot be made": ["digits", "--out", "/proc/run"],
        "File name too long": ["digits", "--out", tmp_path / ("x" * 300)],
        "use cpu or cuda": ["digits", "--out", out, "--device", "meta"],
    }
    for message, args in lines.items():
        assert message in fails("train", *args), args
        assert not out.exists(), args
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--out", str(out), "--widht", "3"])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown == "axial train: '--widht' is not known; did you mean --width?\n"


@pytest.mark.parametrize("args", [["digits", "--out"], ["--out"]])
def test_the_preset_decides_wherever_it_stands(tmp_path, args):
    flags = ["--validation", "0", "--width", "8", "--heads", "2", "--steps", "1"]
    main(["train", *args, str(tmp_path / "run"), *([] if "digits" in args else ["digits"]), *flags])
    about = Run(tmp_path / "run").about
    assert about["training"]["batch"] == PRESETS["digits"]().training.batch
    main(["train", f"--resume={tmp_path / 'run'}"])
    message = fails("train", "--out", tmp_path / "x", "digitz")
    assert "did you mean digits?" in message


def test_a_single_held_out_example_has_no_error_bar(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 3, (25, 3, 4)))
    sizes = ["--width", "8", "--heads", "2", "--steps", "2"]
    run = tmp_path / "run"
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(run), *sizes])
    shown = capsys.readouterr().err
    assert "(1 of 25 images, x), held out, the best" in shown


def test_held_out_examples_are_spread_or_the_last():
    kept, chosen = split(100, 4, "spread")
    assert chosen.tolist() == [12, 37, 62, 87]
    assert sorted([*kept, *chosen]) == list(range(100))
    kept, chosen = split(100, 4, "last")
    assert chosen.tolist() == [96, 97, 98, 99] and kept.tolist() == list(range(96))
    assert [len(part) for part in split(5, 0, "spread")] == [5, 0]


def test_a_batch_that_ranks_cannot_share_is_refused_before_a_folder_is_made(tmp_path):
    two = Ranks(rank=0, count=2, device=torch.device("cpu"))
    odd = replace(plan(), training=replace(plan().training, batch=7))
    with pytest.raises(DataError, match="batch 7 does not split over 2 ranks"):
        _create(odd, tmp_path / "run", two)
    assert not (tmp_path / "run").exists()


def test_damaged_run_files_are_one_line(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"loss": 3}\n[]\nnothing\n')
    main(["train", "--resume", str(folder)])
    about = json.loads((folder / "run.json").read_text())
    harms = [{"training": None}, {"model": []}, {"data": {}}, {"data": None}, {"init": 3}]
    harms += [{"data": about["data"] | {"reading": 3}}, {"data": about["data"] | {"title": None}}]
    for harm in harms:
        (folder / "run.json").write_text(json.dumps(about | harm))
        assert "run.json" in fails("train", "--resume", folder)


def test_more_ranks_than_pictures_draw_them_all(alone):
    packed = axial.open_packed(alone / "data/data.npy")
    model = axial.load(alone)
    whole = draw_some(model, packed, np.arange(3), ALONE)

    class Alone(Ranks):
        def sum(self, x):
            return x

    shares = [
        draw_some(model, packed, np.arange(3), Alone(rank=r, count=50, device=ALONE.device))
        for r in range(50)
    ]
    assert torch.equal(sum(shares), whole)


def test_fine_tuning_starts_from_the_weights_it_is_given(tmp_path, alone):
    out = tmp_path / "tuned"
    flags = ["--steps", "1", "--batch", "8", "--warmup", "1000", "--dropout", "0"]
    main(["train", "digits", "--out", str(out), "--init", str(alone), *flags])
    tuned, before = axial.load(out), axial.load(alone)
    assert tuned.config == replace(before.config, dropout=0.0)
    for a, b in zip(tuned.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    assert axial.fingerprint(tuned) != axial.fingerprint(before)
    message = fails("train", "digits", "--out", tmp_path / "x", "--init", alone, "--no-labels")
    assert "is conditioned on labels" in message
    message = fails("train", "digits", "--out", tmp_path / "x", "--init", alone, "--width", 8)
    assert "--width" in message and not (tmp_path / "x").exists()


def test_imported_weights_can_be_tuned(tmp_path):
    checkpoint = Path(__file__).parent / "parity" / "tf_checkpoint"
    ours = tmp_path / "ours"
    main(["import", str(checkpoint), "--heads", "4", "--out", str(ours)])
    config = axial.load(ours).config
    shape = (12, *config.axes, config.channels)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, config.values, shape))
    data = tmp_path / "packed.npy"
    pack(tmp_path / "x.npy", data, axial.ReadOptions(channels_last=True, values=config.values))
    out = tmp_path / "tuned"
    flags = ["--steps", "3", "--batch", "2", "--sample-every", "0"]
    main(["train", "small", "--data", str(data), "--init", str(ours), "--out", str(out), *flags])
    assert axial.load(out).config == config


def test_data_that_a_model_to_tune_lacks_values_for_is_refused(tmp_path, alone):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (30, 8, 8)))
    data = tmp_path / "packed.npy"
    pack(tmp_path / "x.npy", data, axial.ReadOptions(values=256))
    message = fails("train", "small", "--data", data, "--init", alone, "--out", tmp_path / "o")
    assert "256 values, but the model takes 8 x 8, 1 channel, 17 values" in message


def plan(**settings):
    few = {"steps": 6, "batch": 8, "save_every": 2}
    training = replace(PRESETS["digits"]().training, **(few | settings))
    sizes = Sizes(width=16, heads=2, decoder_layers=(2, 1))
    return Plan(preset="digits", data=None, training=training, sizes=sizes)


def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path):
    import resource

    run, _ = begin(plan(), tmp_path / "run", ALONE)
    tensors = {"a": torch.arange(1000.0)}
    run.save(1, tensors, {}, keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="step-00000001 is whole, `axial train --resume"):
            run.save(2, {"a": torch.arange(10_000.0)}, {}, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-00000001"]
    state, found = run.newest()
    assert state["step"] == 1 and torch.equal(found["a"], tensors["a"])


def test_a_disk_that_fills_while_training_ends_the_run_in_one_line(tmp_path):
    import resource

    folder = tmp_path / "run"
    run, packed = begin(plan(), folder, ALONE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot be written"):
            train(run, packed, ALONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.checkpoints() == []
    assert train(run, open_again(run), ALONE).step == 6


@contextmanager
def not_finite_at(*steps):
    """Make the loss of these steps, counted from 1, not a number."""
    count = 0

    def spoil(module, args, out):
        nonlocal count
        if not isinstance(module, SliceBits):
            return None
        count += 1
        return out * math.nan if count in steps else None

    hook = torch.nn.modules.module.register_module_forward_hook(spoil)
    try:
        yield
    finally:
        hook.remove()


def test_a_bad_step_out_of_nowhere_is_skipped_and_counted(tmp_path):
    run, packed = begin(plan(), tmp_path / "run", ALONE)
    with not_finite_at(3, 5):
        outcome = train(run, packed, ALONE)
    assert outcome.step == 6 and outcome.skipped == 2
    assert "2 skipped" in outcome.line(run.folder)
    assert [record["step"] for record in run.log() if record.get("skipped")] == [3, 5]
    assert all(torch.isfinite(p).all() for p in axial.load(run.folder).parameters())


@pytest.mark.parametrize("log_every", [1, 6])
def test_a_loss_that_stays_not_finite_ends_the_run_and_leaves_a_good_checkpoint(
    tmp_path, log_every
):
    run, packed = begin(plan(log_every=log_every), tmp_path / "run", ALONE)
    with (
        not_finite_at(4, 5, 6),
        pytest.raises(TrainingError, match="not finite at step 5, 2 in a row"),
    ):
        train(run, packed, ALONE)
    state, tensors = run.newest()
    assert state["step"] == 4
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert train(run, packed, ALONE).step == 6


def test_the_best_weights_stay_when_later_ones_are_worse_and_after_going_on(tmp_path):
    wild = dict(learning_rate=0.3, schedule="constant", warmup=0, validate_every=1, ema=0.0)
    run, packed = begin(plan(bad_steps=0, **wild), tmp_path / "run", ALONE)
    with not_finite_at(6), pytest.raises(TrainingError):
        train(run, packed, ALONE)
    outcome = train(run, packed, ALONE)
    scored = {r["step"]: r["validation"] for r in run.log() if "validation" in r}
    best = min(scored, key=scored.get)
    assert list(scored) == [1, 2, 3, 4, 5, 6] and best < 5
    assert (outcome.best_step, outcome.best) == (best, scored[best])
    _, held_out = split(len(packed), plan().training.held_out(len(packed)), "spread")
    found = evaluate(axial.load(run.folder), packed, subset=held_out).bits_per_dim
    assert found == pytest.approx(scored[best], abs=1e-9)


def test_held_out_examples_are_never_trained_on(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 16, (9, 4, 4)))
    sizes = ["--width", "16", "--heads", "2", "--steps", "80", "--learning-rate", "0.02"]
    sizes += ["--batch", "2", "--validation", "8"]
    run = tmp_path / "run"
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(run), *sizes])
    assert losses(run)[-1] < 0.2  # the one example that is left is learned by heart
    assert Run(run).log()[-2]["validation"] > 4  # and tells nothing of the others


def test_readings_are_means_over_finite_steps():
    settings = TrainConfig(steps=9, batch=1, learning_rate=1.0, bad_steps=1)
    readings = Readings(10, settings, ALONE)
    for loss, norm in ((1.0, 4.0), (9.0, math.nan), (3.0, 8.0)):
        readings.add(torch.tensor([loss, norm]))
    found = readings.read()
    assert (found.loss, found.norm, found.skipped) == (2.0, 6.0, (12,))
    readings.add(torch.tensor([1.0, math.inf]))
    assert math.isnan(readings.read().loss)
    readings.add(torch.tensor([1.0, math.inf]))
    with pytest.raises(TrainingError, match="step 15, 2 in a row"):
        readings.read()


def test_users_own_arrays_train_without_a_word_of_configuration(tmp_path):
    x = np.random.default_rng(0).integers(0, 3, (40, 3, 4, 5))
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "run"
    sizes = ["--width", "8", "--heads", "2", "--steps", "4", "--batch", "4"]
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(out), *sizes])
    found = axial.load(out).config
    assert (found.axes, found.channels, found.values) == ((3, 4, 5), 1, 3)


def test_a_run_goes_on_with_the_data_it_was_started_with(tmp_path, monkeypatch):
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).integers(0, 3, (40, 4, 4)))
    monkeypatch.chdir(tmp_path)
    sizes = ["--width", "8", "--heads", "2", "--steps", "4", "--batch", "4"]
    main(["train", "small", "--data", "mine.npy", "--out", "run", *sizes])
    main(["train", "small", "--data", "mine.npy", "--resume", "run"])
    np.save(tmp_path / "other.npy", np.zeros((40, 4, 4), int))
    assert "is not there; give --data" in fails("train", "--data", "other.npy", "--resume", "run")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"warmup": 6}, "use a smaller --warmup"),
        ({"warmup": 5, "ema": 0.9, "ema_warmup": False}, "use --ema-warmup"),
        ({"warmup": 5, "ema": 0.9}, None),
        ({"warmup": 5, "ema": 0.8, "ema_warmup": False}, None),
    ],
    ids=str,
)
def test_settings_that_leave_the_model_near_its_start_are_told(tmp_path, capsys, settings, told):
    train(*begin(plan(**settings), tmp_path / "run", ALONE), ALONE)
    said = [line for line in capsys.readouterr().err.splitlines() if "; use " in line]
    assert len(said) == (told is not None)
    assert told is None or said[0].endswith(told)


def test_pictures_on_the_way_and_tensorboards_events_are_left_on_request(tmp_path):
    folder = tmp_path / "run"
    few = [*TINY, "--steps", "4", "--batch", "8", "--sample-every", "2", "--tensorboard"]
    main(["train", "digits", "--out", str(folder), *few])
    assert [path.name for path in (folder / "samples").iterdir()] == ["step-00000002.png"]
    assert (folder / "samples/step-00000002.png").stat().st_size > 1000
    (events,) = (folder / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes() and b"samples" in events.read_bytes()


def test_scraps_of_a_process_that_died_are_removed_and_nothing_else(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    before = sorted(folder.rglob("*"))
    for scrap in (".saving-ab", "checkpoints/.saving-00000065", "checkpoints/.removing-step-1"):
        (folder / scrap).mkdir()
        (folder / scrap / "training.safetensors").write_text("half")
    Run(folder).clean()
    assert sorted(folder.rglob("*")) == before


def test_the_seconds_of_a_run_that_goes_on_are_added_up(tmp_path):
    run, packed = begin(plan(log_every=1), tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    state, tensors = run.newest()
    shutil.rmtree(run.checkpoints()[-1])
    kept = {name: state[name] for name in ("best", "best_step", "skipped")}
    run.save(4, tensors, kept | {"seconds": 1000.0}, keep=1)
    train(run, packed, ALONE)
    assert 1000 < run.newest()[0]["seconds"] < 1100
    assert run.log()[-1]["step"] == 6 and run.newest()[0]["step"] == 6


def test_labels_are_used_unless_told(tmp_path, alone):
    assert axial.load(alone).config.classes == 10
    run, _ = begin(plan(labels=False), tmp_path / "run", ALONE)
    assert run.about["model"]["classes"] == 0


def test_the_log_of_steps_to_be_done_again_is_forgotten(tmp_path, alone):
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    run = Run(folder)
    with run.log_path.open("a") as file:
        file.write('{"step": 61, "lo')  # cut by a crash
    run.rewind_log(40)
    assert run.log()[-1]["step"] == 40
    assert json.loads(run.log_path.read_text().splitlines()[-1])["step"] == 40


def test_the_newest_checkpoint_is_that_of_the_greatest_step(tmp_path, alone):
    shutil.copytree(alone, tmp_path / "run")
    run = Run(tmp_path / "run")
    state, tensors = run.newest()
    for step in (99_999_999, 100_000_000):
        run.save(step, tensors, {"best": state["best"]}, keep=2)
    (run.folder / "checkpoints/step-00000060.mine").mkdir()
    assert [path.name for path in run.checkpoints()] == ["step-99999999", "step-100000000"]
    assert run.newest()[0]["step"] == 100_000_000


def test_weights_before_averaging_can_be_asked_for(alone):
    raw, mean = axial.load(alone, weights="raw"), axial.load(alone)
    assert axial.fingerprint(raw) != axial.fingerprint(mean)
    _, tensors = Run(alone).newest()
    for name, p in raw.named_parameters():
        assert torch.equal(p, tensors[f"weights/{name}"])
    with pytest.raises(ConfigError, match="cannot be used"):
        axial.load(alone, device="nowhere")
