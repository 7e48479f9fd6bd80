"""Small training runs: how they are planned, refused and compared."""

from dataclasses import replace

import torch

import axial
from axial.checkpoints.run_folder import Run
from axial.models.config import Sizes
from axial.presets import PRESETS
from axial.system.ranks import Ranks
from axial.training.start import Plan

ALONE = Ranks(rank=0, count=1, device=torch.device("cpu"))
TINY = ["--width", "16", "--heads", "2", "--decoder-layers", "2", "1"]
STEPS = 60
COMMON = [*TINY, "--steps", str(STEPS), "--batch", "8", "--warmup", "5", "--log-every", "1"]
COMMON += ["--save-every", "5", "--validate-every", "20", "--sample-every", "0"]


def step_of(folder):
    return int(Run(folder).checkpoints()[-1].name.removeprefix("step-"))


def losses(folder):
    return [record["loss"] for record in Run(folder).log() if "loss" in record]


def assert_same_ending(one, other, *, steps=STEPS):
    """Tensors, losses, scores and exported weights, to the last bit."""
    (state, tensors), (state2, tensors2) = (Run(folder).newest() for folder in (one, other))
    assert tensors.keys() == tensors2.keys() and state["step"] == state2["step"] == steps
    for name, tensor in tensors.items():
        assert torch.equal(tensor, tensors2[name]), name
    assert losses(one) == losses(other) and len(losses(one)) == steps
    assert state["best"] == state2["best"]
    assert axial.fingerprint(axial.load(one)) == axial.fingerprint(axial.load(other))


def plan(**settings):
    few = {"steps": 6, "batch": 8, "save_every": 2}
    training = replace(PRESETS["digits"]().training, **(few | settings))
    sizes = Sizes(width=16, heads=2, decoder_layers=(2, 1))
    return Plan(name="digits", preset=PRESETS["digits"], data=None, training=training, sizes=sizes)
