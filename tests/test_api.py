"""`axial.train` does what `axial train` does: from a name, a preset or a Recipe, on any data."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import TINY

import axial
from axial import ConfigError, DataError, InputError
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.presets import digits, small

SIZES = {"width": 16, "heads": 2, "decoder_layers": (2, 1)}
FEW = {**SIZES, "batch": 8, "sample_every": 0}
X = np.random.default_rng(0).integers(0, 3, (40, 4, 5, 2))


def test_a_call_is_the_command(tmp_path):
    outcome = axial.train("digits", out=tmp_path / "call", steps=4, **FEW)
    flags = [*TINY, "--steps", "4", "--batch", "8", "--sample-every", "0"]
    main(["train", "digits", "--out", str(tmp_path / "command"), *flags])
    call, command = (Run(tmp_path / name) for name in ("call", "command"))
    assert call.about == command.about
    models = [axial.load(run.folder) for run in (call, command)]
    assert axial.fingerprint(models[0]) == axial.fingerprint(models[1])
    assert outcome.step == 4 and outcome.best == command.newest()[0]["best"]


def test_a_run_is_resumed_as_it_was_started(tmp_path):
    out = tmp_path / "run"
    axial.train("digits", out=out, steps=4, save_every=2, **FEW)
    whole = axial.fingerprint(axial.load(out))
    shutil.rmtree(Run(out).checkpoints()[-1])
    (out / "model.safetensors").unlink()
    assert axial.train(out=out, resume=True).step == 4
    assert axial.fingerprint(axial.load(out)) == whole
    axial.train("digits", out=out, resume=True, width=16)
    for wrong, told in {"width": "with width 16, not 32", "seed": "with seed 0, not 32"}.items():
        with pytest.raises(ConfigError, match=told):
            axial.train("digits", out=out, resume=True, **{wrong: 32})
    with pytest.raises(ConfigError, match="with preset digits, not small"):
        axial.train("small", out=out, resume=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        axial.train("digits", out=out)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_an_array_is_packed_into_the_run_and_read_again(tmp_path, kind):
    out = tmp_path / "run"
    sizes = {"width": 8, "heads": 2, "steps": 3, "batch": 4, "sample_every": 0}
    axial.train(small, data=kind(X), out=out, **sizes)
    found, packed = axial.load(out).config, axial.open_packed(out / "data/data.npy")
    assert (found.axes, found.channels, found.values) == ((4, 5), 2, 3)
    assert np.array_equal(packed.rows(range(40)), X)
    assert Run(out).about["preset"] == "small"
    axial.train(small, data=kind(X), out=out, resume=True)
    with pytest.raises(DataError, match=r"not the array that .* was trained on"):
        axial.train(small, data=kind(2 - X), out=out, resume=True)


def test_the_data_must_conform_to_the_model_of_a_recipe(tmp_path):
    preset = small(axial.DataShape(axes=(4, 5), channels=2, values=7))
    few = replace(preset.training, steps=2, batch=4, sample_every=0)
    recipe = axial.Recipe(model=replace(preset.model, width=8, heads=2), training=few)
    axial.train(recipe, data=X, out=tmp_path / "run")
    assert axial.load(tmp_path / "run").config == recipe.model  # of 7 values, though there are 3
    axial.train(recipe, data=X, out=tmp_path / "run", resume=True)
    other = replace(recipe, model=replace(recipe.model, width=16))
    with pytest.raises(ConfigError, match="with width 8, not 16"):
        axial.train(other, out=tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"4 x 4, 2 channels.*but the model takes 4 x 5"):
        axial.train(recipe, data=X[:, :, :4], out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_what_cannot_be_trained_is_said_in_one_line_and_leaves_nothing(tmp_path):
    wrong = {
        "did you mean digits?": {"recipe": "digit"},
        "name a preset to train": {"recipe": None},
        "there is no setting 'widht'; did you mean width?": {"widht": 3},
        "steps 3 and max_minutes 1: give one": {"steps": 3, "max_minutes": 1},
        "does not split into 5 heads": {"heads": 5},
        "shape \\(40, 4\\): give examples": {"data": X[:, :, 0, 0]},
        "of type float64: give integers": {"data": X / 2},
        "data holds -1: use 0 to": {"data": X - 1},
    }
    for told, how in wrong.items():
        with pytest.raises(axial.AxialError, match=told) as caught:
            axial.train(**{"recipe": digits, "out": tmp_path / "run"} | how)
        assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_call_may_be_limited_in_time(tmp_path):
    outcome = axial.train("digits", out=tmp_path / "run", max_minutes=0.01, **FEW)
    assert 0 < outcome.step == Run(tmp_path / "run").newest()[0]["plan"]["steps"] < 300


def test_values_that_the_model_does_not_have_are_refused_and_leave_no_run(tmp_path):
    recipe = axial.presets.small(axial.DataShape(axes=(4, 4), values=256))
    x = np.random.default_rng(0).integers(0, 1024, (60, 4, 4, 1))
    with pytest.raises(axial.AxialError, match="but the model has 256 values"):
        axial.train(recipe, data=x, out=tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


def test_training_leaves_the_callers_generator_as_it_was(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    x = np.zeros((60, 4, 4, 1), np.uint8)
    small = {"width": 8, "heads": 2, "batch": 4, "validation": 0}
    axial.train("small", data=x, out=tmp_path / "run", steps=1, device="cpu", **small)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(axial.AxialError, match="does not say what it was trained on; give data="):
        axial.evaluate(tmp_path / "run")


def test_a_recipe_of_another_model_than_the_one_to_start_from_is_refused(tmp_path):
    x = np.zeros((60, 4, 4, 1), np.uint8)
    small = {"width": 8, "heads": 2, "batch": 4, "validation": 0, "device": "cpu"}
    axial.train("small", data=x, out=tmp_path / "run", steps=1, **small)
    recipe = axial.presets.small(axial.DataShape(axes=(4, 4), values=2))
    with pytest.raises(axial.AxialError, match="has width 8, not 128; with init="):
        axial.train(recipe, data=x, out=tmp_path / "other", init=tmp_path / "run", steps=1)


def test_a_preset_of_ones_own_keeps_its_name(tmp_path):
    def my_preset(*shape):
        return small(*shape)

    axial.train(my_preset, data=X, out=tmp_path / "run", steps=1, width=8, heads=2)
    assert Run(tmp_path / "run").about["preset"] == "my_preset"
    axial.train(my_preset, data=X, out=tmp_path / "run", resume=True)
