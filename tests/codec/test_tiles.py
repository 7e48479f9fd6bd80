"""Pictures of any size in tiles: everything once, and what follows is known in time."""

import numpy as np
import pytest
from blocks_reach import BLOCKS
from conftest import VARIANTS, config

from axial.codec.tiles import boxes, cut, extent, inside_of, plan, tile_count
from axial.models.local_config import Local2dConfig

COLOUR = config((3, 4), channels=3)
LOCAL = Local2dConfig(
    axes=(4, 4), channels=2, block=(2, 2), flange=(1, 1), values=3, width=8, heads=2,
    mlp_ratio=2, layers=1,
)  # fmt: skip


@pytest.mark.parametrize("grid", [(3, 4), (1, 1), (7, 9), (3, 5), (2, 12)])
def test_tiles_cover_a_picture_once(grid):
    seen = np.zeros(grid, int)
    for box in boxes(grid, (3, 4)):
        seen[box] += 1
    assert (seen == 1).all()
    x = np.random.default_rng(0).integers(9, size=(*grid, 2))
    back = np.full_like(x, -1)
    tiles = list(cut(x, (3, 4)))
    assert len(tiles) == tile_count(grid, (3, 4))
    for i, ((tile, inside), box) in enumerate(zip(tiles, boxes(grid, (3, 4)), strict=True)):
        assert inside == extent(box) == inside_of(i, grid, (3, 4))
        back[box] = tile[tuple(map(slice, inside))]
    assert np.array_equal(back, x)


@pytest.mark.parametrize("name", [n for n in VARIANTS if n.startswith("2d")])
@pytest.mark.parametrize("one_plane", [False, True])
@pytest.mark.parametrize("inside", [(3, 4), (2, 3), (1, 1), (3, 1)])
def test_what_follows_is_equal_to_something_that_is_known_by_then(name, one_plane, inside):
    found = VARIANTS[name]
    check_known_in_time(found, plan(found, inside, one_plane=one_plane), inside, one_plane)


def test_it_is_so_in_orders_that_are_no_raster():
    """In slices, the nearest pixel inside may be predicted after what lies outside."""
    for found in (LOCAL, *BLOCKS):
        for inside in {found.axes, tuple(min(2, n) for n in found.axes), (1,) * len(found.axes)}:
            check_known_in_time(found, plan(found, inside), inside, False)


def check_known_in_time(config, how, inside, one_plane):
    rank = np.argsort(config.order())
    own = how.coded | how.stored
    assert not (how.coded & how.stored).any()
    within = np.zeros((*config.axes, config.channels), bool)
    within[(*map(slice, inside), slice(1 if one_plane else None))] = True
    assert np.array_equal(own, within.reshape(-1))
    assert (how.source[own] == np.flatnonzero(own)).all()
    for place in np.flatnonzero(~own):
        source = how.source[place]
        assert source < 0 or how.stored[source] or rank[source] < rank[place]
        assert source < 0 or own[source]


def test_outside_lies_the_nearest_pixel_and_every_plane_of_grey_is_the_first():
    x = np.arange(6).reshape(2, 3, 1)
    ((tile, inside),) = cut(np.repeat(x, 3, -1), (3, 4))
    filled = plan(COLOUR, inside, one_plane=True).fill(tile.reshape(-1)).reshape(3, 4, 3)
    wanted = np.pad(x[..., 0], ((0, 1), (0, 1)), mode="edge")
    assert all(np.array_equal(filled[..., c], wanted) for c in range(3))
