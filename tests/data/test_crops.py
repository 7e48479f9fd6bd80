"""Crops lie where (seed, epoch, index) says; tiles cover what they promise; of any packed file."""

import numpy as np
import pytest
import torch
from packed_arrays import write, write_pictures

from axial.data.batches import EvaluationBatches, TrainingBatches, flips, places
from axial.data.crops import Crops, Tiles
from axial.data.packed import open_packed
from axial.errors import DataError

SIZES = [(5, 9), (12, 4), (4, 4), (7, 7), (40, 30)]


def picture(number, size):
    """A picture whose every pixel tells its number, row and column."""
    return np.stack([np.full(size, number), *np.indices(size)], -1).astype(np.uint8)


@pytest.fixture
def packed(tmp_path):
    x = [picture(i, size) for i, size in enumerate(SIZES)]
    return open_packed(write_pictures(tmp_path / "a.npy", x, np.arange(5) % 2, 2))


def test_pictures_of_any_size_come_back_whole_and_in_parts(packed):
    for i, size in enumerate(SIZES):
        assert np.array_equal(packed.example(i), picture(i, size))
    found = packed.part(4, 3, 5, (6, 7))
    assert np.array_equal(found, picture(4, (40, 30))[3:9, 5:12])
    assert np.array_equal(packed.part(4, 3, 0, (6, 30)), picture(4, (40, 30))[3:9])
    with pytest.raises(DataError, match="pictures of different sizes, which are read one by one"):
        packed.rows([0])


def test_a_crop_lies_where_seed_epoch_and_index_say(packed):
    batches = TrainingBatches(Crops(packed, (4, 3)), 8, seed=3, flip=True)
    crops = batches.packed
    for step in (0, 5, 40, 400):
        batch = batches.at(step)
        words = places(3, batch.epoch, batch.index)
        mirrored = flips(3, batch.epoch, batch.index)
        numbers = crops.pictures(batch.index)
        assert np.array_equal(batch.label, packed.labels[numbers])
        for x, number, word, mirror in zip(batch.x.numpy(), numbers, words, mirrored, strict=True):
            height, width = SIZES[number]
            top, left = int(word >> 32) % (height - 3), int(word & 0xFFFFFFFF) % (width - 2)
            wanted = picture(number, SIZES[number])[top : top + 4, left : left + 3]
            assert np.array_equal(x, wanted[:, ::-1] if mirror else wanted)


def test_places_are_what_they_were_in_earlier_versions():
    """Written down once: a later version must go on where this one stopped."""
    found = places(0, np.zeros(3, np.int64), np.arange(3))
    assert found.tolist() == [11280450370483556022, 2357210316794085912, 5461830197983836059]
    other = [places(1, np.zeros(3, np.int64), np.arange(3)), places(0, np.ones(3), np.arange(3))]
    assert not any((words == found).any() for words in other)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_crops_of_one_and_any_step_can_be_resumed(packed, ranks):
    how = {"seed": 5, "flip": True, "subset": Crops(packed, (3, 4)).of(np.array([0, 2, 4]))}
    alone = TrainingBatches(Crops(packed, (3, 4)), 8, **how)
    shares = [
        TrainingBatches(Crops(packed, (3, 4)), 8, rank=rank, ranks=ranks, **how)
        for rank in range(ranks)
    ]
    stream = shares[-1].stream(first=7)
    for step in (0, 2, 9):
        together = torch.cat([share.at(step).x for share in shares])
        assert torch.equal(together, alone.at(step).x)
        assert not np.isin(together.numpy()[..., 0], [1, 3]).any()
    for step in (7, 8):
        assert torch.equal(next(stream).x, shares[-1].at(step).x)
    stream.close()


def test_an_epoch_sees_pixels_of_large_and_small_pictures_about_equally_often(packed):
    crops = Crops(packed, (4, 3))
    areas = np.prod(SIZES, 1)
    seen = crops.counts * 12 / areas
    assert (np.abs(seen - 1) <= 6 / areas).all()  # but for rounding to whole crops
    assert crops.counts.tolist() == [4, 4, 1, 4, 100]
    batches = TrainingBatches(crops, len(crops), seed=1)
    found = batches.at(2)
    assert np.bincount(crops.pictures(found.index)).tolist() == crops.counts.tolist()
    tall = Crops(packed, (4, 30))
    assert tall.counts.tolist() == [0, 0, 0, 0, 10], "no crop of a picture that is smaller"


def test_crops_lie_anywhere_in_a_picture_equally_often(packed):
    batches = TrainingBatches(Crops(packed, (4, 3)), 1130, seed=2)
    x = np.concatenate([batches.at(step).x.numpy()[:, 0, 0] for step in range(20)])
    large = x[x[:, 0] == 4].astype(np.int64)
    for column, positions in ((1, 37), (2, 28)):
        often = np.bincount(large[:, column], minlength=positions)
        expected = len(large) / positions
        assert len(often) == positions and len(large) == 20_000
        assert np.abs(often - expected).max() < 5 * np.sqrt(expected)
    both = np.corrcoef(large[:, 1], large[:, 2])[0, 1]
    assert abs(both) < 0.03, "rows and columns are drawn apart"


@pytest.mark.parametrize("kind", [Tiles, Crops])
def test_parts_of_a_packed_array_are_those_of_a_file_of_sizes(tmp_path, kind):
    x = np.random.default_rng(0).integers(0, 4000, (6, 7, 9, 2)).astype(np.uint16)
    one = kind(open_packed(write(tmp_path / "a.npy", x, values=4000)), (3, 4))
    other = kind(open_packed(write_pictures(tmp_path / "b.npy", list(x), values=4000)), (3, 4))
    index = np.arange(len(one))
    assert len(one) == len(other) and one.shape == other.shape
    if kind is Tiles:
        assert np.array_equal(one.rows(index), other.rows(index))
        assert np.array_equal(one.example(3), x[0, 3:6, 4:8])
    else:
        batches = [TrainingBatches(parts, 40, seed=1).at(1).x.numpy() for parts in (one, other)]
        assert np.array_equal(*batches)


def test_tiles_are_disjoint_and_cover_all_but_the_edges(packed):
    tiles = Tiles(packed, (4, 3))
    assert tiles.counts.tolist() == [3, 3, 1, 2, 100]
    found = np.concatenate([batch.x.numpy() for batch in EvaluationBatches(tiles, 7)])
    pixels = {tuple(pixel) for pixel in found.reshape(-1, 3)}
    assert len(pixels) == 12 * len(tiles), "none twice"
    wanted = {
        (i, row, column)
        for i, (height, width) in enumerate(SIZES)
        for row in range(height // 4 * 4)
        for column in range(width // 3 * 3)
    }
    assert pixels == wanted
    areas = np.prod(SIZES, 1)
    assert tiles.left_out == pytest.approx(1 - 12 * len(tiles) / areas.sum())
    assert np.array_equal(tiles.labels, packed.labels[tiles.pictures(np.arange(len(tiles)))])
    assert tiles.of(np.array([1, 3])).tolist() == [3, 4, 5, 7, 8]
    with pytest.raises(DataError, match="none of its pictures holds a tile of 41 x 3"):
        Tiles(packed, (41, 3))


def test_crops_of_what_is_no_picture_are_refused(tmp_path):
    clips = open_packed(write(tmp_path / "a.npy", np.zeros((2, 3, 4, 4, 1), np.uint8)))
    with pytest.raises(DataError, match=r"examples of 3 x 4 x 4, and crops are cut from pictures"):
        Crops(clips, (2, 2))


def test_a_file_cut_short_while_crops_are_read_is_an_error(packed):
    stream = TrainingBatches(Crops(packed, (4, 4)), 64, seed=0).stream()
    next(stream)
    with packed.path.open("r+b") as file:
        file.truncate(400)
    # Batches are read ahead: any of the pictures that are cut may be the first one met.
    with pytest.raises(DataError, match=r"ends inside example [1-4], though it was whole when"):
        for _ in range(20):
            next(stream)
