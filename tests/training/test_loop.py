"""A run learns, leaves what it promises, and says what went wrong."""

import errno
import math
import os
import shutil
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from processes import Process
from small_runs import ALONE, TINY, losses, plan

import axial
from axial import TrainConfig
from axial.checkpoints.run_folder import Run
from axial.cli.main import main
from axial.errors import CheckpointError, TrainingError
from axial.evaluation.scoring import score
from axial.presets import digits
from axial.system.ranks import Ranks
from axial.training.hold_out import split
from axial.training.loop import train
from axial.training.loss import SliceBits
from axial.training.metrics import Metrics
from axial.training.run_logger import RunLogger
from axial.training.samples import draw_some
from axial.training.start import create


def test_a_run_leaves_a_model_samples_a_curve_and_a_log(alone, capsys):
    assert losses(alone)[0] == pytest.approx(math.log2(17), abs=0.02)
    assert losses(alone)[-1] < 3.2
    for name in ("samples.png", "curve.png"):
        assert (alone / name).stat().st_size > 1000
    scored = [record for record in Run(alone).log() if "validation" in record]
    assert [record["step"] for record in scored] == [20, 40, 60]
    best = min(scored, key=lambda record: record["validation"])
    packed = axial.open_packed(alone / "data/data.npy")
    _, held_out = split(1497, 74, "spread")
    x = torch.from_numpy(packed.rows(held_out).astype(np.int64))
    label = torch.from_numpy(packed.labels[held_out])
    found = axial.bits_per_dim(axial.load(alone), x, label).mean()
    assert float(found) == pytest.approx(best["validation"], abs=1e-6)
    assert len(Run(alone).checkpoints()) == 2


@pytest.mark.parametrize("embeddings", ["random", "smooth"])
def test_a_run_starts_from_the_embeddings_it_is_told(tmp_path, embeddings):
    chosen = plan(steps=1, learning_rate=1e-9, embeddings=embeddings)
    run, packed = create(chosen, tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    model = axial.load(run.folder)
    torch.manual_seed(chosen.training.seed)
    wanted = axial.AxialTransformer(model.config)
    if embeddings == "smooth":
        wanted.smooth_embeddings()
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_a_model_that_gives_no_numbers_has_no_score(tmp_path, alone):
    model = axial.load(alone)
    torch.nn.init.constant_(model.to_logits.bias, math.nan)
    axial.save(model, tmp_path / "bad")
    message = refused("evaluate", tmp_path / "bad", "--data", alone / "data/data.npy")
    assert "gives probabilities that are no numbers" in message


def test_a_run_that_does_not_fit_memory_says_so_and_a_fresh_one_leaves_no_folder(tmp_path):
    run, packed = create(plan(), tmp_path / "run", ALONE)

    class Full(type(packed)):
        def rows(self, *args, **named):
            raise MemoryError

    packed.__class__ = Full
    with pytest.raises(TrainingError, match="does not fit memory; start anew with a smaller"):
        train(run, packed, ALONE)
    assert run.exists(run.folder)
    with pytest.raises(TrainingError, match="does not fit memory"):
        train(run, packed, ALONE, fresh=True)
    assert not run.folder.exists()


def test_a_single_held_out_example_has_no_error_bar(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 3, (25, 3, 4)))
    sizes = ["--width", "8", "--heads", "2", "--steps", "2"]
    run = tmp_path / "run"
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(run), *sizes])
    shown = capsys.readouterr().err
    assert "(1 of 25 images, x), held out, the best" in shown


def test_held_out_examples_are_spread_or_the_last():
    kept, chosen = split(100, 4, "spread")
    assert chosen.tolist() == [12, 37, 62, 87]
    assert sorted([*kept, *chosen]) == list(range(100))
    kept, chosen = split(100, 4, "last")
    assert chosen.tolist() == [96, 97, 98, 99] and kept.tolist() == list(range(96))
    assert [len(part) for part in split(5, 0, "spread")] == [5, 0]


def test_the_sheet_of_a_run_with_classes_names_them(alone):
    shown = np.asarray(Image.open(alone / "samples.png"))
    assert shown.shape[:2] == (4 * (64 + 14 + 2) + 2, 10 * 66 + 2)  # a column for each digit
    strips = [shown[66:80, 2 + i * 66 : 66 + i * 66] for i in range(10)]
    assert all((strip < 128).any() for strip in strips)
    assert not np.array_equal(strips[0], strips[1])


def test_the_model_of_a_run_knows_its_classes_without_the_run(alone, tmp_path):
    for name in ("model.safetensors", "config.json"):
        shutil.copy(alone / name, tmp_path / name)
    assert axial.load(tmp_path).class_names == tuple("0123456789")


def test_more_ranks_than_pictures_draw_them_all(alone):
    packed = axial.open_packed(alone / "data/data.npy")
    model = axial.load(alone)
    whole = draw_some(model, packed, np.arange(3), ALONE)

    class Alone(Ranks):
        def sum(self, x):
            return x

    shares = [
        draw_some(model, packed, np.arange(3), Alone(rank=r, count=50, device=ALONE.device))
        for r in range(50)
    ]
    assert torch.equal(sum(shares), whole)


@contextmanager
def not_finite_at(*steps):
    """Make the loss of these steps, counted from 1, not a number."""
    count = 0

    def spoil(module, args, out):
        nonlocal count
        if not isinstance(module, SliceBits):
            return None
        count += 1
        return out * math.nan if count in steps else None

    hook = torch.nn.modules.module.register_module_forward_hook(spoil)
    try:
        yield
    finally:
        hook.remove()


def test_a_bad_step_out_of_nowhere_is_skipped_and_counted(tmp_path):
    run, packed = create(plan(), tmp_path / "run", ALONE)
    with not_finite_at(3, 5):
        outcome = train(run, packed, ALONE)
    assert outcome.step == 6 and outcome.skipped == 2
    assert "2 skipped" in outcome.line(run.folder)
    assert [record["step"] for record in run.log() if record.get("skipped")] == [3, 5]
    assert all(torch.isfinite(p).all() for p in axial.load(run.folder).parameters())


@pytest.mark.parametrize("log_every", [1, 6])
def test_a_loss_that_stays_not_finite_ends_the_run_and_leaves_a_good_checkpoint(
    tmp_path, log_every
):
    run, packed = create(plan(log_every=log_every), tmp_path / "run", ALONE)
    with (
        not_finite_at(4, 5, 6),
        pytest.raises(TrainingError, match="not finite at step 5, 2 in a row"),
    ):
        train(run, packed, ALONE)
    state, tensors = run.newest()
    assert state["step"] == 4
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    with (
        not_finite_at(1),  # the fifth, from where it resumes
        pytest.raises(TrainingError, match="not finite at step 5, 2 in a row"),
    ):
        train(run, packed, ALONE)
    assert train(run, packed, ALONE).step == 6


def test_a_model_that_cannot_be_written_ends_the_run_and_says_what_there_is(tmp_path, monkeypatch):
    run, packed = create(plan(validate_every=2), tmp_path / "run", ALONE)

    def full(model, folder):
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise CheckpointError(f"{folder}: cannot be written ({error})") from error

    def second(model, folder):
        monkeypatch.setattr("axial.training.loop.save", full)
        axial.save(model, folder)

    monkeypatch.setattr("axial.training.loop.save", second)
    with pytest.raises(CheckpointError) as caught:
        train(run, packed, ALONE)
    wanted = (
        f"(No space left on device); step-00000002 is whole, `axial train --resume {run.folder}"
    )
    assert wanted in caught.value.as_written


def test_where_nothing_can_be_compiled_that_is_said(tmp_path):
    nowhere = {"CXX": "nosuch", "PATH": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    args = ["train", "digits", "--out", tmp_path / "run", *TINY, "--steps", 2, "--compile"]
    process = Process(*args, env=nowhere)
    assert process.wait() == 1 and "Traceback" not in process.err
    assert "the model cannot be compiled here (" in process.err.splitlines()[-1]
    assert process.err.endswith("; start anew with --no-compile\n")


def test_a_sheet_of_samples_that_a_signal_prevented_is_drawn_on_resuming(tmp_path, monkeypatch):
    chosen = plan(sample_every=2, log_every=1)
    run, packed = create(chosen, tmp_path / "run", ALONE)
    record = RunLogger.record

    def asked(self, step, **facts):
        record(self, step, **facts)
        if step == 3:  # the next step sees it
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "record", asked)
        assert train(run, packed, ALONE).signal == signal.SIGTERM
    assert train(run, packed, ALONE).step == 6
    whole, again = create(chosen, tmp_path / "whole", ALONE)
    train(whole, again, ALONE)
    sheets = [sorted((one.folder / "samples").iterdir()) for one in (run, whole)]
    assert [[path.name for path in each] for each in sheets] == [
        ["step-00000002.png", "step-00000004.png"]
    ] * 2
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*sheets, strict=True))


def test_best_weights_that_are_gone_are_not_reported(tmp_path, capsys):
    run, packed = create(plan(validate_every=2), tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    (run.folder / "model.safetensors").unlink()
    outcome = train(run, packed, ALONE)
    assert (outcome.best, outcome.best_step, outcome.step) == (None, None, 6)
    assert "the best weights, of step 6, are gone; the last ones stay" in capsys.readouterr().err
    assert axial.load(run.folder)


def test_the_best_weights_stay_when_later_ones_are_worse_and_after_resuming(tmp_path):
    wild = dict(learning_rate=0.3, schedule="constant", warmup=0, validate_every=1, ema=0.0)
    wild["embeddings"] = "random"  # by which the second step is worse, and none after it better
    run, packed = create(plan(bad_steps=0, **wild), tmp_path / "run", ALONE)
    with not_finite_at(6), pytest.raises(TrainingError):
        train(run, packed, ALONE)
    outcome = train(run, packed, ALONE)
    scored = {r["step"]: r["validation"] for r in run.log() if "validation" in r}
    best = min(scored, key=scored.get)
    assert list(scored) == [1, 2, 3, 4, 5, 6] and best < 5
    assert (outcome.best_step, outcome.best) == (best, scored[best])
    _, held_out = split(len(packed), plan().training.held_out(len(packed)), "spread")
    found = score(axial.load(run.folder), packed, subset=held_out).bits_per_dim
    assert found == pytest.approx(scored[best], abs=1e-9)


def test_held_out_examples_are_never_trained_on(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 16, (9, 4, 4)))
    sizes = ["--width", "16", "--heads", "2", "--steps", "80", "--learning-rate", "0.02"]
    sizes += ["--batch", "2", "--validation", "8"]
    run = tmp_path / "run"
    main(["train", "small", "--data", str(tmp_path / "x.npy"), "--out", str(run), *sizes])
    assert losses(run)[-1] < 0.2  # the one example that is left is learned by heart
    assert Run(run).log()[-2]["validation"] > 4  # and tells nothing of the others


def test_readings_are_means_over_finite_steps():
    settings = TrainConfig(steps=9, batch=1, learning_rate=1.0, bad_steps=1)
    readings = Metrics(10, digits().model, settings, ALONE)
    for loss, norm in ((1.0, 4.0), (9.0, math.nan), (3.0, 8.0)):
        readings.add(torch.tensor([loss, norm]))
    found, skipped = readings.read()
    assert (found["loss"], found["grad_norm"], skipped) == (2.0, 6.0, [12])
    readings.add(torch.tensor([1.0, math.inf]))
    assert math.isnan(readings.read()[0]["loss"])
    readings.add(torch.tensor([1.0, math.inf]))
    with pytest.raises(TrainingError, match="step 15, 2 in a row"):
        readings.read()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"warmup": 6}, "use a smaller --warmup"),
        ({"warmup": 5, "ema": 0.9, "ema_warmup": False}, "use --ema-warmup"),
        ({"warmup": 5, "ema": 0.9}, None),
        ({"warmup": 5, "ema": 0.8, "ema_warmup": False}, None),
    ],
    ids=str,
)
def test_settings_that_leave_the_model_near_its_start_are_told(tmp_path, capsys, settings, told):
    train(*create(plan(**settings), tmp_path / "run", ALONE), ALONE)
    said = [line for line in capsys.readouterr().err.splitlines() if "; use " in line]
    assert len(said) == (told is not None)
    assert told is None or said[0].endswith(told)


def test_pictures_on_the_way_and_tensorboards_events_are_left_on_request(tmp_path):
    folder = tmp_path / "run"
    few = [*TINY, "--steps", "4", "--batch", "8", "--sample-every", "2", "--tensorboard"]
    main(["train", "digits", "--out", str(folder), *few])
    assert [path.name for path in (folder / "samples").iterdir()] == ["step-00000002.png"]
    assert (folder / "samples/step-00000002.png").stat().st_size > 1000
    (events,) = (folder / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes() and b"samples" in events.read_bytes()


def test_a_resumed_run_keeps_to_tensorboard(tmp_path):
    folder = tmp_path / "run"
    few = [*TINY, "--steps", "2", "--batch", "8", "--sample-every", "0"]
    main(["train", "digits", "--out", str(folder), *few, "--tensorboard"])
    (events,) = (folder / "tensorboard").iterdir()
    events.unlink()
    main(["train", "--resume", str(folder)])
    assert len(list((folder / "tensorboard").iterdir())) == 1
    shutil.rmtree(folder / "tensorboard")
    main(["train", "--resume", str(folder)])
    assert not (folder / "tensorboard").exists()
