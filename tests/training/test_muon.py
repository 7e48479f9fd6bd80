"""Muon's update is orthogonal, of Adam's length, the same in stacks, in shards and in parts."""

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ENUMERABLE, config, tiny_model
from processes import run_to_end
from safetensors.torch import load_file
from small_trainers import ALONE, COLOUR, batch_of
from small_trainers import TRAINING as ADAMW
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from axial import AxialTransformer, CheckpointError, TrainConfig, bits_per_dim, open_packed
from axial.data.batches import Batch, channels
from axial.data.packing import pack
from axial.training import muon as muon_module
from axial.training.loss import SliceBits
from axial.training.muon import MOMENTUM, Muon, direction, orthogonalise
from axial.training.schedule import learning_rate
from axial.training.trainer import Trainer

TRAINING = replace(ADAMW, optimizer="muon")
DEEP = config((3, 4), channels=3, mlp_ratio=2, width=12, heads=3)
SHAPES = [(12, 12), (30, 12), (12, 30)]


def with_spectrum(shape, values, *, seed=0):
    """U, V and the matrix U diag(values) V^T, in float64."""
    generator = torch.Generator().manual_seed(seed)
    u, v = (
        torch.linalg.qr(torch.randn(size, len(values), generator=generator, dtype=torch.float64))[0]
        for size in shape
    )
    return u, v, u * values @ v.T


def by_svd(x):
    """What Newton-Schulz is to give: its polynomial, five times, on the singular values."""
    u, s, vh = torch.linalg.svd(x.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ vh


def parts_of(weight, heads):
    """Rows of the queries, the keys and the values in `to_qkv`, told head by head."""
    each = len(weight) // (3 * heads)
    starts = [[(3 * head + part) * each for head in range(heads)] for part in range(3)]
    return [[row + i for row in rows for i in range(each)] for rows in starts]


@pytest.mark.parametrize(
    "device, dtype, rounding",
    [
        ("cpu", torch.float32, 1e-5),
        pytest.param("cuda", torch.bfloat16, 0.06, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_direction_keeps_singular_vectors_and_makes_the_values_one(
    shape, device, dtype, rounding
):
    spectra = [torch.linspace(0.05, 1, 12), torch.logspace(-2, 0, 12) * 1000, torch.ones(12)]
    made = [with_spectrum(shape, s.double(), seed=i) for i, s in enumerate(spectra)]
    stack = torch.stack([x for _, _, x in made])
    found = orthogonalise(stack.to(device, dtype)).cpu().double()
    for (u, v, _), y in zip(made, found, strict=True):
        inside = u.T @ y @ v
        values = inside.diagonal()
        assert (values > 0.68 - rounding).all() and (values < 1.21 + rounding).all()
        torch.testing.assert_close(inside, values.diag(), rtol=0, atol=rounding)
        torch.testing.assert_close(u @ inside @ v.T, y, rtol=0, atol=rounding)
        assert torch.linalg.matrix_norm(y - u @ v.T, ord=2) < 0.32 + rounding


def test_a_gradient_that_is_nothing_or_tiny_or_huge_moves_nothing_or_as_any():
    x = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
    wanted = orthogonalise(x)
    for scale in (1e-10, 1e10):
        torch.testing.assert_close(orthogonalise(scale * x), wanted, rtol=0, atol=1e-4)
    for scale in (0.0, 1e-30, 1e-20):
        assert orthogonalise(scale * x).abs().max() < 0.02


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stack_gives_what_its_matrices_give_one_by_one(shape):
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    x = x * torch.tensor([1e-6, 1, 1e3, 1, 7]).view(-1, 1, 1)
    together, alone = direction(x, None), torch.cat([direction(one[None], None) for one in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_queries_keys_and_values_are_made_orthogonal_apart():
    heads = 3
    x = torch.randn(2, 36, 12, generator=torch.Generator().manual_seed(0))
    louder = x.clone()
    queries, keys, values = parts_of(x[0], heads)
    louder[:, keys] *= 1000
    found = direction(x, heads)
    for rows in (queries, keys, values):
        torch.testing.assert_close(found[:, rows], direction(x[:, rows], None), rtol=0, atol=1e-6)
    torch.testing.assert_close(direction(louder, heads), found, rtol=0, atol=1e-4)
    assert (direction(x, None) - found).abs().max() > 0.1  # one matrix of all three is another


@pytest.mark.parametrize("shape, heads", [*((s, None) for s in SHAPES), ((36, 12), 3)], ids=str)
def test_the_root_mean_square_of_an_update_is_a_fifth(shape, heads):
    x = with_spectrum(shape, torch.linspace(0.2, 1, 12).double())[2].float()
    found = direction(x[None], heads).square().mean().sqrt()
    assert 0.7 * 0.2 < found < 1.2 * 0.2
    if heads is None:
        values = torch.linalg.svdvals(by_svd(x))
        wanted = 0.2 * values.square().mean().sqrt().float()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)


@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("model_config", [COLOUR, DEEP], ids=["square", "oblong"])
def test_an_update_is_the_textbooks(model_config, clip):
    settings = replace(TRAINING, grad_clip=clip, weight_decay=0.1)
    model = tiny_model(model_config)
    reference = copy.deepcopy(model).train()
    trainer = Trainer(model, settings, ALONE)
    hidden = {}
    for block in reference.modules():
        if type(block).__name__ == "Block":
            attention = block.attention
            hidden[attention.to_qkv.weight] = parts_of(attention.to_qkv.weight, attention.heads)
            for layer in (attention.to_out, block.mlp_in, block.mlp_out):
                hidden[layer.weight] = [list(range(len(layer.weight)))]
    assert len(hidden) == 4 * (2 + 2 + 1)
    rest = {n: p for n, p in reference.named_parameters() if all(p is not h for h in hidden)}
    plain = [n for n, p in rest.items() if p.ndim < 2 or "embedding" in n or "positions" in n]
    groups = [
        {"params": [p for n, p in rest.items() if n not in plain], "weight_decay": 0.1},
        {"params": [rest[n] for n in plain], "weight_decay": 0.0},
    ]
    textbook = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    momenta = {p: torch.zeros_like(p) for p in hidden}
    for number in range(6):
        batch = batch_of(model_config, 6, seed=number)
        trainer.step(number, batch)
        channel = torch.from_numpy(channels(0, batch.epoch, batch.index, 0, 3))
        reference.zero_grad()
        SliceBits(reference)(batch.x, channel, batch.label).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), clip)
        rate = learning_rate(settings, number)
        for group in textbook.param_groups:
            group["lr"] = rate
        textbook.step()
        for p, parts in hidden.items():
            momenta[p] = MOMENTUM * momenta[p] + (1 - MOMENTUM) * p.grad
            ahead = MOMENTUM * momenta[p] + (1 - MOMENTUM) * p.grad
            p.data *= 1 - rate * 0.1
            for rows in parts:
                longer = max(len(rows), p.shape[1])
                p.data[rows] -= rate * 0.2 * longer**0.5 * by_svd(ahead[rows])
    for (name, mine), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=5e-6, msg=name)


def heads_of(found):
    """Of the parameters that hold queries, keys and values together."""
    return {name: 3 if "to_qkv" in name else None for name in found}


def matrices(count=3, *, seed=0, dtype=torch.float32):
    """Parameters of blocks with gradients, and an optimizer of them."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"to_qkv": (36, 12), "to_out": (12, 12), "mlp_in": (24, 12), "mlp_out": (12, 24)}
    found = {
        f"{block}.{name}.weight": nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
        for block in range(count)
        for name, shape in shapes.items()
    }
    optimizer = Muon(found, found, heads=heads_of(found), weight_decay=0.1)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return found, optimizer


def give_gradients(parameters, *, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for p in parameters.values():
        p.grad = scale * torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device)


def test_matrices_of_one_shape_and_kind_are_one_stack(monkeypatch):
    parameters, optimizer = matrices(3)
    assert [len(group["params"]) for group in optimizer.param_groups] == [3, 3, 3, 3]
    monkeypatch.setattr(muon_module, "_MOST", 700)  # two of 24 x 12, one of 36 x 12
    few, other = matrices(3)
    counts = [len(group["params"]) for group in other.param_groups]
    assert counts == [1, 1, 1, 3, 2, 1, 2, 1]
    for seed in (1, 2):
        for some, each in ((parameters, optimizer), (few, other)):
            give_gradients(some, seed=seed)
            each.step()
    for name, p in parameters.items():
        torch.testing.assert_close(p, few[name], rtol=0, atol=1e-6)


class Calls(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), named=None):
        self.names[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(named or {}))


def test_a_step_has_fifteen_products_a_stack_and_never_looks_at_a_number():
    parameters, optimizer = matrices(7)
    give_gradients(parameters, seed=0)
    with Calls() as calls:
        optimizer.step()
    assert calls.names["bmm"] + calls.names["baddbmm"] == 4 * 5 * 3
    assert calls.names.total() < 4 * 50  # whatever the number of blocks
    assert "_local_scalar_dense" not in calls.names  # what makes a GPU wait


def test_a_scale_divides_the_gradients_and_a_rate_may_be_a_tensor():
    (divided, one), (scaled, other) = matrices(), matrices()
    other.grad_scale = torch.tensor(4.0)
    for group in other.param_groups:
        group["lr"] = torch.tensor(0.01)
    for seed, scale in ((1, 1.0), (2, 30.0)):
        other.grad_scale = torch.tensor(4.0 * seed)
        give_gradients(divided, seed=seed, scale=scale / (4.0 * seed))
        give_gradients(scaled, seed=seed, scale=scale)
        one.step()
        other.step()
    for name, p in divided.items():
        assert torch.equal(p, scaled[name]), name
        assert torch.equal(one.state[p]["momentum"], other.state[scaled[name]]["momentum"]), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.0])
def test_where_the_gradient_is_not_finite_nothing_changes(bad):
    parameters, optimizer = matrices()
    give_gradients(parameters, seed=1)
    optimizer.step()
    before = [
        (p.detach().clone(), optimizer.state[p]["momentum"].clone()) for p in parameters.values()
    ]
    give_gradients(parameters, seed=2)
    parameters["1.to_qkv.weight"].grad[3, 4] = bad
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.grad_scale = torch.tensor(bad)
    optimizer.step()
    for p, (weight, momentum) in zip(parameters.values(), before, strict=True):
        assert torch.equal(p, weight) and torch.equal(optimizer.state[p]["momentum"], momentum)
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(0.0), torch.tensor(1.0)
    give_gradients(parameters, seed=3)
    optimizer.step()
    for p, (weight, _) in zip(parameters.values(), before, strict=True):
        assert p.isfinite().all() and not torch.equal(p, weight)


def test_a_state_of_another_optimizer_is_refused():
    states = {each: Trainer(tiny_model(COLOUR), each, ALONE).state() for each in (TRAINING, ADAMW)}
    for mine, theirs in ((TRAINING, ADAMW), (ADAMW, TRAINING)):
        with pytest.raises(CheckpointError) as caught:
            Trainer(tiny_model(COLOUR), mine, ALONE).load_state(states[theirs])
        message = str(caught.value)
        assert "attention.to_out.weight' is missing or does not belong to a run" in message
        assert message.endswith(f"with {mine.optimizer}") and "\n" not in message


def test_a_matrix_of_a_block_has_one_moment_and_all_else_has_two():
    state = Trainer(tiny_model(COLOUR), TRAINING, ALONE).state()
    kinds = {}
    for name in state.keys() - {"updates"}:
        kind, _, parameter = name.partition("/")
        kinds.setdefault(parameter, set()).add(kind)
    hidden = {name for name, found in kinds.items() if "momentum" in found}
    assert {name.rsplit(".", 2)[-2] for name in hidden} == {"to_qkv", "to_out", "mlp_in", "mlp_out"}
    for name, found in kinds.items():
        moments = {"momentum"} if name in hidden else {"exp_avg", "exp_avg_sq"}
        assert found == {"weights", "ema"} | moments, name


@pytest.mark.parametrize("name", ENUMERABLE)
def test_every_matrix_of_every_kind_of_model_is_updated(name):
    model = tiny_model(ENUMERABLE[name])
    trainer = Trainer(model, TRAINING, ALONE)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer.step(0, batch_of(model.config, 2))
    for name, p in model.named_parameters():
        assert p.isfinite().all() and (p.ndim != 2 or not torch.equal(p, before[name])), name


def test_a_model_without_blocks_is_adamws():
    lstm = config((5,), inner="lstm")
    states = []
    for settings in (ADAMW, TRAINING):
        trainer = Trainer(tiny_model(lstm), settings, ALONE)
        trainer.step(0, batch_of(lstm, 6))
        states.append(trainer.state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_it_learns_more_than_adamw_in_as_many_steps(tmp_path):
    pack("digits", tmp_path / "digits.npy")
    x = torch.from_numpy(open_packed(tmp_path / "digits.npy").rows(range(1200)) // 5)
    small = config((8, 8), values=4, width=64, decoder_layers=(2, 2))
    index = np.arange(16)

    def bits(optimizer, rate):
        settings = TrainConfig(
            steps=60, batch=16, learning_rate=rate, warmup=5, optimizer=optimizer
        )
        torch.manual_seed(0)
        trainer = Trainer(AxialTransformer(small), settings, ALONE)
        for number in range(60):
            chosen = x[(16 * number + index) % 1100]
            trainer.step(number, Batch(x=chosen, label=None, index=index, epoch=index * 0))
        return float(bits_per_dim(trainer.ema_model(), x[1100:]).mean())

    # Each at its best of 0.01, 0.02 and 0.04: Muon bears higher rates.
    adamw, muon = bits("adamw", 0.01), bits("muon", 0.04)
    assert muon < adamw < 1.2 < 2


ODD = config((3, 4), channels=2, width=9, heads=3)  # 27 and 9 rows: shards of unequal size
PROGRAM = """
from dataclasses import replace
from pathlib import Path

import torch
from conftest import tiny_model
from safetensors.torch import save_file
from test_muon import ODD, TRAINING
from small_trainers import batch_of

from axial.system.ranks import ranks
from axial.training.trainer import Trainer

def train(team):  # leaves nothing that holds on to the group when it is dissolved
    mine = slice(3 * team.rank, 3 * team.rank + 3)
    for parallel in ("ddp", "fsdp"):
        trainer = Trainer(tiny_model(ODD), TRAINING, team, parallel=parallel)
        for number in range(6):
            if number == 3:
                kept = [trainer.state()]
                torch.distributed.broadcast_object_list(kept)
                trainer = Trainer(tiny_model(ODD, seed=1), TRAINING, team, parallel=parallel)
                trainer.load_state(kept[0])
            batch = batch_of(ODD, 6, seed=number)
            share = {name: getattr(batch, name)[mine] for name in ("x", "index", "epoch")}
            trainer.step(number, replace(batch, **share))
        total = sum(p.numel() for p in tiny_model(ODD).parameters())
        held = sum(value.numel() for value in trainer.local.values())
        assert held < 0.7 * total if parallel == "fsdp" else held == total
        state = trainer.state()
        if team.is_rank0:
            save_file(state, Path(__file__).with_name(parallel))

with ranks("cpu") as team:
    train(team)
"""


def test_two_ranks_find_what_one_finds_and_go_on_with_their_state(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    run_to_end(2, script=tmp_path / "train.py")
    alone = Trainer(tiny_model(ODD), TRAINING, ALONE)
    for number in range(6):
        alone.step(number, batch_of(ODD, 6, seed=number))
    for parallel in ("ddp", "fsdp"):
        theirs = load_file(tmp_path / parallel)
        for name, tensor in alone.state().items():
            torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.gpu
def test_a_step_on_a_gpu_can_be_recorded_and_is_that_of_a_cpu():
    (here, slow), (there, _) = matrices(), matrices()
    there = {name: nn.Parameter(p.detach().cuda()) for name, p in there.items()}
    fast = Muon(there, there, heads=heads_of(there), weight_decay=0.1)
    rate = torch.tensor(0.01, device="cuda")
    for group in fast.param_groups:
        group["lr"] = rate
    graph = torch.cuda.CUDAGraph()
    for seed in range(4):
        give_gradients(here, seed=seed)
        slow.step()
        if seed < 2:
            give_gradients(there, seed=seed)
            fast.step()
            continue
        for name, p in here.items():
            there[name].grad.copy_(p.grad)
        if seed == 2:
            with torch.cuda.graph(graph):  # what would wait for the device cannot be captured
                fast.step()
        graph.replay()
    for name, p in here.items():
        momentum = fast.state[there[name]]["momentum"].cpu()
        torch.testing.assert_close(momentum, slow.state[p]["momentum"], rtol=0, atol=1e-5)
        torch.testing.assert_close(there[name].cpu(), p, rtol=0, atol=4 * 0.01 * 0.1)
        assert (there[name].cpu() - p).square().mean().sqrt() < 0.1 * 4 * 0.01 * 0.2
