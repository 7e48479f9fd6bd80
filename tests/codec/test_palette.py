"""Palettes: values that do not occur take no room, and edited pictures take fewer bits."""

import io
import math

import numpy as np
import pytest
import torch
from codec.test_codec import noisy, on_borders, speaking
from conftest import VARIANTS, config, tiny_model
from models.test_families import ONE_EACH

from axial import compress, decompress, draw, element_bits
from axial.codec import codec as codec_module
from axial.codec import grid
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.codec.palette import choose_palette, in_nats, palette_bytes
from axial.models.likelihood import slices_of_logits

COLOUR = config((8, 8), channels=2, values=16)


def sharp(found=COLOUR):
    """A model that has something to say: neighbours are alike, values near one another too."""
    model = tiny_model(found)
    with torch.no_grad():
        model.to_logits.weight *= 2
    return model


def indifferent(values):
    """A model that expects all values alike."""
    model = tiny_model(config((8, 8), values=values))
    with torch.no_grad():
        model.to_logits.weight.zero_()
        model.to_logits.bias.zero_()
    return model


def drawn(model, tiles):
    """A picture of tiles (*grid, c) that the model itself drew."""
    x = draw(model, tiles, seed=3)
    return torch.cat(list(x), dim=1)


def random_palette(x, values, seed=0):
    """Biases of every size, and only the values of x (*grid, c), with some that do not occur."""
    random = np.random.default_rng(seed)
    table = random.integers(-127, 128, (x.shape[-1], values)).astype(np.int8)
    for c, row in enumerate(table):
        row[:] = np.where(np.isin(np.arange(values), x[..., c]), row, grid.ABSENT)
    return table


@pytest.fixture(params=["host", "device"])
def reader(request, monkeypatch):
    """Groups are read by the host, or as a GPU reads them."""
    monkeypatch.setattr(codec_module, "suits", lambda *_: request.param == "device")


@pytest.fixture
def forced(monkeypatch):
    """Every picture has a palette; returns them."""
    made = []

    def choose(model, x, label=None):
        made.append(random_palette(x, model.config.values, seed=len(made)))
        return made[-1]

    monkeypatch.setattr(codec_module, "choose_palette", choose)
    return made


def test_a_value_that_does_not_occur_has_no_share_and_all_others_make_a_whole():
    logits = 5 * torch.from_numpy(np.random.default_rng(0).standard_normal((200, 9)))
    bias = torch.from_numpy(np.random.default_rng(1).integers(-127, 128, (200, 9)))
    absent = torch.from_numpy(np.random.default_rng(2).random((200, 9)) < 0.6)
    absent[torch.arange(200), torch.arange(200) % 9] = False
    bias = bias.masked_fill(absent, grid.ABSENT).to(torch.int8)
    shares = grid.bounds(grid.biased(grid.to_grid(logits).points, bias)).diff(dim=-1)
    assert ((shares == 0) == absent).all() and (shares >= 0).all()
    assert (shares.sum(-1) == 1 << grid.PRECISION).all()


def test_a_bias_of_16_is_a_factor_e():
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 20)))
    bias = torch.from_numpy(np.random.default_rng(1).integers(-40, 41, (50, 20)))
    bias[:, ::3] = grid.ABSENT
    points = grid.biased(grid.to_grid(logits).points, bias.to(torch.int8))
    share = grid.bounds(points).diff(dim=-1).double() / 2**grid.PRECISION
    wanted = logits.exp() * (bias.double() / 16).exp().masked_fill(bias == grid.ABSENT, 0)
    wanted /= wanted.sum(-1, keepdim=True)
    assert torch.allclose(share, wanted, rtol=2 / 64, atol=1e-5)
    assert torch.equal((logits + in_nats(bias)).softmax(-1) == 0, bias == grid.ABSENT)


def test_the_last_value_that_occurs_takes_what_rounding_leaves():
    points = torch.zeros(1, 5, dtype=torch.long)
    bias = torch.tensor([[0, 0, 0, grid.ABSENT, grid.ABSENT]], dtype=torch.int8)
    shares = grid.bounds(grid.biased(points, bias)).diff(dim=-1)[0].tolist()
    assert shares[0] == shares[1] <= shares[2] and shares[3:] == [0, 0]
    alone = torch.tensor([[grid.ABSENT] * 2 + [-100] + [grid.ABSENT] * 2], dtype=torch.int8)
    only = grid.bounds(grid.biased(points, alone))[0].tolist()
    assert only == [0, 0, 0, 1 << 24, 1 << 24, 1 << 24]


def test_logits_that_are_no_numbers_give_shares_all_the_same():
    bias = torch.tensor([[0, grid.ABSENT, 0]], dtype=torch.int8)
    points = grid.to_grid(torch.full((1, 3), math.nan, dtype=torch.float64)).points
    assert grid.bounds(grid.biased(points, bias)).shape == (1, 4)


@pytest.mark.parametrize("name", VARIANTS)
def test_pictures_with_palettes_come_back_in_every_variant(name, forced, reader):
    found = VARIANTS[name]
    model = tiny_model(found)
    label = torch.zeros(1, dtype=torch.long) if found.classes else None
    for channels in sorted({1, found.channels}):
        x = torch.randint(3, (*(2 * n + 1 for n in found.axes), channels))
        data = compress(model, x, label=label, lanes=3, overlap=1)
        (entry,) = read_contents(io.BytesIO(data)).entries
        assert entry.palette == forced[-1].tobytes()
        assert torch.equal(decompress(model, data), x)


@pytest.mark.parametrize("found", ONE_EACH, ids=lambda c: type(c).__name__)
def test_and_in_every_family(found, forced, reader):
    model = speaking(found)
    x = torch.randint(found.values, (*(n + 2 for n in found.axes), found.channels))
    assert torch.equal(decompress(model, compress(model, x, lanes=3)), x)
    assert len(forced) == (found.values <= 256)


def test_pictures_of_one_group_have_palettes_of_their_own(monkeypatch, reader):
    model = tiny_model(config((4, 4), channels=3))
    shapes = [(4, 4, 3), (3, 9, 1), (5, 5, 3), (4, 4, 3)]
    pictures = [np.random.default_rng(i).integers(3, size=s) for i, s in enumerate(shapes)]
    palettes = [random_palette(x, 3, seed=i) for i, x in enumerate(pictures)]
    palettes[2] = None
    given = iter(palettes)
    monkeypatch.setattr(codec_module, "choose_palette", lambda *_, **__: next(given))
    codec, file = Codec(model), io.BytesIO()
    items = [
        (Entry(name=f"{i}", grid=x.shape[:2], one_plane=x.shape[-1] < 3), [Example(x)])
        for i, x in enumerate(pictures)
    ]
    codec.write(file, codec.contents(), items)
    contents = read_contents(file)
    assert len(contents.groups) == 1
    assert [bool(entry.palette) for entry in contents.entries] == [True, True, False, True]
    for wanted in (None, [1], [2], [0, 3]):
        for entry, example in codec.read(file, contents, wanted):
            assert np.array_equal(example.x, pictures[int(entry.name)]), entry.name


@pytest.mark.parametrize("distance", [0.0, -2e-11, 9e-10])
def test_logits_near_a_border_are_noted_where_values_have_biases(
    distance, forced, reader, monkeypatch
):
    model = on_borders(distance)
    x = torch.randint(model.config.values - 1, (*model.config.axes, model.config.channels))
    data = compress(model, x)
    noisy(monkeypatch, 1e-10, seed=0)
    assert torch.equal(decompress(model, data), x)


def test_a_logit_is_noted_that_matters_only_with_its_bias(reader, monkeypatch):
    """Alone it lies so far below the largest that its weight is 0."""
    model = on_borders(0.0, only=0)
    palette = np.full((2, 5), -127, np.int8)
    palette[:, 0] = 127
    with torch.no_grad():
        model.to_logits.bias[0] -= 24
    monkeypatch.setattr(codec_module, "choose_palette", lambda *_, **__: palette)
    x = torch.arange(9 * 8 * 2).view(9, 8, 2) % 5
    data = compress(model, x)
    noisy(monkeypatch, 1e-10, seed=0)
    assert torch.equal(decompress(model, data), x)


def test_a_file_takes_the_bits_of_the_model_with_its_biases(monkeypatch):
    model = sharp()
    x = drawn(model, 40)
    palette = np.random.default_rng(0).integers(-30, 31, (2, 16)).astype(np.int8)
    palette[[0, 1], [3, 9]] = grid.ABSENT
    for c, gone in enumerate((3, 9)):
        x[..., c][x[..., c] == gone] = gone + 1
    monkeypatch.setattr(codec_module, "choose_palette", lambda *_, **__: palette)
    data = compress(model, x, overlap=0, lanes=64)
    tiles = torch.stack(x.split(8, dim=1))
    logits = model(tiles).detach() + in_nats(torch.from_numpy(palette))
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, -2), tiles.flatten())
    wanted = float(nats) / math.log(2) * x.numel()
    (group,) = read_contents(io.BytesIO(data)).groups
    # A byte of notes, the seal, and what is left of the last word; the grid is lost in rounding.
    assert wanted < 8 * group.length <= wanted + 8 + 31 + 64


def test_what_the_model_drew_needs_no_palette():
    model = sharp()
    assert choose_palette(model, drawn(model, 64).numpy()) is None


@pytest.mark.parametrize("seed", [0, 1])
def test_nor_where_chance_makes_some_values_frequent_in_the_tiles_looked_at(seed):
    """Fitted and tried on the same tiles, biases would seem to pay."""
    x = np.random.default_rng(seed).integers(256, size=(8, 12800, 1))
    assert choose_palette(indifferent(256), x) is None


def test_nor_for_what_lies_outside_of_the_picture():
    """Tiles that hang over repeat its last row, which surprises the model."""
    model = sharp(config((8, 8), values=16))
    assert choose_palette(model, drawn(model, 128).numpy()[:1]) is None


def test_a_picture_is_looked_at_as_its_class():
    found = config((8, 8), values=16, classes=2)
    model = sharp(found)
    with torch.no_grad():
        model.label_embedding.weight[0] = 0
        model.label_embedding.weight[1] *= 20
    x = torch.cat(list(draw(model, 64, seed=3, label=torch.ones(64, dtype=torch.long))), dim=1)
    assert choose_palette(model, x.numpy(), 1) is None
    assert choose_palette(model, x.numpy(), 0) is not None


def test_a_channel_has_the_biases_of_its_own_values():
    model = sharp()
    x = drawn(model, 512).numpy()
    random = np.random.default_rng(0)
    second = x[..., 1]
    x[..., 1] = np.where(
        (second % 2 == 1) & (random.random(second.shape) < 0.8), second - 1, second
    )
    first, second = choose_palette(model, x)
    assert not first.any()
    assert (second[::2] > 0).sum() >= 6 and (second[1::2] < 0).sum() >= 6


def test_biases_are_as_large_as_a_byte_holds():
    """The model expects one value, and another one is nearly everywhere."""
    model = indifferent(16)
    with torch.no_grad():
        model.to_logits.bias[5] = 14
    x = torch.full((8, 6400, 1), 3)
    x[:, :16, 0] = torch.arange(16)
    (palette,) = choose_palette(model, x.numpy())
    assert palette[3] == 127 and palette[5] < 0 and (palette != grid.ABSENT).all()
    assert torch.equal(decompress(model, compress(model, x)), x)


def test_no_logit_and_bias_give_the_point_of_a_value_that_is_absent():
    lowest = torch.tensor([-grid.LARGEST * grid.GRID])
    (absent,) = grid.biased(lowest, torch.tensor([grid.ABSENT], dtype=torch.int8))
    assert absent < grid.biased(lowest, torch.tensor([-127], dtype=torch.int8))


@pytest.mark.parametrize(
    "found, size, looked_at",
    [
        (config((8, 8), values=16), (8, 8 * 80), 10),
        (config((8, 8), values=16), (8, 8 * 8), 1),
        (config((32, 32), channels=3, values=16), (32 * 20, 32 * 20), 32),
    ],
)
def test_an_eighth_of_the_tiles_is_looked_at_and_32_of_a_large_picture(
    found, size, looked_at, monkeypatch
):
    seen = []

    def spy(model, x, label):
        seen.append(len(x))
        return slices_of_logits(model, x, label)

    monkeypatch.setattr("axial.codec.palette.slices_of_logits", spy)
    x = np.arange(math.prod(size) * found.channels).reshape(*size, found.channels) % 16
    choose_palette(tiny_model(found), x)
    assert seen == [looked_at]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.uint64])
def test_values_are_counted_block_by_block_whatever_their_type(dtype, monkeypatch):
    monkeypatch.setattr("axial.codec.palette._BLOCK", 7)
    model = sharp()
    x = drawn(model, 64).numpy() % 2 * 13
    x.reshape(-1, 2)[6, 1] = 5  # the last of its block
    palette = choose_palette(model, x.astype(dtype))
    assert set(np.flatnonzero(palette[1] != grid.ABSENT).tolist()) == {0, 5, 13}


def edited(x, table):
    return np.array(table)[x]


def test_gaps_are_found_and_their_bits_saved():
    """Values 1, 4, 7 ... occur nowhere, as where contrast was stretched."""
    model = sharp()
    x = edited(drawn(model, 64).numpy(), [v + (v % 3 == 1) for v in range(16)])
    palette = choose_palette(model, x)
    gone = set(range(16)) - set(np.unique(x).tolist())
    assert {1, 4, 7, 10, 13} <= gone
    for row in palette:
        assert set(np.flatnonzero(row == grid.ABSENT).tolist()) >= {1, 4, 7, 10, 13}
    data = compress(model, torch.from_numpy(x))
    assert torch.equal(decompress(model, data), torch.from_numpy(x))
    plain = float(element_bits(model, torch.stack(torch.from_numpy(x).split(8, dim=1))).sum())
    assert 8 * len(data) < 0.9 * plain


def test_what_a_palette_saves_is_counted_over_the_whole_picture():
    """One gap among 16 values: 100 bits of the tiles that are looked at, 800 of all of them."""
    model = sharp()
    x = edited(drawn(model, 64).numpy(), [v + (v == 7) for v in range(16)])
    palette = choose_palette(model, x)
    assert palette is not None and (palette[:, 7] == grid.ABSENT).all()


def test_the_model_is_not_asked_about_a_small_picture_of_many_values(monkeypatch):
    """What a palette could save of it is less than the palette."""
    model = sharp()
    x = edited(drawn(model, 4).numpy(), [v + (v % 3 == 1) for v in range(16)])
    few = drawn(model, 4).numpy() % 2 * 13
    assert (choose_palette(model, few) == grid.ABSENT).sum() == 2 * 14
    monkeypatch.setattr(model, "slice_logits", None)
    assert choose_palette(model, x) is None
    with pytest.raises(TypeError):
        choose_palette(model, few)


def test_values_that_occur_too_often_are_found_where_all_occur(monkeypatch):
    """Every other value is twice as frequent, as where contrast was reduced."""
    model = sharp(config((8, 8), values=16))
    random = np.random.default_rng(0)
    x = drawn(model, 256).numpy()
    x = np.where((x % 2 == 1) & (random.random(x.shape) < 0.6), x - 1, x)
    assert len(np.unique(x)) == 16
    palette = choose_palette(model, x)
    assert (palette[0, ::2] > 0).sum() >= 6 and (palette[0, 1::2] < 0).sum() >= 6
    with_palette = len(compress(model, torch.from_numpy(x)))
    monkeypatch.setattr(codec_module, "choose_palette", lambda *_, **__: None)
    without = len(compress(model, torch.from_numpy(x)))
    assert with_palette + 10 * palette_bytes(palette) < without


def test_a_file_has_room_for_so_many_palettes_only(monkeypatch, forced):
    model = tiny_model(config((3, 4)))
    codec, file = Codec(model), io.BytesIO()
    monkeypatch.setattr(codec_module, "_PALETTES", 6)
    x = np.random.default_rng(0).integers(3, size=(5, 3, 4, 1))
    items = [(Entry(name=f"{i}", grid=(3, 4)), [Example(one)]) for i, one in enumerate(x)]
    codec.write(file, codec.contents(), items)
    contents = read_contents(file)
    assert [len(entry.palette) for entry in contents.entries] == [3, 3, 0, 0, 0]
    assert all(np.array_equal(e.x, x[i]) for i, (_, e) in enumerate(codec.read(file, contents)))


def test_an_array_of_many_examples_and_more_values_than_a_byte_have_none(forced):
    for found, count in ((config((3, 4)), 2), (config((3, 4), values=257), 1)):
        model = tiny_model(found)
        x = torch.randint(found.values, (count, 3, 4, 1))
        assert torch.equal(decompress(model, compress(model, x)), x)
    assert not forced


def test_a_tiny_picture_with_a_palette_compresses_to_these_bytes(forced):
    found = config((2, 3), channels=2, values=5)
    model = speaking(found)
    x = torch.arange(4 * 3 * 2).view(4, 3, 2) * 7 % 4
    data = compress(model, x, overlap=1)
    assert data.hex() == GOLDEN, data.hex()
    assert torch.equal(decompress(model, bytes.fromhex(GOLDEN)), x)


GOLDEN = (
    "8941584c0300504e9d5a19000000fba60d24dc40acd200005527542e9d645f8825e8e7cff414978602020302050080"
    "400104010d00010403005980038080809480ad8001110190c0b3ae34000000fbb2bc2b"
)
