"""The fixtures of the studio's tests: a running studio of tiny models."""

import pytest
import torch
from conftest import config, tiny_model
from serving import serving

from axial import load, save

MODELS = {
    "colour": config((8, 8), channels=3, values=256),
    "labels": config((4, 4), values=5, classes=3),
    "clip": config((3, 4, 4), values=256),
    "stacked": config((4, 4), channels=4, frames=4, values=256),
    "rows": config((4, 3), channels=3, channel_mode="rows", values=7),
    "given": config((4, 4), channels=2, given_channels=1),
    "lstm": config((4, 4), channels=2, inner="lstm"),
    "deep": config((5, 4), channels=2, values=300, decoder_layers=(3, 2)),
    "slow": config((16, 16), channels=3, values=256, width=32, decoder_layers=(2, 2)),
}
"""Models in float64: there a picture is the same whoever it is drawn with."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, found in MODELS.items():
        save(tiny_model(found), folder / name)
    broken = tiny_model(config((4, 4)))
    torch.nn.init.constant_(broken.to_logits.bias, float("nan"))
    save(broken, folder / "broken")
    return folder


@pytest.fixture(scope="module")
def running(models):
    with serving(*(models / name for name in [*MODELS, "broken"])) as (studio, client):
        yield studio, client


@pytest.fixture
def client(running):
    return running[1]


@pytest.fixture
def loaded(models):
    return lambda name: load(models / name)
