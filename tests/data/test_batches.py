import time
from itertools import permutations

import formats
import numpy as np
import pytest
import torch
from packed_arrays import write

from axial.data.batches import (
    EvaluationBatches,
    TrainingBatches,
    channels,
    dropout_seed,
    flips,
    order,
    variants,
)
from axial.data.packed import open_packed
from axial.errors import DataError
from axial.training.hold_out import split


@pytest.fixture
def packed(tmp_path):
    x = np.arange(23, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 2, 3, 1), np.uint8)
    x[..., 1, :] += 100  # the middle column; flips show at the others
    x[..., 2, :] += 200
    return open_packed(write(tmp_path / "a.npy", x, np.arange(23) % 5, 5))


def test_every_example_is_seen_once_an_epoch_whatever_the_batch(packed):
    for batch in (1, 4, 7, 40):
        batches = TrainingBatches(packed, batch, seed=3)
        steps = -(-3 * 23 // batch)
        seen = np.concatenate([batches.at(step).index for step in range(steps)])[: 3 * 23]
        for epoch, indices in enumerate(seen.reshape(3, 23)):
            assert sorted(indices) == list(range(23))
            assert np.array_equal(indices, order(3, epoch, 23))


def test_examples_and_labels_are_those_of_the_index(packed):
    batch = TrainingBatches(packed, 8, seed=0).at(5)
    assert np.array_equal(batch.x.numpy(), packed.array[batch.index])
    assert np.array_equal(batch.label.numpy(), packed.labels[batch.index])
    assert batch.x.dtype == torch.uint8 and batch.label.dtype == torch.int64


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    orders = {(s, e): order(s, e, 1000).tolist() for s in range(3) for e in range(3)}
    assert len({tuple(found) for found in orders.values()}) == 9
    assert orders[1, 2] == order(1, 2, 1000).tolist()


def test_what_follows_from_the_seed_is_what_it_was_in_earlier_versions():
    """Written down once: a later version must go on where this one stopped."""
    first, index = np.zeros(12, np.int64), np.arange(12)
    assert order(0, 0, 8).tolist() == [1, 6, 3, 0, 4, 7, 2, 5]
    assert np.flatnonzero(flips(0, first, index)).tolist() == [0, 1, 2, 4, 5, 6, 8, 10]
    assert channels(0, first, index, 0, 3).tolist() == [1, 0, 0, 1, 1, 2, 2, 1, 0, 1, 0, 2]
    assert dropout_seed(0, 1, 0) == 6715000067993879949
    assert variants(0, first, index, 48, 0.5).tolist() == [30, 4, 30, 0, 0, 0, 0, 0, 18, 20, 0, 36]
    assert split(20, 3, "spread")[1].tolist() == [3, 10, 16]


@pytest.mark.parametrize("which", ["last", "spread"])
@pytest.mark.parametrize(("examples", "held_out"), [(50, 5), (7, 3), (1000, 1), (10, 0)])
def test_nothing_held_out_is_trained_on_and_nothing_is_left_over(examples, held_out, which):
    used, kept = split(examples, held_out, which)
    assert sorted([*used, *kept]) == list(range(examples)) and len(kept) == held_out
    if which == "last":
        assert [*used, *kept] == list(range(examples))
    elif held_out:
        apart = np.diff(kept, prepend=kept[-1] - examples)  # as if the examples were a ring
        assert apart.max() - apart.min() <= 1, "as far apart as can be"


def test_flips_mirror_half_of_the_examples_and_change_with_the_epoch(packed):
    batches = TrainingBatches(packed, 23, seed=1, flip=True)
    first, second = batches.at(0), batches.at(1)
    for batch in (first, second):
        mirrored = flips(1, batch.epoch, batch.index)
        for row, index in enumerate(batch.index):
            x = packed.array[index]
            wanted = x[:, ::-1] if mirrored[row] else x
            assert np.array_equal(batch.x[row].numpy(), wanted)
    coins = [flips(seed, np.full(4000, 2), np.arange(4000)) for seed in (1, 2)]
    assert all(0.46 < coin.mean() < 0.54 for coin in coins)
    assert 0.46 < (coins[0] == coins[1]).mean() < 0.54
    later = flips(1, np.full(4000, 3), np.arange(4000))
    assert 0.46 < (coins[0] == later).mean() < 0.54


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_same_global_batch(packed, ranks):
    alone = TrainingBatches(packed, 8, seed=5, flip=True)
    shares = [
        TrainingBatches(packed, 8, seed=5, rank=rank, ranks=ranks, flip=True)
        for rank in range(ranks)
    ]
    for step in (0, 2, 9):
        together = torch.cat([share.at(step).x for share in shares])
        assert torch.equal(together, alone.at(step).x)


def test_resuming_at_any_step_goes_on_exactly(packed):
    batches = TrainingBatches(packed, 6, seed=9, flip=True)
    stream = batches.stream()
    whole = [next(stream).x for _ in range(12)]
    stream.close()
    again = TrainingBatches(packed, 6, seed=9, flip=True).stream(first=7)
    for step in range(7, 12):
        assert torch.equal(next(again).x, whole[step])
    again.close()


AUGMENTED = {"flip": True, "augment": ("rotate", "transpose", "colours"), "untransformed": 0.3}


@pytest.fixture
def colours(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (23, 4, 4, 3), np.uint8)
    return open_packed(write(tmp_path / "colours.npy", x, np.arange(23) % 5, 5))


def test_a_variant_is_the_example_transformed_as_it_says(colours):
    """Undone, each is the example again, mirrored or not."""
    batches = TrainingBatches(colours, 46, seed=1, **AUGMENTED)
    seen = set()
    for step in range(12):
        batch = batches.at(step)
        mirrored = flips(1, batch.epoch, batch.index)
        assert np.array_equal(batch.label.numpy(), colours.labels[batch.index])
        for row, number in enumerate(batch.variant.tolist()):
            turns, transposed, colour = number % 4, number // 4 % 2, number // 8
            x = batch.x[row].numpy()
            order = list(permutations(range(3)))[colour]
            x = x[..., np.argsort(order)]
            x = x.swapaxes(0, 1) if transposed else x
            x = np.rot90(x, -turns)
            x = x[:, ::-1] if mirrored[row] else x
            assert np.array_equal(x, colours.array[batch.index[row]])
            seen.add(number)
    assert seen == set(range(48))


@pytest.mark.parametrize(("count", "untransformed"), [(48, 0.5), (4, 0.25), (2, 0.9)])
def test_variants_have_the_shares_they_are_given_and_follow_from_seed_epoch_and_index(
    count, untransformed
):
    index = np.arange(40_000)
    found = variants(7, index * 0, index, count, untransformed)
    share = (1 - untransformed) / (count - 1)
    wanted = 40_000 * np.array([untransformed, *[share] * (count - 1)])
    counts = np.bincount(found, minlength=count)
    # chi-square: within five of its own standard deviations
    assert ((counts - wanted) ** 2 / wanted).sum() < count - 1 + 5 * (2 * (count - 1)) ** 0.5
    some = np.array([5, 39_000, 17])
    assert (variants(7, some * 0, some, count, untransformed) == found[some]).all()
    alike = untransformed**2 + (count - 1) * share**2
    mirrored = flips(7, index * 0, index)
    for other in (
        variants(8, index * 0, index, count, untransformed),
        variants(7, index * 0 + 1, index, count, untransformed),
    ):
        assert abs((other == found).mean() - alike) < 0.015
    assert abs(mirrored[found == 0].mean() - 0.5) < 0.02
    assert not variants(7, index * 0, index, count, 1.0).any()


def test_variants_are_the_same_on_any_number_of_ranks_and_after_resuming(colours):
    alone = TrainingBatches(colours, 8, seed=5, **AUGMENTED)
    shares = [TrainingBatches(colours, 8, seed=5, rank=r, ranks=2, **AUGMENTED) for r in (0, 1)]
    stream = TrainingBatches(colours, 8, seed=5, **AUGMENTED).stream(first=7)
    for step in range(7, 12):
        wanted, resumed = alone.at(step), next(stream)
        parts = [share.at(step) for share in shares]
        assert torch.equal(torch.cat([part.x for part in parts]), wanted.x)
        assert np.array_equal(np.concatenate([part.variant for part in parts]), wanted.variant)
        assert torch.equal(resumed.x, wanted.x)
        assert np.array_equal(resumed.variant, wanted.variant)
    stream.close()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 14, 15, 23])
def test_evaluation_sees_each_example_exactly_once_over_any_number_of_ranks(packed, ranks, count):
    subset = np.arange(count)
    shares = [
        EvaluationBatches(packed, 15 if ranks != 2 else 4, rank=r, ranks=ranks, subset=subset)
        for r in range(ranks)
    ]
    assert len({len(share) for share in shares}) == 1
    batches = [batch for share in shares for batch in share]
    assert sorted(np.concatenate([batch.index for batch in batches])) == list(range(count))
    for batch in batches:
        assert np.array_equal(batch.x.numpy(), packed.array[batch.index])


def test_a_subset_holds_out_the_rest(packed):
    training = TrainingBatches(packed, 5, seed=0, subset=np.arange(10, 23))
    seen = {int(i) for step in range(40) for i in training.at(step).index}
    assert seen == set(range(10, 23)) and training.steps_per_epoch == 13 / 5


def test_two_byte_values_and_stacked_frames_come_through(tmp_path):
    x = np.random.default_rng(0).integers(0, 4000, (6, 3, 2, 2, 1)).astype(np.uint16)
    packed = open_packed(write(tmp_path / "a.npy", x), stack_frames=True)
    batch = next(iter(EvaluationBatches(packed, 6)))
    assert batch.label is None
    assert np.array_equal(batch.x.long().numpy(), np.moveaxis(x, 1, -2).reshape(6, 2, 2, 3))


def test_shares_that_cannot_be_are_refused(packed):
    with pytest.raises(DataError, match="batch 7 does not split over 2 ranks"):
        TrainingBatches(packed, 7, seed=0, ranks=2)
    with pytest.raises(DataError, match="batch 0 does not split over 1 ranks"):
        TrainingBatches(packed, 0, seed=0)
    with pytest.raises(DataError, match="rank 2 of 2"):
        EvaluationBatches(packed, 4, rank=2, ranks=2)
    with pytest.raises(DataError, match="no examples"):
        EvaluationBatches(packed, 4, subset=np.arange(0))
    for wrong in (np.arange(23) < 3, [0.5, 1.7], [[1, 2], [3, 4]], 3):
        with pytest.raises(DataError, match="a subset is a list of the numbers of its examples"):
            EvaluationBatches(packed, 4, subset=wrong)


def test_an_error_of_the_reading_thread_reaches_the_reader(packed, tmp_path):
    stream = TrainingBatches(packed, 23, seed=0).stream()
    next(stream)
    with (tmp_path / "a.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(DataError, match="though it was whole when opened"):
        for _ in range(20):
            next(stream)


def test_twenty_thousand_small_pictures_a_second(tmp_path):
    packed = open_packed(write(tmp_path / "a.npy", formats.pictures(5000, 32)))
    stream = TrainingBatches(packed, 250, seed=0, flip=True).stream()
    next(stream)
    start = time.process_time()  # of this process alone, whatever else the machine does
    for _ in range(80):
        next(stream)
    assert 80 * 250 / (time.process_time() - start) > 20_000
    stream.close()


@pytest.mark.gpu
def test_batches_lie_in_pinned_memory(packed):
    batch = TrainingBatches(packed, 8, seed=0).at(0)
    assert batch.x.is_pinned() and batch.label.is_pinned()
