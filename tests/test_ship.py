"""What becomes of a run: a model's folder, whose card says what the run found."""

import json
import re
import sys
from pathlib import Path

import formats
import pytest
from conftest import config, load_script, saved

import axial
from axial.checkpoints import shipped
from axial.presets import PRESETS

ship = load_script("tools/ship.py")
ship_photos = load_script("tools/ship_photos.py")
SHIPPED = shipped.MODELS
ROOT = Path(ship.__file__).parents[1]


def command(*words, script=ship):
    """Run a script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [Path(script.__file__).name, *map(str, words)])
        script.main()


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """Where models would ship from."""
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")


def short_run(pictures, out, **settings):
    """A run such as that of the model that ships, but of seconds."""
    few = {"width": 20, "validation": 40, "batch": 4, "steps": 4, "seed": 3, "sample_every": 0}
    axial.train("cifar10", data=pictures / "train.npy", out=out, device="cpu", **few | settings)


@pytest.fixture
def made(pictures, tmp_path, monkeypatch):
    """A model that was put together from a short run."""
    monkeypatch.setattr(ship, "FEW", 7)
    monkeypatch.setattr(ship, "LEARNED", 50)
    short_run(pictures, tmp_path / "run")
    command("make", tmp_path / "run", "--name", "toy", "--data", pictures / "test.npy")
    return json.loads((shipped.MODELS / "toy" / "result.json").read_text())


def test_the_card_has_the_figures_of_the_run_and_the_model_is_the_one_tested(
    made, pictures, capsys
):
    card = (shipped.MODELS / "toy" / "README.md").read_text()
    test, model = made["test"], axial.load("toy")
    packed = axial.open_packed(pictures / "train.npy")
    for name, part in {"validation": range(5000, 5040), "learned": range(50)}.items():
        wanted = axial.evaluate(model, packed, subset=part).bits_per_dim
        assert made[name]["bits_per_dim"] == pytest.approx(wanted, abs=1e-6)
    for said in (
        f"**{test['bits_per_dim']:.4f} bits/dim** +- {test['standard_error']:.4f}",
        f"all {test['examples']} images",
        "4 steps of 4",
        f"{made['parameters']:,} parameters, arrays of 4 x 4 x 3",
        "Width 20, 5 heads, 4 encoder, 9 outer and 4 inner layers",
        "average over 1% of the steps",
        axial.fingerprint(model),
        "    axial train cifar10 --data train.npy --validation 40 --seed 3 --out RUN",
    ):
        assert said in " ".join(card.split()) or said in card
    command("check", "toy", "--data", pictures / "test.npy")
    assert "the first 7 test images: " in capsys.readouterr().out


@pytest.mark.parametrize("moved", ["probe", "test"])
def test_another_model_than_the_one_tested_is_noticed(made, pictures, moved):
    path = shipped.MODELS / "toy" / "result.json"
    recorded = json.loads(path.read_text())
    recorded["probe"] += 0.01 * (moved == "probe")
    recorded["test"]["bits_per_dim_of_first"] += 0.01 * (moved == "test")
    path.write_text(json.dumps(recorded))
    told = {"probe": "waves have other bits", "test": "bits/dim apart"}[moved]
    with pytest.raises(SystemExit, match=told):
        command("check", "toy", "--data", pictures / "test.npy")


@pytest.mark.parametrize("wrong", [{"flip": False}, {"labels": True}, {"hold_out": "spread"}])
def test_what_the_card_would_not_be_true_of_does_not_ship(pictures, tmp_path, wrong):
    short_run(pictures, tmp_path / "run", steps=1, **wrong)
    with pytest.raises(SystemExit, match="is not what the card says"):
        command("make", tmp_path / "run", "--name", "toy", "--data", pictures / "test.npy")
    assert not shipped.MODELS.exists()


def test_the_card_of_photographs_has_what_was_measured_of_the_model_that_is_kept(tmp_path, capsys):
    codec = load_script("benchmarks/codec.py")
    x = formats.pictures(24, 13)
    formats.picture_folder(tmp_path / "in", x)
    saved({"toy": config((6, 6), channels=3, values=256)}, tmp_path)
    settings = {"crop": 6, "batch": 4, "steps": 2, "warmup": 1, "sample_every": 0, "device": "cpu"}
    run, init = tmp_path / "run", tmp_path / "toy"
    axial.train("photos", data=tmp_path / "in", out=run, init=init, **settings)
    command("keep", run, script=ship_photos)
    measured = tmp_path / "bits.json"
    how = ["--model", "photos", "--overlap", 2, "--count", 3, "--json", measured]
    command("bits", tmp_path / "in", *how, script=codec)
    make = ["card", run, "--valid", measured, "--test", measured]
    make += ["--trained-on", "one H200"]
    command(*make, script=ship_photos)
    card = (shipped.MODELS / "photos" / "README.md").read_text()
    rows = json.loads(measured.read_text())["pictures"]
    whole, png = (8 * sum(r[way] for r in rows) / (3 * 13 * 13 * 3) for way in ("overlap 2", "PNG"))
    for said in (
        f"| **Kodak, 3 pictures of 768 x 512** | **{whole:.4f}** | {png:.4f} |",
        f"| {rows[0]['name']} | {rows[0]['overlap 2']:,.0f} | {rows[0]['PNG']:,} |",
        "8 crops: 2 steps of 4",
        "24 natural photographs",
        axial.fingerprint(axial.load("photos")),
        f"--init {init} --crop 6 --batch 4",
        "minutes on one H200 (torch",
    ):
        assert said in card, said
    axial.save(axial.load(init), shipped.MODELS / "photos")
    with pytest.raises(SystemExit, match="was measured, but photos is"):
        command(*make, script=ship_photos)


@pytest.mark.parametrize("name", shipped.shipped_names())
def test_what_ships_is_what_was_tested_fits_and_has_a_card_that_is_true(name, monkeypatch):
    monkeypatch.setattr(shipped, "MODELS", SHIPPED)
    folder, model = SHIPPED / name, axial.load(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= ship.MOST_BYTES
    recorded = json.loads((folder / "result.json").read_text())
    mark = axial.fingerprint(model)
    if name == "photos":
        wanted, card = recorded["fingerprint"], ship_photos.card(recorded)
    else:
        wanted, card = recorded["test"]["fingerprint"], ship.card(name, recorded, mark)
        assert recorded["test"]["examples"] == 10_000
        assert recorded["test"]["precision"] == "float32"
    assert mark == wanted and (folder / "README.md").read_text() == card
    assert ship.probe_bits(model) == pytest.approx(recorded["probe"], abs=1e-4)
    drawn = [folder / ship.SAMPLES, *ROOT.glob(f"docs/figures/{name}_completions.png")]
    for picture in drawn:  # by this model
        assert json.loads(Path(f"{picture}.json").read_text())["fingerprint"] == mark
    assert name == "photos" or len(drawn) == 2
    assert name == "photos" or (ROOT / f"docs/figures/{name}_bits.png").exists()


def test_the_model_of_cifar_is_no_worse_than_promised_and_of_the_preset_of_its_name():
    recorded = json.loads((SHIPPED / "cifar10" / "result.json").read_text())
    assert recorded["test"]["bits_per_dim"] <= 3.10
    recipe = PRESETS["cifar10"]()
    assert axial.ModelConfig.from_json(recorded["model"]) == recipe.model
    for name in ("batch", "learning_rate", "optimizer", "schedule", "warmup", "weight_decay"):
        assert recorded["training"][name] == getattr(recipe.training, name)


def test_what_is_told_of_the_model_is_what_was_measured():
    readme, changes = ((ROOT / name).read_text() for name in ("README.md", "CHANGELOG.md"))
    test = json.loads((SHIPPED / "cifar10" / "result.json").read_text())["test"]
    whole, error, first = (
        f"{test[name]:.4f}" for name in ("bits_per_dim", "standard_error", "bits_per_dim_of_first")
    )
    assert f"**{whole} +- {error}**" in readme and f"{whole} bits/dim on all" in changes
    checked = (ROOT / "benchmarks/results/ship_cpu.txt").read_text()
    assert f"{first} bits/dim on this CPU" in checked and f"{first} bits/dim" in readme
    assert test["fingerprint"] in checked
    codecs = re.findall(r"(?:PNG|WebP) (\d\.\d{4})", checked)
    assert len(set(codecs)) == 2 and all(f"| {bits} |" in readme for bits in codecs)
