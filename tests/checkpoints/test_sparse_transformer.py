"""The Sparse Transformer of its authors: weights, logits and bits recorded from their code."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from axial import CheckpointError, bits
from axial.checkpoints.sparse_transformer import from_sparse_transformer

RECORDED = Path(__file__).parents[1] / "parity" / "rivals"


def recorded(name):
    found = dict(np.load(RECORDED / f"{name}.npz", allow_pickle=False))
    weights = {key[2:]: value for key, value in found.items() if key.startswith("w/")}
    return json.loads(str(found["config"])), weights, found


@pytest.mark.parametrize("name", ["full_attention_model", "sparse_strided_model"])
def test_logits_and_bits_are_the_authors(name):
    config, weights, found = recorded(name)
    modes = config["modes"].split(",")
    model = from_sparse_transformer(
        weights, heads=config["heads"], modes=modes, stride=config["ctx"]
    ).double()
    x = torch.from_numpy(found["x"].astype(np.int64)).view(2, *model.config.axes, -1)
    wanted = torch.from_numpy(found["logits"]).view(*x.shape, -1).double()
    torch.testing.assert_close(model(x), wanted, atol=2.5e-6, rtol=0)  # 3.3e-6 by another epsilon
    nats = torch.from_numpy(found["nats"].sum(1)).double()
    torch.testing.assert_close(bits(model, x) * math.log(2), nats, atol=1e-4, rtol=0)
    assert model.family == {"a": "full"}.get(config["modes"], "strided")


def test_a_missing_variable_and_an_unknown_mode_are_named():
    _, weights, _ = recorded("sparse_strided_model")
    del weights["h1/k_proj/b"]
    with pytest.raises(CheckpointError, match="'h1/k_proj/b' is missing"):
        from_sparse_transformer(weights, heads=2, stride=12)
    with pytest.raises(CheckpointError, match="'c' is missing"):
        from_sparse_transformer(weights, heads=2, modes=["c"])
