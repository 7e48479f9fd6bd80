"""Rows of the comparison of recipes are what they promise; the table says what runs found."""

import itertools
import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_args

import pytest
from conftest import load_script

import axial
from axial.checkpoints.run_folder import Run
from axial.presets import PRESETS, imagenet32
from axial.shape import DataShape
from axial.training.config import Optimizer, TrainConfig
from axial.training.ema import ema_decay

CIFAR = DataShape(axes=(32, 32), channels=3, classes=10)
recipes = load_script("experiments/recipes.py")
recipe_rows = sys.modules["recipe_rows"]


def command(*words):
    """Run the script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["recipes.py", *map(str, words)])
        recipes.main()


@pytest.mark.parametrize("name", recipes.ROWS)
def test_every_row_can_be_built_and_is_as_large_as_promised(name):
    setting = recipes.setting_of(name)
    assert setting.optimizer in get_args(Optimizer)
    assert setting.recipe(CIFAR, seed=3).training.seed == 3
    size = setting.model(CIFAR).parameters()
    if name == "lstm":  # one layer in place of four, as in the paper
        assert (setting.model(CIFAR).inner, setting.layers) == ("lstm", (4, 4, 1))
    elif name.startswith(("paper", "base", "muon")):
        base = recipes.setting_of("base").model(CIFAR).parameters()
        assert size == pytest.approx(base, rel=0.06)
    elif name.startswith("wide"):
        assert 35e6 < size < 37e6
    else:
        assert 27e6 < 2 * size < 30e6
    parent = recipes.ROWS[name].parent
    if parent:  # it changes what it names, and nothing that is so anyway
        before = recipes.setting_of(parent)
        assert all(getattr(before, key) != to for key, to in recipes.ROWS[name].changes.items())


def test_the_first_row_trains_as_the_authors_but_for_what_counts_in_steps():
    authors = imagenet32().training
    ours = replace(recipes.setting_of("paper").recipe(CIFAR, seed=0).training, steps=8000)
    for name in ("batch", "learning_rate", "optimizer", "beta2", "weight_decay", "schedule"):
        assert getattr(ours, name) == getattr(authors, name)
    assert (ours.flip, ours.labels, ours.grad_clip) == (
        authors.flip,
        authors.labels,
        authors.grad_clip,
    )
    assert ours.warmup / 8000 == authors.warmup / authors.steps
    assert (1 - ema_decay(ours, 10**9)) * 8000 == pytest.approx((1 - authors.ema) * authors.steps)


@pytest.mark.parametrize(
    ("row", "name"), [(recipe_rows.FINAL, "cifar10"), ("paper", "cifar10-paper")]
)
def test_presets_are_what_the_rows_found(row, name):
    shape = replace(CIFAR, classes=0)
    preset, setting = PRESETS[name](shape), recipes.setting_of(row)
    assert preset.model == setting.model(shape)
    ours, steps = preset.training, preset.training.steps
    theirs = replace(setting.recipe(shape, seed=0).training, steps=steps)
    given = {field.name for field in fields(TrainConfig)} & asdict(setting).keys()
    shared = (given | {"ema_warmup", "hold_out", "grad_clip"}) - {"warmup", "ema"}
    assert {n: getattr(ours, n) for n in shared} == {n: getattr(theirs, n) for n in shared}
    assert ema_decay(ours, steps) == pytest.approx(ema_decay(theirs, steps))
    assert ours.warmup in (setting.warmup, setting.warmup * steps // 8000)


@pytest.mark.parametrize("row", ["combined", "labels"])
def test_a_row_is_trained_and_scored_on_what_it_never_saw(
    row, pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(recipe_rows, "HELD_OUT", 20)
    monkeypatch.setattr(recipe_rows, "VALIDATE_EVERY", 4)
    how = ["--width", 20, "--batch", 4, "--warmup", 3, "--device", "cpu", "--seed", 3, "--test"]
    how += ["--minutes", 0.02] if row == "combined" else ["--steps", 6, "--width", 24]
    command("run", row, "--data", pictures, "--out", tmp_path, *how)
    result = json.loads((tmp_path / "result.json").read_text())
    model = axial.load(tmp_path / "run")
    classes, tried = {"combined": (0, {}), "labels": (10, {"steps": 6})}[row]
    assert (model.config.classes, result["conditional"]) == (classes, classes > 0)
    assert result["tried"].items() >= tried.items() and result["steps"] >= len(tried) * 6
    assert result["examples"] == 4 * result["steps"] and result["seconds"] > 0
    train, test = (axial.open_packed(pictures / f"{split}.npy") for split in ("train", "test"))
    if result["looks"][-1] == min(result["looks"]):  # the last weights are the best, and kept
        again = axial.evaluate(model, train, subset=range(5020, 5040)).bits_per_dim
        assert result["validation"]["bits_per_dim"] == pytest.approx(again, abs=1e-6)
    assert result["test"]["bits_per_dim"] == axial.evaluate(model, test).bits_per_dim
    assert result["test"]["precision"] == "float32"
    capsys.readouterr()
    command("table", tmp_path)
    head, _, line = lines(capsys.readouterr().out)
    line = dict(zip(head, line, strict=True))
    assert line["held out, bits/dim"].startswith(f"{result['looks'][-1]:.4f} +- ")
    learned = axial.evaluate(model, train, subset=range(20)).bits_per_dim
    assert line["trained on, bits/dim"] == f"{learned:.4f}"
    assert (line["seed"], line["compiling"]) == ("3", "")


def test_stretches_start_from_the_one_before_and_count_as_one_run(
    pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(recipe_rows, "HELD_OUT", 20)
    monkeypatch.setattr(recipe_rows, "VALIDATE_EVERY", 4)
    how = ["--width", 20, "--batch", 4, "--warmup", 3, "--device", "cpu", "--steps", 6]
    wanted = ["run", "augment-all", "--data", pictures, "--out", tmp_path, *how]
    command(*wanted, "--stretches", 2)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 12 and result["tried"]["stretches"] == 2
    assert result["seconds_allowed"] == 2 * 240 and len(result["looks"]) == 4
    first, last = Run(tmp_path / "stretch-1"), Run(tmp_path / "run")
    assert [run.about["training"]["schedule"] for run in (first, last)] == ["constant", "trapezoid"]
    assert [run.about["training"]["seed"] for run in (first, last)] == [0, 1000]
    assert last.about["init"]["fingerprint"] == axial.fingerprint(axial.load(first.folder))
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [0, 4, 6, 10, 12]
    assert all(a["seconds"] < b["seconds"] for a, b in itertools.pairwise(log[1:]))
    before = axial.fingerprint(axial.load(last.folder))
    command(*wanted, "--stretches", 2)  # all is there already
    assert axial.fingerprint(axial.load(last.folder)) == before
    again = json.loads((tmp_path / "result.json").read_text())
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    with pytest.raises(axial.ConfigError, match="was started with"):  # another row's folder
        command("run", "rotate", "--data", pictures, "--out", tmp_path, *how, "--stretches", 2)
    capsys.readouterr()
    command("table", tmp_path)
    head, _, line = lines(capsys.readouterr().out)
    line = dict(zip(head, line, strict=True))
    assert line["row"].endswith("stretches 2") and line["steps"] == "12"


def test_a_row_that_the_package_cannot_train_is_refused(pictures, tmp_path):
    with pytest.raises(SystemExit, match="rms norm is not in the package"):
        command("run", "rms-norm", "--data", pictures, "--out", tmp_path / "run")
    with pytest.raises(SystemExit, match="has no result"):
        command("table", tmp_path / "run")


def fake(folder, row, bits, *, seed=0, seconds=240, test=None, looks=None, peak=0.3, last=None):
    """What a run leaves."""
    folder.mkdir()
    setting = recipes.setting_of(row)
    looks = looks or [bits + 0.3, bits + 0.1, bits]
    result = {
        "row": row,
        "setting": asdict(setting),
        "tried": {},
        "seed": seed,
        "seconds_allowed": seconds,
        "conditional": setting.labels,
        "parameters": 25_590_528,
        "steps": 6000,
        "examples": 6000 * setting.batch,
        "seconds": seconds + 0.3,
        "seconds_each_step": 0.0388,
        "seconds_compiling": 31.2,
        "peak_share": peak,
        "learned": {"bits_per_dim": bits - 0.05},
        "unaveraged": {"bits_per_dim": last or bits + 0.02},
        "validation": {"bits_per_dim": bits, "standard_error": 0.0091},
        "looks": looks,
        "test": None if test is None else {"bits_per_dim": test, "standard_error": 0.0066},
    }
    (folder / "result.json").write_text(json.dumps(result))
    log = [{"step": 0, "seconds": 0, **result}]
    log += [{"step": i, "seconds": 60 * i, "validation": v} for i, v in enumerate(looks, 1)]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, log)))
    return folder


def lines(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_the_table_has_differences_to_the_base_of_the_same_time_and_the_spread(tmp_path, capsys):
    runs = [
        fake(tmp_path / "a", "labels", 3.25),
        fake(tmp_path / "b", "trapezoid", 3.301, seed=1),
        fake(tmp_path / "c", "trapezoid", 3.303, seed=0, test=3.31),
        fake(tmp_path / "d", "trapezoid", 3.305, seed=2),
        fake(tmp_path / "e", "batch-32", 3.28, looks=[3.4, 3.27, 3.28], last=3.25),
        fake(tmp_path / "i", "lstm", 3.4),
        fake(tmp_path / "j", "deep", 3.29),
        fake(tmp_path / "h", "deep-outer", 3.287),
        fake(tmp_path / "f", "paper", 3.2, seconds=1200, peak=None),
    ]
    out = tmp_path / "table.md"
    command("table", *runs, "--out", out)
    text = out.read_text()
    assert capsys.readouterr().out == text
    head, _, *rows = lines(text)
    rows = [dict(zip(head, row, strict=True)) for row in rows]
    names = ["trapezoid", "batch-32", "deep", "deep-outer", "lstm", "labels", "paper"]
    assert [row["row"] for row in rows] == names
    differences = ["", "-0.0230", "-0.0130", "-0.0030, within the spread", "+0.0970", "-0.0530", ""]
    assert [row["difference"] for row in rows] == differences
    assert [row["conditional"] for row in rows] == [*["no"] * 5, "yes", "no"]
    base, other, *_, paper = rows
    assert base["trained on, bits/dim"] == "3.2530, mean of 3"
    assert base["held out, not averaged"] == "3.3230, mean of 3"
    assert {row["to the first row"] for row in rows} == {""}  # it ran for longer
    assert base["held out, bits/dim"] == "3.3030 +- 0.0091, mean of 3, spread 0.0040"
    assert (base["seed"], base["test, bits/dim"]) == ("0, 1, 2", "3.3100 +- 0.0066")
    assert other["held out, bits/dim"] == "3.2800 +- 0.0091, 0.0100 above its best look"
    assert (other["changes"], other["against"]) == ("batch 32 (64)", "trapezoid")
    assert (other["images seen"], other["ms/step"], other["of peak"]) == (
        "192,000",
        "38.8",
        "30.0%",
    )
    assert other["compiling"] == "31 s"
    assert (paper["of peak"], paper["minutes"], paper["against"]) == ("", "20.00", "")
    assert text.splitlines()[-4:] == [
        "The largest minus the smallest of trapezoid with seeds 0, 1, 2 is 0.0040 bits/dim: a "
        "smaller difference is not called an improvement.",
        "- What helped: `labels, 4 min, conditional` -0.0530, `batch-32, 4 min` -0.0230, "
        "`deep, 4 min` -0.0130.",
        "- What did not: `deep-outer, 4 min` -0.0030, `lstm, 4 min` +0.0970.",
        "- The weights of the last step in place of the averaged ones: `batch-32, 4 min` -0.0300, "
        "`trapezoid, 4 min` +0.0200, `deep, 4 min` +0.0200, `deep-outer, 4 min` +0.0200, "
        "`lstm, 4 min` +0.0200, `labels, 4 min, conditional` +0.0200, `paper, 20 min` +0.0200.",
    ]
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_the_mean_of_what_only_some_runs_scored_says_so(tmp_path, capsys):
    runs = [fake(tmp_path / str(n), "small", 3.1 + n / 100, seed=n) for n in range(3)]
    result = json.loads((runs[0] / "result.json").read_text())
    del result["learned"]
    (runs[0] / "result.json").write_text(json.dumps(result))
    command("table", *runs)
    head, _, row = lines(capsys.readouterr().out)
    row = dict(zip(head, row, strict=True))
    assert row["trained on, bits/dim"] == "3.0650, mean of 2"
    assert row["held out, not averaged"] == "3.1300, mean of 3"


def test_without_a_repeated_row_nothing_is_called_an_improvement(tmp_path, capsys):
    command("table", fake(tmp_path / "a", "base", 3.3), fake(tmp_path / "b", "muon", 3.2))
    out = capsys.readouterr().out
    assert "no difference is called an improvement" in out.splitlines()[-1]


def test_all_rows_are_compared_with_the_first(tmp_path, capsys):
    found = {"paper": 3.5, "base": 3.3, "muon": 3.2}
    command("table", *(fake(tmp_path / row, row, bits) for row, bits in found.items()))
    head, _, *rows = lines(capsys.readouterr().out)
    rows = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["to the first row"] for row in rows] == ["", "-0.2000", "-0.3000"]
    assert [row["difference"] for row in rows] == ["", "", "-0.1000"]


def test_the_published_table_is_what_the_kept_runs_say(capsys):
    results = Path(recipes.__file__).parent / "results"
    command("table", *sorted((results / "recipes").iterdir()))
    table, told = capsys.readouterr().out.strip().split("\n\n")
    published = (results / "recipes_h200.md").read_text()
    assert f"\n\n{table}\n\n" in published and published.endswith(f"\n\n{told}\n")


def test_a_run_of_a_row_that_has_changed_since_is_refused(tmp_path):
    run = fake(tmp_path / "a", "small", 3.1)
    result = json.loads((run / "result.json").read_text())
    for changed in ({"row": "another"}, {"setting": result["setting"] | {"batch": 48}}):
        (run / "result.json").write_text(json.dumps(result | changed))
        with pytest.raises(SystemExit, match="is not what it was when this was run"):
            command("table", run)
    tried = {"tried": {"batch": 48}, "setting": result["setting"] | {"batch": 48}}
    (run / "result.json").write_text(json.dumps(result | tried))
    command("table", run)


def test_rows_are_listed_with_what_they_change(capsys):
    command("rows")
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(recipes.ROWS)
    assert "more-outer               14.5M  trapezoid: layers 3/6/3 (4/4/4)" in out
