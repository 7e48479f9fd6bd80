"""PixelCNN++ of its authors: weights, outputs, bits and dependencies recorded from their code."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from axial import CheckpointError, bits
from axial.checkpoints.pixelcnnpp import from_pixelcnnpp, mixture_order
from axial.models.logistic_mixture import LogisticMixture

RECORDED = Path(__file__).parents[1] / "parity" / "rivals" / "pixelcnnpp.npz"


@pytest.fixture
def recorded():
    return dict(np.load(RECORDED, allow_pickle=False))


def weights_of(found):
    return {name[2:]: value for name, value in found.items() if name.startswith("w/")}


def test_outputs_and_bits_are_the_authors(recorded):
    model = from_pixelcnnpp(weights_of(recorded), axes=(8, 8))
    x = torch.from_numpy(recorded["x"].astype(np.int64))
    seen = []
    model.to_mixture.register_forward_hook(lambda *call: seen.append(call[-1].movedim(1, -1)))
    wanted = torch.from_numpy(recorded["out"])[..., mixture_order(model.config.components)]
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)(x)
        torch.testing.assert_close(seen.pop(), wanted.to(dtype), atol=1e-5, rtol=0)
    nats = bits(model, x) * math.log(2)
    assert abs(float(nats) - float(recorded["nats"])) < 1e-3  # of 1267, in float32 there
    mixture = LogisticMixture(wanted.double(), x)
    assert abs(float(mixture.nats().sum()) - float(recorded["nats"])) < 1e-3


def test_a_root_scope_is_understood_and_what_is_wrong_is_named(recorded):
    weights = weights_of(recorded)
    found = from_pixelcnnpp({f"model/{name}": v for name, v in weights.items()}, axes=(8, 8))
    assert (found.config.layers, found.config.width, found.config.components) == (1, 4, 2)
    wrong = {
        "'dense_3/g' is missing": {k: v for k, v in weights.items() if k != "dense_3/g"},
        "'conv2d_0/V' is missing": {},
        "'hw' belongs to no": weights | {"hw": np.zeros(3)},
        "'conv2d_5/V' has shape": weights | {"conv2d_5/V": np.zeros(3)},
        "'dense_1/V'|shape": weights | {"dense_1/V": np.zeros((8, 5), np.float32)},
        "38 convolutions": {k: v for k, v in weights.items() if k != "conv2d_38/V"},
    }
    for message, variables in wrong.items():
        with pytest.raises(CheckpointError, match=message):
            from_pixelcnnpp(variables, axes=(8, 8))
