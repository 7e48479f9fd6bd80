"""Pictures of any size in tiles: everything once, and what follows is known in time."""

import numpy as np
import pytest
from blocks_reach import BLOCKS
from conftest import VARIANTS, config

from axial.codec.groups import Part, tile_of
from axial.codec.tiles import Tiling, extent, plan
from axial.models.local_config import Local2dConfig

COLOUR = config((3, 4), channels=3)
LOCAL = Local2dConfig(
    axes=(4, 4), channels=2, block=(2, 2), flange=(1, 1), values=3, width=8, heads=2,
    mlp_ratio=2, layers=1,
)  # fmt: skip


TILINGS = [
    Tiling(axes=(3, 4)),
    Tiling(axes=(3, 4), overlap=1, span=2),
    Tiling(axes=(3, 4), overlap=2, span=3),
    Tiling(axes=(4, 6), overlap=2, span=8),
]


def regions(tiling, grid):
    return [tiling.region(grid, i) for i in range(tiling.regions(grid))]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("grid", [(3, 4), (1, 1), (7, 9), (3, 5), (2, 12), (20, 31)])
def test_every_element_is_coded_once_and_what_a_tile_shares_was_coded_on_a_diagonal_before(
    tiling, grid
):
    seen, count = np.full(grid, -1), 0
    for region in regions(tiling, grid):
        whole = seen[region.box]
        assert (whole == -1).all()  # no other region has any of it
        for tile in sorted(region.tiles, key=lambda tile: tile.diagonal):
            own, size = whole[tile.box], extent(tile.box)
            place = np.indices(size)
            known = (place < np.array(tile.before)[:, None, None]).any(0)
            assert (own[known] >= 0).all() and (own[known] < tile.diagonal).all()
            assert (own[~known] == -1).all() and not known.all()
            assert all(n <= m for n, m in zip(size, tiling.axes, strict=True))
            own[~known] = tile.diagonal
            count += 1
    assert (seen >= 0).all()
    assert count == tiling.tiles(grid)


def test_tiles_overlap_by_what_is_asked_for_and_by_half_a_tile_at_most():
    for overlap, wanted in ((1, (1, 1)), (2, (1, 2)), (9, (1, 2))):
        (region,) = regions(Tiling(axes=(3, 4), overlap=overlap, span=8), (6, 8))
        last = region.tiles[-1]
        assert last.before == wanted
        assert [part.start for part in last.box] == [
            place * (n - k) for place, n, k in zip(last_place(region), (3, 4), wanted, strict=True)
        ]


def last_place(region):
    """Where its last tile stands among its tiles."""
    starts = [sorted({tile.box[axis].start for tile in region.tiles}) for axis in (0, 1)]
    return [len(found) - 1 for found in starts]


def test_a_region_has_so_many_tiles_along_each_axis():
    tiling = Tiling(axes=(3, 4), overlap=1, span=2)  # of 5 x 7
    assert tiling.region_counts((11, 7)) == (3, 1)
    assert [len(region.tiles) for region in regions(tiling, (11, 7))] == [4, 4, 2]
    assert tiling.tiles((11, 7)) == 10


@pytest.mark.parametrize("name", [n for n in VARIANTS if n.startswith("2d")])
@pytest.mark.parametrize("one_plane", [False, True])
@pytest.mark.parametrize("before", [(0, 0), (1, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("inside", [(3, 4), (2, 3), (1, 1), (3, 1)], ids=str)
def test_what_follows_is_equal_to_something_that_is_known_by_then(name, one_plane, inside, before):
    found = VARIANTS[name]
    check_known_in_time(found, inside, before, one_plane=one_plane)


def test_it_is_so_in_orders_that_are_no_raster():
    """In slices, the nearest pixel inside may be predicted after what lies outside."""
    for found in (LOCAL, *BLOCKS):
        for inside in {found.axes, tuple(min(2, n) for n in found.axes), (1,) * len(found.axes)}:
            for before in (0, 1):
                check_known_in_time(found, inside, (before,) * len(found.axes))


def check_known_in_time(config, inside, before, *, one_plane=False):
    how = plan(config, inside, before, one_plane=one_plane)
    rank = np.argsort(config.order())
    within = np.zeros((*config.axes, config.channels), bool)
    within[(*map(slice, inside), slice(1 if one_plane else None))] = True
    unseen = within.copy()
    for axis, steps in enumerate(before):
        unseen[(slice(None),) * axis + (slice(steps),)] = False
    own, within = how.coded | how.stored, within.reshape(-1)
    assert not (how.coded & how.stored).any()
    assert np.array_equal(own, unseen.reshape(-1))
    assert (how.source[within] == np.flatnonzero(within)).all()
    for place in np.flatnonzero(~within):
        source = how.source[place]
        known = source < 0 or how.stored[source] or not own[source]
        assert known or rank[source] < rank[place]
        assert source < 0 or within[source]


def test_outside_lies_the_nearest_pixel_and_every_plane_of_grey_is_the_first():
    x = np.arange(6).reshape(2, 3, 1)
    region = Tiling(axes=(3, 4)).region((2, 3), 0)
    part = Part(region, np.repeat(x, 3, -1), one_plane=True)
    tile = tile_of(part, region.tiles[0], (3, 4))
    filled = plan(COLOUR, (2, 3), (0, 0), one_plane=True).fill(tile.reshape(-1)).reshape(3, 4, 3)
    wanted = np.pad(x[..., 0], ((0, 1), (0, 1)), mode="edge")
    assert all(np.array_equal(filled[..., c], wanted) for c in range(3))
