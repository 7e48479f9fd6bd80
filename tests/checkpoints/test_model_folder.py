import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import VARIANTS, config, full_disk, random_input, tiny_model
from safetensors.torch import load_file, save_file

from axial import (
    AxialTransformer,
    CheckpointError,
    ConfigError,
    fingerprint,
    load,
    save,
)
from axial.checkpoints import model_folder as checkpoint

FOUND = VARIANTS["2d-labels"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def same(first, second):
    return fingerprint(first) == fingerprint(second)


@pytest.fixture
def folder(tmp_path):
    save(tiny_model(FOUND), tmp_path / "model")
    return tmp_path / "model"


def refused(folder, message):
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert message in caught.value.as_written and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_saved_comes_back_to_the_bit(name, tmp_path):
    model = tiny_model(VARIANTS[name])
    save(model, tmp_path / "deep" / "folder")
    loaded = load(tmp_path / "deep" / "folder")
    x, label, context = random_input(VARIANTS[name], 2)
    assert torch.equal(loaded(x, label, context), model(x, label, context))
    assert loaded.config == model.config and same(loaded, model)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_a_loaded_model_needs_its_file_no_more(tmp_path):
    model = tiny_model(FOUND)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    with path.open("r+b") as file:  # in place, as nobody should
        file.write(bytes(path.stat().st_size))
    assert same(loaded, model)


def test_names_of_classes_are_kept_and_are_no_part_of_the_fingerprint(tmp_path):
    model = tiny_model(FOUND)
    save(model, tmp_path / "bare")
    model.class_names = ("cat", "dog", "owl")
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.class_names == ("cat", "dog", "owl") and same(loaded, load(tmp_path / "bare"))
    assert load(tmp_path / "bare").class_names is None


@pytest.mark.parametrize("names", [("cat",), ("cat", "cat", "dog"), (1, 2, 3)], ids=str)
def test_names_that_do_not_name_every_class_are_refused(folder, tmp_path, names):
    model = tiny_model(FOUND)
    model.class_names = names
    with pytest.raises(CheckpointError, match="class_names is"):
        save(model, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"class_names": names}))
    refused(folder, "class_names is")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_precision_is_kept(dtype, tmp_path):
    model = tiny_model(FOUND, dtype=dtype)
    save(model, tmp_path / "model")
    assert {parameter.dtype for parameter in load(tmp_path / "model").parameters()} == {dtype}
    assert same(load(tmp_path / "model"), model)


def test_a_compiled_model_is_saved_as_what_it_was_made_of(tmp_path):
    model = tiny_model(config())
    compiled = torch.compile(model, backend="eager")
    save(compiled, tmp_path / "model")
    assert fingerprint(load(tmp_path / "model")) == fingerprint(model)
    assert fingerprint(compiled) == fingerprint(model)
    model.inner_decoder = torch.compile(model.inner_decoder, backend="eager")
    save(model, tmp_path / "part")
    assert fingerprint(load(tmp_path / "part")) == fingerprint(model) == fingerprint(compiled)


def test_a_folder_holds_two_files_and_nothing_else(folder):
    assert names(folder) == ["config.json", "model.safetensors"]
    assert names(folder.parent) == ["model"]
    plain = folder.parent / "plain"
    plain.mkdir()
    assert folder.stat().st_mode == plain.stat().st_mode
    (plain / "file").touch()
    for file in folder.iterdir():
        assert file.stat().st_mode == (plain / "file").stat().st_mode


def test_saving_again_replaces_the_model_and_leaves_other_files_alone(folder):
    (folder / "notes.txt").write_text("mine")
    other = tiny_model(config((2, 2)), seed=9)
    save(other, folder)
    assert same(load(folder), other)
    assert names(folder) == ["config.json", "model.safetensors", "notes.txt"]
    (folder.parent / "empty").mkdir()
    save(other, folder.parent / "empty")
    assert same(load(folder.parent / "empty"), other)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a model"])
def test_a_crash_at_any_step_leaves_the_old_model_or_the_new_one(
    tmp_path, monkeypatch, step, before
):
    old, new = tiny_model(FOUND), tiny_model(config((2, 2)), seed=9)
    folder = tmp_path / "model"
    if before == "a model":
        save(old, folder)
    elif before == "an empty folder":
        folder.mkdir()
    moves = []

    def counted(real):
        def move(self, target):
            moves.append(target)
            if len(moves) > step:
                raise Crash
            return real(self, target)

        return move

    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    finished = step >= (1 if before == "nothing" else 3)
    if finished:
        save(new, folder)
    else:
        with pytest.raises(Crash):
            save(new, folder)
    monkeypatch.undo()
    # In an existing folder the second move is the one that counts.
    if finished or step == 2:
        assert same(load(folder), new)
    elif before == "a model":
        assert same(load(folder), old)
    else:
        assert not (folder / "model.safetensors").exists()
    assert names(tmp_path) == (["model"] if finished or before != "nothing" else [])
    save(new, folder)
    assert same(load(folder), new)
    assert names(folder) == ["config.json", "model.safetensors"]


def test_a_model_saved_while_it_is_read_is_read_again(folder, monkeypatch):
    new = tiny_model(FOUND, seed=9)
    read, begun = checkpoint.read_tensors, []

    def read_and_save(path):
        found = read(path)
        if not begun:
            begun.append(path)
            save(new, folder)
        return found

    monkeypatch.setattr(checkpoint, "read_tensors", read_and_save)
    assert same(load(folder), new)


def test_names_changed_in_a_folder_are_on_the_disk_when_it_is_saved(folder, monkeypatch):
    flushed = []
    monkeypatch.setattr(
        "axial.system.files.flush", lambda path: flushed.append((path, names(folder)))
    )
    save(tiny_model(FOUND, seed=9), folder)
    place, there = flushed[-1]
    assert place == folder and "config.json.pending" not in there


def test_no_space_leaves_the_old_model_and_no_scraps(folder):
    before, large = fingerprint(load(folder)), tiny_model(config((4, 4), width=64))
    for place in (folder, folder.parent / "new"):
        with full_disk(4096), pytest.raises(CheckpointError, match="cannot be written"):
            save(large, place)
    assert fingerprint(load(folder)) == before
    assert names(folder.parent) == ["model"]
    assert names(folder) == ["config.json", "model.safetensors"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="cannot be written"):
            save(tiny_model(FOUND), place)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tiny_model(FOUND), tmp_path / "a\0b")
    assert (tmp_path / "file").read_text() == "in the way"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_in_place_of_a_file_is_said_before_anything_changes(folder, name):
    other = "model.safetensors" if name == "config.json" else "config.json"
    before = (folder / other).read_bytes()
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name} is a folder there"):
        save(tiny_model(FOUND, seed=9), folder)
    assert (folder / other).read_bytes() == before
    assert names(folder) == ["config.json", "model.safetensors"]


def test_a_missing_checkpoint_is_said(tmp_path):
    refused(tmp_path / "nowhere", "no such checkpoint")
    refused(tmp_path / ("a" * 300), "no such checkpoint")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no such checkpoint")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_weights_file_is_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "damaged or cut short")


@pytest.mark.parametrize("harm", ["a flipped bit", "other weights", "another model"])
def test_weights_that_are_not_those_of_the_configuration_are_refused(folder, tmp_path, harm):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    if harm != "a flipped bit":
        other = tiny_model(FOUND if harm == "other weights" else config((2, 2)), seed=9)
        save(other, tmp_path / "other")
        (tmp_path / "other" / "model.safetensors").replace(path)
    refused(folder, "do not belong together, or one was changed")


@pytest.mark.parametrize(
    ("part", "other", "message"),
    [
        ("extra", torch.nn.Linear(2, 2), "'extra.bias' does not belong"),
        ("to_logits", torch.nn.Linear(2, 7), "'to_logits.bias' has shape"),
        ("norm", None, "'norm.bias' is missing"),
    ],
    ids=["more", "shape", "fewer"],
)
def test_what_could_not_be_loaded_replaces_nothing(folder, part, other, message):
    before = load(folder)
    model = tiny_model(FOUND, seed=9)
    model.add_module(part, other)
    with pytest.raises(CheckpointError, match=rf"{folder}: not written.*{message}"):
        save(model, folder)
    model = tiny_model(FOUND, seed=9, dtype=torch.float32)
    model.to_logits.double()
    with pytest.raises(CheckpointError, match=r"not written.*'to_logits.weight' is torch.float64"):
        save(model, folder)
    assert fingerprint(load(folder)) == fingerprint(before)
    assert names(folder) == ["config.json", "model.safetensors"]


def test_weights_that_share_memory_are_saved_as_they_are(tmp_path):
    model = tiny_model(FOUND)
    model.to_logits.weight = model.embedding.weight
    save(model, tmp_path / "tied")
    assert fingerprint(load(tmp_path / "tied")) == fingerprint(model)


@pytest.mark.parametrize("wrong", [torch.int64, torch.float64])
@pytest.mark.parametrize("harmed", ["to_logits.bias", ""], ids=["one", "all"])
def test_weights_of_another_type_are_refused_by_name(wrong, harmed):
    weights = tiny_model(FOUND, dtype=torch.float32).state_dict()
    others = {name: value.to(wrong) for name, value in weights.items() if harmed in name}
    if harmed or wrong == torch.int64:  # a model may be of float64 altogether
        with pytest.raises(CheckpointError, match=f"'.*{harmed}' is {wrong}: weights are floating"):
            AxialTransformer.from_weights(FOUND, weights | others)


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGED = "config.json: damaged, for it has no number of a format; copy it again"
HARMS = [
    ({"format": 2}, "format 2 is not one this version knows (up to 1); upgrade"),
    *(({"format": version}, DAMAGED) for version in (0, -3, True, "1", None)),
    ({"model": FOUND.to_json() | {"rotary": True}}, "'rotary' is not a setting of this version"),
    ({"model": FOUND.to_json() | {"width": 9}}, "width 9 does not split into 2 heads"),
    ({"model": FOUND.to_json() | {"dropout": 0.5}}, "do not belong together, or one was changed"),
    ({"model": []}, "describes no model"),
    ({"model": FOUND.to_json() | {"decoder_layers": [2_000_000_000, 1]}}, "use at most 4096"),
    ({"model": FOUND.to_json() | {"axes": [1] * 3000}}, "for each axis, up to 8"),
    (
        {"model": FOUND.to_json() | {"axes": [1 << 20] * 2, "given_steps": 1}},
        "axes times channels is 2199023255552: use at most",
    ),
    *(
        ({"family": family}, f"family {family!r} is none this version knows (")
        for family in ("mamba", [], {}, 3)
    ),
]


@pytest.mark.parametrize(("changes", "message"), HARMS, ids=str)
def test_an_edited_config_is_refused(folder, changes, message):
    edit(folder, **changes)
    refused(folder, message)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder, "config.json: ")


def test_a_missing_weight_is_named_even_if_the_fingerprint_was_made_to_fit(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["norm.bias"]
    mark = checkpoint._fingerprint(FOUND, weights)
    save_file(weights, folder / "model.safetensors", metadata={"fingerprint": mark})
    edit(folder, fingerprint=mark)
    refused(folder, "weight 'norm.bias' is missing")


def test_a_model_larger_than_its_weights_is_refused_before_anything_is_built(folder):
    weights = load_file(folder / "model.safetensors")
    large = replace(FOUND, decoder_layers=(4000, 1))
    mark = checkpoint._fingerprint(large, weights)
    save_file(weights, folder / "model.safetensors", metadata={"fingerprint": mark})
    edit(folder, fingerprint=mark, model=large.to_json())
    refused(folder, "weights, but there are ")


def test_a_header_that_takes_minutes_to_read_is_refused(folder):
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write((87 << 20).to_bytes(8, "little"))
        file.truncate(100 << 20)  # takes no room on the disk
    refused(folder, "damaged or cut short (a header of 91,226,112 bytes); copy it again")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a link to itself"])
def test_what_is_no_file_is_refused_and_not_waited_for(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else path)
    refused(folder, f"{path}: ")


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "extra.pt"])
def test_a_planted_pickle_is_never_run(folder, name, tmp_path):
    mark = tmp_path / "exploded"
    data = pickle.dumps(Bomb(mark))
    pickle.loads(data)
    assert mark.exists()  # it would work
    mark.unlink()
    (folder / name).write_bytes(data)
    try:
        load(folder)
    except CheckpointError:
        assert name != "extra.pt"
    assert not mark.exists()


def test_the_fingerprint_tells_weights_and_configurations_apart():
    model = tiny_model(FOUND)
    mark = fingerprint(model)
    assert mark == fingerprint(tiny_model(FOUND))
    assert mark != fingerprint(tiny_model(FOUND, seed=1))
    assert mark != fingerprint(tiny_model(FOUND, dtype=torch.float32))
    assert mark != fingerprint(tiny_model(replace(FOUND, dropout=0.1)))


def test_a_model_of_frames_that_were_never_told_keeps_its_old_fingerprint(tmp_path):
    """So that folders written before there was such a setting are read."""
    untold = config((3, 4), channels=6)
    save(tiny_model(untold), tmp_path / "old")
    written = json.loads((tmp_path / "old" / "config.json").read_text())["model"]
    assert "frames" not in written and load(tmp_path / "old").config == untold
    told = tiny_model(config((3, 4), channels=6, frames=6))
    save(told, tmp_path / "new")
    assert load(tmp_path / "new").config.frames == 6
    assert fingerprint(told) != fingerprint(load(tmp_path / "old"))


def test_the_fingerprint_covers_names_types_and_shapes():
    a, b = torch.zeros(2, 3), torch.ones(6)
    marks = {
        checkpoint._fingerprint(FOUND, weights)
        for weights in (
            {"a": a, "b": b},
            {"a": b, "b": a},
            {"a": a.view(6), "b": b},
            {"a": a.view(3, 2), "b": b},
            {"a": a.to(torch.int32), "b": b},
            {"c": a, "d": b},
        )
    }
    assert len(marks) == 6


def test_saving_needs_no_room_beside_an_existing_folder(tmp_path):
    # An existing folder may be a mount: files can be moved only within it.
    folder = tmp_path / "mounted"
    folder.mkdir()
    moved = []
    with pytest.MonkeyPatch.context() as patch:
        move = Path.replace
        patch.setattr(Path, "replace", lambda s, t: (moved.append(s), move(s, t))[1])
        save(tiny_model(FOUND), folder)
    assert moved and all(folder in path.parents for path in moved)
    assert names(folder) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("banana", "device is 'banana': use cpu, cuda or cuda:N"),
        ("cuda:99", "device 'cuda:99' cannot be used here"),
    ],
)
def test_a_device_that_is_not_there_is_said(folder, device, told):
    with pytest.raises(ConfigError, match=told):
        load(folder, device=device)


def test_a_folder_from_before_families_is_an_axial_transformer(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("family") == "axial"
    (folder / "config.json").write_text(json.dumps(config))
    assert isinstance(load(folder), AxialTransformer)
    with pytest.raises(ConfigError, match="weights is 'foo': use one of ema, raw"):
        load(folder, weights="foo")
