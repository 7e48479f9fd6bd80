import formats
import numpy as np
import pytest
import torch
from packed_arrays import write
from PIL import Image

import axial
from axial.data.packed import open_packed
from axial.errors import DataError
from axial.media.curves import write_curve
from axial.media.maps import _with_scale, bit_map
from axial.media.sheets import sheet_pixels, sheet_size, write_png, write_preview, write_sheet


def tile(pixels, row, column, size, apart=0):
    """The pixels of one tile of a sheet of tiles with a gap of two, and more above it."""
    top, left = 2 + row * (size + 2) + apart, 2 + column * (size + 2)
    return pixels[top : top + size, left : left + size]


def test_pictures_stand_in_reading_order_with_a_gap_between_them():
    x = formats.pictures(5, 64)
    found = sheet_pixels(x, columns=3)
    assert found.shape == (2 * 66 + 2, 3 * 66 + 2, 3)
    for i, picture in enumerate(x):
        assert np.array_equal(tile(found, i // 3, i % 3, 64), picture)
    assert (found[:2] == 255).all() and (found[66:68] == 255).all()
    assert (tile(found, 1, 2, 64) == 255).all()


def test_tiny_pictures_are_enlarged_without_smoothing_and_few_values_fill_the_range():
    x = np.array([[0, 16], [8, 4]], np.uint8)[None, :, :, None]
    found = tile(sheet_pixels(x, values=17), 0, 0, 64)
    for i in (0, 1):
        for j in (0, 1):
            block = found[32 * i : 32 * i + 32, 32 * j : 32 * j + 32]
            assert (block == round(int(x[0, i, j, 0]) * 255 / 16)).all()


def test_clips_and_volumes_have_a_row_each():
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 64, 64, 3), np.uint8)
    found = sheet_pixels(x)
    assert found.shape[:2] == (2 * 66 + 2, 5 * 66 + 2)
    for clip in range(2):
        for t in range(5):
            assert np.array_equal(tile(found, clip, t, 64), x[clip, t])


def test_a_stacked_video_is_drawn_like_the_clip_it_is():
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 64, 64, 3), np.uint8)
    stacked = np.moveaxis(x, 1, -2).reshape(2, 64, 64, 15)
    assert np.array_equal(sheet_pixels(stacked), sheet_pixels(x))


def test_long_clips_run_over_several_lines_and_begin_a_new_one():
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 64, 64, 1), np.uint8)
    found = sheet_pixels(x, columns=3)
    assert np.array_equal(tile(found, 1, 1, 64)[..., 0], x[0, 4, ..., 0])
    assert np.array_equal(tile(found, 2, 0, 64, apart=8)[..., 0], x[1, 0, ..., 0])
    assert (tile(found, 1, 2, 64) == 255).all() and (found[2 * 66 : 2 * 66 + 10] == 255).all()
    long = np.random.default_rng(0).integers(0, 256, (1, 50, 64, 64, 1), np.uint8)
    size = sheet_pixels(long).shape[:2]
    assert size == (3 * 66 + 2, 17 * 66 + 2)  # three lines alike, not 24 and 2


def test_lines_and_arrays_of_four_axes_are_drawn_too():
    line = np.arange(64, dtype=np.uint8)[None, :, None] * 4
    assert np.array_equal(sheet_pixels(line)[2, 2:66, 0], line[0, :, 0])
    x = np.random.default_rng(0).integers(0, 4, (2, 2, 3, 64, 64, 1), np.uint8)
    found = sheet_pixels(x, values=4)
    for example, row, column in np.ndindex(2, 2, 3):
        pixels = tile(found, 2 * example + row, column, 64, apart=8 * example)
        assert np.array_equal(pixels[..., 0], x[example, row, column, ..., 0] * 85)


def test_small_examples_of_several_rows_stand_side_by_side():
    x = np.random.default_rng(0).integers(0, 256, (12, 2, 3, 64, 64, 1), np.uint8)
    found = sheet_pixels(x)
    assert found.shape[:2] == (4 * 132 + 3 * 8 + 2, 3 * 198 + 2 * 8 + 2)
    for example, row, column in np.ndindex(12, 2, 3):
        top = 2 + example // 3 * 140 + row * 66
        left = 2 + example % 3 * 206 + column * 66
        pixels = found[top : top + 64, left : left + 64, 0]
        assert np.array_equal(pixels, x[example, row, column, ..., 0])
    mapped = bit_map(x[:6], np.zeros(x[:6].shape))
    for example in range(6):  # each with its map beside it
        top = 2 + example * 140
        assert np.array_equal(mapped[top : top + 64, 2:66, 0], x[example, 0, 0, ..., 0])
        assert not mapped[top : top + 64, 208:272].any()


@pytest.mark.parametrize("frames", [1, 4])
def test_channels_that_are_no_colours_have_a_row_each(frames):
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64, 2 * frames), np.uint8)
    found = sheet_pixels(x[:, 0] if frames > 1 else x, frames=frames)
    columns = frames if frames > 1 else 3
    assert found.shape[:2] == (2 * 66 + 2, columns * 66 + 2)
    for channel, column in np.ndindex(2, columns):
        wanted = x[0, 0, ..., 2 * column + channel] if frames > 1 else x[0, column, ..., channel]
        assert np.array_equal(tile(found, channel, column, 64)[..., 0], wanted)


def test_grey_frames_in_the_channels_are_a_clip_where_that_is_told():
    x = np.random.default_rng(0).integers(0, 256, (2, 6, 64, 64, 1), np.uint8)
    stacked = np.moveaxis(x, 1, -2).reshape(2, 64, 64, 6)
    assert np.array_equal(sheet_pixels(stacked, frames=6), sheet_pixels(x))
    assert not np.array_equal(sheet_pixels(stacked), sheet_pixels(x))
    assert np.array_equal(bit_map(stacked, stacked / 7, frames=6), bit_map(x, x / 7))


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("frames", [None, 1, 2])
@pytest.mark.parametrize("axes", [(9,), (5, 4), (80, 70), (30, 3, 4), (2, 3, 4, 2)], ids=str)
def test_the_size_of_a_sheet_is_known_before_it_is_made(axes, frames, group):
    for count, channels in ((1, 1), (3, 2), (12, 3), (26, 6)):
        if channels % (frames or 1):
            continue
        x = np.zeros((count, *axes, channels), np.uint8)
        for kept in (None, np.ones(x.shape[1:], bool)):
            found = sheet_pixels(x, frames=frames, kept=kept, group=group)
            size = sheet_size(x.shape, frames=frames, kept=kept is not None, group=group)
            assert size == found.shape[:2]


def test_what_is_kept_is_framed_and_what_is_missing_left_out():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 64, 64, 3)).astype(np.int64)
    x[2, 2] = -1
    kept = np.zeros((3, 64, 64, 3), bool)
    kept[:1] = True
    kept[1, :63] = True
    found = sheet_pixels(x, kept=kept, group=2)
    for clip, t in np.ndindex(4, 3):
        top, left = 4 + clip * 68 + 16 * (clip // 2), 4 + t * 68
        around = found[top - 4 : top + 68, left - 4 : left + 68].copy()
        pixels = around[4:-4, 4:-4].copy()
        blank = (clip, t) == (2, 2)
        assert np.array_equal(pixels, np.full_like(pixels, 255) if blank else x[clip, t])
        around[4:-4, 4:-4] = around[0, -1]
        beside = t == 1  # what stands left of it is framed
        assert (around[:, 4 * beside :] == ((255, 120, 0) if t == 0 else 255)).all()
    assert (found[4 + 2 * 68 : 4 + 2 * 68 + 12] == 255).all()
    one = sheet_pixels(x[:, 0], kept=kept[0], group=2)  # one tile each: a group is a row
    assert one.shape[:2] == (2 * 68 + 4, 2 * 68 + 4) and (one[0] == (255, 120, 0)).all()
    assert one.shape == sheet_pixels(x[:, 0], kept=kept[2], group=2).shape


def test_a_preview_shows_the_first_examples(tmp_path):
    x = formats.pictures(120, 64)
    packed = open_packed(write(tmp_path / "a.npy", x))
    write_preview(tmp_path / "a.png", packed)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), sheet_pixels(x[:100]))
    with pytest.raises(DataError, match=r"nowhere/a\.png: cannot be written"):
        write_sheet(tmp_path / "nowhere" / "a.png", x)


BLACK, RED, YELLOW, WHITE = (0, 0, 0), (255, 0, 0), (255, 255, 0), (255, 255, 255)


def test_a_map_stands_beside_its_picture_on_one_scale_for_all():
    x = formats.pictures(9, 64)
    bits = np.zeros(x.shape)
    bits[0, 1, 2] = 6, 2, 1  # a position's bits are those of its channels
    bits[5, 3, 4], bits[8, 5, 6] = 1, 2
    bits[8, 32:] = 3
    found = bit_map(x, bits)
    for i, picture in enumerate(x):
        row, column = i // 4, 2 * (i % 4)
        assert np.array_equal(tile(found, row, column, 64), picture)
    where = [tile(found, i // 4, 2 * (i % 4) + 1, 64) for i in range(9)]
    assert tuple(where[0][1, 2]) == WHITE and tuple(where[5][3, 4]) == RED
    assert tuple(where[8][5, 6]) == YELLOW and (where[8][32:] == WHITE).all()
    assert not where[7].any()
    scale = found[3 * 66 + 2 + 10, 16:144]
    assert tuple(scale[0]) == BLACK and tuple(scale[-1]) == WHITE
    assert np.array_equal(found, _with_scale(found[:-20], 9.0))  # where white begins, in words


def test_the_map_of_a_clip_stands_below_it_stacked_or_not():
    rng = np.random.default_rng(0)
    x, bits = rng.integers(0, 256, (2, 5, 64, 64, 3), np.uint8), rng.random((2, 5, 64, 64, 3))
    found = bit_map(x, bits)
    for clip in range(2):
        for t in range(5):
            assert np.array_equal(tile(found, 2 * clip, t, 64), x[clip, t])
    brighter = tile(found, 3, 2, 64).astype(int).sum(-1)
    assert np.array_equal(brighter.argmin(), bits[1, 2].sum(-1).argmin())
    stacked = [np.moveaxis(y, 1, -2).reshape(2, 64, 64, 15) for y in (x, bits)]
    assert np.array_equal(bit_map(*stacked), found)


def test_lines_and_certainty_have_maps_too():
    line = np.arange(64, dtype=np.uint8)[None, :, None] * 4
    found = bit_map(line, np.zeros(line.shape))
    assert (found[2:10, 2:66, 0] == line[0, :, 0]).all() and not found[2:10, 68:132].any()


def test_a_preview_of_large_pictures_shows_a_few(tmp_path):
    x = np.zeros((7, 3000, 3000, 1), np.uint8)
    write_preview(tmp_path / "a.png", open_packed(write(tmp_path / "x.npy", x)))
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (3004, 3004)


def test_every_png_is_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    x = np.zeros((1, 8, 8, 1), np.uint8)
    writers = {
        "sheet": lambda path: write_sheet(path, x),
        "map": lambda path: write_png(path, bit_map(x, np.ones((1, 8, 8, 1)))),
        "curve": lambda path: write_curve(path, [{"step": 1, "loss": 2.0}]),
    }
    for name, writer in writers.items():
        path, again = tmp_path / f"{name}.png", tmp_path / f"{name}2.png"
        writer(path)
        writer(again)
        assert path.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["tensor", "array"])
def test_what_is_drawn_shows_itself_in_a_notebook(kind):
    x = formats.pictures(5, 8)
    picture = axial.sheet(kind(x), columns=2)  # not what it would choose itself
    assert np.array_equal(np.asarray(picture), sheet_pixels(x, columns=2))
    assert picture._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_missing_has_a_colour_that_nothing_else_has(channels):
    x = formats.pictures(3, 8, channels).astype(np.int64)
    whole = sheet_pixels(x)
    growing = x.copy()
    growing[:, 4:] = -1
    pixels = np.asarray(axial.sheet(growing))
    missing = (pixels != whole).any(-1)
    colours = np.unique(pixels[missing].reshape(-1, 3), axis=0)
    assert len(colours) == 1 and not (pixels[~missing] == colours[0]).all(-1).any()
    assert missing.sum() == 3 * 4 * 8 * 8**2  # the lower half of each, eight times as large
    taken = np.tile(colours[0].astype(np.int64), (3, 8, 8, 1))
    taken[:, 4:] = -1
    if channels == 3:
        pixels = np.asarray(axial.sheet(taken))
        assert not np.array_equal(pixels[4, 4], pixels[60, 4])
    growing = x.copy()
    growing[..., 1:] = -1  # a part of every pixel is known, and seen
    if channels == 3:
        assert np.array_equal(sheet_pixels(growing)[..., 0], whole[..., 0])


def test_captions_stand_below_their_pictures_and_change_nothing_else():
    x = formats.pictures(5, 8)
    plain, names = sheet_pixels(x, columns=5), ["cat", "dog", "", "a\x1bname " * 20, "\u65e5"]
    drawn = np.asarray(axial.sheet(x, columns=5, captions=names))
    tile, strip = 64, drawn.shape[0] - plain.shape[0]
    assert np.array_equal(drawn[: 2 + tile], plain[: 2 + tile]) and strip > 10
    ink = [(drawn[2 + tile :, 2 + i * 66 : 66 + i * 66] < 128).any() for i in range(5)]
    assert ink == [True, True, False, True, True]
    cat, dog = (drawn[2 + tile :, 2 + i * 66 : 66 + i * 66] for i in range(2))
    assert not np.array_equal(cat, dog)
    with pytest.raises(axial.InputError, match="captions are 1, but there are 5"):
        axial.sheet(x, captions=["cat"])


@pytest.mark.parametrize("shape", [(5, 8, 8, 3), (4, 3, 8, 8, 1), (7, 2, 3, 4, 4, 1), (3, 9, 1)])
def test_the_size_of_a_sheet_with_captions_is_known_before(shape):
    x = np.zeros(shape, np.uint8)
    names = ["a"] * len(x)
    assert sheet_pixels(x, captions=names).shape[:2] == sheet_size(shape, captions=True)


@pytest.mark.parametrize("x", [np.zeros((2, 3)), np.zeros((2, 3, 3, 1))], ids=["flat", "floats"])
def test_only_integers_make_a_sheet(x):
    with pytest.raises(axial.AxialError, match="give integers"):
        axial.sheet(x)
