import hashlib
import json
import math
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from conftest import VARIANTS, both_ranks, config, random_input, tiny_model
from PIL import Image
from safetensors.numpy import save_file
from test_cli import fails
from test_data import FACTS

import axial.evaluation
from axial import DataError, InputError, bits, element_bits, evaluate, save
from axial.cli import main
from axial.data import PackedWriter, hash_labels, open_packed
from axial.packing import pack
from axial.pictures import write_sheet
from axial.sources.options import ReadOptions

COUNT = 23


def write(path, x, labels=None, classes=0, **facts):
    """A packed test set."""
    with PackedWriter(path) as writer:
        writer.append(x)
        writer.finish(labels, classes, None, **(FACTS | {"split": "test"} | facts))
    return open_packed(path)


@pytest.fixture
def packed_for(tmp_path):
    """Random examples that fit a model, packed."""

    def make(found, count=COUNT, name="data.npy"):
        x, label, _ = random_input(found, count)
        label = None if label is None else label.numpy()
        return write(
            tmp_path / name, x.numpy().astype(np.uint8), label, found.classes, values=found.values
        )

    return make


def whole(packed):
    """Everything in a packed array as tensors."""
    x = torch.from_numpy(packed.rows(range(len(packed))).astype(np.int64))
    return x, None if packed.labels is None else torch.from_numpy(packed.labels)


@pytest.mark.parametrize(
    "name",
    ["1d", "2d-channels", "2d-labels", "2d-rows-given", "2d-columns-given", "3d-given-both", "4d"],
)
def test_the_figures_are_those_of_bits_on_the_whole_array(name, packed_for):
    found = VARIANTS[name]
    model, packed = tiny_model(found), packed_for(found)
    x, label = whole(packed)
    exact = bits(model, x, label).numpy()
    result = evaluate(model, packed, batch=5)
    np.testing.assert_allclose(result.bits, exact, rtol=0, atol=1e-9)

    per_dim = [float(one) / found.elements for one in exact]
    mean = sum(per_dim) / COUNT
    variance = sum((one - mean) ** 2 for one in per_dim) / (COUNT - 1)
    assert result.bits_per_dim == pytest.approx(mean, abs=1e-12)
    assert result.standard_error == pytest.approx(math.sqrt(variance / COUNT), abs=1e-12)

    where = element_bits(model, x, label).mean(0).numpy()
    scored = where > 0  # given elements count nowhere
    for axis, parts in ((-1, result.per_channel), (0, result.per_row)):
        lines, counted = np.moveaxis(where, axis, 0), np.moveaxis(scored, axis, 0)
        for part, line, mask in zip(parts, lines, counted, strict=True):
            assert (part is None) == (not mask.any())
            assert part is None or part == pytest.approx(line[mask].mean(), abs=1e-10)
    assert result.elements == scored.sum()
    assert result.labels == (found.classes > 0)
    assert result.fingerprint == axial.fingerprint(model)


@pytest.mark.parametrize("name", ["2d-channels", "2d-columns-labels"])
def test_any_batch_size_gives_the_same_figures_and_drops_nothing(name, packed_for):
    found = VARIANTS[name]
    model, packed = tiny_model(found), packed_for(found)
    results = [evaluate(model, packed, batch=batch) for batch in (None, 1, 2, 7, 22, 23, 40)]
    for result in results:
        assert len(result.bits) == COUNT and (result.bits > 0).all()
        np.testing.assert_allclose(result.bits, results[0].bits, rtol=0, atol=1e-9)
        assert result.bits_per_dim == pytest.approx(results[0].bits_per_dim, abs=1e-9)
        np.testing.assert_allclose(result.per_row, results[0].per_row, rtol=0, atol=1e-9)


def test_every_part_that_passes_through_the_model_has_one_shape(packed_for):
    """So that an example's figures do not depend on how many others there are."""
    found = VARIANTS["2d-channels"]
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found)
    seen = []
    model.norm.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    all_of_them = evaluate(model, packed, batch=8)
    assert seen == [8 * found.planes] * 3
    some = evaluate(model, packed, batch=8, subset=np.arange(8, 19))
    assert np.array_equal(some.bits, all_of_them.bits[8:19])


def test_a_subset_is_scored_in_its_own_order(packed_for):
    found = VARIANTS["2d"]
    model, packed = tiny_model(found), packed_for(found)
    subset = np.array([20, 3, 3, 7])
    result = evaluate(model, packed, subset=subset, batch=3)
    everything = evaluate(model, packed).bits
    np.testing.assert_allclose(result.bits, everything[subset], rtol=0, atol=1e-9)
    assert "(4 of 23 images, toy test, float64)" in str(result)
    first = evaluate(model, packed, subset=np.arange(1))
    assert first.standard_error is None
    assert re.fullmatch(r"\d\.\d{4} bits/dim \(first 1 of 23 images, .*\)", str(first))


def test_labels_are_told_to_a_model_that_takes_them_and_to_no_other(packed_for, tmp_path):
    plain, labelled = VARIANTS["2d-channels"], replace(VARIANTS["2d-channels"], classes=3)
    packed = packed_for(labelled)
    result = evaluate(tiny_model(labelled), packed)
    assert "toy test, given labels" in str(result)
    x, _ = whole(packed)
    others = write(tmp_path / "o.npy", x.byte().numpy(), (packed.labels + 1) % 3, 3, values=3)
    assert not np.isclose(evaluate(tiny_model(labelled), others).bits, result.bits).any()
    unaware = [evaluate(tiny_model(plain), data) for data in (packed, others)]
    assert np.array_equal(unaware[0].bits, unaware[1].bits)
    assert not unaware[0].labels and "given labels" not in str(unaware[0])


def test_the_model_is_left_as_it_was_and_scored_without_dropout_or_tf32(packed_for):
    found = config((3, 4), channels=2, dropout=0.5)
    model, packed = tiny_model(found), packed_for(found)
    calm = evaluate(model, packed)
    seen = set()
    model.norm.register_forward_hook(
        lambda *_: seen.add(
            (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, model.training)
        )
    )
    torch.set_float32_matmul_precision("high")
    try:
        again = evaluate(model.train(), packed)
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
    assert np.array_equal(again.bits, calm.bits) and model.training
    assert seen == {("highest", False, False)}


def test_a_video_is_stacked_for_a_model_of_frames_as_channels(tmp_path):
    x = np.random.default_rng(0).integers(0, 3, (4, 3, 3, 4, 2)).astype(np.uint8)
    packed = write(tmp_path / "clips.npy", x, values=3)
    found = config((3, 4), channels=6, given_channels=2)
    model = tiny_model(found)
    stacked = torch.from_numpy(np.moveaxis(x, 1, -2).reshape(4, 3, 4, 6).astype(np.int64))
    result = evaluate(model, packed)
    np.testing.assert_allclose(result.bits, bits(model, stacked).numpy(), rtol=0, atol=1e-9)
    assert re.fullmatch(
        r"\d\.\d{4} bits/dim, 2 frames given 1, \+- \d\.\d{4} \(4 clips, toy test, float64\)",
        str(result),
    )
    grid = evaluate(tiny_model(config((3, 3, 4), channels=2, given_steps=1)), packed)
    assert "bits/dim, 2 steps given 1, +- " in str(grid) and "(4 examples," in str(grid)
    pictures = write(tmp_path / "stacked.npy", stacked.numpy().astype(np.uint8), values=3)
    told = evaluate(tiny_model(config((3, 4), channels=6, frames=3, given_channels=2)), pictures)
    assert "bits/dim, 2 frames given 1, +- " in str(told) and "(4 clips," in str(told)
    odd = evaluate(tiny_model(config((3, 4), channels=6, given_channels=1)), packed)
    assert "bits/dim, 5 channels given 1, +- " in str(odd)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"axes": (4, 3)}, "has examples of 3 x 4, 2 channels, 3 values, but the model takes 4 x"),
        ({"channels": 3}, "but the model takes 3 x 4, 3 channels, 3 values; give other data"),
        ({"axes": (4,), "channels": 6}, "but the model takes 4, 6 channels, 3 values"),
        ({"values": 2}, "but the model takes 3 x 4, 2 channels, 2 values"),
        ({"classes": 2}, "has 3 classes, but the model is conditioned on 2 classes"),
    ],
    ids=str,
)
def test_data_that_does_not_fit_the_model_is_refused(settings, message, packed_for):
    packed = packed_for(VARIANTS["2d-labels"])
    model = tiny_model(config(**({"axes": (3, 4), "channels": 2} | settings)))
    with pytest.raises(InputError) as caught:
        evaluate(model, packed)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("axes", "channels", "values", "cure"),
    [
        ((5, 8), 3, 256, "pictures are read with --size 4, if that is meant"),
        ((4, 5), 3, 256, "pictures are read with --size 4, if that is meant"),
        ((4, 4), 1, 256, "pictures are read with --convert rgb, if that is meant"),
        ((5, 4), 1, 256, "pictures are read with --size 4 --convert rgb, if that is meant"),
        ((5, 4), 2, 256, "give other data"),
        ((5, 4), 3, 200, "give other data"),
        ((20,), 3, 256, "give other data"),
    ],
)
def test_pictures_that_do_not_fit_are_refused_with_what_makes_them_fit(
    axes, channels, values, cure, packed_for
):
    packed = packed_for(config(axes, channels=channels, values=values))
    with pytest.raises(InputError) as caught:
        evaluate(tiny_model(config((4, 4), channels=3, values=256)), packed)
    assert str(caught.value).endswith(f"but the model takes 4 x 4, 3 channels, 256 values; {cure}")


@pytest.mark.parametrize(("axes", "values"), [((4, 5), 256), ((4, 4), 3)])
def test_what_no_option_makes_fit_is_refused_without_one(axes, values, packed_for):
    wanted = config(axes, channels=3, values=values)
    for found in (replace(wanted, axes=(6, 6)), replace(wanted, axes=(6, 6), channels=1)):
        with pytest.raises(InputError, match=r"values; give other data$"):
            evaluate(tiny_model(wanted), packed_for(found))


def test_a_model_with_classes_refuses_data_without_labels(packed_for):
    with pytest.raises(InputError, match="has no labels, but the model is conditioned on 3"):
        evaluate(tiny_model(VARIANTS["2d-labels"]), packed_for(config((3, 4), channels=2)))


def test_an_array_under_another_ones_description_is_not_scored(packed_for, tmp_path):
    found = config((3, 4), channels=2)
    packed, other = packed_for(found), packed_for(found, name="other.npy")
    np.save(other.path, np.roll(packed.array, 1, 0))
    model = tiny_model(found)
    with pytest.raises(DataError, match="is not the array its description names"):
        evaluate(model, open_packed(other.path), subset=[0])
    assert math.isfinite(evaluate(model, packed).bits_per_dim)


class PulledError(Exception):
    """The plug."""


def interrupt(model, packed, partial, after, monkeypatch, **how):
    """Evaluate until `after` examples are done."""
    monkeypatch.setattr(axial.evaluation, "_SAVE_SECONDS", 0.0)

    def pull(done):
        if done >= after:
            raise PulledError

    with pytest.raises(PulledError):
        evaluate(model, packed, resume=partial, progress=pull, **how)
    assert partial.exists()


def test_an_interrupted_evaluation_goes_on_and_ends_with_the_same_figures(
    packed_for, tmp_path, monkeypatch
):
    found = VARIANTS["2d-channels"]
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found)
    uninterrupted = evaluate(model, packed, batch=4)
    partial = tmp_path / "partial"
    interrupt(model, packed, partial, 8, monkeypatch, batch=4)
    interrupt(model, packed, partial, 16, monkeypatch, batch=4)
    told = []
    result = evaluate(model, packed, batch=4, resume=partial, progress=told.append)
    assert told == [20, 23]
    assert np.array_equal(result.bits, uninterrupted.bits)
    assert result.to_json() == uninterrupted.to_json()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.json", "data.npy", "partial"]


def test_another_batch_size_may_go_on_where_one_stopped(packed_for, tmp_path, monkeypatch):
    found = VARIANTS["2d-given-both"]
    model, packed = tiny_model(found), packed_for(found)
    interrupt(model, packed, tmp_path / "partial", 10, monkeypatch, batch=5)
    result = evaluate(model, packed, batch=7, resume=tmp_path / "partial")
    np.testing.assert_allclose(result.bits, evaluate(model, packed).bits, rtol=0, atol=1e-9)


def test_the_partial_file_of_another_evaluation_is_refused(packed_for, tmp_path, monkeypatch):
    found = VARIANTS["2d-channels"]
    model, packed = tiny_model(found), packed_for(found)
    partial = tmp_path / "partial"
    interrupt(model, packed, partial, 10, monkeypatch, batch=5)
    kept = partial.read_bytes()
    x = packed.rows(range(COUNT))
    x[-1, 0, 0, 0] = 2 - x[-1, 0, 0, 0]
    changed = write(tmp_path / "changed.npy", x, values=3)
    for message, args, how in (
        ("with model ", (tiny_model(found, seed=1), packed), {}),
        ("with data ", (model, changed), {}),
        ("with subset ", (model, packed), {"subset": np.arange(22)}),
        ("with precision float64, not bfloat16", (model, packed), {"precision": "bfloat16"}),
    ):
        with pytest.raises(DataError, match=f"partial: is part of an evaluation {message}"):
            evaluate(*args, resume=partial, **how)
        assert partial.read_bytes() == kept
    partial.write_bytes(kept[:-40])
    with pytest.raises(DataError, match="is no part of an evaluation"):
        evaluate(model, packed, resume=partial)
    save_file({"table": np.zeros((99, 6))}, partial)
    with pytest.raises(DataError, match="is no part of an evaluation"):
        evaluate(model, packed, resume=partial)


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_finds(packed_for):
    found = config((8, 8), channels=3, values=256, width=64, heads=4, classes=5)
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found, 100)
    reference = evaluate(model, packed)
    result = evaluate(model.cuda(), packed)
    assert result.bits_per_dim == pytest.approx(reference.bits_per_dim, abs=1e-5)
    low = evaluate(model, packed, precision="bfloat16")
    assert 0 < abs(low.bits_per_dim - reference.bits_per_dim) < 0.05
    assert "bfloat16" in str(low)


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What training on digits would leave: a checkpoint that says what it was trained on."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    found = config((8, 8), values=17, width=16, heads=2, classes=10)
    save(tiny_model(found, dtype=torch.float32), folder)
    (folder / "run.json").write_text(json.dumps({"data": {"source": "digits"}}))
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


def test_raw_weights_are_named_in_the_line_and_in_the_result(alone, tmp_path, capsys):
    said = {}
    for weights in ("ema", "raw"):
        out = ["--json", str(tmp_path / f"{weights}.json"), "--limit", "3"]
        main(["evaluate", str(alone), "--weights", weights, *out])
        said[weights] = capsys.readouterr().out
        assert json.loads((tmp_path / f"{weights}.json").read_text())["weights"] == weights
    about = "first 3 images, digits test, given labels"
    assert said["ema"].endswith(f"({about})\n")
    assert said["raw"].endswith(f"({about}, raw weights)\n")


def test_a_packed_file_is_scored_as_the_split_it_says(run, digits, capsys):
    main(["evaluate", str(run), "--data", str(digits.path), "--limit", "20"])
    out = capsys.readouterr().out
    assert "(first 20 of 300 images, digits test, given labels)\n" in out
    message = fails(capsys, "evaluate", str(run), "--data", str(digits.path), "--split", "train")
    assert "has no split 'train', for it holds 'test'" in message


def test_with_a_limit_only_what_is_scored_is_read_and_described(tmp_path, capsys):
    model = tiny_model(config((8, 8), values=256, width=16, heads=2), dtype=torch.float32)
    save(model, tmp_path / "run")
    x = formats.pictures(6, 8, channels=1)
    folder = formats.picture_folder(tmp_path / "in", x)
    (folder / "00004.png").write_bytes(b"damaged")
    command = ["evaluate", tmp_path / "run", "--data", folder, "--json", tmp_path / "r.json"]
    assert "00004.png: is no picture" in fails(capsys, *map(str, command))
    main([*map(str, command), "--limit", "4"])
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
    source = {"source": str(tmp_path / "mine.npy"), "reading": {"values": 3, "channels_none": True}}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": source}))
    assert "has no test part; give --data" in fails(capsys, "evaluate", str(tmp_path / "run"))
    message = fails(capsys, "evaluate", str(tmp_path / "run"), "--split", "valid")
    assert "mine.npy: has no split 'valid', for it is not divided into parts" in message


@pytest.mark.parametrize("split", [None, "test"])
def test_a_packed_array_that_was_trained_on_has_no_test_part(split, run, tmp_path, capsys):
    x = np.zeros((9, 8, 8, 1), np.uint8)
    write(tmp_path / "mine.npy", x, np.arange(9), 10, split=split, values=17)
    save(axial.load(run), tmp_path / "run")
    about = {"data": {"source": str(tmp_path / "mine.npy")}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    message = fails(capsys, "evaluate", str(tmp_path / "run"))
    told = "was trained on and has no test part; give --data"
    assert message == f"axial: {tmp_path / 'mine.npy'}: {told}"


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
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": {"names": PETS}}))
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
    assert found["data"]["labels"] == hash_labels(label)
    (tmp_path / "run" / "run.json").unlink()
    if len(names) < 3:
        told = fails(capsys, "evaluate", str(tmp_path / "run"), *data)
        assert "has 2 classes, but the model is conditioned on 3 classes" in told
    else:  # a model that knows no names goes by the numbers
        main(["evaluate", str(tmp_path / "run"), *data, "--json", str(tmp_path / "r.json")])
        found = json.loads((tmp_path / "r.json").read_text())
        assert found["data"]["labels"] == hash_labels(np.arange(3))


def test_a_class_that_the_run_does_not_know_is_named(pets, tmp_path, capsys):
    names = ["dog/a.png", "owl/a.png", "zcat/a.png"]
    folder = formats.picture_folder(tmp_path / "new", pets[1], names)
    told = "new: has the class 'zcat', but the model was trained on 'cat', 'dog', 'owl'; call it as"
    run = str(tmp_path / "run")
    assert told in fails(capsys, "evaluate", run, "--data", str(folder))
    out = ["--keep", "2", "--out", str(tmp_path / "out.npy")]
    assert told in fails(capsys, "complete", run, str(folder), *out)
    save(tiny_model(config((8, 8), values=256, width=16, heads=2), dtype=torch.float32), run)
    main(["evaluate", run, "--data", str(folder)])  # it is told no labels
    assert capsys.readouterr().out.endswith("(3 images, new)\n")


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
    mine.write_text("{}")
    assert "no such checkpoint" in refusal(checkpoint=tmp_path / "none")
    assert "does not say what it was trained on; give --data" in refusal(checkpoint=bare)
    (bare / "run.json").write_text('{"data": {"source": "digits", "reading": {"x": 1}}}')
    assert "does not say what it was trained on; give --data" in refusal(checkpoint=bare)
    assert "digits: has no split 'valid'" in refusal("--split", "valid")
    assert "no such file or folder" in refusal("--data", tmp_path / "none.npy")
    assert "--size means nothing to a packed array" in refusal(*data, "--size", "8")
    assert "17 values, but the model takes 8 x 8, 1 channel, 9 values" in refusal(
        *data, checkpoint=other
    )
    assert "--batch is 0: use at least 1" in refusal("--batch", "0")
    assert "--limit is -1: use at least 1" in refusal("--limit", "-1")
    assert "device 'abacus' cannot be used here" in refusal("--device", "abacus")
    assert "no place for a sheet" in refusal("--map", tmp_path / "map.jpg")
    assert "no place for a file" in refusal("--json", tmp_path / "none" / "a.json")
    assert "no place for a file" in refusal("--resume", tmp_path)
    assert "no place for a file" in refusal("--json", "/dev/full")  # which never ends
    for flag in ("--json", "--per-example", "--resume"):
        assert "/proc/r: cannot be written (" in refusal(flag, "/proc/r", "--data", "nothing")
    assert "/proc/r.png: cannot be written (" in refusal(
        "--map", "/proc/r.png", "--data", "nothing"
    )
    assert "mine.json: is there, and axial did not make it" in refusal("--json", mine)
    assert "is there already" in refusal("--per-example", digits.path)
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
    for data in (picture, tmp_path):
        told = fails(capsys, "evaluate", str(run), "--data", str(data), "--map", str(picture))
        assert "is what is to be scored" in told
    told = fails(capsys, "evaluate", str(run), "--map", str(photo))
    assert f"{photo}: is there, and axial did not make it; name a new one" in told
    assert (picture.read_bytes(), photo.read_bytes()) == before


def test_a_map_and_a_result_are_replaced_by_the_same_command(run, tmp_path, capsys):
    files = {name: tmp_path / name for name in ("map.png", "r.json")}
    for limit in ("2", "3"):
        where = ["--map", str(files["map.png"]), "--json", str(files["r.json"])]
        main(["evaluate", str(run), "--limit", limit, *where])
    assert json.loads(files["r.json"].read_text())["examples"] == 3
    with Image.open(files["map.png"]) as drawn:
        assert drawn.info["Software"] == "axial"


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
    line = "axial: {}: is no part of an evaluation"
    (tmp_path / "r.json.partial").write_text("another's")
    ended = both_ranks("evaluate", run, *data, "--json", tmp_path / "r.json")
    (status, _, said), (other, _, nothing) = ended
    assert status == 1 and other == 1 and nothing == "", nothing
    assert said.startswith(line.format(tmp_path / "r.json.partial")) and said.count("\n") == 1


def test_a_result_is_written_even_if_it_cannot_be_printed(run, digits, tmp_path):
    command = [sys.executable, "-m", "axial", "evaluate", run, "--data", digits.path]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--json", tmp_path / "r.json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("axial: output cannot be written")
    found = evaluate(axial.load(run), digits)
    assert json.loads((tmp_path / "r.json").read_text())["bits_per_dim"] == found.bits_per_dim


KILLED = """
    import sys, time
    import axial.evaluation
    from axial.cli import main
    axial.evaluation._SAVE_SECONDS = 0.0
    scored = axial.evaluation.element_bits
    def slowly(*args, **how):
        time.sleep(0.05)
        return scored(*args, **how)
    axial.evaluation.element_bits = slowly
    main(sys.argv[1:])
"""


def test_killed_in_mid_run_it_goes_on_where_it_was(run, digits, tmp_path, capsys):
    out = tmp_path / "r.json"
    partial = tmp_path / "r.json.partial"
    command = ["evaluate", str(run), "--data", str(digits.path), "--batch", "4", "--json", str(out)]
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), *command])
    until = time.monotonic() + 60
    while not partial.exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert partial.exists() and not out.exists()
    main(command)
    assert not partial.exists()
    found = json.loads(out.read_text())
    uninterrupted = evaluate(axial.load(run), digits, batch=4)
    for name in ("bits_per_dim", "standard_error", "bits", "per_row", "per_channel"):
        assert found[name] == json.loads(json.dumps(uninterrupted.to_json()))[name]
    main(command)  # a result may be found again
    assert json.loads(out.read_text())["bits"] == found["bits"]
