"""The loss, the update and the averages are what their formulas say, on any number of parts."""

import copy
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VARIANTS, config, random_input, tiny_model
from small_trainers import ALONE, COLOUR, TRAINING, batch_of
from torch.utils._python_dispatch import TorchDispatchMode

from axial import AxialTransformer, CheckpointError, DataError, TrainConfig, bits_per_dim
from axial.data.batches import channels
from axial.models.layers import Block
from axial.system.ranks import Ranks
from axial.training.ema import ema_decay
from axial.training.loss import SliceBits
from axial.training.schedule import learning_rate
from axial.training.trainer import Trainer


@pytest.mark.parametrize("name", VARIANTS)
def test_the_mean_over_channels_of_the_slice_is_the_whole_likelihood(name):
    model = tiny_model(VARIANTS[name])
    x, label, _ = random_input(model.config, 3)
    whole = bits_per_dim(model, x, label).mean()
    loss = SliceBits(model)
    free = range(model.config.given_channels, model.config.channels)
    slices = [loss(x, torch.full((3,), channel), label) for channel in free]
    torch.testing.assert_close(torch.stack(slices).mean(), whole, rtol=0, atol=1e-12)


def test_channels_are_uniform_and_depend_on_seed_epoch_and_index_alone():
    index = np.arange(30_000)
    found = channels(7, np.zeros_like(index), index, 1, 4)
    assert set(found) == {1, 2, 3}
    counts = np.bincount(found)[1:]
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 13.8  # chi-square, 2 degrees, p = 0.001
    picked = np.array([5, 29_000, 17])
    assert (channels(7, np.zeros(3, np.int64), picked, 1, 4) == found[picked]).all()
    for other in (channels(8, index * 0, index, 1, 4), channels(7, index * 0 + 1, index, 1, 4)):
        assert 0.6 < (other != found).mean() < 0.73


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_an_update_is_the_textbooks(optimizer, clip):
    settings = replace(TRAINING, optimizer=optimizer, grad_clip=clip, weight_decay=0.1)
    model = tiny_model(COLOUR)
    reference = copy.deepcopy(model).train()
    trainer = Trainer(model, settings, ALONE)
    loss = SliceBits(reference)
    plain = [
        p
        for name, p in reference.named_parameters()
        if p.ndim < 2 or "embedding" in name or "positions" in name
    ]
    decayed = [p for p in reference.parameters() if all(p is not other for other in plain)]
    decay = 0.1 if optimizer == "adamw" else 0.0
    groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
    textbook = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    average = [p.detach().clone() for p in reference.parameters()]
    for number in range(6):
        batch = batch_of(COLOUR, 6, seed=number)
        found, norm = trainer.step(number, batch)
        channel = torch.from_numpy(channels(0, batch.epoch, batch.index, 0, 3))
        wanted = loss(batch.x, channel, batch.label)
        textbook.zero_grad()
        wanted.backward()
        length = torch.nn.utils.clip_grad_norm_(reference.parameters(), clip)
        for group in textbook.param_groups:
            group["lr"] = (
                0.01 * min(1, (number + 1) / 4) if number < 4 else learning_rate(settings, number)
            )
        textbook.step()
        decay_rate = min(0.5, (1 + number) / (10 + number))
        for mean, p in zip(average, reference.parameters(), strict=True):
            mean.mul_(decay_rate).add_(p.detach(), alpha=1 - decay_rate)
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(norm.double(), length, rtol=1e-6, atol=0)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-6)
    for mine, theirs in zip(trainer.ema_model().parameters(), average, strict=True):
        torch.testing.assert_close(mine.detach(), theirs, rtol=0, atol=2e-6)


def test_the_rate_rises_linearly_and_falls_along_its_schedule_or_stays():
    rates = [learning_rate(TRAINING, step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert rates[4] == 0.01 and rates[12] == pytest.approx(0.005)
    assert rates[19] == pytest.approx(0.005 * (1 + math.cos(math.pi * 15 / 16)))
    constant = replace(TRAINING, schedule="constant")
    assert {learning_rate(constant, step) for step in range(4, 20)} == {0.01}
    trapezoid = replace(TRAINING, schedule="trapezoid")
    assert [learning_rate(trapezoid, step) for step in range(4)] == rates[:4]
    assert {learning_rate(trapezoid, step) for step in range(4, 13)} == {0.01}
    assert [learning_rate(trapezoid, step) for step in (14, 16, 20, 30)] == [0.0075, 0.005, 0, 0]


def test_averages_reach_over_a_tenth_of_the_run_by_default():
    long = replace(TRAINING, steps=10_000)
    assert ema_decay(long, 0) == 0.1 and ema_decay(long, 10**6) == 1 - 10 / 10_000
    assert ema_decay(replace(long, ema_horizon=0.01), 10**6) == 1 - 100 / 10_000
    authors = replace(TRAINING, ema=0.99995, ema_warmup=False)
    assert ema_decay(authors, 0) == ema_decay(authors, 10**6) == 0.99995


@pytest.mark.parametrize("parts", [2, 4, 6])
def test_accumulating_over_parts_changes_nothing(parts):
    settings = replace(TRAINING, grad_accum=parts)
    whole, split = tiny_model(COLOUR), tiny_model(COLOUR)
    one, several = Trainer(whole, TRAINING, ALONE), Trainer(split, settings, ALONE)
    for number in range(4):
        batch = batch_of(COLOUR, 6, seed=number)
        torch.testing.assert_close(
            one.step(number, batch), several.step(number, batch), rtol=1e-6, atol=0
        )
    for a, b in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "optimizer, activation_checkpointing", [("adamw", False), ("adamw", True), ("muon", False)]
)
def test_a_state_that_was_saved_goes_on_bit_for_bit(optimizer, activation_checkpointing):
    dropping = replace(COLOUR, dropout=0.3)
    settings = replace(
        TRAINING, optimizer=optimizer, activation_checkpointing=activation_checkpointing
    )
    straight = Trainer(tiny_model(dropping), settings, ALONE)
    for number in range(8):
        straight.step(number, batch_of(COLOUR, 6, seed=number))
        if number == 3:
            kept = straight.state()
    torch.manual_seed(99)
    resumed = Trainer(tiny_model(dropping, seed=5), settings, ALONE)
    resumed.load_state(kept)
    for number in range(4, 8):
        resumed.step(number, batch_of(COLOUR, 6, seed=number))
    wanted, found = straight.state(), resumed.state()
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(tensor, found[name]), name


def test_dropout_follows_from_step_and_rank():
    still = replace(TRAINING, learning_rate=1e-30, warmup=0)
    model = tiny_model(replace(COLOUR, dropout=0.5))
    batch = batch_of(COLOUR, 6)

    def loss(step, rank):
        place = Ranks(rank=rank, count=1, device=torch.device("cpu"))
        return float(Trainer(copy.deepcopy(model), still, place).step(step, batch)[0])

    found = [loss(0, 0), loss(1, 0), loss(0, 1), loss(1, 1)]
    assert len(set(found)) == 4
    torch.manual_seed(123)
    assert [loss(0, 0), loss(1, 0), loss(0, 1), loss(1, 1)] == found


def test_values_that_the_model_lacks_are_refused_before_they_reach_it():
    trainer = Trainer(tiny_model(COLOUR), TRAINING, ALONE)
    batch = batch_of(COLOUR, 6)
    batch.x[3, 1, 2, 0] = 3
    with pytest.raises(DataError, match="the data holds 3, but the model has 3 values"):
        trainer.step(0, batch)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_that_is_not_finite_leaves_weights_and_moments_alone(optimizer):
    model = tiny_model(COLOUR)
    trainer = Trainer(model, replace(TRAINING, optimizer=optimizer), ALONE)
    trainer.step(0, batch_of(COLOUR, 6))
    before = trainer.state()
    hook = model.norm.register_forward_hook(lambda module, args, out: out * math.inf)
    loss, norm = trainer.step(1, batch_of(COLOUR, 6))
    hook.remove()
    assert not norm.isfinite()
    after = trainer.state()
    for name, tensor in before.items():
        if not name.startswith("ema/"):
            assert torch.equal(tensor, after[name]), name
    loss, norm = trainer.step(2, batch_of(COLOUR, 6))
    assert loss.isfinite() and norm.isfinite()


@pytest.mark.parametrize("harm", ["missing", "extra", "shape", "nan"])
def test_a_state_that_is_not_the_trainers_is_refused(harm):
    trainer = Trainer(tiny_model(COLOUR), TRAINING, ALONE)
    state = trainer.state()
    name = "exp_avg/to_logits.weight"
    if harm == "missing":
        del state[name]
    elif harm == "extra":
        state["exp_avg/other"] = torch.zeros(3)
    elif harm == "shape":
        state[name] = state[name][:1]
    else:
        state[name][0, 0] = math.nan
    with pytest.raises(CheckpointError, match="exp_avg/"):
        trainer.load_state(state)


@pytest.mark.parametrize(
    "name", ["1d", "2d-channels", "2d-lstm", "2d-rows-labels", "2d-columns", "3d-given-both"]
)
def test_every_kind_of_model_learns_eight_examples(name):
    torch.manual_seed(0)
    model = AxialTransformer(replace(VARIANTS[name], width=16, values=3))
    settings = TrainConfig(steps=120, batch=8, learning_rate=0.02, warmup=5)
    trainer = Trainer(model, settings, ALONE)
    batch = batch_of(model.config, 8)
    for number in range(120):
        trainer.step(number, replace(batch, epoch=batch.epoch + number))
    label = batch.label if model.config.classes else None
    assert bits_per_dim(trainer.ema_model(), batch.x, label).mean() < 0.8 < math.log2(3) / 1.9


class Waits(TorchDispatchMode):
    """Notes what would make a GPU's host wait: a value asked for, a shape that depends on one."""

    ASKING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.ASKING:
            self.found.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_step_asks_the_device_for_nothing(optimizer, monkeypatch):
    # On a CPU alone, one_hot looks at the values it is given.
    one_hot = lambda x, count: (x.unsqueeze(-1) == torch.arange(count)).long()  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "one_hot", one_hot)
    trainer = Trainer(tiny_model(COLOUR), replace(TRAINING, optimizer=optimizer), ALONE)
    trainer.step(0, batch_of(COLOUR, 6))
    with Waits() as waits:
        reading = trainer.step(1, batch_of(COLOUR, 6))
        assert waits.found == []
        float(reading[0])
        assert waits.found == ["_local_scalar_dense"]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_never_waits_for_a_gpu():
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    trainer = Trainer(tiny_model(COLOUR).float(), replace(TRAINING, compile=False), alone)
    trainer.step(0, batch_of(COLOUR, 6))
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step(1, batch_of(COLOUR, 6))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def compare_with_recorded(sizes=(6,) * 12, dropout=0.3, **settings):
    """Train twice, launching each step or recording one; other dropout, rates, data are seen."""
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    model_config = replace(config((8, 8), channels=3, classes=2, width=32), dropout=dropout)
    settings = replace(TRAINING, **settings)

    def trained(record):
        model = tiny_model(model_config).float()
        trainer = Trainer(model, replace(settings, cuda_graph=record), alone)
        batches = [batch_of(model_config, size, seed=n) for n, size in enumerate(sizes)]
        readings = [trainer.step(number, batch) for number, batch in enumerate(batches)]
        assert (trainer.cuda_graph is not None) == record
        return torch.stack(readings).cpu(), trainer.state()

    (wanted, one), (found, other) = trained(False), trained(True)
    rough = settings.precision == "bfloat16"
    torch.testing.assert_close(found, wanted, rtol=2e-2 if rough else 1e-3, atol=0)
    assert len({tuple(reading.tolist()) for reading in found}) == len(sizes)
    for name, tensor in one.items():
        # A key's bias moves all scores of a query alike: its gradient is rounding and no more.
        if not name.endswith("to_qkv.bias"):
            off = 5e-2 if rough else 1e-3
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=off, msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"grad_accum": 2},
        {"activation_checkpointing": True},
        {"optimizer": "muon"},
        {"precision": "bfloat16"},
        {"sizes": (6, 6, 5, 6, 6, 6, 6, 6, 6, 5, 6, 6)},  # another size does not disturb it
    ],
    ids=str,
)
def test_a_recorded_step_is_the_step(settings):
    compare_with_recorded(**{"precision": "float32", "compile": False, **settings})


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_and_recorded_step_is_the_step(precision):
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
from test_trainer import compare_with_recorded
compare_with_recorded(precision={precision!r}, compile=True)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.gpu
def test_a_recorded_step_that_is_not_finite_changes_nothing():
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    model = tiny_model(COLOUR).float()
    trainer = Trainer(model, replace(TRAINING, precision="float32", compile=False), alone)
    for number in range(6):
        trainer.step(number, batch_of(COLOUR, 6, seed=number))
    assert trainer.cuda_graph is not None
    bias = model.to_logits.bias.detach()
    kept = bias[0].clone()
    bias[0] = math.nan
    before = trainer.state()
    assert not trainer.step(6, batch_of(COLOUR, 6)).isfinite().any()
    after = trainer.state()
    for name, tensor in before.items():
        if not name.startswith("ema/"):
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=0, equal_nan=True)
    bias[0] = kept
    assert trainer.step(7, batch_of(COLOUR, 6)).isfinite().all()


@pytest.mark.gpu
def test_a_recorded_run_goes_on_from_a_state_that_is_put_into_it():
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    settings = replace(TRAINING, precision="float32", compile=False)
    trainer = Trainer(tiny_model(COLOUR).float(), settings, alone)
    for number in range(6):
        trainer.step(number, batch_of(COLOUR, 6, seed=number))
    kept = trainer.state()
    first = [trainer.step(n, batch_of(COLOUR, 6, seed=n)).cpu() for n in range(6, 10)]
    assert trainer.cuda_graph is not None
    trainer.load_state(kept)
    again = [trainer.step(n, batch_of(COLOUR, 6, seed=n)).cpu() for n in range(6, 10)]
    torch.testing.assert_close(again, first, rtol=1e-5, atol=0)


@pytest.mark.gpu
def test_an_lstm_learns_on_a_gpu_unrecorded():
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    model = tiny_model(replace(COLOUR, inner="lstm", decoder_layers=(2, 1))).float()
    trainer = Trainer(model, replace(TRAINING, precision="float32", compile=False), alone)
    readings = [trainer.step(n, batch_of(COLOUR, 6)).cpu() for n in range(8)]
    assert trainer.cuda_graph is None and readings[-1][0] < readings[0][0]


def losses_with_dropout(*, compile):
    """Of some steps on a GPU, in float32."""
    alone = Ranks(rank=0, count=1, device=torch.device("cuda"))
    dropping = replace(COLOUR, dropout=0.3)
    settings = replace(TRAINING, precision="float32", compile=compile)
    trainer = Trainer(tiny_model(dropping).float(), settings, alone)
    return [trainer.step(n, batch_of(COLOUR, 6, seed=n))[0].item() for n in range(8)]


@pytest.mark.gpu
def test_what_is_compiled_drops_what_torch_drops():
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
from pytest import approx
from test_trainer import losses_with_dropout
assert losses_with_dropout(compile=True) == approx(losses_with_dropout(compile=False), rel=1e-4)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def block_dtypes(device, precision):
    """What blocks of a model in training take and give."""
    alone = Ranks(rank=0, count=1, device=torch.device(device))
    model, found = tiny_model(COLOUR).float(), set()
    for block in model.modules():
        if isinstance(block, Block):
            block.register_forward_hook(lambda block, x, out: found.add((x[0].dtype, out.dtype)))
    settings = replace(TRAINING, precision=precision, compile=False)
    Trainer(model, settings, alone).step(0, batch_of(COLOUR, 6))
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_blocks_add_to_numbers_of_the_precision_of_the_run(device):
    # In a process of its own: some CPUs need to be told before torch is there, or bfloat16 ends it.
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[i]) for i in (0, 1)]!r}
import torch
from test_trainer import block_dtypes
for precision in ("float32", "bfloat16"):
    dtype = getattr(torch, precision)
    assert block_dtypes({device!r}, precision) == {{(dtype, dtype)}}
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
