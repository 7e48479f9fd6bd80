"""Errors speak of arguments in Python, and of flags on the command line."""

import pickle

import pytest
from conftest import fails

import axial
from axial.errors import AxialError, ConfigError


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("give --data", "give data="),
        ("--values is 9: use fewer", "values is 9: use fewer"),
        ("read with --size 4 --convert rgb, or not", "read with size=4 convert=rgb, or not"),
        ("use --grad-accum or --no-cuda-graph", "use grad_accum= or cuda_graph=False"),
        ("a new run with --init /tmp/a--b", "a new run with init=/tmp/a--b"),
        (
            "or `axial train --resume runs/a`; give --out",
            "or `axial train --resume runs/a`; give out=",
        ),
        ("a--b/--c: no such file", "a--b/--c: no such file"),
        ("a - b -- c", "a - b -- c"),
    ],
)
def test_flags_become_arguments_outside_of_commands(written, python):
    error = ConfigError(written)
    assert str(error) == python and error.as_written == written
    assert f"{error}" == written and str(AxialError(f"x: {error}")) == f"x: {python}"
    assert str(pickle.loads(pickle.dumps(error))) == python


def test_the_same_mistake_is_told_in_either_language(tmp_path, capsys):
    model = str(tmp_path / "none")
    with pytest.raises(AxialError, match=r"^temperature is -1\.0: use 0"):
        axial.draw(axial.load("cifar10"), 1, temperature=-1.0)
    said = fails(capsys, "sample", model, "--out", "a.png", "--temperature", "-1")
    assert said.startswith("axial: --temperature is -1.0: use 0")
    with pytest.raises(AxialError, match=r"^batch is 0: use whole numbers"):
        axial.train("small", data="digits", out=tmp_path / "run", batch=0)
    said = fails(capsys, "train", "small", "--data", "digits", "--out", model, "--batch", "0")
    assert said.startswith("axial: --batch is 0: use whole numbers")
    said = fails(capsys, "sample", "cifar10", "--out", str(tmp_path / "a.png"), "--device", "foo")
    assert said == "axial: --device is 'foo': use cpu, cuda or cuda:N"
