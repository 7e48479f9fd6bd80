"""Runs on transformed copies that the model is told of: scored without, resumed, continued."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import config, refused
from processes import run_to_end
from small_runs import COMMON, losses
from small_trainers import ALONE, TRAINING

import axial
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.data.batches import Batch, TrainingBatches
from axial.training.config import Recipe, TrainConfig
from axial.training.hold_out import split
from axial.training.trainer import Trainer

PLAIN = config((4, 4), channels=3, values=5)
TOLD = replace(PLAIN, augment=("rotate", "colours"))
X = np.random.default_rng(0).integers(5, size=(40, 4, 4, 3), dtype=np.uint8)


def recipe(model, **settings):
    few = {"steps": 6, "batch": 4, "learning_rate": 0.01, "warmup": 2, "save_every": 3}
    few |= {"log_every": 1, "validation": 8, "validate_every": 3, "sample_every": 0}
    return Recipe(model=model, training=TrainConfig(**few | settings))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run on 24 variants of pictures, with stochastic depth."""
    folder = tmp_path_factory.mktemp("told") / "run"
    axial.train(recipe(replace(TOLD, stochastic_depth=0.3)), data=X, out=folder)
    return folder


def test_what_is_held_out_is_scored_as_it_is(told, capsys):
    model = axial.load(told)
    best = min(record["validation"] for record in Run(told).log() if "validation" in record)
    held_out = torch.from_numpy(X[split(40, 8, "spread")[1]])
    for label in (None, torch.zeros(8, dtype=torch.long)):
        mean = axial.bits_per_dim(model, held_out, label).mean()
        assert float(mean) == pytest.approx(best, abs=1e-5)
    main(["info", str(told)])
    assert "24 variants (rotate, colours)" in (said := capsys.readouterr().out)
    assert "stochastic depth 0.3" in said


@pytest.mark.parametrize("classes", [0, 3])
def test_a_label_says_variant_and_class(classes):
    found = replace(TOLD, classes=classes)
    trainer = Trainer(axial.AxialTransformer(found), TRAINING, ALONE)
    index = np.arange(4)
    label, variant = torch.tensor([2, 0, 1, 1]), np.array([0, 23, 5, 0])
    batch = Batch(
        x=torch.from_numpy(X[:4]), label=label, index=index, epoch=index * 0, variant=variant
    )
    wanted = {0: [0, 23, 5, 0], 3: [2, 69, 16, 1]}[classes]
    assert trainer.inputs(batch)[2].tolist() == wanted


def test_a_run_learns_the_variants_that_it_was_shown_and_no_others(told, tmp_path):
    torch.manual_seed(0)
    new = axial.AxialTransformer(TOLD).variant_embedding.weight
    moved = (axial.load(told, weights="raw").variant_embedding.weight != new).any(1)
    batches = TrainingBatches(
        axial.open_packed(told / "data" / "data.npy"),
        4,
        seed=0,
        augment=TOLD.augment,
        subset=split(40, 8, "spread")[0],
    )
    shown = {number for step in range(6) for number in batches.at(step).variant.tolist()}
    assert {0, *(1 + moved.nonzero().flatten()).tolist()} == shown and len(shown) > 5
    axial.train(recipe(TOLD, untransformed=1.0, steps=3), data=X, out=tmp_path / "plain")
    found = axial.load(tmp_path / "plain", weights="raw")
    assert torch.equal(found.variant_embedding.weight, new)


def test_a_resumed_run_equals_one_that_was_not_stopped(told, tmp_path):
    cut = tmp_path / "cut"
    shutil.copytree(told, cut)
    for later in Run(cut).checkpoints()[1:]:
        shutil.rmtree(later)
    axial.train(resume=True, out=cut)
    (state, tensors), (state2, tensors2) = Run(told).newest(), Run(cut).newest()
    assert state["step"] == state2["step"] == 6 and losses(told) == losses(cut)
    assert all(torch.equal(tensor, tensors2[name]) for name, tensor in tensors.items())


def test_two_ranks_find_what_one_finds(tmp_path):
    flags = [*COMMON, "--steps", "6", "--dropout", "0", "--augment", "transpose", "rotate"]
    main(["train", "digits", "--out", str(tmp_path / "1"), *flags])
    run_to_end(2, "train", "digits", "--out", tmp_path / "2", *flags, "--parallel", "fsdp")
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)
    assert axial.load(tmp_path / "2").config.augment == ("rotate", "transpose")


def test_a_run_may_start_from_a_model_that_knew_no_variants(tmp_path, capsys):
    axial.save(axial.AxialTransformer(PLAIN), tmp_path / "plain")
    still = recipe(TOLD, learning_rate=1e-30, steps=1, save_every=1)
    axial.train(still, data=X, out=tmp_path / "told", init=tmp_path / "plain")
    assert "variant_embedding is new and starts at 0" in capsys.readouterr().err
    before, after = axial.load(tmp_path / "plain"), axial.load(tmp_path / "told")
    assert after.config == TOLD and after.variant_embedding.weight.abs().max() < 1e-29
    x = torch.from_numpy(X[:3])
    assert torch.equal(after(x, torch.tensor([0, 7, 23])), before(x))


def test_a_run_continues_another_with_its_variants_a_new_schedule_and_other_rates(
    told, tmp_path, capsys
):
    np.save(tmp_path / "x.npy", X)
    start = ["train", "small", "--data", tmp_path / "x.npy", "--values", 5, "--init", told]
    start += ["--sample-every", 0, "--batch", 4, "--validation", 8]
    message = refused(*start, "--out", tmp_path / "no", "--augment", "rotate")
    assert "has augment ('rotate', 'colours'), not ('rotate',)" in message
    assert "leave --augment out" in message and not (tmp_path / "no").exists()
    on = ["--out", tmp_path / "on", "--stochastic-depth", 0.1, "--dropout", 0.05]
    on += ["--schedule", "trapezoid", "--max-minutes", 0.01, "--optimizer", "muon"]
    main([str(word) for word in [*start, *on]])
    assert "stochastic_depth 0.1 (0.0)" in capsys.readouterr().err
    wanted = replace(axial.load(told).config, stochastic_depth=0.1, dropout=0.05)
    assert axial.load(tmp_path / "on").config == wanted
    axial.train(
        recipe(TOLD, steps=1, learning_rate=1e-30), data=X, out=tmp_path / "same", init=told
    )
    assert axial.load(tmp_path / "same").config == TOLD
    for name, value in axial.load(told).state_dict().items():  # the averaged weights of the first
        assert torch.equal(axial.load(tmp_path / "same").state_dict()[name], value)


@pytest.mark.parametrize("share", [0, -0.1, 1.1, "half"])
def test_a_share_that_none_can_be_is_refused(share):
    with pytest.raises(axial.ConfigError, match="untransformed is"):
        replace(TRAINING, untransformed=share)


def test_words_that_are_none_are_refused_in_one_line_before_a_folder_is_made(tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(SystemExit):
        main(["train", "digits", "--out", str(out), "--augment", "mirror"])
    said = capsys.readouterr().err
    words = said.split("--augment is 'mirror': use one of ")[1].split(";")[0]
    assert sorted(words.split(", ")) == ["colours", "rotate", "transpose"]
    assert "--augment is colours, but" in refused(
        "train", "digits", "--out", out, "--augment", "colours"
    )
    assert not out.exists()
