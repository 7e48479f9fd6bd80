"""Many clients at once: none is lost, and each gets the pictures of its own seeds."""

import asyncio

import pytest
import torch
from conftest import load_script
from serving import serving

from axial import draw, load

script = load_script("benchmarks/studio.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return script.small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def expected(model):
    return script.drawn(model, 64)


def test_what_the_benchmark_expects_is_what_draw_draws(model, expected):
    x = draw(load(model), script.MOST, seed=7).to(torch.uint8).numpy()
    assert expected[7] == x.tobytes() and len(expected) == script.SEEDS


def test_no_client_is_lost_and_none_gets_wrong_pictures(model, expected):
    with serving(model) as (_, client):
        work = script.Load(client.port, "small", expected, seconds=2.0)
        asyncio.run(work.run(40))
    assert set(work.answers) == {"right"} and work.answers["right"] >= 40
    assert max(work.batches) > script.MOST  # some were drawn together
    assert max(work.page) < 2 and len(work.page) > 3
