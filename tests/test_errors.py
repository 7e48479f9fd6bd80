"""Errors speak of arguments in Python, and of flags on the command line."""

import pickle
import subprocess
import sys

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


CALLS = """
import sys, torch, axial
x = torch.zeros(1, 3, 4, 1, dtype=torch.long)
sizes = dict(width=8, heads=2, encoder_layers=0, decoder_layers=(2, 1))
model = axial.AxialTransformer(axial.ModelConfig(axes=(3, 4), values=3, **sizes))
layer = axial.AxialAttention(8, 2, 0, causal=True)
calls = [
    lambda: axial.bits("cifar10", x),
    lambda: axial.bits_per_dim("cifar10", x),
    lambda: axial.element_bits(None, x),
    lambda: axial.draw("cifar10", 1),
    lambda: axial.stream("cifar10", 1),
    lambda: axial.complete("cifar10", x),
    lambda: axial.prolong("cifar10", x, 4),
    lambda: axial.compress("cifar10", x),
    lambda: axial.decompress("cifar10", b""),
    lambda: axial.save(torch.nn.Linear(2, 2), "lin"),
    lambda: axial.AxialTransformer({"axes": (8, 8)}),
    lambda: axial.load(None),
    lambda: axial.sheet(x[:0]),
    lambda: layer(torch.zeros(1, 3, 4, 8, dtype=torch.bfloat16)),
    lambda: axial.complete(model, x.to(torch.uint8)),
    lambda: axial.draw(model, 1, given=x.to(torch.uint8)),
    lambda: axial.pack(x.numpy(), "x.npy"),
    lambda: axial.pack("x.npy", "y.npy", {"size": 3}),
    lambda: axial.evaluate(torch.nn.Linear(2, 2), x),
    lambda: axial.fingerprint("cifar10"),
    lambda: axial.open_packed(None),
]
for call in calls:
    try:
        call()
    except axial.AxialError as error:
        print(error)
"""


def test_what_stands_for_another_thing_is_refused_in_one_line():
    """In a process of its own: where shapes are checked, types of arguments are, too."""
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == CALLS.count("lambda:"), done.stdout
    assert lines[0] == "model is a str: load it first, by axial.load('cifar10')"
    assert lines[0] == lines[1] and set(lines[3:9]) == {lines[0]}
    assert lines[2] == "model is a NoneType: axial.load reads one"
    for line, words in zip(
        lines[9:],
        (
            "model is a Linear",
            "config is a dict",
            "folder is a NoneType",
            "nothing to show",
            "x is torch.bfloat16, but the layer is torch.float32",
            "given is torch.uint8, which has no -1",
            "given is torch.uint8, which has no -1",
            "source is a ndarray: give a path or a name",
            "options is a dict: give axial.ReadOptions",
            "model is a Linear",
            "model is a str: load it first",
            "path is a NoneType",
        ),
        strict=True,
    ):
        assert words in line
