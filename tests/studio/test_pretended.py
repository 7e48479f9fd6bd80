"""The studio on a GPU that is pretended: its threads draw, complete, look inside and code there."""

import io

import numpy as np
import pytest
from conftest import config, tiny_model
from pretend_cuda import pretend_cuda
from serving import pictures, png, serving

from axial import save
from axial.models.families import new_model
from axial.models.sequence_config import FullConfig

MODELS = {
    "colour": tiny_model(config((4, 4), channels=3, values=256)),
    "full": new_model(FullConfig(axes=(4, 4), channels=3, width=8, heads=2, layers=1)).double(),
}


@pytest.fixture
def folders(tmp_path):
    for name, model in MODELS.items():
        save(model, tmp_path / name)
    return [tmp_path / name for name in MODELS]


def answers(client, name):
    """What the calls of the page give for a picture."""
    x = np.random.default_rng(0).integers(256, size=(4, 4, 3))
    for what, fields in {
        "complete": {"picture": png(x), "keep": "2"},
        "bits": {"picture": png(x)},
        "pixel": {"picture": png(x), "place": "2,1"},
        "compress": {"picture": png(x)},
    }.items():
        status, done = client.send(name, what, **fields)
        assert status == 200, (what, done)
        if what == "complete":
            yield pictures(done)
    status, back = client.send(name, "decompress", file=("x.axl", client.get(done["file"])))
    assert status == 200, back
    assert np.array_equal(np.load(io.BytesIO(client.get(back["pictures"][0]["npy"]))), x)
    status, drawn = client.draw(name, count=2, seed=3)
    assert status == 200, drawn
    yield pictures(drawn)


def test_a_studio_on_a_gpu_gives_the_pictures_of_one_on_a_cpu(folders, monkeypatch):
    found = []
    for device in ("cpu", "cuda"):
        with pretend_cuda(monkeypatch), serving(*folders, device=device) as (studio, client):
            found.append([x for name in MODELS for x in answers(client, name)])
            assert all(device in worker.device for worker in studio.workers.values())
    assert all(map(np.array_equal, *found))
