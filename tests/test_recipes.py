"""Rows of the comparison of recipes are what they promise, and are trained on time."""

import json
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from conftest import load_script
from torch.utils._python_dispatch import TorchDispatchMode

import axial
from axial.models.config import DataShape, Optimizer, TrainConfig
from axial.models.cost import parameters
from axial.presets import PRESETS, imagenet32

CIFAR = DataShape(axes=(32, 32), channels=3, classes=10)
recipes = load_script("benchmarks/recipes.py")
recipe_models, recipe_rows = (sys.modules[name] for name in ("recipe_models", "recipe_rows"))


def command(*words):
    """Run the script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["recipes.py", *map(str, words)])
        recipes.main()


def run(row, pictures, out, *words, seconds=2):
    how = ["--seconds", seconds, "--width", 120, "--batch", 4, "--warmup", 3, "--limit", 20]
    command("run", row, "--data", pictures, "--out", out, "--device", "cpu", *how, *words)
    return json.loads((out / "result.json").read_text())


@pytest.mark.parametrize("name", recipes.ROWS)
def test_every_row_can_be_built_and_is_as_large_as_promised(name):
    setting = recipes.setting_of(name)
    assert setting.optimizer in get_args(Optimizer)
    assert setting.training(8000, seed=3).seed == 3
    size = parameters(setting.model(CIFAR))
    if name == "lstm":  # one layer in place of four, as in the paper
        assert (setting.model(CIFAR).inner, setting.layers) == ("lstm", (4, 4, 1))
    elif name.startswith(("paper", "base", "muon")):
        base = parameters(recipes.setting_of("base").model(CIFAR))
        assert size == pytest.approx(base, rel=0.06)
    else:
        assert 27e6 < 2 * size < 30e6
    parent = recipes.ROWS[name].parent
    if parent:  # it changes what it names, and nothing that is so anyway
        before = recipes.setting_of(parent)
        assert all(getattr(before, key) != to for key, to in recipes.ROWS[name].changes.items())


def test_the_first_row_trains_as_the_authors_but_for_what_counts_in_steps():
    authors, ours = imagenet32().training, recipes.setting_of("paper").training(8000, seed=0)
    for name in ("batch", "learning_rate", "optimizer", "beta2", "weight_decay", "schedule"):
        assert getattr(ours, name) == getattr(authors, name)
    assert (ours.flip, ours.labels, ours.clip) == (authors.flip, authors.labels, authors.clip)
    assert ours.warmup / 8000 == authors.warmup / authors.steps
    assert (1 - ours.ema) * 8000 == pytest.approx((1 - authors.ema) * authors.steps)


@pytest.mark.parametrize(
    ("row", "name"), [(recipe_rows.FINAL, "cifar10"), ("paper", "cifar10-paper")]
)
def test_presets_are_what_the_rows_found(row, name):
    shape = replace(CIFAR, classes=0)
    preset, setting = PRESETS[name](shape), recipes.setting_of(row)
    assert preset.model == setting.model(shape)
    ours, steps = preset.training, preset.training.steps
    theirs = setting.training(steps, seed=0)
    given = {field.name for field in fields(TrainConfig)} & asdict(setting).keys()
    shared = (given | {"ema_warmup", "hold_out", "clip"}) - {"warmup", "ema"}
    assert {n: getattr(ours, n) for n in shared} == {n: getattr(theirs, n) for n in shared}
    assert ours.ema_at(steps) == pytest.approx(theirs.ema_at(steps))
    assert ours.warmup in (setting.warmup, setting.warmup * steps // 8000)


def test_one_seed_starts_all_rows_from_the_same_weights_and_the_labels_from_their_own():
    cpu = torch.device("cpu")
    setting = replace(recipes.setting_of("labels"), width=24)
    told = recipe_models.start(setting.model(CIFAR), 5, cpu).state_dict()
    plain = recipe_models.start(replace(setting, labels=False).model(CIFAR), 5, cpu).state_dict()
    assert told.keys() - plain.keys() == {"label_embedding.weight"}
    assert all(torch.equal(told[name], value) for name, value in plain.items())
    other = recipe_models.start(replace(setting, labels=False).model(CIFAR), 6, cpu).state_dict()
    assert not torch.equal(other["embedding.weight"], plain["embedding.weight"])


@pytest.fixture
def clock(monkeypatch):
    """A machine that takes 0.2 s for a step, from the tenth on perhaps longer, 1 s for a score.

    Its time does not depend on what else this one has to do.
    """
    timed, trainer = sys.modules["timed"], recipe_models.RowTrainer
    found = SimpleNamespace(now=0.0, later=0.2)
    learn, score = trainer.step, timed.evaluate

    def step(self, number, batch):
        found.now += 0.2 if number < 10 else found.later
        return learn(self, number, batch)

    def scored(*words, **how):
        found.now += 1.0
        return score(*words, **how)

    monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(trainer, "step", step)
    monkeypatch.setattr(timed, "evaluate", scored)
    return found


@pytest.mark.parametrize("later", [0.1, 0.2, 0.4])
def test_a_run_ends_on_time_whatever_its_pace_becomes(later, clock, pictures, tmp_path):
    clock.later = later
    result = run("base", pictures, tmp_path / "run", "--no-weights", "--width", 40, seconds=8)
    assert 8 - 2 * later < result["seconds"] < 8.01
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rates = [record["rate"] for record in log if "rate" in record]
    assert rates[-1] < 0.05 * max(rates)


def test_a_run_is_scored_on_what_it_never_saw_and_as_it_is_kept(
    clock, pictures, tmp_path, monkeypatch
):
    seen = set()
    at = recipes.TrainingBatches.at

    def noted(self, step):
        batch = at(self, step)
        seen.update(batch.index.tolist())
        return batch

    monkeypatch.setattr(recipes.TrainingBatches, "at", noted)
    monkeypatch.setattr(recipes, "LOOKED_AT", 8)
    scored, score = [], sys.modules["timed"].evaluate

    def noting(*words, **how):
        scored.append(how["subset"].tolist())
        return score(*words, **how)

    monkeypatch.setattr(sys.modules["timed"], "evaluate", noting)
    result = run("base", pictures, tmp_path / "run", "--test", seconds=6)
    assert seen == set(range(20))
    *along, last = scored
    assert along and all(index == list(range(40, 48)) for index in along)
    assert last == list(range(40, 60))

    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert (log[0]["row"], log[0]["seed"]) == ("base", 0)
    looks = [record["validation"] for record in log if "validation" in record]
    assert looks == result["looks"] and len(looks) == len(scored)
    assert log[-1]["at_end"] == result["validation"]["bits_per_dim"]

    command("join", tmp_path / "run", "--out", tmp_path / "model")
    model, test = axial.load(tmp_path / "model"), axial.open_packed(pictures / "test.npy")
    again = axial.evaluate(model, test, subset=np.arange(20)).bits_per_dim
    assert result["test"]["bits_per_dim"] == pytest.approx(again, abs=1e-6)  # of what is kept
    assert result["test"]["precision"] == "float32"
    train = axial.open_packed(pictures / "train.npy")
    learned = axial.evaluate(model, train, subset=np.arange(20)).bits_per_dim
    assert result["learned"]["bits_per_dim"] == pytest.approx(learned, abs=0.01)  # but for rounding
    unaveraged = result["unaveraged"]
    assert unaveraged["examples"] == 20
    assert result["validation"]["bits_per_dim"] != unaveraged["bits_per_dim"] < looks[0]


def test_the_weights_of_the_last_step_are_scored_as_they_are(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(recipes.ROWS, "average-none", recipe_rows.Row({"averaged_over": 0.0}))
    result = run("average-none", pictures, tmp_path / "run", "--steps", 12, seconds=60)
    found, same = (result[name]["bits_per_dim"] for name in ("unaveraged", "validation"))
    assert found == pytest.approx(same, abs=1e-9)  # where there is no average


def test_a_run_that_breaks_off_leaves_its_log_and_no_result_of_an_earlier_one(
    pictures, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "run"
    out.mkdir()
    for name in ("result.json", "weights-1.safetensors"):
        (out / name).write_text("of another run")
    scored = []

    def fail(*words, **how):
        if scored:
            raise MemoryError
        scored.append(recipes.evaluate(*words, **how))
        return scored[0]

    monkeypatch.setattr(sys.modules["timed"], "evaluate", fail)
    with pytest.raises(MemoryError):
        run("base", pictures, out)
    assert [path.name for path in out.iterdir()] == ["log.jsonl"]
    command("table", out)
    told = capsys.readouterr().out
    assert f"{out}: base, seed 0, broke off at step" in told
    assert f"{scored[0].bits_per_dim:.4f} bits/dim on the first" in told


def test_rows_with_other_norms_or_labels_run_too(pictures, tmp_path):
    rms = run("rms-norm", pictures, tmp_path / "rms", seconds=1)
    with pytest.raises(SystemExit, match="rms-norm is no model"):
        command("join", tmp_path / "rms", "--out", tmp_path / "model")
    told = run("labels", pictures, tmp_path / "labels", "--no-weights", seconds=1)
    assert (rms["conditional"], told["conditional"]) == (False, True)
    assert told["validation"]["given_labels"] and told["model"]["classes"] == 10
    assert not list((tmp_path / "labels").glob("weights-*"))


def test_rms_norm_takes_the_place_of_every_norm_and_of_no_weight():
    setting = replace(recipes.setting_of("rms-norm"), width=24)
    model = recipe_models.start(setting.model(CIFAR), 0, torch.device("cpu"))
    before = dict(model.named_parameters())
    model = recipe_models.shaped(setting, model)
    after = dict(model.named_parameters())
    assert before.keys() == after.keys() and all(after[name] is before[name] for name in before)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * 12 + 1
    x = 3 + torch.randn(2, 24)
    for norm in norms:
        wanted = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        torch.testing.assert_close(norm(x), wanted * norm.weight)


class Waits(TorchDispatchMode):
    """Notes what would make a GPU's host wait: a value asked for, a shape that depends on one."""

    ASKING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.ASKING:
            self.found.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def stepping(name, pictures, device):
    """A function that does one more step of a row."""
    setting = replace(recipes.setting_of(name), width=120)
    packed = axial.open_packed(pictures / "train.npy")
    team = recipes.Ranks(rank=0, count=1, device=torch.device(device))
    model = recipe_models.begun(setting, setting.model(packed.shape), 0, team.device)
    trainer = recipe_models.RowTrainer(setting, model, setting.training(100, seed=0), team)
    batch = recipes.TrainingBatches(packed, 4, seed=0).at(0)
    steps = iter(range(100))
    return lambda: trainer.step(next(steps), batch)


@pytest.mark.parametrize("name", ["base", "paper", "labels", "rms-norm"])
def test_a_step_asks_the_device_for_nothing(name, pictures, monkeypatch):
    # On a CPU alone, one_hot looks at the values it is given.
    one_hot = lambda x, count: (x.unsqueeze(-1) == torch.arange(count)).long()  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    step = stepping(name, pictures, "cpu")
    step()
    with Waits() as waits:
        reading = step()
        assert waits.found == []
        float(reading[0])
        assert waits.found == ["_local_scalar_dense"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_never_waits_for_a_gpu(pictures):
    step = stepping("base", pictures, "cuda")
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
    broken = fake(tmp_path / "g", "no-flip", 3.3)
    (broken / "result.json").unlink()
    out = tmp_path / "table.md"
    command("table", *runs, broken, "--out", out)
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
    assert f"{broken}: no-flip, seed 0, broke off at step 3 after 3.00 of 4.00 minutes" in text
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


def test_the_first_test_images_have_a_figure_of_their_own(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "FEW", 7)
    test = run("small", pictures, tmp_path / "run", "--test")["test"]
    command("join", tmp_path / "run", "--out", tmp_path / "model")
    model, packed = axial.load(tmp_path / "model"), axial.open_packed(pictures / "test.npy")
    first = axial.evaluate(model, packed, subset=np.arange(7)).bits_per_dim
    assert test["first"] == 7
    assert test["bits_per_dim_of_first"] == pytest.approx(first, abs=1e-6)


def test_rows_are_listed_with_what_they_change(capsys):
    command("rows")
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(recipes.ROWS)
    assert "more-outer               14.5M  trapezoid: layers 3/6/3 (4/4/4)" in out


def test_a_run_of_so_many_steps_ends_after_them_and_is_scored(pictures, tmp_path):
    result = run("lstm", pictures, tmp_path / "run", "--steps", 12, seconds=60)
    assert result["steps"] == result["training"]["steps"] == 12 and result["seconds"] < 50
    assert result["tried"]["steps"] == 12
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 12 and "at_end" in log[-1]


def test_rows_differ_in_how_they_begin_by_what_they_name():
    random, smooth = (
        recipe_models.begun(setting, setting.model(CIFAR), 0, torch.device("cpu")).state_dict()
        for setting in (
            replace(recipes.setting_of(row), width=24) for row in ("trapezoid", "smooth")
        )
    )
    changed = {name for name, value in smooth.items() if not torch.equal(value, random[name])}
    assert changed == {name for name in random if "embedding" in name or "positions" in name}
