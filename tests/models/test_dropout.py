"""Masks of dropout: as likely as they should be, independent, the same wherever they are made."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import axial.models.dropout
from axial.models.dropout import Dropout, kept


def keys_of(count, seed=0):
    words = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, size=(2, count))
    return torch.from_numpy(words.astype(np.int32))


def mask(keys, shape, rate):
    """The same, by integers of Python."""
    out = np.zeros((keys.shape[1], np.prod(shape)), bool)
    for i, place in itertools.product(range(keys.shape[1]), range(out.shape[1])):
        first, second = (int(word) % 2**32 for word in keys[:, i])
        word = (place + first) % 2**32
        word = ((word ^ word >> 17) * 0xED5AD4BB + second) % 2**32
        word = (word ^ word >> 11) * 0xAC4C1B51 % 2**32
        word = (word ^ word >> 15) * 0x31848BAB % 2**32
        out[i, place] = (word ^ word >> 14) % 2**31 >= rate * 2**31
    return torch.from_numpy(out).view(-1, *shape)


def test_a_mask_is_what_the_integers_say():
    assert torch.equal(kept(keys_of(4), torch.Size((5, 7)), 0.3), mask(keys_of(4), (5, 7), 0.3))


@pytest.mark.parametrize("rate", [0.04, 0.5, 0.9])
def test_numbers_are_left_out_at_the_rate_alone_in_pairs_and_from_key_to_key(rate):
    count, size = 64, 1 << 14
    left = (~kept(keys_of(count), torch.Size((size,)), rate)).double()
    total, spread = count * size, rate * (1 - rate)

    def off(found, wanted, numbers, variance):
        return abs(found.mean().item() - wanted) / (variance / numbers) ** 0.5

    assert off(left, rate, total, spread) < 4
    assert ((left.mean(1) - rate).abs() / (spread / size) ** 0.5).max() < 5  # each example
    assert ((left.mean(0) - rate).abs() / (spread / count) ** 0.5).max() < 6  # each place
    centred = left - rate
    for lag in (1, 2, 3, 32, 320, 1024, 4096):  # neighbours, and the same place of a next line
        pairs = centred[:, lag:] * centred[:, :-lag]
        assert off(pairs, 0, pairs.numel(), spread**2) < 4, lag
    alike = centred[1:] * centred[:-1]
    assert off(alike, 0, alike.numel(), spread**2) < 4


def test_keys_that_differ_by_one_bit_leave_out_other_numbers():
    one = keys_of(1)
    whole = kept(one, torch.Size((1 << 14,)), 0.5)
    for row, bit in itertools.product(range(2), (0, 6, 12, 18, 24, 29, 31)):
        other = one.clone()
        other[row] ^= (1 << bit) - (bit == 31) * (1 << 32)
        same = (kept(other, torch.Size((1 << 14,)), 0.5) == whole).double().mean().item()
        assert abs(same - 0.5) < 0.03, (row, bit)


def test_what_stays_is_scaled_and_so_is_its_gradient():
    layer, x = Dropout(0.25), torch.randn(6, 5, 40, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    out = layer(x)
    out.sum().backward()
    left = out == 0
    assert 0.2 < left.double().mean() < 0.3
    torch.testing.assert_close(out[~left], x[~left] / 0.75)
    torch.testing.assert_close(x.grad, torch.where(left, 0.0, 1 / 0.75).double())
    assert torch.equal(layer.eval()(x), x)


def test_a_mask_depends_on_torchs_seed_and_on_neither_memory_nor_precision():
    layer, x = Dropout(0.5), torch.rand(3, 8, 4, 4) + 1

    def left(x):
        torch.manual_seed(1)
        return layer(x) == 0

    assert torch.equal(left(x), left(x.contiguous(memory_format=torch.channels_last)))
    assert torch.equal(left(x), left(x.bfloat16()))
    assert not torch.equal(left(x), layer(x) == 0)


def test_examples_and_calls_have_masks_that_know_nothing_of_each_other():
    layer, size = Dropout(0.5), 1 << 12
    torch.manual_seed(3)
    left = torch.cat([layer(torch.ones(48, size)) == 0 for _ in range(2)]).double() - 0.5
    between = (left @ left.T / (0.25 * size)).fill_diagonal_(0)
    assert between.abs().max() < 6 / size**0.5


def test_every_bit_of_both_keys_of_an_example_is_drawn(monkeypatch):
    drawn = []

    def noting(keys, shape, rate):
        drawn.append(keys)
        return kept(keys, shape, rate)

    monkeypatch.setattr(axial.models.dropout, "kept", noting)
    torch.manual_seed(4)
    count = 10_000
    Dropout(0.1)(torch.ones(count, 1))
    (keys,) = drawn
    shares = (keys.unsqueeze(-1) >> torch.arange(32) & 1).double().mean(1)  # (2, 32)
    assert (shares - 0.5).abs().max() < 5 * 0.5 / count**0.5
    assert not (keys[0] == keys[1]).any() and len(keys.flatten().unique()) > 1.99 * count


def test_compiled_it_leaves_out_the_same():
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = """
import torch
from axial.models.dropout import Dropout
layer, x = Dropout(0.3), torch.linspace(1, 2, 4 * 33 * 17).view(4, 33, 17)
compiled = torch.compile(lambda x: layer(2 * x).sin(), options={"fallback_random": True})
torch.manual_seed(2)
wanted = layer(2 * x).sin()
torch.manual_seed(2)
found = compiled(x)
assert torch.equal(found == 0, wanted == 0) and 0.2 < (found == 0).float().mean() < 0.4
torch.testing.assert_close(found, wanted)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.gpu
def test_a_gpu_leaves_out_what_a_cpu_leaves_out():
    keys, shape = keys_of(8), torch.Size((32, 32, 320))
    assert torch.equal(kept(keys.cuda(), shape, 0.1).cpu(), kept(keys, shape, 0.1))
