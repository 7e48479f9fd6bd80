"""`axial sample` and `axial complete`, end to end in a temporary folder."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import config, refused, saved
from conftest import run as run_command
from packed_arrays import write
from PIL import Image
from small_runs import ALONE

import axial.sampling.draw
from axial import draw
from axial.errors import DataError
from axial.media.moving import write_moving
from axial.sampling.config import SampleConfig
from axial.sampling.sample import Sampler

MODELS = {
    "colour": config((5, 4), channels=3, values=256),
    "columns": config((5, 4), channels=3, values=256, channel_mode="columns"),
    "grey": config((4, 4), values=17),
    "labels": config((3, 3), classes=3, values=9),
    "clip": config((3, 4), channels=6, values=256),
    "volume": config((3, 3, 4), values=200),
    "continuing": config((3, 3), channels=6, given_channels=3),
    "two": config((3, 3), channels=2),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return saved(MODELS, tmp_path_factory.mktemp("models"))


def run(*arguments):
    run_command(*arguments, "--device", "cpu")


def test_an_array_holds_what_draw_draws_and_says_how(checkpoints, tmp_path):
    out = tmp_path / "a.npy"
    run("sample", checkpoints / "labels", "--out", out, "--count", 5, "--seed", 3, "--batch", 2)
    model = axial.load(checkpoints / "labels")
    label = torch.arange(5) % 3
    x = np.load(out)
    assert x.dtype == np.uint8
    assert np.array_equal(x, draw(model, 5, seed=3, label=label, batch=2).numpy())
    about = json.loads((tmp_path / "a.npy.json").read_text())
    assert about["batch"] == 2 and about["seed"] == 3 and about["precision"] == "float32"
    assert about["fingerprint"] == axial.fingerprint(model)
    how = ["--count", 2, "--label", 1, "--overwrite"]
    run("sample", checkpoints / "labels", "--out", out, *how)
    assert np.array_equal(
        np.load(out), draw(model, 2, label=torch.ones(1).long(), batch=16).numpy()
    )


def test_what_is_drawn_never_passes_for_a_packed_data_set(checkpoints, tmp_path):
    out = write(tmp_path / "x.npy", np.zeros((2, 4, 4, 1), np.uint8))
    before = out.read_bytes()
    for command, *source in (("sample",), ("complete", "digits", "--keep", 1)):
        message = refused(command, checkpoints / "grey", *source, "--out", out, "--overwrite")
        assert "x.npy: x.json beside it describes a data set" in message
        assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("count", "batch"), [(1, 1), (2, 2), (15, 15), (16, 16), (17, 9), (40, 14)]
)
def test_in_float32_a_request_is_no_larger_than_what_is_asked_for(
    checkpoints, tmp_path, capsys, count, batch
):
    run("sample", checkpoints / "grey", "--out", tmp_path / "a.npy", "--count", count)
    said = capsys.readouterr()
    assert said.err == "" and f"{count} drawn, batch {batch}, seed 0" in said.out
    assert json.loads((tmp_path / "a.npy.json").read_text())["batch"] == batch
    x = draw(axial.load(checkpoints / "grey").double(), count, batch=16).numpy()
    assert np.array_equal(np.load(tmp_path / "a.npy"), x)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
def test_in_bfloat16_the_batch_is_always_one_size(checkpoints, count):
    how = SampleConfig(count=count, precision="bfloat16")
    sampler = Sampler(checkpoints / "grey", how, ALONE)
    sampler.load(count)
    assert sampler.batch == sampler.how["batch"] == 16
    own = Sampler(checkpoints / "grey", replace(how, batch=3), ALONE)
    own.load(count)
    assert own.batch == 3


def test_a_folder_holds_each_picture_exactly(checkpoints, tmp_path):
    for name in ("colour", "grey"):
        array, folder = tmp_path / f"{name}.npy", tmp_path / name
        for out in (array, folder):
            run("sample", checkpoints / name, "--out", out, "--count", 3)
        assert len(list(folder.glob("*.png"))) == 3 and (folder / "request.json").exists()
        for number, x in enumerate(np.load(array)):
            pixels = np.asarray(Image.open(folder / f"{number:05}.png")).reshape(x.shape)
            values = MODELS[name].values
            assert np.array_equal((pixels.astype(float) * (values - 1) / 255).round(), x)


def test_sheets_show_the_pictures(checkpoints, tmp_path):
    run("sample", checkpoints / "colour", "--out", tmp_path / "a.png", "--count", 4)
    x = draw(axial.load(checkpoints / "colour"), 4, batch=16).numpy()
    pixels = np.asarray(Image.open(tmp_path / "a.png"))
    scale = 64 // 5
    assert np.array_equal(pixels[2 : 2 + 5 * scale : scale, 2 : 2 + 4 * scale : scale], x[0])


@pytest.mark.parametrize("name", ["clip", "volume"])
def test_video_moves(checkpoints, tmp_path, name):
    frames = {"clip": 2, "volume": 3}[name]
    for out in (tmp_path / "a.gif", tmp_path / "a.mp4", tmp_path / "a.png"):
        run("sample", checkpoints / name, "--out", out, "--count", 2)
    with Image.open(tmp_path / "a.gif") as moving:
        assert moving.n_frames == frames
    import av

    with av.open(str(tmp_path / "a.mp4")) as container:
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == frames and shown[0].shape[0] % 2 == 0


def test_a_trace_ends_with_the_picture_and_begins_without(checkpoints, tmp_path, capsys):
    trace = tmp_path / "t.gif"
    run("sample", checkpoints / "grey", "--out", tmp_path / "a.png", "--count", 1, "--trace", trace)
    with Image.open(trace) as moving:
        assert moving.n_frames == 4
        moving.seek(3)
        last = np.asarray(moving.convert("L"))
    assert f"{trace}: written" in capsys.readouterr().err
    sheet = np.asarray(Image.open(tmp_path / "a.png").convert("L"))
    assert np.abs(last.astype(int) - sheet).max() < 10


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "colour.npy"
    rng = np.random.default_rng(0)
    np.save(path, rng.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8))
    return path


@pytest.mark.parametrize("particles", [1, 3])
def test_completing_tells_how_far_it_is(checkpoints, tmp_path, monkeypatch, capsys, particles):
    """Of 5 rows 3 are drawn, in each of 3 channels, in batches of 2 versions."""
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    source = tmp_path / "x.npy"
    np.save(source, np.zeros((2, 5, 4, 3), np.uint8))
    settings = ["--keep", 2, "--count", 2, "--batch", 2, "--particles", particles]
    run("complete", checkpoints / "colour", source, "--out", tmp_path / "c.png", *settings)
    told = [
        line.split("  ")[0]
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("lines")
    ]
    total = 9 * 4 * particles // 2
    assert told == [f"lines drawn: {n} of {total}" for n in range(1, total + 1)]


def test_completions_keep_what_was_kept_and_differ_elsewhere(
    checkpoints, pictures, tmp_path, capsys
):
    common = ["--channels-last", "--examples", 2, "--count", 3]
    x = np.load(pictures)[:2].repeat(3, 0)
    run(
        "complete",
        checkpoints / "colour",
        pictures,
        "--out",
        tmp_path / "a.npy",
        "--keep",
        2,
        *common,
    )
    assert "not the exact conditional" in " ".join(capsys.readouterr().err.split())
    found = np.load(tmp_path / "a.npy")
    assert np.array_equal(found[:, :2], x[:, :2])
    assert len(np.unique(found, axis=0)) == 6
    arguments = ["--out", tmp_path / "b.npy", "--keep-channels", 1, *common]
    run("complete", checkpoints / "colour", pictures, *arguments)
    assert "not the exact" not in capsys.readouterr().err
    assert np.array_equal(np.load(tmp_path / "b.npy")[..., 0], x[..., 0])
    arguments = ["--out", tmp_path / "c.png", "--keep", 2, "--particles", 3, *common]
    run("complete", checkpoints / "colour", pictures, *arguments)
    scale = 64 // 5
    pixels = np.asarray(Image.open(tmp_path / "c.png"))[2 : 2 + 5 * scale : scale, 2::scale]
    assert np.array_equal(pixels[:, :4], np.load(pictures)[0])  # the original comes first
    record = json.loads((tmp_path / "c.png.json").read_text())
    assert record["particles"] == 3 and record["reading"] == {"channels_last": True}
    assert record["data"] == json.loads((tmp_path / "b.npy.json").read_text())["data"] != ""
    arguments = ["--out", tmp_path / "d.png", "--keep-channels", 1, *common]
    run("complete", checkpoints / "columns", pictures, *arguments)
    told = " ".join(capsys.readouterr().err.split())
    assert "not the exact conditional" in told and "--particles" not in told


def test_what_has_no_labels_is_continued_as_the_class_asked_for_or_each_in_turn(
    checkpoints, tmp_path
):
    x = np.random.default_rng(0).integers(0, 9, (2, 3, 3, 1), np.uint8)
    x[0, 0, 0, 0] = 8
    for name, labels in (("bare", {}), ("others", {"labels": np.array([0, 6])})):
        np.savez(tmp_path / f"{name}.npz", x=x, **labels)
    given = torch.from_numpy(x).long()
    given[:, 1:] = -1
    model = axial.load(checkpoints / "labels")
    for source, flags, label in (
        ("bare", [], torch.tensor([0, 1])),
        ("bare", ["--label", 2], torch.tensor([2, 2])),
        ("others", ["--label", 2], torch.tensor([2, 2])),
    ):
        out = tmp_path / f"{source}{len(flags)}.npy"
        how = ["--channels-last", "--keep", 1, "--count", 1, "--batch", 2]
        source = tmp_path / f"{source}.npz"
        run("complete", checkpoints / "labels", source, *how, *flags, "--out", out)
        wanted = axial.complete(model, given, label=label, batch=2)
        assert np.array_equal(np.load(out), wanted.numpy())
    wrong = refused("complete", checkpoints / "labels", source, *how, "--out", tmp_path / "w.npy")
    assert "has 7 classes, but the model is conditioned on 3" in wrong


def test_a_video_model_continues_the_frames_it_is_given(checkpoints, tmp_path):
    clips = np.random.default_rng(1).integers(0, 3, (2, 2, 3, 3, 3), dtype=np.uint8)
    np.save(tmp_path / "clips.npy", clips)
    out = tmp_path / "a.npy"
    arguments = ["--channels-last", "--values", 3, "--out", out, "--count", 2]
    run("complete", checkpoints / "continuing", tmp_path / "clips.npy", *arguments)
    found = np.load(out)
    assert np.array_equal(found[..., :3], clips[:, 0].repeat(2, 0))


def test_a_count_too_large_for_memory_is_split(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(axial.sampling.draw, "_WORKING_BYTES", 1)
    run("sample", checkpoints / "grey", "--out", tmp_path / "a.npy", "--count", 3, "--batch", 3)
    assert json.loads((tmp_path / "a.npy.json").read_text())["batch"] == 1
    assert len(np.load(tmp_path / "a.npy")) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("grey", ["--temperature", "-1"], "temperature is -1.0: use 0 (argmax) or a positive"),
        ("grey", ["--count", "0"], "count is 0"),
        ("grey", ["--batch", "0"], "batch is 0"),
        ("grey", ["--seed", "-1"], "seed is -1"),
        ("grey", ["--label", "1"], "this model is unconditional"),
        ("labels", ["--label", "3"], "--label is '3', and there is no such class; use 0 to 2"),
        ("grey", ["--out", "a.gif"], "a.gif: holds video, and these do not move"),
        ("grey", ["--out", "a.mp4"], "a.mp4: holds video, and these do not move"),
        ("grey", ["--out", "a.jpg"], "a.jpg: cannot hold what is drawn; use .png"),
        ("clip", ["--out", "folder"], "a folder of PNGs holds grey or RGB pictures"),
        ("two", ["--out", "folder"], "not 2 axes of 2 channels"),
        ("grey", ["--out", "nowhere/a.png"], "nowhere/a.png: nowhere is no folder"),
        ("grey", ["--out", "full"], "full: is there, and not empty"),
        ("grey", ["--out", "."], ".: is where you are, and cannot be replaced"),
        ("grey", ["--out", f"{'x' * 300}.npy"], "cannot be written (File name too long)"),
        ("grey", ["--out", "beside.npy"], "beside.npy.json: exists, and is no file"),
        ("grey", ["--count", str(2 * 10**9)], "not enough memory for this; ask for fewer"),
        ("grey", ["--trace", "t.png"], "t.png: not a .gif path in an existing folder"),
        ("volume", ["--out", "a.gif", "--trace", "./a.gif"], "a.gif: is what is drawn itself"),
        ("continuing", [], "continues what it is given; use axial complete"),
        ("nothing", [], "no such checkpoint"),
    ],
)
def test_a_request_that_cannot_be_met_leaves_nothing(
    checkpoints, tmp_path, monkeypatch, name, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")
    (tmp_path / "beside.npy.json").mkdir()
    arguments = arguments if "--out" in arguments else [*arguments, "--out", "a.png"]
    assert message in refused("sample", checkpoints / name, *arguments)
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["beside.npy.json", "full", "mine.txt"]


def test_an_mp4_that_could_not_be_written_is_told_before_it_is_drawn(
    checkpoints, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(axial.sampling.sample, "draw", None)
    wrong = refused("sample", checkpoints / "volume", "--out", tmp_path / "a.mp4")
    assert "video needs PyAV; pip install" in wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing is kept"),
        (["--keep", "9"], "keep is 9"),
        (["--keep", "2", "--particles", "0"], "particles is 0"),
        (["--keep", "2", "--examples", "0"], "examples is 0"),
    ],
)
def test_what_cannot_be_completed_leaves_nothing(
    checkpoints, pictures, tmp_path, arguments, message, capsys
):
    out = ["--channels-last", "--out", tmp_path / "a.png"]
    assert message in refused("complete", checkpoints / "colour", pictures, *out, *arguments)
    wrong = refused("complete", checkpoints / "colour", pictures, *out, "--keep", 1, "--label", 1)
    assert "this model is unconditional" in wrong and capsys.readouterr().err == ""
    onto = ["--channels-last", "--keep", 1, "--out", pictures]
    wrong = refused("complete", checkpoints / "colour", pictures, *onto)
    assert "colour.npy: is part of what is read" in wrong
    wrong = refused("complete", checkpoints / "grey", pictures, *out, "--keep", "1")
    assert "has examples of 5 x 4, 3 channels" in wrong
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_is_continued_is_not_replaced_by_what_is_drawn(checkpoints, tmp_path):
    run("sample", checkpoints / "colour", "--out", tmp_path / "a", "--count", 1)
    out = tmp_path / "a" / "b.png"
    run("sample", checkpoints / "colour", "--out", out, "--count", 1)
    before = out.read_bytes()
    arguments = [tmp_path / "a", "--keep", 2, "--skip-bad", "--out", out]
    wrong = refused("complete", checkpoints / "colour", *arguments)
    assert f"{out}: is part of what is read; name another" in wrong
    assert out.read_bytes() == before


def test_pictures_among_which_there_are_gifs_are_all_continued(checkpoints, tmp_path):
    (folder := tmp_path / "in").mkdir()
    for name in ("a.png", "b.gif"):
        Image.fromarray(np.zeros((5, 4, 3), np.uint8)).save(folder / name)
    out = tmp_path / "a.npy"
    run("complete", checkpoints / "colour", folder, "--keep", 4, "--count", 1, "--out", out)
    assert len(np.load(out)) == 2


def taken(folder):
    """Files of a user's own under names that may be asked for, and what is in them."""
    for name in ("a.png", "a.gif", "a.mp4", "a.npy", "t.gif", "b.png.json"):
        (folder / name).write_bytes(b'{"mine": 1}')
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "photo.png")
    return {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("command", ["sample", "complete"])
@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.mp4", "a.npy", "b.png", "photo.png", "t"])
def test_a_file_is_never_replaced_unasked(
    checkpoints, tmp_path, monkeypatch, capsys, command, name
):
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    before = taken(tmp_path)
    np.save(source := tmp_path / "x.npy", np.zeros((1, 3, 3, 4), np.uint8))
    out = ["--out", tmp_path / name]
    if name == "t":
        command, out = "sample", ["--out", tmp_path / "new.png", "--trace", tmp_path / "t.gif"]
    arguments = [source, "--channels-none", "--keep", 1] if command == "complete" else []
    message = refused(command, checkpoints / "volume", *arguments, *out, "--count", 1)
    mine = {"b.png": "b.png.json", "t": "t.gif"}.get(name, name)
    assert f"{tmp_path / mine}: exists already; choose another name, or add --overwrite" in message
    assert "lines drawn" not in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.iterdir())) == len(before) + 1


@pytest.mark.parametrize("kind", ["png", "npy", "gif", "mp4"])
def test_what_was_drawn_is_replaced_on_request_byte_for_byte(checkpoints, tmp_path, kind):
    out, trace = tmp_path / f"a.{kind}", tmp_path / "t.gif"
    found = []
    for seed in (0, 1, 0):
        arguments = ["--out", out, "--trace", trace, "--count", 1, "--seed", seed, "--batch", 1]
        run("sample", checkpoints / "volume", *arguments, "--overwrite")
        found.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert found[0] == found[2] and found[0].keys() == {out.name, f"{out.name}.json", "t.gif"}
    assert all(found[0][name] != found[1][name] for name in found[0])


@pytest.mark.parametrize(
    ("command", "arguments", "named"),
    [
        ("sample", ["--out", "/proc/a.png"], "/proc/a.png"),
        ("sample", ["--out", "/proc/folder"], "/proc/folder"),
        ("sample", ["--out", "new.png", "--trace", "/proc/t.gif"], "/proc/t.gif"),
        ("sample", ["--out", f"{'x' * 240}.npy"], f"{'x' * 240}.npy"),
        ("complete", ["--out", "/proc/a.npy"], "/proc/a.npy"),
    ],
    ids=["sheet", "folder", "trace", "long", "complete"],
)
def test_a_place_that_cannot_be_written_is_told_before_anything_is_drawn(
    checkpoints, tmp_path, monkeypatch, capsys, command, arguments, named
):
    """Only trying tells: root may write everywhere, and a name must leave room for another's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    np.save("x.npy", np.zeros((1, 4, 4), np.uint8))
    source = ["x.npy", "--channels-none", "--keep", 1] if command == "complete" else []
    message = refused(command, checkpoints / "grey", *source, *arguments, "--count", 1)
    assert f"axial: {named}" in message and "cannot be written (" in message
    assert "lines drawn" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_disk_that_refuses_leaves_nothing(checkpoints, tmp_path, monkeypatch):
    def full(*args, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.save", full)
    message = refused("sample", checkpoints / "grey", "--out", tmp_path / "a.npy", "--count", 1)
    assert "a.npy: cannot be written (No space left on device)" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["sample", "complete"])
def test_a_moving_picture_that_will_be_too_large_is_refused_before_it_is_drawn(
    checkpoints, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 3, 4), np.uint8))
    source = [tmp_path / "x.npy", "--channels-none", "--keep", 1] if command == "complete" else []
    how = ["--count", 8000, "--out", tmp_path / "a.mp4"]
    message = refused(command, checkpoints / "volume", *source, *how)
    assert re.search(r"a\.mp4: 1,\d+ x 17,\d+ pixels are more than a \.mp4 holds", message)
    assert "lines drawn" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize(("kind", "height"), [("gif", 65_536), ("mp4", 16_386)])
def test_moving_pictures_too_large_for_their_format_are_one_line(tmp_path, kind, height):
    path = tmp_path / f"a.{kind}"
    with pytest.raises(DataError, match=rf"a\.{kind}: 2 x {height:,} pixels are more than"):
        write_moving(path, [np.zeros((height, 2, 3), np.uint8)] * 2)
    assert list(tmp_path.iterdir()) == []
