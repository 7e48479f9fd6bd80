"""`axial evaluate`: what it scores, prints, writes and refuses."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from conftest import both_ranks, config, fails, tiny_model
from packed_arrays import FACTS, whole, write_test_set
from PIL import Image

import axial
from axial import bits, element_bits, evaluate, save
from axial.checkpoints.run_folder import Run, write_run
from axial.cli.main import main
from axial.data.packed import hash_integers
from axial.data.packed_writer import PackedWriter
from axial.data.packing import pack
from axial.data.sources.imagenet import NEW, OLD
from axial.data.sources.options import ReadOptions
from axial.evaluation import scoring
from axial.media.maps import bit_map
from axial.media.sheets import write_png, write_sheet


def describe_run(folder, **data):
    """What training leaves beside a model: what it was trained on."""
    usual = {"title": "", "source": None, "file": "", "reading": {}, "examples": 1}
    usual |= {"stack_frames": False, "sha256": "", "labels": None, "names": None}
    parts = {"preset": "small", "model": {}, "training": {"save_every": 1}, "init": None}
    write_run(folder, parts | {"data": usual | data})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What training on digits would leave: a checkpoint that says what it was trained on."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    found = config((8, 8), values=17, width=16, heads=2, classes=10)
    save(tiny_model(found, dtype=torch.float32), folder)
    describe_run(folder, source="digits")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "digits.npy"
    return pack("digits", path, ReadOptions(split="test"), workers=1).packed


def test_the_command_scores_what_the_run_was_trained_on(run, digits, tmp_path, capsys):
    out, each, drawn = tmp_path / "r.json", tmp_path / "each.npy", tmp_path / "map.png"
    files = ["--json", str(out), "--per-example", str(each), "--map", str(drawn)]
    main(["evaluate", str(run), *files])
    said = capsys.readouterr()
    model = axial.load(run)
    exact = bits(model, *whole(digits)).numpy()
    line = re.fullmatch(
        r"(\d\.\d{4}) bits/dim \+- (\d\.\d{4}) \(300 images, digits test, given labels\)\n",
        said.out,
    )
    found = json.loads(out.read_text())
    assert line[1] == f"{found['bits_per_dim']:.4f}" and line[2] == f"{found['standard_error']:.4f}"
    assert found["bits_per_dim"] == pytest.approx(exact.mean() / 64, abs=1e-6)
    assert found["bits"] == pytest.approx(exact.sum(), rel=1e-6)
    assert found["examples"] == 300 and found["elements"] == 300 * 64
    assert np.mean(found["per_row"]) == pytest.approx(found["bits_per_dim"], abs=1e-12)
    assert found["data"]["sha256"] == digits.description.sha256
    assert found["data"]["split"] == "test" and found["given_labels"] is True
    assert found["fingerprint"] == axial.fingerprint(model) and found["checkpoint"] == str(run)
    assert found["weights"] == "ema" and found["precision"] == "float32" and found["seconds"] > 0
    assert found["versions"] == {"axial": axial.__version__, "torch": torch.__version__}
    np.testing.assert_allclose(np.load(each), exact, rtol=1e-5)
    assert drawn.stat().st_size > 500
    assert len(list(tmp_path.iterdir())) == 3


def test_scoring_what_a_run_was_trained_on_is_warned_of(alone, digits, capsys):
    run = alone
    data = run / Run(run).about["data"]["file"]
    main(["evaluate", str(run), "--data", str(data), "--first", "2", "--no-compare"])
    assert f"warning: {run} was trained on this data" in capsys.readouterr().err
    main(["evaluate", str(run), "--data", str(digits.path), "--first", "2", "--no-compare"])
    assert "warning" not in capsys.readouterr().err
    main(["evaluate", str(run), "--data", "digits", "--split", "train", "--first", "2"])
    assert f"warning: {run} was trained on this data" in capsys.readouterr().err
    main(["evaluate", str(run), "--data", "digits", "--first", "2", "--no-compare"])
    assert "warning" not in capsys.readouterr().err


def test_classes_called_by_their_numbers_are_refused_by_number(alone, digits, capsys):
    assert axial.load(alone).class_names == tuple("0123456789")
    command = ["evaluate", str(alone), "--data", str(digits.path), "--label"]
    line = f"axial: {alone}: --label is '{{}}', and there is no such class; use 0 to 9, or all"
    for wanted in ("12", "cat"):
        assert fails(capsys, *command, wanted) == line.format(wanted)


def test_raw_weights_are_named_in_the_line_and_in_the_result(alone, tmp_path, capsys):
    said = {}
    for weights in ("ema", "raw"):
        out = ["--json", str(tmp_path / f"{weights}.json"), "--first", "3"]
        main(["evaluate", str(alone), "--weights", weights, *out])
        said[weights] = capsys.readouterr().out
        assert json.loads((tmp_path / f"{weights}.json").read_text())["weights"] == weights
    about = "first 3 images, digits test, given labels"
    assert said["ema"].endswith(f"({about})\n")
    assert said["raw"].endswith(f"({about}, raw weights)\n")


def test_a_packed_file_is_scored_as_the_split_it_says(run, digits, capsys):
    for first in ("20", "1"):
        main(["evaluate", str(run), "--data", str(digits.path), "--first", first, "--batch", "1"])
        said = f"(first {first} of 300 images, digits test, given labels)\n"
        assert capsys.readouterr().out.endswith(said)
    message = fails(capsys, "evaluate", str(run), "--data", str(digits.path), "--split", "train")
    assert "has no split 'train', for it holds 'test'" in message


def test_of_the_first_examples_only_what_is_scored_is_read_and_described(tmp_path, capsys):
    model = tiny_model(config((8, 8), values=256, width=16, heads=2), dtype=torch.float32)
    save(model, tmp_path / "run")
    x = formats.pictures(6, 8, channels=1)
    folder = formats.picture_folder(tmp_path / "in", x)
    (folder / "00004.png").write_bytes(b"damaged")
    command = ["evaluate", tmp_path / "run", "--data", folder, "--json", tmp_path / "r.json"]
    assert "00004.png: is no picture" in fails(capsys, *map(str, command))
    main([*map(str, command), "--first", "4"])
    found = json.loads((tmp_path / "r.json").read_text())
    exact = bits(model, torch.from_numpy(x[:4].astype(np.int64)))
    assert found["bits"] == pytest.approx(float(exact.sum()), rel=1e-6)
    assert capsys.readouterr().out.endswith("(first 4 images, in)\n")
    data = {"title": "in", "split": None, "examples": 4, "beginning": True, "labels": None}
    assert found["data"] == data | {"sha256": hashlib.sha256(x[:4].tobytes()).hexdigest()}


def test_an_array_without_parts_is_not_called_a_test_set(tmp_path, capsys):
    found = config((3, 4))
    save(tiny_model(found, dtype=torch.float32), tmp_path / "run")
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).integers(0, 3, (9, 3, 4), np.uint8))
    reading = ["--values", "3", "--channels-none"]
    main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "mine.npy"), *reading])
    assert capsys.readouterr().out.endswith("(9 images, mine)\n")
    reading = {"values": 3, "channels_none": True}
    describe_run(tmp_path / "run", source=str(tmp_path / "mine.npy"), reading=reading)
    assert "has no test part; give --data" in fails(capsys, "evaluate", str(tmp_path / "run"))
    message = fails(capsys, "evaluate", str(tmp_path / "run"), "--split", "valid")
    assert "mine.npy: has no split 'valid', for it is not divided into parts" in message


@pytest.mark.parametrize("split", [None, "test"])
def test_a_packed_array_that_was_trained_on_has_no_test_part(split, run, tmp_path, capsys):
    x = np.zeros((9, 8, 8, 1), np.uint8)
    write_test_set(tmp_path / "mine.npy", x, np.arange(9), 10, split=split, values=17)
    save(axial.load(run), tmp_path / "run")
    describe_run(tmp_path / "run", source=str(tmp_path / "mine.npy"))
    message = fails(capsys, "evaluate", str(tmp_path / "run"))
    told = "was trained on and has no test part; give --data"
    assert message == f"axial: {tmp_path / 'mine.npy'}: {told}"


def test_a_part_called_test_is_not_scored_in_silence_by_what_was_trained_on_it(tmp_path, capsys):
    x = np.random.default_rng(0).integers(0, 3, (20, 4, 4))
    np.savez(tmp_path / "a.npz", x_train=x, x_test=x[::-1])
    sizes = ["--width", "8", "--heads", "1", "--batch", "4", "--steps", "1", "--sample-every", "0"]
    data = ["--data", str(tmp_path / "a.npz")]
    for split in ("train", "test"):
        main(["train", "small", *data, "--split", split, "--out", str(tmp_path / split), *sizes])
    main(["evaluate", str(tmp_path / "train")])
    assert "(20 images, a test)" in capsys.readouterr().out
    told = f"axial: a test: is what {tmp_path / 'test'} was trained on; give --data"
    assert fails(capsys, "evaluate", str(tmp_path / "test")) == told
    assert fails(capsys, "evaluate", str(tmp_path / "test"), "--limit", "3") == told
    for asked in (["--split", "test"], ["--data", str(tmp_path / "test/data/data.npy")]):
        main(["evaluate", str(tmp_path / "test"), *asked])
        assert "(20 images, a test)" in capsys.readouterr().out


def test_no_command_takes_a_split_that_there_is_not(tmp_path, capsys):
    model = tiny_model(config((8, 8), values=256, width=16, heads=2), dtype=torch.float32)
    save(model, tmp_path / "run")
    names = ["cat/a.png", "dog/a.png", "owl/a.png"]
    folder = formats.picture_folder(tmp_path / "pets", formats.pictures(3, 8, channels=1), names)
    for command in (
        ["evaluate", tmp_path / "run", "--data", folder],
        ["complete", tmp_path / "run", folder, "--keep", 2, "--out", tmp_path / "out.png"],
        ["train", "small", "--data", folder, "--out", tmp_path / "new"],
        ["data", folder, "--out", tmp_path / "new.npy"],
    ):
        message = fails(capsys, *map(str, command), "--split", "banana")
        assert "pets: has no split 'banana', for it is not divided into parts" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets", "run"]


PETS = ("cat", "dog", "owl")


@pytest.fixture
def pets(tmp_path):
    """What training on three kinds of pictures would leave, and one picture of each."""
    model = tiny_model(
        config((8, 8), values=256, width=16, heads=2, classes=3), dtype=torch.float32
    )
    save(model, tmp_path / "run")
    describe_run(tmp_path / "run", names=PETS)
    return model, formats.pictures(3, 8, channels=1)


@pytest.mark.parametrize("names", [("dog", "owl"), ("owl", "cat", "dog"), PETS], ids=str)
def test_labels_are_those_of_the_same_name_in_the_run(names, pets, tmp_path, capsys):
    model, x = pets
    label = np.array([PETS.index(name) for name in names])
    with PackedWriter(tmp_path / "new.npy") as writer:
        writer.append(x[label])
        writer.finish(np.arange(len(names)), len(names), names, **FACTS)
    files = ["--json", str(tmp_path / "r.json"), "--per-example", str(tmp_path / "each.npy")]
    data = ["--data", str(tmp_path / "new.npy")]
    main(["evaluate", str(tmp_path / "run"), *data, *files, "--map", str(tmp_path / "map.png")])
    assert capsys.readouterr().out.endswith("toy train, given labels)\n")
    exact = bits(model, torch.from_numpy(x[label].astype(np.int64)), torch.from_numpy(label))
    np.testing.assert_allclose(np.load(tmp_path / "each.npy"), exact, rtol=1e-5)
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["data"]["labels"] == hash_integers(label)
    (tmp_path / "run" / "run.json").unlink()
    if len(names) < 3:
        told = fails(capsys, "evaluate", str(tmp_path / "run"), *data)
        assert "has 2 classes, but the model is conditioned on 3 classes" in told
    else:  # a model that knows no names goes by the numbers
        out = ["--json", str(tmp_path / "r.json"), "--overwrite"]
        main(["evaluate", str(tmp_path / "run"), *data, *out])
        found = json.loads((tmp_path / "r.json").read_text())
        assert found["data"]["labels"] == hash_integers(np.arange(3))


def test_a_class_that_the_run_does_not_know_is_named(pets, tmp_path, capsys):
    names = ["dog/a.png", "owl/a.png", "zcat/a.png"]
    folder = formats.picture_folder(tmp_path / "new", pets[1], names)
    told = "new: has the class 'zcat', but the model was trained on 'cat', 'dog', 'owl'; call it as"
    run = str(tmp_path / "run")
    assert told in fails(capsys, "evaluate", run, "--data", str(folder))
    out = ["--keep", "2", "--out", str(tmp_path / "out.npy")]
    assert told in fails(capsys, "complete", run, str(folder), *out)
    save(tiny_model(config((8, 8), values=256, width=16, heads=2), dtype=torch.float32), run)
    drawn = ["--map", str(tmp_path / "map.png")]
    main(["evaluate", run, "--data", str(folder), *drawn])  # it is told no labels
    assert capsys.readouterr().out.endswith("(3 images, new)\n")


def test_a_run_that_cannot_be_read_is_an_error_and_never_absent(pets, tmp_path, capsys):
    packed = write_test_set(tmp_path / "new.npy", pets[1], np.arange(3), 3)
    path, data = tmp_path / "run" / "run.json", str(packed.path)
    whole = path.read_bytes()
    make = {
        "cut short": lambda: path.write_bytes(whole[:-3]),
        "empty": path.touch,
        "a letter changed": lambda: path.write_bytes(whole.replace(b'"dog"', b'"dig"')),
        "nested": lambda: path.write_text("[" * 100_000),
        "a pipe": lambda: os.mkfifo(path),
        "a device": lambda: path.symlink_to("/dev/zero"),
        "a folder": path.mkdir,
        "a link to nothing": lambda: path.symlink_to("nothing"),
        "a link to itself": lambda: path.symlink_to(path),
    }
    out = ["--keep", "2", "--out", str(tmp_path / "out.npy")]
    for kind, harm in make.items():
        path.unlink()
        harm()
        for args in (
            ["evaluate", str(path.parent), "--data", data],
            ["complete", str(path.parent), data, *out],
        ):
            assert f"{path}: " in fails(capsys, *args), kind
        if kind == "a folder":
            path.rmdir()
            path.touch()


def test_a_description_that_is_no_file_is_an_error_and_never_absent(pets, tmp_path, capsys):
    packed = write_test_set(tmp_path / "new.npy", pets[1], np.arange(3), 3)
    path = tmp_path / "new.json"
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nothing")):
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        told = fails(capsys, "evaluate", str(tmp_path / "run"), "--data", str(packed.path))
        assert f"{path}: " in told


@pytest.mark.parametrize(("trained", "scored"), [(OLD, NEW), (NEW, OLD), (NEW, NEW), (None, OLD)])
def test_the_other_version_of_imagenet_is_said(trained, scored, tmp_path, capsys):
    save(tiny_model(config((3, 4)), dtype=torch.float32), tmp_path / "run")
    describe_run(tmp_path / "run", title=f"ImageNet32 {trained or ''} train")
    x = np.zeros((2, 3, 4, 1), np.uint8)
    facts = {"source": "ImageNet32", "version": scored, "split": "val", "values": 3}
    packed = write_test_set(tmp_path / "x.npy", x, **facts)
    out = ["--json", str(tmp_path / "r.json")]
    main(["evaluate", str(tmp_path / "run"), "--data", str(packed.path), *out])
    other = trained if trained not in (None, scored) else None
    said = capsys.readouterr()
    assert (
        (f", trained on {other})" in said.out) == ("warning: " in said.err) == (other is not None)
    )
    assert "trained on None" not in said.out
    assert json.loads((tmp_path / "r.json").read_text())["trained_on"] == other
    assert str(evaluate(tmp_path / "run", packed)) == said.out.strip()


def test_an_array_that_holds_more_values_than_it_says_is_refused(tmp_path, capsys):
    save(tiny_model(config((3, 4), values=256), dtype=torch.float32), tmp_path / "run")
    x = np.full((2, 3, 4, 1), 9, np.uint8)
    packed = write_test_set(tmp_path / "x.npy", x, values=5)
    told = fails(capsys, "evaluate", str(tmp_path / "run"), "--data", str(packed.path))
    assert "holds 9, but its description says 5 values" in told


def test_a_model_kept_in_16_bits_is_scored_in_float32(tmp_path, capsys):
    found = config((3, 4))
    model = tiny_model(found, dtype=torch.float16)
    model.to_logits.weight.data *= 1000  # beyond float16, once multiplied
    save(model, tmp_path / "run")
    packed = write_test_set(tmp_path / "x.npy", np.zeros((2, 3, 4, 1), np.uint8), values=3)
    maps = [tmp_path / "a.png", tmp_path / "b.png"]
    data = ["--data", str(packed.path), "--map"]
    main(["evaluate", str(tmp_path / "run"), *data, str(maps[0])])
    exact = bits(model.float(), whole(packed)[0]).mean() / 12
    assert capsys.readouterr().out.startswith(f"{exact:.4f} bits/dim")
    save(model, tmp_path / "wide")
    main(["evaluate", str(tmp_path / "wide"), *data, str(maps[1])])
    assert maps[0].read_bytes() == maps[1].read_bytes()
    capsys.readouterr()
    model.norm.bias.data.fill_(9)
    model.to_logits.weight.data.fill_(3e38)
    save(model, tmp_path / "run")
    told = fails(capsys, "evaluate", str(tmp_path / "run"), "--data", str(packed.path))
    assert "gives probabilities that are no numbers in float32" in told and "damaged" not in told


@pytest.mark.parametrize(("flag", "name"), [("--per-example", "x.npy"), ("--json", "x.json")])
def test_what_is_scored_is_never_replaced_by_its_scores(flag, name, tmp_path, capsys):
    save(tiny_model(config((3, 4)), dtype=torch.float32), tmp_path / "run")
    write_test_set(tmp_path / "x.npy", np.zeros((2, 3, 4, 1), np.uint8), values=3)
    before = (tmp_path / name).read_bytes()
    out = [flag, str(tmp_path / name), "--overwrite"]
    told = fails(capsys, "evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "x.npy"), *out)
    assert "is part of what is read" in told and (tmp_path / name).read_bytes() == before


def test_a_continuation_has_the_label_of_that_name(pets, tmp_path):
    folder = formats.picture_folder(tmp_path / "new", pets[1][:2], ["dog/a.png", "owl/a.png"])
    how = ["--keep", "2", "--count", "1", "--examples", "1", "--device", "cpu"]
    for name, label in (("named", []), ("told", ["--label", "1"]), ("other", ["--label", "0"])):
        out = ["--out", str(tmp_path / f"{name}.npy")]
        main(["complete", str(tmp_path / "run"), str(folder), *how, *label, *out])
    named, told, other = (np.load(tmp_path / f"{n}.npy") for n in ("named", "told", "other"))
    assert np.array_equal(named, told) and not np.array_equal(named, other)


def test_bad_input_is_one_line(run, digits, tmp_path, capsys):
    def refusal(*args, checkpoint=run):
        before = sorted(tmp_path.rglob("*"))
        message = fails(capsys, "evaluate", str(checkpoint), *map(str, args))
        assert sorted(tmp_path.rglob("*")) == before
        return message

    data = ("--data", digits.path)
    bare, other = tmp_path / "bare", tmp_path / "other"
    save(axial.load(run), bare)
    save(tiny_model(config((8, 8), values=9), dtype=torch.float32), other)
    mine = tmp_path / "mine.json"
    assert "no such checkpoint" in refusal(checkpoint=tmp_path / "none")
    assert "does not say what it was trained on; give --data" in refusal(checkpoint=bare)
    for reading, message in (({"x": 1}, "'x' is not a setting"), ({"split": 3}, "split is 3")):
        describe_run(bare, source="digits", reading=reading)
        told = refusal(checkpoint=bare)
        assert "run.json is damaged" in told and message in told
    assert "digits: has no split 'valid'" in refusal("--split", "valid")
    assert "no such file or folder" in refusal("--data", tmp_path / "none.npy")
    assert "--size does not apply to a packed array" in refusal(*data, "--size", "8")
    assert "17 values, but the model takes 8 x 8, 1 channel, 9 values" in refusal(
        *data, checkpoint=other
    )
    assert "--batch is 0: use whole numbers of at least 1" in refusal("--batch", "0")
    assert "--limit is -1: use whole numbers of at least 1" in refusal("--limit", "-1")
    assert "--device is 'abacus': use cpu, cuda or cuda:N" in refusal("--device", "abacus")
    assert "--device is 'mps': use cpu, cuda or cuda:N" in refusal("--device", "mps")
    assert "not a .png path in an existing folder" in refusal("--map", tmp_path / "map.jpg")
    assert "cannot be written (No such file" in refusal("--json", tmp_path / "none" / "a.json")
    for path in (tmp_path, "/dev/full"):  # which never ends
        assert "exists, and is no file" in refusal("--resume", path)
    for flag in ("--json", "--per-example", "--resume"):
        assert "/proc/r: cannot be written (" in refusal(flag, "/proc/r", "--data", "nothing")
    assert "/proc/r.png: cannot be written (" in refusal(
        "--map", "/proc/r.png", "--data", "nothing"
    )
    for text in ("{}", '{"bits_per_dim": 3.1}', '{"versions": {"axial": "1"}}'):
        mine.write_text(text)
        assert "mine.json: exists already" in refusal("--json", mine)
    assert "exists already" in refusal("--per-example", digits.path)
    assert "File name too long" in refusal("--json", tmp_path / ("x" * 300))
    assert "File name too long" in refusal("--json", tmp_path / ("x" * 250))  # .partial
    new = tmp_path / "new.npy"
    assert "one file for two things" in refusal("--json", new, "--per-example", new)
    assert "one file for two things" in refusal("--json", new, "--resume", bare / ".." / new.name)


def test_the_picture_that_is_scored_is_not_drawn_over(run, tmp_path, capsys):
    picture, photo = tmp_path / "a.png", tmp_path / "photo.png"
    write_sheet(picture, np.zeros((1, 8, 8, 1), np.uint8))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(photo)
    before = picture.read_bytes(), photo.read_bytes()
    onto = ["--map", str(picture), "--overwrite"]
    for data in (picture, tmp_path):
        told = fails(capsys, "evaluate", str(run), "--data", str(data), *onto)
        assert "a.png: is part of what is read" in told
    told = fails(capsys, "evaluate", str(run), "--map", str(photo))
    assert f"{photo}: exists already; choose another name" in told
    assert (picture.read_bytes(), photo.read_bytes()) == before


def test_a_result_never_passes_for_the_description_of_an_array(run, tmp_path, capsys):
    mine = tmp_path / "mine.npy"
    np.save(mine, np.zeros((3, 8, 8), np.uint8))
    told = fails(capsys, "evaluate", str(run), "--json", str(tmp_path / "mine.json"))
    assert "mine.json: would pass for the description of mine.npy; name another" in told
    assert list(tmp_path.iterdir()) == [mine]


def test_a_map_and_a_result_are_replaced_on_request_alone(run, tmp_path, capsys):
    files = {"--map": tmp_path / "map.png", "--json": tmp_path / "r.json"}
    files["--per-example"] = tmp_path / "each.npy"
    where = [str(word) for pair in files.items() for word in pair]
    main(["evaluate", str(run), "--limit", "2", *where])
    before = [path.read_bytes() for path in files.values()]
    for flag, path in files.items():
        told = fails(capsys, "evaluate", str(run), flag, str(path))
        assert f"{path}: exists already; choose another name, or add --overwrite" in told
    assert [path.read_bytes() for path in files.values()] == before
    main(["evaluate", str(run), "--limit", "3", *where, "--overwrite"])
    assert json.loads(files["--json"].read_text())["examples"] == 3
    assert len(np.load(files["--per-example"])) == 3
    assert files["--map"].read_bytes() != before[0]


def test_a_map_shows_the_frames_that_a_model_has_as_channels(tmp_path):
    stacked = config((3, 4), channels=6, frames=6, given_channels=1)
    save(tiny_model(stacked, dtype=torch.float32), tmp_path / "run")
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 4, 6), np.uint8)
    packed = write_test_set(tmp_path / "clips.npy", x, values=3)
    found, wanted = tmp_path / "found.png", tmp_path / "wanted.png"
    main(["evaluate", str(tmp_path / "run"), "--data", str(packed.path), "--map", str(found)])
    where = element_bits(axial.load(tmp_path / "run"), whole(packed)[0]).numpy()
    write_png(wanted, bit_map(x, where, values=3, frames=6))
    assert found.read_bytes() == wanted.read_bytes()


def test_two_ranks_find_bit_for_bit_what_one_finds(run, digits, tmp_path, capsys):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "axial", "evaluate", str(run), "--data", str(digits.path), "--limit", "77"]
    files = ["--json", str(tmp_path / "two.json"), "--per-example", str(tmp_path / "two.npy")]
    done = subprocess.run(
        [sys.executable, *torchrun, *command, "--batch", "32", "--device", "cpu", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    one = tmp_path / "one.npy"
    main([*command[2:], "--batch", "16", "--per-example", str(one), "--json", f"{one}.json"])
    assert done.stdout == capsys.readouterr().out and done.stdout.count("\n") == 1
    assert np.array_equal(np.load(tmp_path / "two.npy"), np.load(one))
    two, alone = (
        json.loads(p.read_text()) for p in (tmp_path / "two.json", tmp_path / "one.npy.json")
    )
    for name in ("bits_per_dim", "standard_error", "bits", "per_row", "per_channel", "examples"):
        assert two[name] == alone[name]


def test_two_ranks_tell_once_what_only_the_main_one_meets(run, digits, tmp_path):
    data = ["--data", digits.path, "--device", "cpu", "--limit", "8"]
    line = "axial: {}: damaged or cut short"
    (tmp_path / "r.json.partial").write_text("another's")
    ended = both_ranks("evaluate", run, *data, "--json", tmp_path / "r.json")
    (status, _, said), (other, _, nothing) = ended
    assert status == 1 and other == 1 and nothing == "", nothing
    assert said.startswith(line.format(tmp_path / "r.json.partial")) and said.count("\n") == 1


def test_a_result_is_written_even_if_it_cannot_be_printed(
    run, digits, tmp_path, capsys, monkeypatch
):
    command = ["evaluate", str(run), "--data", str(digits.path), "--json", str(tmp_path / "r.json")]
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert fails(capsys, *command).startswith("axial: output cannot be written")
    found = evaluate(axial.load(run), digits)
    assert json.loads((tmp_path / "r.json").read_text())["bits_per_dim"] == found.bits_per_dim


def test_interrupted_in_mid_run_it_goes_on_where_it_was(run, digits, tmp_path, monkeypatch):
    out, partial = tmp_path / "r.json", tmp_path / "r.json.partial"
    command = [
        "evaluate",
        str(run),
        "--data",
        str(digits.path),
        "--batch",
        "64",
        "--json",
        str(out),
    ]
    scored, calls = scoring.element_bits, []

    def interrupted_once_saved(*args, **how):
        calls.append(args)
        if len(calls) > 1 and partial.exists():
            raise KeyboardInterrupt
        return scored(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "_SAVE_SECONDS", 0.0)
        patch.setattr(scoring, "element_bits", interrupted_once_saved)
        with pytest.raises(SystemExit) as caught:
            main(command)
    assert caught.value.code == 130 and partial.exists() and not out.exists()
    main(command)
    assert not partial.exists()
    found = json.loads(out.read_text())
    uninterrupted = json.loads(json.dumps(evaluate(axial.load(run), digits, batch=64).to_json()))
    for name in ("bits_per_dim", "standard_error", "bits", "per_row", "per_channel"):
        assert found[name] == uninterrupted[name]
    main([*command, "--overwrite"])  # a result may be found again
    assert json.loads(out.read_text())["bits"] == found["bits"]
