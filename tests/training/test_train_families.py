"""Training takes every family as it takes the axial one: resuming, ranks, --init."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from processes import run_to_end
from small_runs import losses
from small_trainers import TRAINING, batch_of

import axial
from axial import ConfigError, TrainConfig
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.models.blocks_config import BlocksConfig
from axial.models.families import new_model
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.system.ranks import Ranks
from axial.training.config import Recipe
from axial.training.trainer import Trainer

SMALL = {"axes": (4, 4), "channels": 2, "values": 5, "classes": 2, "width": 8, "heads": 2}
CONFIGS = {
    "full": FullConfig(layers=1, dropout=0.1, **SMALL),
    "strided": StridedConfig(layers=2, dropout=0.1, **SMALL),
    "gated-pixelcnn": GatedPixelCnnConfig(
        layers=2, dropout=0.1, **{k: v for k, v in SMALL.items() if k != "heads"}
    ),
    "pixelcnn++": PixelCnnPpConfig(
        axes=(4, 4), channels=2, classes=2, width=4, layers=1, components=2, dropout=0.1
    ),
    "local-1d": Local1dConfig(layers=1, block=5, dropout=0.1, **SMALL),
    "local-2d": Local2dConfig(layers=1, block=(2, 4), flange=(1, 2), dropout=0.1, **SMALL),
    "blocks": BlocksConfig(
        encoder_layers=1, layers=1, head_width=4, subscale=(2, 1), dropout=0.1, **SMALL
    ),
}


def recipe(config, **settings):
    usual = {"steps": 6, "batch": 4, "learning_rate": 1e-2, "warmup": 2, "keep_checkpoints": 3}
    usual |= {"save_every": 2, "validate_every": 3, "sample_every": 0, "log_every": 1}
    return Recipe(model=config, training=TrainConfig(**usual | {"labels": False} | settings))


@pytest.fixture
def pictures():
    return torch.randint(5, (40, 4, 4, 2), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_resumed_run_equals_one_that_was_not_stopped(family, optimizer, pictures, tmp_path):
    config = replace(CONFIGS[family], classes=0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    axial.train(recipe(config, optimizer=optimizer), data=pictures, out=whole)
    shutil.copytree(whole, cut)
    for later in Run(cut).checkpoints()[1:]:
        shutil.rmtree(later)
    axial.train(resume=True, out=cut)
    (state, tensors), (state2, tensors2) = Run(whole).newest(), Run(cut).newest()
    assert state["step"] == state2["step"] == 6 and losses(whole) == losses(cut)
    assert all(torch.equal(tensor, tensors2[name]) for name, tensor in tensors.items())
    assert axial.load(cut).family == family


def steps_on_a_gpu(family, *, fast):
    """Losses and gradient norms of some steps: compiled and in a CUDA graph, or launched."""
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    config = replace(CONFIGS[family], classes=0)
    if family == "pixelcnn++":  # compiled on a GPU, it draws two of its keys in another order
        config = replace(config, dropout=0.0)
    torch.manual_seed(0)
    how = {"compile": fast, "cuda_graph": fast, "precision": "float32", "optimizer": "muon"}
    trainer = Trainer(new_model(config), replace(TRAINING, **how), alone)
    found = [trainer.step(n, batch_of(config, 6, seed=n)).cpu() for n in range(8)]
    assert (trainer.cuda_graph is not None) == fast
    return torch.stack(found)


@pytest.mark.gpu
@pytest.mark.parametrize("family", CONFIGS)
def test_a_compiled_and_recorded_step_is_the_step(family):
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
import torch
from test_train_families import steps_on_a_gpu
found, wanted = (steps_on_a_gpu({family!r}, fast=fast) for fast in (True, False))
torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def slopes(family, device):
    """How the compiled loss changes along a direction: by differences, and by its gradient."""
    alone = Ranks(rank=0, count=1, device=torch.device(device))
    config = replace(CONFIGS[family], classes=0)
    torch.manual_seed(0)
    settings = replace(TRAINING, compile=True, precision="float32")
    trainer = Trainer(new_model(config).double(), settings, alone)
    inputs = trainer.inputs(batch_of(config, 6))
    weights = list(trainer.local.values())
    way = [torch.randn_like(weight) for weight in weights]

    def loss(step):
        with torch.no_grad():
            for weight, towards in zip(weights, way, strict=True):
                weight += step * towards
        torch.manual_seed(1)
        return trainer.loss(*inputs, None)

    loss(0.2).backward()  # at the start some branches add nothing yet
    gradient = sum((w.grad * d).sum() for w, d in zip(weights, way, strict=True))
    above, below = loss(1e-6), loss(-2e-6)
    return ((above - below) / 2e-6).item(), gradient.item()


@pytest.mark.gpu
@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_compiled_drops_the_same_on_the_way_back(family):
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
from pytest import approx
from test_train_families import slopes
found, wanted = slopes({family!r}, "cuda")
assert found == approx(wanted, rel=1e-4)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "preset", ["strided-cifar10-15m", "local-1d-cifar10-12m", "blocks-cifar10-45m"]
)
def test_two_ranks_find_what_one_finds(preset, tmp_path):
    flags = ["--data", "digits", "--width", 8, "--heads", 2, "--layers", 2, "--steps", 4]
    flags += ["--batch", 4, "--log-every", 1, "--sample-every", 0, "--warmup", 2, "--no-flip"]
    for count, parallel in ((1, "ddp"), (2, "ddp"), (2, "fsdp")):
        out = tmp_path / f"{count}-{parallel}"
        run_to_end(count, "train", preset, "--out", out, *flags, "--parallel", parallel)
        assert losses(out) == pytest.approx(losses(tmp_path / "1-ddp"), abs=1e-6)


def test_two_ranks_start_from_the_examples_that_one_starts_from(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(256, size=(40, 4, 4, 3)))
    flags = [
        "--data",
        tmp_path / "x.npy",
        "--values",
        256,
        "--width",
        4,
        "--layers",
        1,
        "--steps",
        3,
    ]
    flags += ["--batch", 4, "--log-every", 1, "--sample-every", 0, "--no-flip"]
    train = ["train", "pixelcnnpp-cifar10-98m", *flags]
    main([str(word) for word in [*train, "--out", tmp_path / "1"]])
    run_to_end(2, *train, "--out", tmp_path / "2", "--parallel", "fsdp")
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=1e-5)


def test_new_weights_of_a_run_are_scaled_by_its_data_and_given_ones_are_not(pictures, tmp_path):
    config = replace(CONFIGS["pixelcnn++"], classes=0, dropout=0.0)
    still = {"learning_rate": 1e-30, "steps": 1}
    axial.train(recipe(config, **still), data=pictures, out=tmp_path / "run")
    found = axial.load(tmp_path / "run")
    with torch.no_grad():
        out = found.stem.u(found.scaled(pictures).movedim(-1, 1))
    assert found.stem.u.b.abs().min() > 0 and (out.std((0, 2, 3)) - 1).abs().max() < 0.1
    axial.train(recipe(config, **still), data=pictures, out=tmp_path / "on", init=tmp_path / "run")
    assert torch.equal(axial.load(tmp_path / "on").stem.u.b, found.stem.u.b)


def test_what_a_family_has_not_is_refused(pictures, tmp_path):
    with pytest.raises(ConfigError, match="encoder_layers is 3: this family of models has none"):
        axial.train(recipe(CONFIGS["full"]), data=pictures, out=tmp_path / "run", encoder_layers=3)


@pytest.mark.parametrize("flags", [["--layers", "2"], []])
def test_a_checkpoint_of_another_family_is_refused(flags, tmp_path):
    axial.save(new_model(replace(CONFIGS["full"], classes=0)), tmp_path / "full")
    np.save(tmp_path / "x.npy", np.zeros((40, 4, 4, 2), np.uint8))
    out = ["--data", str(tmp_path / "x.npy"), "--values", "5", "--out", str(tmp_path / "run")]
    wrong = refused("train", "small", *out, "--init", str(tmp_path / "full"), *flags)
    assert "is a model of the family full, but small is of axial" in wrong


def test_a_family_is_conditioned_on_labels_drawn_from_scored_and_fine_tuned(tmp_path, capsys):
    flags = ["--batch", "4", "--steps", "2", "--sample-every", "0", "--learning-rate", "0.01"]
    size = ["--width", "8", "--heads", "2", "--layers", "2", "--labels"]
    first, second = tmp_path / "first", tmp_path / "second"
    train = ["train", "strided-cifar10-15m", "--data", "digits", *flags]
    main([*train, "--out", str(first), *size])
    main([*train, "--out", str(second), "--labels", "--init", str(first)])
    model = axial.load(second)
    assert (model.family, model.config.classes) == ("strided", 10)
    assert Run(second).about["init"]["fingerprint"] == axial.fingerprint(axial.load(first))
    x = torch.from_numpy(axial.open_packed(first / "data/data.npy").rows(range(4)).astype("int64"))
    bits = [axial.bits(model, x, torch.full((4,), label)) for label in (0, 1)]
    assert (bits[0] - bits[1]).abs().min() > 0
    main(["sample", str(second), "--count", "2", "--batch", "2", "--out", str(tmp_path / "s.npy")])
    drawn = axial.draw(model, 2, label=torch.arange(2), batch=2)
    assert np.array_equal(np.load(tmp_path / "s.npy"), drawn.numpy())
    main(["evaluate", str(second), "--limit", "8", "--device", "cpu"])
    assert "bits/dim" in capsys.readouterr().out.splitlines()[-1]
