"""`axial.evaluate` takes models and checkpoints, and data of every kind."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import VARIANTS, random_input, tiny_model
from packed_arrays import write_test_set

import axial
from axial import AxialError, bits, evaluate, save

FOUND = VARIANTS["2d-labels"]


@pytest.fixture
def packed(tmp_path):
    x, label, _ = random_input(FOUND, 7)
    return write_test_set(tmp_path / "x.npy", x.byte().numpy(), label.numpy(), 3, values=3)


def test_a_model_and_its_folder_are_scored_alike_on_a_file_an_array_and_a_tensor(packed, tmp_path):
    model = tiny_model(FOUND)
    save(model, tmp_path / "model")
    x, label = torch.from_numpy(packed.rows(range(7))).long(), torch.from_numpy(packed.labels)
    exact = bits(model, x, label).numpy()
    for of in (model, tmp_path / "model", str(tmp_path / "model")):
        for data in ((packed,), (packed.path,), (x, label), (x.numpy(), label.numpy())):
            found = evaluate(of, *data)
            np.testing.assert_allclose(found.bits, exact, rtol=1e-12)
    assert evaluate(model, x, label, subset=[2, 3]).bits_per_dim == pytest.approx(
        exact[2:4].mean() / model.config.elements
    )


def test_a_run_is_scored_on_the_test_part_of_what_it_was_trained_on(alone):
    found = evaluate(alone)
    assert found.data.title == "digits test" and found.weights == "ema"
    raw = evaluate(alone, weights="raw")
    assert raw.weights == "raw" and raw.bits_per_dim != found.bits_per_dim


def test_what_cannot_be_scored_is_refused_in_one_line(packed):
    model = tiny_model(FOUND)
    x = torch.from_numpy(packed.rows(range(7)))
    cases = [
        ((model,), "data is missing"),
        ((model, x, 3), "label is 3, and there is no such class; use 0 to 2, or all"),
        ((tiny_model(replace(FOUND, classes=0)), x, "all"), "unconditional; leave label= out"),
        ((model, x[:, :2], torch.zeros(7, dtype=torch.long)), "has examples of 2 x 4"),
        ((tiny_model(replace(FOUND, classes=0)), x.float()), "float32"),
        (("no-such-model", x), "no such checkpoint"),
    ]
    for args, message in cases:
        with pytest.raises(AxialError, match=message) as caught:
            axial.evaluate(*args)
        assert "\n" not in str(caught.value)


def test_labels_need_not_reach_the_last_class_and_may_not_go_beyond_it(packed):
    model = tiny_model(FOUND)
    x, label = torch.from_numpy(packed.rows(range(7))).long(), torch.zeros(7, dtype=torch.long)
    found = evaluate(model, x, label)
    np.testing.assert_allclose(found.bits, bits(model, x, label).numpy(), rtol=1e-12)
    with pytest.raises(AxialError, match="labels hold 3, but the model has 3 classes"):
        evaluate(model, x, label + 3)
