"""Runs on random crops: exact resume, pictures held out whole, what other commands make of it."""

import json
import shutil
from dataclasses import replace

import formats
import numpy as np
import pytest
from conftest import config, refused, run, saved
from packed_arrays import write, write_pictures
from PIL import Image
from small_runs import ALONE, assert_same_ending

import axial
from axial.checkpoints.model_card import model_card
from axial.checkpoints.run_folder import Run
from axial.checkpoints.run_summary import RunSummary
from axial.data.batches import TrainingBatches
from axial.data.packed import open_packed
from axial.errors import ConfigError, DataError
from axial.presets import PRESETS, small
from axial.shape import DataShape
from axial.training.hold_out import divide
from axial.training.plan import Plan
from axial.training.start import create

SIZES = [(6, 9), (12, 5), (4, 4), (7, 8), (5, 5), (9, 9)]
TINY = {"width": 8, "heads": 2, "encoder_layers": 2, "decoder_layers": (2, 1), "batch": 4}
TINY |= {"warmup": 1, "sample_every": 0, "log_every": 1, "save_every": 5, "validate_every": 5}


def picture(number, size):
    """A picture that tells its number at every pixel; the rest is noise."""
    x = np.random.default_rng(number).integers(0, 64, (*size, 3), np.uint8)
    x[..., 0] = number
    return x


def some_pictures(count=30):
    return [picture(i, SIZES[i % len(SIZES)]) for i in range(count)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A packed file of thirty pictures, and a run of ten steps on crops of it."""
    folder = tmp_path_factory.mktemp("photos")
    write_pictures(folder / "x.npy", some_pictures(), values=64)
    settings = TINY | {"crop": 4, "steps": 10, "flip": True, "validation": 6}
    axial.train("small", data=folder / "x.npy", out=folder / "run", **settings)
    return folder


def training(**settings):
    return replace(small().training, **({"batch": 4, "crop": (4, 4)} | settings))


def test_a_run_on_crops_resumes_bit_for_bit(photos, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(photos / "run", again)
    shutil.rmtree(again / "checkpoints" / "step-00000010")
    axial.train(out=again, resume=True)
    assert_same_ending(again, photos / "run", steps=10)
    about = Run(again).about
    assert about["training"]["crop"] == [4, 4] and about["model"]["axes"] == [4, 4]
    assert about["data"]["crops"] == {
        **{"trained": 91, "held_out": 2},
        **{"held_out_pictures": 1, "too_small": 0},
    }


def test_a_run_is_lengthened_tuned_and_told(photos, tmp_path, capsys):
    again = tmp_path / "run"
    shutil.copytree(photos / "run", again)
    run("train", "--resume", again, "--epochs", "0.6")  # 55 crops, so 14 steps
    told = capsys.readouterr().err
    assert "30 pictures: 91 crops of 4 x 4 a pass, 1 held out, scored on 2 tiles" in told
    assert Run(again).about["training"]["steps"] == 14
    axial.train("small", data=photos / "x.npy", out=tmp_path / "b", init=again, steps=1, batch=4)
    assert Run(tmp_path / "b").about["training"]["crop"] == [4, 4], "that of the model"
    capsys.readouterr()
    run("info", again, tmp_path / "b")
    assert "crop" not in capsys.readouterr().out, "they have the same"
    told = "toy train, 30 pictures, in crops of 4 x 4"
    assert f"trained on  {told}\n" in str(RunSummary.of(Run(again)))
    model = axial.load(again)
    assert f"{told}, sha256" in model_card("me/it", model.config, "0", Run(again), samples=False)
    message = refused("train", "--resume", again, "--crop", "3")
    assert "was started with crop [4, 4], not [3, 3]" in message
    message = refused(
        *["train", "small", "--data", photos / "x.npy", "--out", tmp_path / "c"],
        *["--init", again, "--crop", "3"],
    )
    assert "takes examples of 4 x 4, not crops of 3 x 3; use --crop 4" in message


def test_a_run_that_says_what_no_crops_are_is_damaged(photos, tmp_path):
    shutil.copytree(photos / "run", tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["checksum"]
    training, data = about["training"], about["data"]
    harms = [{"training": training | {"crop": crop}} for crop in (4, None, "4 x 4")]
    for crops in (None, 3, {}, data["crops"] | {"trained": 0}):
        harms.append({"data": data | {"crops": crops}})
    for harm in harms:
        (tmp_path / "run" / "run.json").write_text(json.dumps(about | harm))
        assert "run.json: damaged, " in refused("train", "--resume", tmp_path / "run")


@pytest.mark.parametrize("which", ["spread", "last"])
def test_no_crop_is_cut_from_a_picture_that_is_held_out(photos, which):
    packed = open_packed(photos / "x.npy")
    parts = divide(packed, training(hold_out=which, validation=3))
    held_out = set(parts.scored.rows(parts.held_out)[..., 0].ravel().tolist())
    batches = TrainingBatches(parts.trained, 4, seed=0, subset=parts.kept)
    seen = {int(n) for step in range(60) for n in batches.at(step).x.numpy()[..., 0].ravel()}
    assert len(held_out) == 1 and not seen & held_out and seen | held_out == set(range(30))
    assert held_out == {15 if which == "spread" else 29}


def test_what_is_held_out_follows_from_validation(photos):
    packed = open_packed(photos / "x.npy")
    whole = divide(packed, training())
    assert len(whole.held_out) == whole.scored.counts[15] and whole.held_out_pictures == 1
    assert len(divide(packed, training(validation=1)).held_out) == 1
    none = divide(packed, training(validation=0))
    assert len(none.held_out) == 0 and len(none.kept) == len(none.trained)
    many = open_packed(write_pictures(photos / "many.npy", some_pictures(200)))
    some = divide(many, training(validation=11))
    assert some.held_out_pictures == 10 and len(some.held_out) == 11
    assert len(set(some.scored.pictures(some.held_out))) > 6, "spread over the pictures"
    one = open_packed(write_pictures(photos / "one.npy", some_pictures(1)))
    assert len(divide(one, training()).held_out) == 0
    with pytest.raises(ConfigError, match="validation is 3, but crops are cut from one picture"):
        divide(one, training(validation=3))


def test_pictures_smaller_than_crops_are_refused_or_left_out(photos):
    packed = open_packed(photos / "x.npy")
    with pytest.raises(DataError, match=r"10 of 30 pictures are smaller than crops of 6 x 5; skip"):
        divide(packed, training(crop=(6, 5)))
    parts = divide(packed, training(crop=(6, 5), skip_small=True))
    assert parts.too_small == 10
    used = {*parts.trained.pictures(parts.kept), *parts.scored.pictures(parts.held_out)}
    assert used == {i for i in range(30) if i % 6 not in (2, 4)}
    with pytest.raises(DataError, match=r"30 of 30 pictures are smaller .*; use a smaller crop="):
        divide(packed, training(crop=(20, 20), skip_small=True))


@pytest.mark.parametrize(
    ("crop", "found"), [(8, (8, 8)), ([8], (8, 8)), ([8, 6], (8, 6)), ((np.int64(3),), (3, 3))]
)
def test_the_size_of_a_crop_is_one_number_or_two(crop, found):
    assert training(crop=crop).crop == found


@pytest.mark.parametrize("crop", [0, -1, (1, 2, 3), (), "8", 2.5, [True]])
def test_what_is_no_size_of_a_crop_is_refused(crop):
    with pytest.raises(ConfigError, match="crop is"):
        training(crop=crop)


def test_crops_of_an_ordinary_array_are_trained_on_and_scored(tmp_path, capsys):
    x = np.random.default_rng(0).integers(0, 8, (25, 7, 6, 1), np.uint8)
    write(tmp_path / "x.npy", x, values=8)
    recipe = small(DataShape(axes=(3, 3), values=8))
    how = {"batch": 4, "steps": 2, "warmup": 1, "sample_every": 0}
    with pytest.raises(axial.InputError, match="has examples of 7 x 6"):
        axial.train(recipe, data=tmp_path / "x.npy", out=tmp_path / "no", **how)
    axial.train(recipe, data=tmp_path / "x.npy", out=tmp_path / "run", crop=3, **how)
    run("evaluate", tmp_path / "run", "--data", tmp_path / "x.npy")
    told = capsys.readouterr().out
    assert "(100 tiles of 3 x 3, all of 25 pictures but 14.3% at their edges, toy train)" in told
    with pytest.raises(axial.ConfigError, match=r"takes examples of 3 x 3, not crops of 2 x 3"):
        axial.train(recipe, data=tmp_path / "x.npy", out=tmp_path / "no", crop=(2, 3), **how)
    clips = write(tmp_path / "clips.npy", np.zeros((30, 3, 4, 4, 1), np.uint8))
    for preset, crop in (("small", {"crop": 2}), ("photos", {})):
        with pytest.raises(DataError, match="leave crop= out, or train a preset without crops"):
            axial.train(preset, data=clips, out=tmp_path / "no", **crop, **how)


def test_a_folder_of_any_sizes_needs_no_packing_and_its_test_part_is_scored(tmp_path, capsys):
    """Pictures that are to be cropped are read as they are."""
    names = [f"{'train' if i < 24 else 'test'}/{i:02}.png" for i in range(30)]
    folder = formats.picture_folder(tmp_path / "in", some_pictures(), names)
    tiny = ["--width", "8", "--heads", "2", "--encoder-layers", "2", "--decoder-layers", "2", "1"]
    tiny += ["--steps", "2", "--batch", "4", "--warmup", "1", "--sample-every", "0"]
    made = ["train", "photos", "--data", folder, "--crop", "4", "4", *tiny]
    run(*made, "--out", tmp_path / "run")
    assert Run(tmp_path / "run").about["data"]["reading"] == {"any_size": True}
    capsys.readouterr()
    run("evaluate", tmp_path / "run", "--json", tmp_path / "x.json", "--map", tmp_path / "x.png")
    said = capsys.readouterr()
    assert "(13 tiles of 4 x 4, all of 6 pictures but 28.8% at their edges, in test)" in said.out
    assert "bits/dim on the whole pictures that the tiles are of, a file for each" in said.err
    run("evaluate", tmp_path / "run", "--first", "2")
    assert "(2 of 5 tiles of 4 x 4 of the first 2 pictures, in test)" in capsys.readouterr().out
    found = json.loads((tmp_path / "x.json").read_text())["tiles"]
    assert found == {"size": [4, 4], "tiles": 13, "pictures": 6, "left_out": found["left_out"]}
    message = refused(
        *["train", "photos", "--data", folder, "--crop", "5", *tiny, "--out", tmp_path / "no"]
    )
    told = "in train: 4 of 24 pictures are smaller than crops of 5 x 5; --skip-small leaves them"
    assert message.startswith(f"axial: {told}")
    assert not (tmp_path / "no").exists()


def test_without_a_size_crops_are_of_64_and_those_of_photos(tmp_path):
    x = [np.zeros(size, np.uint8) for size in ((64, 70, 3), (90, 64, 3))]
    write_pictures(tmp_path / "x.npy", x)
    assert PRESETS["photos"]().training.crop == PRESETS["photos"]().model.axes == (64, 64)
    assert 2 * PRESETS["photos"]().model.parameters() <= 30e6
    plan = Plan(
        **{"name": "small", "preset": small, "data": str(tmp_path / "x.npy")},
        training=small().training,
    )
    made, _ = create(plan, tmp_path / "run", ALONE)
    assert made.about["training"]["crop"] == [64, 64] and made.about["model"]["axes"] == [64, 64]


def test_scoring_tiles_is_scoring_what_they_hold(photos):
    """Identical each time, whatever else is in the file, and equal to the tiles as an array."""
    model = axial.load(photos / "run")
    packed = open_packed(photos / "x.npy")
    found = axial.evaluate(model, packed)
    x = [packed.example(i) for i in range(30)]
    tiles = np.concatenate(
        [
            p[top : top + 4, left : left + 4][None]
            for p in x
            for top in range(0, len(p) - 3, 4)
            for left in range(0, p.shape[1] - 3, 4)
        ]
    )
    assert found.bits_per_dim == axial.evaluate(model, tiles).bits_per_dim
    assert axial.evaluate(model, packed, limit=7).index.tolist() == [4, 13, 23, 32, 41, 51, 60]
    assert "7 of 65 tiles of 4 x 4, evenly spread" in str(axial.evaluate(model, packed, limit=7))


def test_pictures_without_a_tile_are_told(tmp_path):
    saved({"model": config((3, 3), values=4)}, tmp_path)
    x = [np.zeros(size, np.uint8) for size in ((3, 4, 1), (6, 3, 1), (2, 5, 1))]
    found = axial.evaluate(tmp_path / "model", write_pictures(tmp_path / "x.npy", x, values=4))
    told = "3 tiles of 3 x 3, all of 2 pictures but 32.5% at their edges and in 1 smaller one"
    assert told in str(found)
    with pytest.raises(DataError, match=r"^toy train: none of its pictures holds a tile of 3 x 3"):
        axial.evaluate(tmp_path / "model", write_pictures(tmp_path / "y.npy", x[2:], values=4))


def test_other_data_than_the_runs_is_refused_by_its_sizes(photos, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(photos / "run", again)
    turned = [x.reshape(x.shape[1], x.shape[0], 3) for x in some_pictures()]
    other = write_pictures(tmp_path / "y.npy", turned, values=64)
    assert open_packed(other).description.sha256 == Run(again).about["data"]["sha256"]
    message = refused("train", "--resume", again, "--data", other)
    assert "is not what" in message and "sizes" in message


def test_pictures_of_a_packed_file_are_compressed_whole_and_continued_by_tiles(photos, tmp_path):
    packed = open_packed(photos / "x.npy")
    run("compress", photos / "run", photos / "x.npy", "--out", tmp_path / "x.axl")
    run("decompress", tmp_path / "x.axl", "--model", photos / "run", "--out", tmp_path / "back")
    for i in range(30):
        back = np.asarray(Image.open(tmp_path / f"back/x/{i:06}.png"))
        assert np.array_equal(back, packed.example(i))
    out = ["--keep", "2", "--count", "1", "--examples", "3", "--out", tmp_path / "c.npy"]
    run("complete", photos / "run", photos / "x.npy", *out)
    drawn = np.load(tmp_path / "c.npy")
    first = packed.example(0)
    assert np.array_equal(drawn[0, :2], first[:2, :4])
    assert np.array_equal(drawn[1, :2], first[:2, 4:8])


def test_pictures_of_a_folder_are_continued_by_tiles(tmp_path):
    saved({"model": config((3, 4), values=256)}, tmp_path)
    x = [np.random.default_rng(i).integers(0, 256, (4 + i, 9, 1), np.uint8) for i in range(2)]
    folder = formats.picture_folder(tmp_path / "in", x)
    out = ["--keep", "2", "--count", "1", "--examples", "3", "--out", tmp_path / "c.npy"]
    assert "or --any-size to keep them" in refused("complete", tmp_path / "model", folder, *out)
    run("complete", tmp_path / "model", folder, "--any-size", *out)
    wanted = [x[0][:2, :4], x[0][:2, 4:8], x[1][:2, :4]]
    assert np.array_equal(np.load(tmp_path / "c.npy")[:, :2], wanted)


def test_labels_of_a_packed_file_condition_what_is_compressed(tmp_path):
    saved({"model": config((3, 3), values=64, classes=2)}, tmp_path)
    x = [np.random.default_rng(i).integers(0, 64, (4 + i, 5, 1), np.uint8) for i in range(3)]
    labelled = write_pictures(tmp_path / "x.npy", x, np.array([1, 0, 1]), 2, values=64)
    run("compress", tmp_path / "model", labelled, "--out", tmp_path / "x.axl")
    run("compress", tmp_path / "model", labelled, "--label", "1", "--out", tmp_path / "y.axl")
    assert (tmp_path / "x.axl").read_bytes() != (tmp_path / "y.axl").read_bytes()
    for name in "xy":
        run("decompress", tmp_path / f"{name}.axl", "--out", tmp_path / name)
        for i, picture in enumerate(x):
            back = np.asarray(Image.open(tmp_path / name / f"x/{i:06}.png"))
            assert np.array_equal(back, picture[..., 0])
    bare = write_pictures(tmp_path / "bare.npy", x, values=64)
    message = refused("compress", tmp_path / "model", bare, "--out", tmp_path / "z.axl")
    assert "bare.npy: has no labels, and the model is conditioned on them; give --label" in message


def test_a_model_that_takes_no_such_pictures_says_so(photos, tmp_path):
    saved({"line": config((5,), values=64), "grey": config((3, 3), values=64)}, tmp_path)
    for command in (["evaluate"], ["compress", "--out", tmp_path / "x.axl"]):
        name, *rest = command
        data = ["--data"] if name == "evaluate" else []
        message = refused(name, tmp_path / "line", *data, photos / "x.npy", *rest)
        assert "holds pictures, but the model takes 5, 1 channel, 64 values" in message
    message = refused("evaluate", tmp_path / "grey", "--data", photos / "x.npy")
    assert "pictures with 3 channels, 64 values, but the model takes 1 channel" in message
