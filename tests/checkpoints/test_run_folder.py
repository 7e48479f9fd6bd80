"""The folder of a run: never unpickled, whole or not there, and read only as it was written."""

import json
import os
import pickle
import shutil

import pytest
import torch
from conftest import both_ranks, full_disk, refused
from small_runs import ALONE, STEPS, assert_same_ending, plan

import axial
from axial import CheckpointError, ConfigError
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.training.loop import train
from axial.training.start import create, open_again


@pytest.fixture
def folder(tmp_path, alone):
    """A finished run that a test may harm."""
    return shutil.copytree(alone, tmp_path / "run")


def test_a_pickle_in_a_run_folder_is_never_opened(tmp_path, folder):
    class Poison:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'opened'}",))

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


def test_a_poisoned_checkpoint_is_refused_and_the_one_before_it_named(folder, alone):
    tensors = Run(folder).checkpoints()[-1] / "training.safetensors"
    raw = bytearray(tensors.read_bytes())
    raw[-5] ^= 64
    tensors.write_bytes(raw)
    message = refused("train", "--resume", folder)
    assert "step-00000060: was changed since it was written" in message
    assert f"remove {tensors.parent} to resume" in message
    tensors.write_bytes(raw[:1000])
    assert "damaged or cut short" in refused("train", "--resume", folder)
    tensors.unlink()
    message = refused("train", "--resume", folder)
    assert "cannot be read (No such file" in message and "remove" in message
    (tensors.parent / "state.json").write_text("[]")
    assert "holds no JSON object" in refused("train", "--resume", folder)
    shutil.rmtree(tensors.parent)
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_the_only_checkpoint_is_not_to_be_removed_for_one_before_it(folder):
    *others, last = Run(folder).checkpoints()
    for other in others:
        shutil.rmtree(other)
    (last / "state.json").write_text("{}")
    message = refused("train", "--resume", folder)
    assert "state.json: damaged, for it has no number of a format" in message
    assert f"start a new run, with --init {folder}" in message and "remove" not in message


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew_in_silence(folder, alone):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    shutil.rmtree(folder / "checkpoints")
    message = refused("train", "--resume", folder)
    assert f"holds none, after {STEPS} steps; put them back" in message
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert kept == before
    (folder / "samples.png").unlink()  # it may have been stopped long before its end
    assert "put them back" in refused("train", "--resume", folder)
    first = (folder / "log.jsonl").read_text().splitlines()[0]
    (folder / "log.jsonl").write_text(first + "\n")
    (folder / "samples.png").touch()  # it may have ended early
    assert "holds none, after 1 steps" in refused("train", "--resume", folder)
    (folder / "samples.png").unlink()  # killed before the first was written
    main(["train", "--resume", str(folder)])
    assert_same_ending(folder, alone)


def test_what_may_not_be_read_is_neither_damaged_nor_absent(tmp_path, folder):
    before = (folder / "model.safetensors").read_bytes()
    for name in ("training.safetensors", "state.json"):
        closed = Run(folder).checkpoints()[-1] / name
        closed.rename(tmp_path / name)
        closed.symlink_to(closed)
        message = refused("train", "--resume", folder)
        assert message == f"axial: {closed}: cannot be read (Too many levels of symbolic links)"
        (tmp_path / name).replace(closed)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").touch()
    message = refused("train", "--resume", folder)
    assert message == f"axial: {folder / 'checkpoints'}: cannot be read (Not a directory)"
    assert (folder / "model.safetensors").read_bytes() == before


def test_a_name_that_safetensors_cannot_open_is_refused_before_anything_is_written(tmp_path, alone):
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    assert "is no name in UTF-8; choose another --out" in refused("train", "digits", "--out", odd)
    with pytest.raises(CheckpointError, match="is no name in UTF-8"):
        axial.save(axial.load(alone), odd)
    assert not odd.exists()
    shutil.copytree(alone, odd)
    with pytest.raises(CheckpointError, match="its name is not UTF-8, and so it cannot be read"):
        axial.load(odd)


def test_an_edited_state_is_refused(folder):
    last = Run(folder).checkpoints()[-1]
    text = (last / "state.json").read_text()
    for old, new in (('"step": 60', '"step": 30'), ('"skipped": 0', '"skipped": -1')):
        (last / "state.json").write_text(text.replace(old, new))
        assert "was changed since it was written" in refused("train", "--resume", folder)
    (last / "state.json").write_text(text.replace('"format": 1', '"format": 99'))
    assert "format 99 is not one this version knows" in refused("train", "--resume", folder)


def test_a_checkpoint_belongs_to_its_model_its_training_its_start_and_its_data(tmp_path):
    run, _ = create(plan(), tmp_path / "run", ALONE)
    run.save(1, {"a": torch.zeros(1)}, {}, keep=2)
    about = run.about
    data = [about["data"] | {name: "0"} for name in ("sha256", "labels")]
    data += [about["data"] | {"stack_frames": True}]
    others = [about | {name: about[name] | {"seed": 9}} for name in ("model", "training")]
    others += [about | {"init": {}}, *(about | {"data": other} for other in data)]
    for other in others:
        (run.folder / "run.json").write_text(json.dumps(other))
        with pytest.raises(CheckpointError, match="belongs to another run"):
            Run(run.folder).newest()
    renamed = about | {"preset": "mine", "data": about["data"] | {"title": "mine"}}
    (run.folder / "run.json").write_text(json.dumps(renamed))
    assert Run(run.folder).newest() is not None


def test_a_folder_moved_away_while_training_is_not_made_anew(tmp_path):
    run, packed = create(plan(save_every=1, steps=200), tmp_path / "run", ALONE)

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


def test_damaged_run_files_are_one_line(folder):
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"loss": 3}\n[]\nnothing\n{"step": 5, "loss": "x"}\n' + "[" * 100_000 + "\n")
    main(["train", "--resume", str(folder)])
    about = json.loads((folder / "run.json").read_text())
    assert about.pop("checksum")
    training, data = about["training"], about["data"]
    harms = [{"training": None}, {"model": []}, {"data": {}}, {"data": None}, {"init": 3}]
    harms += [{"training": training | {"save_every": None}}, {"checksum": "0"}, {"format": None}]
    for other in ({"reading": 3}, {"title": None}, {"names": [1, 2]}, {"names": ["a", "a"]}):
        harms.append({"data": data | other})
    for name in ("title", "file", "examples", "reading", "stack_frames", "sha256", "labels"):
        harms.append({"data": {part: data[part] for part in data if part != name}})
    damaged = [about | harm for harm in harms]
    for name in ("preset", "model", "training", "init", "data"):
        damaged.append({part: about[part] for part in about if part != name})
    for harm in damaged:
        (folder / "run.json").write_text(json.dumps(harm))
        assert "run.json: damaged, " in refused("train", "--resume", folder)


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "state.json", "training.safetensors"])
def test_pipes_and_devices_are_refused_and_not_waited_for(folder, name):
    path = folder / name
    if not path.exists():
        path = Run(folder).checkpoints()[-1] / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        path.unlink()
        make(path)
        assert f"{path}: cannot be read (is no file)" in refused("train", "--resume", folder)


def test_the_files_of_a_checkpoint_may_be_read_by_the_same_people(folder):
    last = Run(folder).checkpoints()[-1]
    modes = {path.stat().st_mode for path in (*last.iterdir(), folder / "run.json")}
    assert len(modes) == 1


def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path):
    run, _ = create(plan(), tmp_path / "run", ALONE)
    tensors = {"a": torch.arange(1000.0)}
    run.save(1, tensors, {}, keep=2)
    told = "step-00000001 is whole, `axial train --resume"
    with full_disk(20_000), pytest.raises(CheckpointError, match=told):
        run.save(2, {"a": torch.arange(10_000.0)}, {}, keep=2)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-00000001"]
    state, found = run.newest()
    assert state["step"] == 1 and torch.equal(found["a"], tensors["a"])


def test_a_disk_that_fills_while_training_ends_the_run_in_one_line(tmp_path):
    run, packed = create(plan(), tmp_path / "run", ALONE)
    with full_disk(50_000), pytest.raises(CheckpointError, match="cannot be written"):
        train(run, packed, ALONE)
    assert run.checkpoints() == []
    assert train(run, open_again(run), ALONE).step == 6


def test_scraps_of_a_process_that_died_are_removed_and_nothing_else(folder):
    before = sorted(folder.rglob("*"))
    scraps = [".model.safetensors-unfinished-ab", "checkpoints/.step-00000065-unfinished-cd"]
    for scrap in (*scraps, "checkpoints/.removing-step-1"):
        (folder / scrap).mkdir()
        (folder / scrap / "training.safetensors").write_text("half")
    Run(folder).clean()
    assert sorted(folder.rglob("*")) == before


def test_the_log_of_steps_to_be_done_again_is_forgotten(folder):
    run = Run(folder)
    with run.log_path.open("a") as file:
        file.write('{"step": 61, "lo')  # cut by a crash
    run.rewind_log(40)
    assert run.log()[-1]["step"] == 40
    assert json.loads(run.log_path.read_text().splitlines()[-1])["step"] == 40


def test_the_newest_checkpoint_is_that_of_the_greatest_step(folder):
    run = Run(folder)
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
    with pytest.raises(ConfigError, match="use cpu, cuda or cuda:N"):
        axial.load(alone, device="nowhere")


def test_two_ranks_tell_once_that_another_process_trains_in_the_folder(alone):
    with Run(alone).locked():
        ended = both_ranks("train", "--resume", alone, "--device", "cpu")
    (status, _, said), (other, _, nothing) = ended
    assert status == 1 and other == 1 and nothing == "", nothing
    assert said.splitlines()[-1].startswith(f"axial: {alone}: another process is training here")
    assert "Traceback" not in said
