"""How a run is created, what it refuses, and that a refusal leaves nothing behind."""

import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from conftest import refused
from packed_arrays import FACTS
from processes import Process
from small_runs import ALONE, COMMON, STEPS, plan

import axial
from axial import ConfigError, DataError, InputError
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.data.packed_writer import PackedWriter
from axial.data.packing import pack
from axial.models.config import Sizes
from axial.presets import PRESETS
from axial.system.ranks import Ranks
from axial.training.loop import train
from axial.training.start import create, open_again


def test_of_two_that_start_in_one_folder_one_wins_and_the_other_harms_nothing(tmp_path):
    out = tmp_path / "run"
    started = [Process("train", "digits", "--out", out, *COMMON, "--seed", seed) for seed in (0, 7)]
    status = [process.wait() for process in started]
    assert sorted(status) == [0, 1]
    loser = started[status.index(1)].err.splitlines()[-1]
    assert "holds a run already" in loser or "another process is starting a run here" in loser
    assert Run(out).about["training"]["seed"] == (0, 7)[status.index(0)]
    assert Run(out).newest()[0]["step"] == STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_out_folder_in_use_is_left_alone(tmp_path, alone):
    before = sorted(path.name for path in alone.rglob("*"))
    assert "holds a run already; `axial train --resume" in refused(
        "train", "digits", "--out", alone, *COMMON
    )
    assert sorted(path.name for path in alone.rglob("*")) == before
    (tmp_path / "mine.txt").write_text("keep")
    assert "not empty" in refused("train", "digits", "--out", tmp_path, *COMMON)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "/: is there already and not empty" in refused("train", "digits", "--out", "/", *COMMON)
    with Run(alone).locked():
        assert "another process is training here" in refused("train", "--resume", alone)


def test_a_run_may_be_created_in_an_empty_folder_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    run, packed = create(plan(), Path(), ALONE)
    assert train(run, packed, ALONE).step == run.about["training"]["steps"]
    assert tmp_path.stat().st_ino == inode, "a mount point could not be replaced"
    assert not list(tmp_path.glob(".*-*"))
    axial.load(tmp_path)


STOPPED = """
import os, runpy, signal, axial.training.start
from pathlib import Path

def stop(scratch, about):
    Path(__file__).with_name("packed").touch()
    os.kill(os.getpid(), signal.SIGSTOP)

axial.training.start.write_run = stop
runpy.run_module("axial", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("there", [False, True])
def test_what_a_start_that_was_killed_left_goes_with_the_next_and_a_living_one_is_let_be(
    tmp_path, there
):
    out = tmp_path / "runs" / "run"
    (out if there else out.parent).mkdir(parents=True)
    (tmp_path / "stopped.py").write_text(STOPPED)
    process = Process("train", "digits", "--out", out, *COMMON, script=tmp_path / "stopped.py")
    while not (tmp_path / "packed").exists():
        assert process.poll() is None, process.err
        time.sleep(0.01)
    try:
        kept = list(out.parent.rglob("*.npy"))
        with pytest.raises(ConfigError, match="another process is starting a run here"):
            create(plan(), out, ALONE)
        assert kept and list(out.parent.rglob("*.npy")) == kept
    finally:
        process.kill(signal.SIGKILL)
        process.wait()
    create(plan(), out, ALONE)
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    assert {path.name for path in out.iterdir()} - {".lock"} == {"data", "run.json"}


@pytest.mark.parametrize("there", [False, True])
def test_links_under_the_names_of_scratch_folders_are_not_followed(tmp_path, there):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("keep")
    out = tmp_path / "runs" / "run"
    out.parent.mkdir()
    for name in (".run-unfinished", ".run-unfinished-0", ".run-unfinished-0123abcd"):
        (out.parent / name).symlink_to(mine)
    if there:
        out.mkdir()
    train(*create(plan(), out, ALONE), ALONE)
    for name in (
        ".run-unfinished",
        ".step-00000009-unfinished-0123abcd",
        ".removing-step-00000009",
    ):
        (out / name).symlink_to(mine)
        (out / "checkpoints" / name).symlink_to(mine)
    train(Run(out), open_again(Run(out)), ALONE)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert (mine / "thesis.txt").read_text() == "keep" and Run(out).newest()[0]["step"] == 6


def test_a_run_whose_start_was_killed_when_its_data_had_been_moved_is_made_whole(tmp_path):
    out, left = tmp_path / "run", tmp_path / "run" / ".run-unfinished-ab"
    out.mkdir()
    run, _ = create(plan(), out, ALONE)
    left.mkdir()
    (out / "run.json").rename(left / "run.json")
    with pytest.raises(ConfigError, match="holds a run already"):
        create(plan(), out, ALONE)
    assert sorted(path.name for path in out.iterdir()) == ["data", "run.json"]
    assert Run(out).about == run.about and len(open_again(run))


def test_an_empty_folder_stays_empty_where_a_run_cannot_be_created(tmp_path):
    assert "give --data" in refused("train", "cifar10", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_folders_made_for_a_run_that_cannot_be_created_are_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    assert "no such file" in refused(
        "train", "small", "--data", tmp_path / "no", "--out", tmp_path / "mine" / "a" / "b"
    )
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_what_cannot_be_trained_is_said_in_one_line_and_leaves_nothing(tmp_path, capsys):
    out = tmp_path / "run"
    lines = {
        "did you mean digits?": ["digit", "--out", out],
        "give --out DIR for a new run": ["digits"],
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
        "parameters on batches of 64 takes": ["digits", "--out", out, "--width", 1 << 20],
        "on batches of 2,000,000,000 takes": ["digits", "--out", out, "--batch", 2_000_000_000],
        "number of layers": ["digits", "--out", out, "--decoder-layers", 2_000_000_000, 1],
        "but not both": ["digits", "--out", out, "--steps", 300, "--max-minutes", 1],
        "steps is 0": ["digits", "--out", out, "--steps", 0],
        "leave some to train on": ["digits", "--out", out, "--validation", 2000],
        "bair stacks 16 frames": ["bair", "--out", out, "--data", "digits"],
        "holds no training run": ["--resume", tmp_path / "nothing"],
        "no such checkpoint": ["digits", "--out", out, "--init", tmp_path / "nothing"],
        "cannot be used here": ["digits", "--out", out, "--device", "cuda:7"],
        "cannot be made": ["digits", "--out", "/proc/run"],
        "File name too long": ["digits", "--out", tmp_path / ("x" * 300)],
        "use cpu, cuda or cuda:N": ["digits", "--out", out, "--device", "meta"],
    }
    for message, args in lines.items():
        assert message in refused("train", *args), args
        assert not out.exists(), args
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--out", str(out), "--widht", "3"])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown == "axial train: there is no flag '--widht'; did you mean --width?\n"


@pytest.mark.parametrize("args", [["digits", "--out"], ["--out"]])
def test_the_preset_decides_wherever_it_stands(tmp_path, args):
    flags = ["--validation", "0", "--width", "8", "--heads", "2", "--steps", "1"]
    main(["train", *args, str(tmp_path / "run"), *([] if "digits" in args else ["digits"]), *flags])
    about = Run(tmp_path / "run").about
    assert about["training"]["batch"] == PRESETS["digits"]().training.batch
    main(["train", f"--resume={tmp_path / 'run'}"])
    message = refused("train", "--out", tmp_path / "x", "digitz")
    assert "did you mean digits?" in message


def test_a_batch_that_ranks_cannot_share_is_refused_before_a_folder_is_made(tmp_path):
    two = Ranks(rank=0, count=2, device=torch.device("cpu"))
    odd = replace(plan(), training=replace(plan().training, batch=7))
    with pytest.raises(DataError, match="batch 7 does not split over 2 ranks"):
        create(odd, tmp_path / "run", two)
    assert not (tmp_path / "run").exists()


def test_fine_tuning_starts_from_the_weights_it_is_given(tmp_path, alone):
    out = tmp_path / "tuned"
    flags = ["--steps", "1", "--batch", "8", "--warmup", "1000", "--dropout", "0"]
    main(["train", "digits", "--out", str(out), "--init", str(alone), *flags])
    tuned, before = axial.load(out), axial.load(alone)
    assert tuned.config == replace(before.config, dropout=0.0)
    for a, b in zip(tuned.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    assert axial.fingerprint(tuned) != axial.fingerprint(before)
    message = refused("train", "digits", "--out", tmp_path / "x", "--init", alone, "--no-labels")
    assert "is conditioned on labels" in message
    message = refused("train", "digits", "--out", tmp_path / "x", "--init", alone, "--width", 8)
    assert "--width" in message and not (tmp_path / "x").exists()


def test_a_model_without_labels_is_not_tuned_with_labels_in_silence(tmp_path):
    config = replace(PRESETS["digits"]().model, width=8, heads=1, decoder_layers=(2, 1))
    axial.save(axial.AxialTransformer(config), tmp_path / "plain")
    flags = ["train", "digits", "--init", tmp_path / "plain", "--steps", 1, "--batch", 8]
    message = refused(*flags, "--out", tmp_path / "x")
    assert "plain: is not conditioned on labels" in message and "give --no-labels" in message
    assert not (tmp_path / "x").exists()
    main([*map(str, flags), "--no-labels", "--sample-every", "0", "--out", str(tmp_path / "x")])
    assert axial.load(tmp_path / "x").config == config


def test_data_is_found_again_though_the_folder_it_was_named_from_is_gone(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((12, 4, 4), np.uint8))
    (tmp_path / "real").mkdir()
    pack(tmp_path / "x.npy", tmp_path / "real" / "x.npy")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    few = ["--steps", "1", "--batch", "2", "--width", "8", "--heads", "1", "--sample-every", "0"]
    main(["train", "small", "--data", "../../link/x.npy", "--out", "../../run", *few])
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("work")
    run = Run(tmp_path / "run")
    assert run.about["data"]["file"] == str(tmp_path / "link" / "x.npy")  # the link stays
    main(["train", "--resume", "run"])
    (tmp_path / "real" / "deep").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "real" / "deep", target_is_directory=True)
    main(["train", "small", "--data", "there/../x.npy", "--out", "two", *few])
    assert open_again(Run(tmp_path / "two")).path.samefile(tmp_path / "real" / "x.npy")


def test_data_without_time_is_refused_by_its_own_name(tmp_path):
    np.save(tmp_path / "mine.npy", np.zeros((12, 4, 4), np.uint8))
    out = ["--out", tmp_path / "run", "--stack-frames"]
    message = refused("train", "small", "--data", tmp_path / "mine.npy", *out)
    assert f"{tmp_path / 'mine.npy'}: examples have axes (4, 4), so there is no time" in message


def test_imported_weights_can_be_tuned(tmp_path):
    checkpoint = Path(__file__).parents[1] / "parity" / "tf_checkpoint"
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
    message = refused("train", "small", "--data", data, "--init", alone, "--out", tmp_path / "o")
    assert "256 values, but the model takes 8 x 8, 1 channel, 17 values" in message


def test_users_own_arrays_train_without_a_word_of_configuration(tmp_path):
    x = np.random.default_rng(0).integers(0, 3, (40, 3, 4, 5))
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "run"
    sizes = ["--width", "8", "--heads", "2", "--steps", "4", "--batch", "4"]
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(out), *sizes])
    found = axial.load(out).config
    assert (found.axes, found.channels, found.values) == ((3, 4, 5), 1, 3)


def test_labels_are_used_by_default(tmp_path, alone):
    assert axial.load(alone).config.classes == 10
    run, _ = create(plan(labels=False), tmp_path / "run", ALONE)
    assert run.about["model"]["classes"] == 0


def test_classes_of_a_model_to_tune_are_matched_by_name(tmp_path):
    x = formats.pictures(16, 8)
    sources = {}
    for source, order in {"one": "ab", "other": "ba", "some": "b", "new": "bc"}.items():
        label = np.arange(16) // 8 % len(order)
        with PackedWriter(tmp_path / f"{source}.npy") as writer:
            writer.append(x)
            writer.finish(label, len(order), tuple(order), **FACTS | {"values": 256})
        sources[source] = str(tmp_path / f"{source}.npy")
    sizes = Sizes(width=8, heads=2)
    small = replace(plan(steps=1, validation=0), preset=PRESETS["small"], sizes=sizes)
    run, packed = create(replace(small, data=sources["one"]), tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    tuned = replace(small, init=run.folder, sizes=Sizes())
    for source, wanted in {"other": 1 - packed.labels, "some": np.ones(16)}.items():
        out = tmp_path / f"{source}-run"
        found, again = create(replace(tuned, data=sources[source]), out, ALONE)
        assert np.array_equal(again.labels, wanted) and found.about["data"]["names"] == ["a", "b"]
        train(found, again, ALONE)
        assert np.array_equal(open_again(Run(out)).labels, wanted)
    with pytest.raises(
        InputError, match="has the class 'c', but the model was trained on 'a', 'b'"
    ):
        create(replace(tuned, data=sources["new"]), tmp_path / "no", ALONE)


def test_a_run_knows_what_its_classes_are_called(tmp_path):
    names = [f"{name}/{i}.png" for name in "ba" for i in range(8)]
    folder = formats.picture_folder(tmp_path / "pets", formats.pictures(16, 8), names)
    found = replace(plan(batch=4), preset=PRESETS["small"], data=str(folder))
    assert create(found, tmp_path / "run", ALONE)[0].about["data"]["names"] == ["a", "b"]
