"""The comparison on few pictures trains its rows, scores what it never saw, and goes on."""

import sys

import pytest
from conftest import load_script

import axial
from axial.checkpoints.run_folder import Run

few = load_script("experiments/few_pictures.py")
TINY = {"width": 8, "heads": 1, "decoder_layers": (2, 1), "steps": 2, "batch": 4}
TINY |= {"validation": 6, "validate_every": 1}


def command(*words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["few_pictures.py", *map(str, words)])
        few.main()


def test_rows_are_compared_on_the_pictures_after_those_that_are_trained_on(
    pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(few, "SETTINGS", few.SETTINGS | TINY)
    monkeypatch.setattr(few, "TRAINED_ON", 8)
    monkeypatch.setattr(few, "SHRUNK", 2)
    wanted = ["--data", pictures / "train.npy", "--out", tmp_path, "--rows", "plain", "all"]
    command(*wanted)
    said = capsys.readouterr().out
    plain, every = (axial.load(tmp_path / f"{name}-1").config for name in ("plain", "all"))
    assert (plain.axes, plain.variants, every.variants) == ((2, 2), 1, 48)
    looks = [
        [record["validation"] for record in Run(tmp_path / f"all-{seed}").log()[1::2]]
        for seed in few.SEEDS
    ]
    best = [min(found) for found in looks]
    row = next(line for line in said.splitlines() if line.startswith("| all"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == f"{sum(best) / 2:.4f}" and cells[4] == f"{max(best) - min(best):.4f}"
    held_out = axial.open_packed(tmp_path / "pictures.npy")
    again = axial.evaluate(axial.load(tmp_path / "all-0"), held_out, subset=range(8, 14))
    assert again.bits_per_dim == pytest.approx(best[0], abs=1e-6)
    command(*wanted)
    assert capsys.readouterr().out == said  # nothing is trained twice
