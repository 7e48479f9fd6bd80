"""Class-conditional models where the class is not known: the exact sum over classes."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import (
    ENUMERABLE,
    config,
    every_image,
    fails,
    random_input,
    tiny_model,
)
from packed_arrays import write, write_test_set

import axial
from axial import bits, element_bits, evaluate, save
from axial.cli.main import main
from axial.models.causal import given
from axial.models.likelihood import summed_bits

CONDITIONAL = {name: found for name, found in ENUMERABLE.items() if found.classes}


@pytest.mark.parametrize("name", CONDITIONAL)
def test_summed_over_classes_the_probabilities_of_all_images_sum_to_one(name):
    found = CONDITIONAL[name]
    model = tiny_model(found)
    x = every_image(found, ~given(found))
    total = summed_bits(model, x).flatten(1).sum(1)
    assert abs(float(torch.exp2(-total).sum()) - 1) < 1e-12
    each = torch.stack([bits(model, x, torch.full((len(x),), i)) for i in range(found.classes)])
    mean = torch.exp2(-each).mean(0)
    torch.testing.assert_close(torch.exp2(-total), mean, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["2d-labels", "2d-columns-labels", "1d-rows-labels"])
def test_the_bits_of_an_element_depend_on_those_before_it_alone(name):
    found = CONDITIONAL[name]
    model = tiny_model(found)
    x = every_image(found, ~given(found))
    each, order = summed_bits(model, x).flatten(1), model.order()
    flat = x.flatten(1)
    for i, place in enumerate(order):
        # Over all values of one element, what came before being fixed, it is a distribution.
        before = flat[:, order[:i]]
        key = before @ (found.values ** torch.arange(i))
        seen = {}
        for row in range(len(x)):
            at = (int(key[row]), int(flat[row, place]))
            probability = float(torch.exp2(-each[row, place]))
            assert seen.setdefault(at, probability) == pytest.approx(probability, rel=1e-9)
        for prefix in {prefix for prefix, _ in seen}:
            whole = sum(value for (other, _), value in seen.items() if other == prefix)
            assert whole == pytest.approx(1, abs=1e-10)


def test_a_sum_over_classes_far_apart_is_exact():
    found = config((8, 8), classes=3, values=16, width=16, heads=2)
    model = tiny_model(found)
    for parameter in model.parameters():
        parameter.data *= 2
    x, _, _ = random_input(found, 3)
    each = torch.stack([bits(model, x, torch.full((3,), i)) for i in range(3)]).numpy()
    assert np.abs(each[0] - each[1]).max() > 20  # bits: the likeliest class is all that counts
    wanted = [
        math.log2(3) + min(one) - math.log2(sum(2.0 ** (min(one) - b) for b in one))
        for one in each.T
    ]
    found = summed_bits(model, x).flatten(1).sum(1).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A model with three classes, and examples with labels and without, as files."""
    folder = tmp_path_factory.mktemp("classes")
    found = config((4, 4), classes=3, values=9)
    save(tiny_model(found, dtype=torch.float32), folder / "model")
    x = np.random.default_rng(0).integers(0, 9, (11, 4, 4, 1), np.uint8)
    facts = {"split": "test", "values": 9}
    write_test_set(folder / "labelled.npy", x, np.arange(11) % 3, 3, values=9)
    write(folder / "bare.npy", x, **facts)
    return folder


@pytest.mark.parametrize(
    ("data", "flags", "said"),
    [
        ("bare", [], "summed over 3 classes"),
        ("labelled", ["--label", "all"], "summed over 3 classes"),
        ("bare", ["--label", "2"], "as class 2"),
        ("labelled", ["--label", "2"], "as class 2"),
        ("labelled", [], "given labels"),
    ],
)
def test_the_line_says_how_the_class_was_chosen(scored, tmp_path, capsys, data, flags, said):
    each = tmp_path / "each.npy"
    command = ["evaluate", scored / "model", "--data", scored / f"{data}.npy", *flags]
    command += ["--per-example", each, "--json", tmp_path / "a.json", "--map", tmp_path / "a.png"]
    main([str(part) for part in command])
    assert f", toy test, {said})\n" in capsys.readouterr().out
    model = axial.load(scored / "model")
    packed = axial.open_packed(scored / "labelled.npy")
    x = torch.from_numpy(packed.rows(range(11)).astype(np.int64))
    wanted = {
        "summed over 3 classes": lambda: summed_bits(model, x).flatten(1).sum(1),
        "as class 2": lambda: bits(model, x, torch.full((11,), 2)),
        "given labels": lambda: bits(model, x, torch.from_numpy(packed.labels)),
    }[said]()
    np.testing.assert_allclose(np.load(each), wanted.numpy(), rtol=1e-5)
    about = json.loads((tmp_path / "a.json").read_text())
    assert about["given_labels"] is (said == "given labels")
    assert about["summed_classes"] == (3 if "summed" in said else 0)
    assert about["label"] == ("2" if "as class" in said else None)
    assert np.mean(about["per_row"]) == pytest.approx(about["bits_per_dim"], abs=1e-12)


def test_in_python_a_label_is_an_array_or_one_for_all(scored):
    model = axial.load(scored / "model")
    x = axial.open_packed(scored / "bare.npy").rows(range(11)).astype(np.int64)
    one = torch.full((11,), 1)
    wanted = bits(model, torch.from_numpy(x), one).numpy()
    for label in (1, "1", one, one.numpy()):
        np.testing.assert_allclose(evaluate(model, x, label).bits, wanted, rtol=1e-5)
    exact = summed_bits(model, torch.from_numpy(x)).flatten(1).sum(1).numpy()
    for label in (None, "all"):
        np.testing.assert_allclose(evaluate(model, x, label).bits, exact, rtol=1e-5)


def test_what_was_begun_with_another_class_is_not_resumed(scored, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("axial.evaluation.scoring._SAVE_SECONDS", 0.0)
    monkeypatch.setattr("axial.evaluation.evaluate._write", lambda *args: None)
    command = ["evaluate", str(scored / "model"), "--data", str(scored / "bare.npy")]
    command += ["--resume", str(tmp_path / "a"), "--batch", "2"]
    main([*command, "--label", "0"])
    assert "part of an evaluation with labels class 0" in fails(capsys, *command, "--label", "1")
    assert "part of an evaluation with labels class 0" in fails(capsys, *command)


def test_a_class_that_there_is_not_is_refused_before_the_weights_are_read(
    scored, capsys, monkeypatch
):
    monkeypatch.setattr("axial.evaluation.evaluate.load", lambda *a, **k: pytest.fail("was read"))
    command = ["evaluate", str(scored / "model"), "--data", str(scored / "bare.npy")]
    assert "there is no such class; use 0 to 2, or all" in fails(capsys, *command, "--label", "cat")


def test_examples_are_spread_over_the_file_or_the_first_ones(scored, tmp_path, capsys):
    each = tmp_path / "each.npy"
    command = ["evaluate", scored / "model", "--data", scored / "labelled.npy"]
    command = [*map(str, command), "--per-example", str(each), "--overwrite"]
    main(command)
    every = np.load(each)
    for flags, index, said in (
        (["--limit", "3"], [1, 5, 9], "(3 of 11 images, evenly spread, toy test"),
        (["--first", "3"], [0, 1, 2], "(first 3 of 11 images, toy test"),
        (["--limit", "99"], range(11), "(11 images, toy test"),
    ):
        main([*command, *flags])
        assert said in capsys.readouterr().out
        np.testing.assert_allclose(np.load(each), every[index], rtol=1e-6)
    assert "give --limit or --first, but not both" in fails(
        capsys, *command, "--limit", "3", "--first", "3"
    )
    model, data = scored / "model", scored / "labelled.npy"
    np.testing.assert_allclose(evaluate(model, data, limit=3).bits, every[[1, 5, 9]], rtol=1e-6)


def test_codecs_are_measured_on_the_very_examples_that_are_scored(tmp_path, capsys):
    found = config((8, 8), values=256, width=16, heads=2)
    save(tiny_model(found, dtype=torch.float32), tmp_path / "model")
    x = np.zeros((40, 8, 8, 1), np.uint8)
    x[20:] = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1))
    packed = write_test_set(tmp_path / "a.npy", x)
    command = ["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / "a.npy")]
    out = tmp_path / "score.json"
    for flags, index in (
        (["--first", "5"], range(5)),
        (["--limit", "4"], [5, 15, 25, 35]),
        ([], range(40)),
    ):
        main([*command, *flags, "--json", str(out), "--overwrite"])
        codecs = axial.data.classical.codec_bits(packed, list(index))
        assert json.loads(out.read_text())["codecs"] == codecs
        said = capsys.readouterr()
        words = f"PNG {codecs['PNG']:.4f}, WebP {codecs['WebP']:.4f}"
        assert words in said.err and f"on the same {len(index)} images" in said.err
        assert said.out.count("\n") == 1  # the result alone
    main([*command, "--no-compare"])
    assert "PNG" not in capsys.readouterr().err
    result = evaluate(tmp_path / "model", tmp_path / "a.npy", limit=4, compare=True)
    codecs = axial.data.classical.codec_bits(packed, [5, 15, 25, 35])
    assert result.codecs == codecs
    table = result._repr_html_()
    assert f"<td>{codecs['PNG']:.4f}</td>" in table and "evenly spread" in table


@pytest.mark.parametrize(
    ("sizes", "given_frames"),
    [
        (dict(axes=(3, 8, 8), given_steps=1), 1),
        (dict(axes=(8, 8), channels=6, given_channels=3), 1),
        (dict(axes=(8, 8), channels=3, given_channels=1), None),
        (dict(axes=(8, 8), given_steps=2), None),
    ],
    ids=str,
)
def test_codecs_are_compared_on_what_is_not_given_or_not_at_all(tmp_path, sizes, given_frames):
    found = config(**sizes, values=256, width=16, heads=2)
    x = np.random.default_rng(0).integers(0, 256, (4, *found.axes, found.channels), np.uint8)
    packed = write_test_set(tmp_path / "a.npy", x)
    result = evaluate(tiny_model(found), packed, compare=True)
    wanted = {}
    if given_frames is not None:
        wanted = axial.data.classical.codec_bits(packed, given=given_frames)
    assert result.codecs == wanted


def test_element_bits_of_a_known_class_are_untouched(scored):
    model = axial.load(scored / "model")
    x = torch.zeros(2, 4, 4, 1, dtype=torch.long)
    with pytest.raises(axial.InputError, match="is conditioned on 3 classes: give label="):
        element_bits(model, x)
