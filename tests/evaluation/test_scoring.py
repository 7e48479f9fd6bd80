"""Bits/dim of a whole data set are those of its examples, however they are gone through."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import VARIANTS, config, random_input, tiny_model
from packed_arrays import whole, write_test_set
from safetensors import safe_open
from safetensors.numpy import save

import axial.evaluation.scoring
from axial import AxialError, ConfigError, DataError, InputError, bits, element_bits, evaluate
from axial.data.packed import open_packed

COUNT = 23


@pytest.fixture
def packed_for(tmp_path):
    """Random examples that fit a model, packed."""

    def make(found, count=COUNT, name="data.npy"):
        x, label, _ = random_input(found, count)
        label = None if label is None else label.numpy()
        return write_test_set(
            tmp_path / name, x.numpy().astype(np.uint8), label, found.classes, values=found.values
        )

    return make


@pytest.mark.parametrize(
    "name",
    ["1d", "2d-channels", "2d-labels", "2d-rows-given", "2d-columns-given", "3d-given-both", "4d"],
)
def test_the_figures_are_those_of_bits_on_the_whole_array(name, packed_for):
    found = VARIANTS[name]
    model, packed = tiny_model(found), packed_for(found)
    x, label = whole(packed)
    exact = bits(model, x, label).numpy()
    result = evaluate(model, packed, batch=5)
    np.testing.assert_allclose(result.bits, exact, rtol=0, atol=1e-9)

    per_dim = [float(one) / found.elements for one in exact]
    mean = sum(per_dim) / COUNT
    variance = sum((one - mean) ** 2 for one in per_dim) / (COUNT - 1)
    assert result.bits_per_dim == pytest.approx(mean, abs=1e-12)
    assert result.standard_error == pytest.approx(math.sqrt(variance / COUNT), abs=1e-12)

    where = element_bits(model, x, label).mean(0).numpy()
    scored = where > 0  # given elements count nowhere
    for axis, parts in ((-1, result.per_channel), (0, result.per_row)):
        lines, counted = np.moveaxis(where, axis, 0), np.moveaxis(scored, axis, 0)
        for part, line, mask in zip(parts, lines, counted, strict=True):
            assert (part is None) == (not mask.any())
            assert part is None or part == pytest.approx(line[mask].mean(), abs=1e-10)
    assert result.elements == scored.sum()
    assert result.labels == (found.classes > 0)
    assert result.fingerprint == axial.fingerprint(model)


@pytest.mark.parametrize("name", ["2d-channels", "2d-columns-labels"])
def test_any_batch_size_gives_the_same_figures_and_drops_nothing(name, packed_for):
    found = VARIANTS[name]
    model, packed = tiny_model(found), packed_for(found)
    results = [evaluate(model, packed, batch=batch) for batch in (None, 1, 2, 7, 22, 23, 40)]
    for result in results:
        assert len(result.bits) == COUNT and (result.bits > 0).all()
        np.testing.assert_allclose(result.bits, results[0].bits, rtol=0, atol=1e-9)
        assert result.bits_per_dim == pytest.approx(results[0].bits_per_dim, abs=1e-9)
        np.testing.assert_allclose(result.per_row, results[0].per_row, rtol=0, atol=1e-9)


def test_every_part_that_passes_through_the_model_has_one_shape(packed_for):
    """So that an example's figures do not depend on how many others there are."""
    found = VARIANTS["2d-channels"]
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found)
    seen = []
    model.norm.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    all_of_them = evaluate(model, packed, batch=8)
    assert seen == [8] * 3 * len(found.slices)
    some = evaluate(model, packed, batch=8, subset=np.arange(8, 19))
    assert np.array_equal(some.bits, all_of_them.bits[8:19])


@pytest.mark.parametrize("at_once, batch", [(1, 1), (8, 8), (9, 8), (12, 12), (22, 12), (30, 23)])
def test_batches_are_as_few_as_memory_allows_and_alike(at_once, batch, packed_for, monkeypatch):
    found = VARIANTS["2d"]
    monkeypatch.setattr(axial.evaluation.scoring, "planes_at_once", lambda *_: at_once)
    assert evaluate(tiny_model(found), packed_for(found)).batch == batch


def test_a_subset_is_scored_in_its_own_order(packed_for):
    found = VARIANTS["2d"]
    model, packed = tiny_model(found), packed_for(found)
    subset = np.array([20, 3, 3, 7])
    result = evaluate(model, packed, subset=subset, batch=3)
    everything = evaluate(model, packed).bits
    np.testing.assert_allclose(result.bits, everything[subset], rtol=0, atol=1e-9)
    assert "(4 of 23 images, toy test, float64)" in str(result)
    assert "(23 images, toy test" in str(evaluate(model, packed, subset=np.arange(23)[::-1]))
    assert "(23 of 23 images," in str(evaluate(model, packed, subset=[5] * 23))
    with pytest.raises(DataError, match=r"not an array of shape \(23,\) of bool"):
        evaluate(model, packed, subset=np.arange(23) == 5)
    first = evaluate(model, packed, subset=np.arange(1))
    assert first.standard_error is None
    assert re.fullmatch(r"\d\.\d{4} bits/dim \(first 1 of 23 images, .*\)", str(first))


def test_labels_are_told_to_a_model_that_takes_them_and_to_no_other(packed_for, tmp_path):
    plain, labelled = VARIANTS["2d-channels"], replace(VARIANTS["2d-channels"], classes=3)
    packed = packed_for(labelled)
    result = evaluate(tiny_model(labelled), packed)
    assert "toy test, given labels" in str(result)
    x, _ = whole(packed)
    others = write_test_set(
        tmp_path / "o.npy", x.byte().numpy(), (packed.labels + 1) % 3, 3, values=3
    )
    assert not np.isclose(evaluate(tiny_model(labelled), others).bits, result.bits).any()
    unaware = [evaluate(tiny_model(plain), data) for data in (packed, others)]
    assert np.array_equal(unaware[0].bits, unaware[1].bits)
    assert not unaware[0].labels and "given labels" not in str(unaware[0])


def test_the_model_is_left_as_it_was_and_scored_without_dropout_or_tf32(packed_for):
    found = config((3, 4), channels=2, dropout=0.5)
    model, packed = tiny_model(found), packed_for(found)
    calm = evaluate(model, packed)
    seen = set()
    model.norm.register_forward_hook(
        lambda *_: seen.add(
            (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, model.training)
        )
    )
    torch.set_float32_matmul_precision("high")
    try:
        again = evaluate(model.train(), packed)
        assert torch.get_float32_matmul_precision() == "high" and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
    assert np.array_equal(again.bits, calm.bits) and model.training
    assert seen == {("highest", False, False)}


def test_a_video_is_stacked_for_a_model_of_frames_as_channels(tmp_path):
    x = np.random.default_rng(0).integers(0, 3, (4, 3, 3, 4, 2)).astype(np.uint8)
    packed = write_test_set(tmp_path / "clips.npy", x, values=3)
    found = config((3, 4), channels=6, frames=3, given_channels=2)
    model = tiny_model(found)
    stacked = torch.from_numpy(np.moveaxis(x, 1, -2).reshape(4, 3, 4, 6).astype(np.int64))
    result = evaluate(model, packed)
    np.testing.assert_allclose(result.bits, bits(model, stacked).numpy(), rtol=0, atol=1e-9)
    assert re.fullmatch(
        r"\d\.\d{4} bits/dim, 2 frames given 1, \+- \d\.\d{4} \(4 clips, toy test, float64\)",
        str(result),
    )
    grid = evaluate(tiny_model(config((3, 3, 4), channels=2, given_steps=1)), packed)
    assert "bits/dim, 2 steps given 1, +- " in str(grid) and "(4 examples," in str(grid)
    pictures = write_test_set(tmp_path / "stacked.npy", stacked.numpy().astype(np.uint8), values=3)
    told = evaluate(tiny_model(config((3, 4), channels=6, frames=3, given_channels=2)), pictures)
    assert "bits/dim, 2 frames given 1, +- " in str(told) and "(4 clips," in str(told)
    odd = evaluate(tiny_model(config((3, 4), channels=6, frames=3, given_channels=1)), packed)
    assert "bits/dim, 5 channels given 1, +- " in str(odd)


COLOUR = {"axes": (4, 4), "channels": 3, "values": 256}
ODD = [COLOUR | {"axes": (4, 5)}, COLOUR | {"values": 3}]
TAKES = "but the model takes 4 x 4, 3 channels, 256 values"


@pytest.mark.parametrize(
    ("wanted", "found", "message"),
    [
        ({"axes": (4, 3)}, {}, "has examples of 3 x 4, 1 channel, 3 values"),
        ({"channels": 3}, {}, "takes 3 x 4, 3 channels, 3 values; give other data"),
        ({"axes": (4,), "channels": 3}, {}, "takes 4, 3 channels, 3 values; give other data"),
        ({"values": 2}, {}, "takes 3 x 4, 1 channel, 2 values; give other data"),
        ({"classes": 2}, {"classes": 3}, "3 classes, but the model is conditioned on 2 classes"),
        *(
            (COLOUR, COLOUR | other, f"{TAKES}; pictures are read with {cure}, if that is meant")
            for other, cure in (
                ({"axes": (5, 8)}, "--size 4"),
                ({"axes": (4, 5)}, "--size 4"),
                ({"channels": 1}, "--convert rgb"),
                ({"axes": (5, 4), "channels": 1}, "--size 4 --convert rgb"),
            )
        ),
        *(
            (COLOUR, COLOUR | {"axes": (5, 4)} | other, f"{TAKES}; give other data")
            for other in ({"channels": 2}, {"values": 200}, {"axes": (20,)})
        ),
        *((odd, odd | {"axes": (6, 6)}, "values; give other data") for odd in ODD),
        *((odd, odd | {"axes": (6, 6), "channels": 1}, "values; give other data") for odd in ODD),
    ],
    ids=str,
)
def test_data_that_does_not_fit_is_refused_with_what_makes_it_fit(
    wanted, found, message, packed_for
):
    packed = packed_for(config(**found))
    with pytest.raises(InputError) as caught:
        evaluate(tiny_model(config(**wanted)), packed)
    assert message in caught.value.as_written and "\n" not in str(caught.value)


@pytest.mark.parametrize("grey", [3, 4, 6])
def test_grey_frames_do_not_pass_for_colours(grey, tmp_path):
    x = np.zeros((4, grey, 3, 4, 1), np.uint8)
    packed = write_test_set(tmp_path / "clips.npy", x, values=3)
    with pytest.raises(InputError, match=f"has examples of {grey} x 3 x 4, 1 channel"):
        evaluate(tiny_model(config((3, 4), channels=grey)), packed)
    told = tiny_model(config((3, 4), channels=grey, frames=grey))
    assert len(evaluate(told, packed).bits) == 4


def test_an_array_under_another_ones_description_is_not_scored(packed_for, tmp_path):
    found = config((3, 4), channels=2)
    packed, other = packed_for(found), packed_for(found, name="other.npy")
    np.save(other.path, np.roll(packed.array, 1, 0))
    model = tiny_model(found)
    with pytest.raises(DataError, match="is not the array its description names"):
        evaluate(model, open_packed(other.path), subset=[0])
    assert math.isfinite(evaluate(model, packed).bits_per_dim)


class PulledError(Exception):
    """The plug."""


def interrupt(model, packed, partial, after, monkeypatch, **how):
    """Evaluate until `after` examples are done."""
    monkeypatch.setattr(axial.evaluation.scoring, "_SAVE_SECONDS", 0.0)

    def pull(done):
        if done >= after:
            raise PulledError

    with pytest.raises(PulledError):
        evaluate(model, packed, resume=partial, progress=pull, **how)
    assert partial.exists()


def test_an_interrupted_evaluation_goes_on_and_ends_with_the_same_figures(
    packed_for, tmp_path, monkeypatch
):
    found = VARIANTS["2d-channels"]
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found)
    uninterrupted = evaluate(model, packed, batch=4)
    partial = tmp_path / "partial"
    interrupt(model, packed, partial, 8, monkeypatch, batch=4)
    interrupt(model, packed, partial, 16, monkeypatch, batch=4)
    told = []
    result = evaluate(model, packed, batch=4, resume=partial, progress=told.append)
    assert told == [20, 23]
    assert np.array_equal(result.bits, uninterrupted.bits)
    assert result.to_json() == uninterrupted.to_json()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.json", "data.npy", "partial"]


def test_another_batch_size_may_go_on_where_one_stopped(packed_for, tmp_path, monkeypatch):
    found = VARIANTS["2d-given-both"]
    model, packed = tiny_model(found), packed_for(found)
    interrupt(model, packed, tmp_path / "partial", 10, monkeypatch, batch=5)
    result = evaluate(model, packed, batch=7, resume=tmp_path / "partial")
    np.testing.assert_allclose(result.bits, evaluate(model, packed).bits, rtol=0, atol=1e-9)


def test_a_precision_that_it_is_not_computed_in_is_refused(packed_for):
    found = VARIANTS["2d"]
    model, packed = tiny_model(found), packed_for(found)
    with pytest.raises(ConfigError, match="'float16': use one of float32, bfloat16"):
        evaluate(model, packed, precision="float16")
    with pytest.raises(ConfigError, match="kept in float64, not to be computed in bfloat16"):
        evaluate(model, packed, precision="bfloat16")
    with pytest.raises(ConfigError, match=r"batch is 2\.5: use whole numbers"):
        evaluate(model, packed, batch=2.5)
    assert json.dumps(evaluate(model, packed, batch=np.int64(3)).to_json())


def test_the_partial_file_of_another_evaluation_is_refused(packed_for, tmp_path, monkeypatch):
    found = VARIANTS["2d-labels"]
    model, packed = tiny_model(found).float(), packed_for(found)
    partial = tmp_path / "partial"
    interrupt(model, packed, partial, 10, monkeypatch, batch=5, identify=False)
    kept = partial.read_bytes()
    x, label = packed.rows(range(COUNT)), packed.labels
    relabelled = write_test_set(tmp_path / "labels.npy", x, (label + 1) % 3, 3, values=3)
    x[-1, 0, 0, 0] = (x[-1, 0, 0, 0] + 1) % 3
    changed = write_test_set(tmp_path / "changed.npy", x, label, 3, values=3)
    for message, args, how in (
        ("with model ", (tiny_model(found, seed=1), packed), {}),
        ("with model ", (tiny_model(found, seed=1), packed), {"identify": False}),
        ("with data ", (model, changed), {}),
        ("with labels ", (model, relabelled), {}),
        ("with subset ", (model, packed), {"subset": np.arange(22)}),
        ("with subset ", (model, packed), {"subset": [3]}),
        ("with precision float32, not bfloat16", (model, packed), {"precision": "bfloat16"}),
    ):
        with pytest.raises(DataError, match=f"partial: is part of an evaluation {message}"):
            evaluate(*args, resume=str(partial), **how)
        assert partial.read_bytes() == kept
    with safe_open(partial, "numpy") as file:
        key, table = file.metadata(), file.get_tensor("table")
    harms = [kept[:-40], kept[:-1] + bytes([kept[-1] ^ 1]), save({"table": table})]
    harms += [save({"table": table}, metadata=key | {"checksum": "0"})]
    for harm in harms:
        partial.write_bytes(harm)
        with pytest.raises(AxialError, match=r"partial: .*; remove it or use another file$"):
            evaluate(model, packed, resume=partial)


def test_what_takes_seconds_is_not_put_on_the_disk_batch_by_batch(packed_for, tmp_path):
    found = VARIANTS["2d"]
    evaluate(tiny_model(found), packed_for(found), batch=5, resume=tmp_path / "partial")
    assert not (tmp_path / "partial").exists()


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_finds(packed_for):
    found = config((8, 8), channels=3, values=256, width=64, heads=4, classes=5)
    model, packed = tiny_model(found, dtype=torch.float32), packed_for(found, 100)
    reference = evaluate(model, packed)
    result = evaluate(model.cuda(), packed)
    assert result.bits_per_dim == pytest.approx(reference.bits_per_dim, abs=1e-5)
    low = evaluate(model, packed, precision="bfloat16")
    assert 0 < abs(low.bits_per_dim - reference.bits_per_dim) < 0.05
    assert "bfloat16" in str(low)
