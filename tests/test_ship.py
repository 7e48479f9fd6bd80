"""What becomes of a run: a model's folder, whose card says what the run found."""

import json
import sys

import pytest
import torch
from conftest import load_script
from test_recipes import run

import axial
from axial import shipped

ship = load_script("benchmarks/ship.py")


def command(*words):
    """Run the script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ship.py", *map(str, words)])
        ship.main()


@pytest.fixture
def made(pictures, tmp_path, monkeypatch):
    """A model that was put together from a short run."""
    monkeypatch.setattr(shipped, "MODELS", tmp_path / "models")
    monkeypatch.setattr(sys.modules["test_recipes"].recipes, "FEW", 7)
    result = run("small", pictures, tmp_path / "run", "--test")
    command("make", tmp_path / "run", "--name", "toy")
    return result


def test_the_card_has_the_figures_of_the_run_and_the_model_is_the_one_tested(
    made,
    pictures,
    tmp_path,
    capsys,
):
    card = (shipped.MODELS / "toy" / "README.md").read_text()
    test = made["test"]
    for said in (
        f"**{test['bits_per_dim']:.4f} bits/dim** +- {test['standard_error']:.4f}",
        f"all {test['examples']} images",
        f"{made['steps']:,} steps of 4",
        f"{made['parameters']:,} parameters, arrays of 4 x 4 x 3",
        "Width 120, 6 heads, 4 encoder, 4 outer and 4 inner layers",
        axial.fingerprint(axial.load("toy")),
        "--seconds 2 --test",
    ):
        assert said in card
    command("check", "toy", "--data", pictures / "test.npy")
    assert "the first 7 test images: " in capsys.readouterr().out
    recorded = json.loads((shipped.MODELS / "toy" / "result.json").read_text())
    again = axial.bits_per_dim(axial.load("toy"), ship.probe(axial.load("toy").config))
    assert float(again) == pytest.approx(recorded["probe"], abs=1e-5)


def test_another_model_than_the_one_tested_is_noticed(made, pictures):
    model = axial.load("toy")
    with torch.no_grad():
        model.to_logits.bias[:128] += 0.3
    axial.save(model.bfloat16(), shipped.MODELS / "toy")
    with pytest.raises(SystemExit, match="bits/dim apart"):
        command("check", "toy", "--data", pictures / "test.npy")


def test_a_run_that_was_not_tested_does_not_ship(pictures, tmp_path):
    run("small", pictures, tmp_path / "run")
    with pytest.raises(SystemExit, match="was not tested"):
        command("make", tmp_path / "run", "--name", "toy")
