"""The script of docs/anomaly.md: its AUROC, its strangers, and that it runs."""

import gzip
import json
import sys

import numpy as np
import pytest
from conftest import load_script


@pytest.fixture(scope="module")
def anomaly():
    return load_script("experiments/anomaly.py")


def test_auroc_counts_pairs_and_ties_half(anomaly):
    usual, strange = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0])
    assert anomaly.auroc(usual, strange) == (1 + 0.5 + 3) / 6
    assert anomaly.auroc(usual, usual) == 0.5
    assert anomaly.auroc(usual, usual + 9) == 1 and anomaly.auroc(usual, usual - 9) == 0


def test_strangers_are_as_large_as_digits_and_none_is_one(anomaly):
    digits = np.random.default_rng(0).integers(0, 17, (20, 8, 8, 1))
    for x in anomaly.strangers(digits).values():
        assert x.shape == digits.shape and x.min() >= 0 and x.max() <= 16
        assert not np.array_equal(x, digits)
    assert np.unique(anomaly.photographs(20), axis=0).shape[0] > 15  # some show the sky


def test_clothes_are_averaged_to_the_shape_and_shades_of_digits(anomaly, tmp_path):
    pictures = np.zeros((3, 28, 28), np.uint8)
    pictures[1] = 255
    pictures[2, 2:6, 2:6] = 128  # the second block of each axis, after the frame of two
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(16) + pictures.tobytes()))
    blank, full, one = anomaly.fashion(tmp_path / "x.gz", 3)[..., 0]
    assert not blank.any() and (full[1:-1, 1:-1] == 16).all() and full[0, 0] == 4
    assert one[1, 1] == 8 and one.sum() == 8


def test_it_prints_a_table_and_writes_it(anomaly, alone, tmp_path, monkeypatch, capsys):
    out = tmp_path / "a.json"
    monkeypatch.setattr(sys, "argv", ["anomaly.py", str(alone), "--json", str(out)])
    anomaly.main()
    found = json.loads(out.read_text())
    said = capsys.readouterr().out
    for name, row in found.items():
        assert f"{name:<30}{row['bits_per_dim']:.4f}" in said
    assert found["patches of photographs"]["auroc"] > 0.8  # of a model that has hardly learned
