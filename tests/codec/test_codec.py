"""A model as a codec: lossless, tight, portable, and refused where it is not."""

import dataclasses
import io
import itertools
import math
import threading

import numpy as np
import pytest
import torch
from conftest import ENUMERABLE, VARIANTS, config, every_image, random_input, tiny_model
from models.test_families import ONE_EACH

import axial
from axial import ConfigError, InputError, StreamError, bits, compress, decompress
from axial.codec import codec as codec_module
from axial.codec import coding, grid
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.codec.groups import Part
from axial.codec.tiles import Tiling
from axial.models.families import new_model

PLAIN = config((3, 4), channels=2)


def speaking(config):
    """A model of simple fractions: the same on every machine and in every version of torch."""
    model = new_model(config).double().eval()
    state = {
        name: ((torch.arange(w.numel()) * 37 + 5 * i) % 29 - 14).double().view(w.shape) / 32
        for i, (name, w) in enumerate(model.state_dict().items())
    }
    model.load_state_dict(state)
    return model


def examples(config, count=5, seed=0):
    """Not of other variants: what is stored is the examples themselves."""
    x, label, _ = random_input(config, count, seed=seed)
    return x, label % config.classes if config.classes else None


@pytest.mark.parametrize("name", VARIANTS)
def test_what_comes_out_is_what_went_in(name):
    model = tiny_model(VARIANTS[name])
    x, label = examples(model.config)
    data = compress(model, x, label=label, lanes=2)
    assert torch.equal(decompress(model, data), x)


@pytest.mark.parametrize("found", ONE_EACH, ids=lambda c: type(c).__name__)
def test_every_family_is_a_codec(found):
    model = speaking(found)
    x, _ = examples(found)
    larger = torch.randint(found.values, (*(n + 1 for n in found.axes), found.channels))
    for given in (x, larger):
        assert torch.equal(decompress(model, compress(model, given, lanes=3)), given)


@pytest.mark.parametrize("lanes", [1, 2, 7, 64])
def test_neither_groups_nor_batches_change_what_comes_out(lanes):
    model = tiny_model(PLAIN)
    x, _ = examples(PLAIN, 9)
    data = compress(model, x, lanes=lanes)
    for batch in (1, 7, 64):
        assert torch.equal(decompress(model, data, batch=batch), x)


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (7, 4), (8, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_any_size_grey_ones_too(grid, channels):
    model = tiny_model(config((3, 4), channels=3))
    x = torch.randint(3, (2, *grid, channels))
    for given in (x, x[0]):
        assert torch.equal(decompress(model, compress(model, given)), given)


@pytest.mark.parametrize("name", ["2d-given-channels", "2d-given-both", "2d-stacked-clip"])
def test_of_the_smallest_example_there_is_less_given_than_one_element_of_every_channel(name):
    model = tiny_model(VARIANTS[name])
    for channels in {1, model.config.channels}:
        x = torch.randint(3, (1, 1, channels))
        assert torch.equal(decompress(model, compress(model, x)), x)


@pytest.mark.parametrize("name", VARIANTS)
def test_tiles_that_overlap_come_back_in_every_variant(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    label = torch.arange(2) % found.classes if found.classes else None
    for channels in {1, found.channels}:
        x = torch.randint(3, (2, *(2 * n + 1 for n in found.axes), channels))
        assert torch.equal(decompress(model, compress(model, x, label=label, overlap=1)), x)


@pytest.mark.parametrize("found", ONE_EACH, ids=lambda c: type(c).__name__)
def test_and_in_every_family(found):
    model = speaking(found)
    x = torch.randint(found.values, (*(n + 2 for n in found.axes), found.channels))
    overlap = min(2, max(found.axes) // 2)
    assert torch.equal(decompress(model, compress(model, x, overlap=overlap, lanes=3)), x)


@pytest.mark.parametrize("lanes", [1, 3, 64])
@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_neither_overlap_nor_lanes_nor_batches_change_what_comes_out(lanes, overlap):
    model = tiny_model(config((4, 6), channels=2))
    x = torch.randint(3, (2, 9, 37, 2))
    data = compress(model, x, lanes=lanes, overlap=overlap)
    assert len(read_contents(io.BytesIO(data)).groups) > 1 or lanes > 3
    for batch in (1, 64):
        assert torch.equal(decompress(model, data, batch=batch), x)


def test_what_tiles_share_is_coded_once_and_seen_by_both():
    """Each tile takes the bits of what no tile before it has, given all of the tile."""
    model = tiny_model(config((8, 8), channels=2, values=9))
    x = torch.randint(9, (26, 19, 2))
    data, wanted, pad = compress(model, x, overlap=2), 0.0, torch.nn.functional.pad
    for top, left in itertools.product((0, 6, 12, 18), (0, 6, 12)):
        tile = x[top : top + 8, left : left + 8]
        height, width, _ = tile.shape
        tile = pad(tile.movedim(-1, 0).double(), (0, 8 - width, 0, 8 - height), mode="replicate")
        each = axial.element_bits(model, tile.movedim(0, -1).long()[None])[0]
        wanted += float(each[2 * (top > 0) : height, 2 * (left > 0) : width].sum())
    (group,) = read_contents(io.BytesIO(data)).groups
    assert group.regions == 1
    # A byte of notes, the seal, and what is left of the last word; in all there are 3,000 bits.
    assert wanted + 8 < 8 * group.length <= wanted + 8 + 31 + 64


def test_pictures_of_few_tiles_are_cut_without_overlap_where_it_makes_many_more():
    model = tiny_model(config((32, 32), width=4, heads=1))
    contents = Codec(model).contents()
    assert (contents.overlap, contents.span) == (2, 4)
    for side, wanted in ((32, 0), (62, 2), (64, 0), (128, 0), (160, 2), (256, 2)):
        found = contents.tiling(Entry(name="", grid=(side, side)))
        assert found.tiles((side, side)) <= 1.5 * math.ceil(side / 32) ** 2
        assert found.overlap == wanted or side == 32


def sizes_of_decoders(monkeypatch):
    """How many tiles each decoder is made for, from now on."""
    sizes = []

    class Counted(codec_module.Decoder):
        def __init__(self, model, batch, *rest):
            sizes.append(batch)
            super().__init__(model, batch, *rest)

    monkeypatch.setattr(codec_module, "Decoder", Counted)
    return sizes


def test_pictures_of_all_sizes_are_decoded_within_the_batch(monkeypatch):
    model = tiny_model(config((4, 4)))
    codec, file = Codec(model, lanes=8, overlap=1), io.BytesIO()
    pictures = [np.full((n, m, 1), 2) for n, m in [(1, 1)] * 11 + [(40, 40)] + [(4, 30)] * 9]
    codec.write(
        file,
        codec.contents(),
        [(Entry(name=f"{i}", grid=x.shape[:2]), [Example(x)]) for i, x in enumerate(pictures)],
    )
    sizes = sizes_of_decoders(monkeypatch)
    back = [e.x for _, e in codec.read(file, read_contents(file), batch=24)]
    assert all(np.array_equal(a, b) for a, b in zip(back, pictures, strict=True))
    assert max(sizes) in range(17, 25)


def test_memory_of_the_encoder_follows_the_elements_whatever_the_pictures(monkeypatch):
    model = tiny_model(config((4, 4)))
    codec, shapes = Codec(model, lanes=1, overlap=1), []
    encode = coding.rans.encode

    def noted(start, *rest):
        shapes.append(start.size)
        return encode(start, *rest)

    monkeypatch.setattr(coding.rans, "encode", noted)
    monkeypatch.setattr("axial.codec.codec._ELEMENTS", 1600)
    pictures = [np.zeros((n, n, 1), int) for n in [4] * 30 + [25] + [4] * 30]
    items = [(Entry(name=f"{i}", grid=x.shape[:2]), [Example(x)]) for i, x in enumerate(pictures)]
    codec.write(io.BytesIO(), codec.contents(), items)
    assert max(shapes) <= 1600 and len(shapes) < 10


def several_groups():
    """A codec, a file, and what is written to it: six pictures, each a group and a batch."""
    codec, file = Codec(tiny_model(config((4, 4))), lanes=1, overlap=0), io.BytesIO()
    pictures = [np.full((4, 4, 1), i % 3) for i in range(6)]
    entries = [(Entry(name=f"{i}", grid=(4, 4)), [Example(x)]) for i, x in enumerate(pictures)]
    return codec, file, entries


def test_no_more_than_two_batches_are_in_memory(monkeypatch):
    monkeypatch.setattr(codec_module, "_ELEMENTS", 16)
    codec, file, entries = several_groups()
    contents, score, ahead = codec.contents(), coding.score, []

    def noted(*given):
        ahead.append(len(ahead) - len(contents.groups))  # scored, but not in the file yet
        return score(*given)

    monkeypatch.setattr(codec_module, "score", noted)
    codec.write(file, contents, entries)
    assert len(ahead) == 6 and max(ahead) <= 1


def test_what_goes_wrong_while_streams_are_written_is_told(monkeypatch):
    monkeypatch.setattr(codec_module, "_ELEMENTS", 16)
    codec, file, entries = several_groups()

    def fail(*given):
        raise MemoryError("no room")

    monkeypatch.setattr(coding.rans, "encode", fail)
    with pytest.raises(MemoryError, match="no room"):
        codec.write(file, codec.contents(), entries)


def test_an_interrupt_does_not_wait_for_streams_that_are_being_written(monkeypatch):
    monkeypatch.setattr(codec_module, "_ELEMENTS", 16)
    codec, file, entries = several_groups()
    (begun, go_on, ended), encode = (threading.Event() for _ in range(3)), coding.rans.encode

    def slow(*given):
        begun.set()
        go_on.wait(10)
        ended.set()
        return encode(*given)

    def interrupt(done):
        if done > 1:  # the first batch is being written
            assert begun.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(coding.rans, "encode", slow)
    with pytest.raises(KeyboardInterrupt):
        codec.write(file, codec.contents(), entries, interrupt)
    assert not ended.is_set()
    go_on.set()


def test_tiles_overlap_by_a_sixteenth_unless_something_else_is_asked_for():
    for side, wanted in ((8, 0), (16, 1), (40, 2)):
        codec = Codec(tiny_model(config((side, side + 9))))
        assert (codec.overlap, codec.contents().overlap) == (wanted, wanted)
    assert Codec(tiny_model(config((8, 8))), overlap=4).span == 4
    large = config((1024, 1024), channels=3, width=4, heads=1)
    assert Codec(tiny_model(large)).contents().overlap == 0  # a region is one tile
    for found, overlap in ((config((8, 8)), -1), (config((8, 8)), 5), (large, 1)):
        with pytest.raises(ConfigError, match="overlap"):
            Codec(tiny_model(found), overlap=overlap)


@pytest.mark.parametrize("lanes", [0, -1, 6000])
def test_groups_that_no_reader_takes_are_not_written(lanes):
    model = tiny_model(PLAIN)
    with pytest.raises(ConfigError, match="lanes"):
        compress(model, examples(PLAIN, 1)[0], lanes=lanes)


def test_large_tiles_are_encoded_a_few_at_a_time(monkeypatch):
    """By their elements, not their number: a clip has as many as a hundred pictures."""
    model, done = tiny_model(PLAIN), []
    x, _ = examples(PLAIN, 9)
    codec, file = Codec(model, lanes=2), io.BytesIO()
    monkeypatch.setattr("axial.codec.codec._ELEMENTS", 4 * 24)
    entry = Entry(name="", grid=PLAIN.axes, count=9, array=True)
    codec.write(file, codec.contents(), [(entry, map(Example, x.numpy()))], done.append)
    assert done[1::2] == [4, 8, 9] and len(done) == 6  # a channel of four of them is a pass
    assert torch.equal(decompress(model, file.getvalue()), x)


def test_what_hangs_over_and_the_planes_of_grey_cost_nothing():
    model = tiny_model(config((3, 4), channels=3))
    x = torch.randint(3, (2, 2, 3, 1))
    codec = Codec(model)
    full = torch.nn.functional.pad(x.movedim(-1, 1).double(), (0, 1, 0, 1), mode="replicate")
    full = full.movedim(1, -1).long().expand(-1, -1, -1, 3)
    wanted = axial.element_bits(codec.model, full)[:, :2, :3, 0].sum()
    stream = 64 + math.ceil(wanted)  # of one group
    data = compress(model, x)
    alone = compress(model, x.expand(-1, -1, -1, 3))
    assert 8 * len(data) - _beside(data) <= stream + 32
    assert len(data) < len(alone)


def _beside(data):
    """The bits of a file that are not its first group's stream."""
    contents = read_contents(io.BytesIO(data))
    return 8 * (len(data) - contents.groups[0].length + 1)


def test_labels_are_stored_and_conditioned_on():
    found = dataclasses.replace(PLAIN, classes=3)
    model = tiny_model(found)
    x, label = examples(found, 6)
    file = io.BytesIO(compress(model, x, label=label, lanes=4))
    contents = read_contents(file)
    back = [example for _, example in Codec(model).read(file, contents)]
    assert [example.label for example in back] == label.tolist()
    assert all(np.array_equal(e.x, one) for e, one in zip(back, x.numpy(), strict=True))


@pytest.mark.parametrize("name", ["2d-channels", "1d", "2d-labels", "3d-colour-clip"])
def test_the_size_is_the_information(name):
    """Of a file of many examples drawn from the model itself."""
    found = ENUMERABLE[name]
    model = tiny_model(found)
    unknown = ~model.given()
    x = every_image(found, unknown)
    label = torch.zeros(len(x), dtype=torch.long) if found.classes else None
    p = torch.exp2(-bits(model, x, label))
    entropy = float((p * -p.log2()).sum())
    chosen = torch.multinomial(p, 3000, True, generator=torch.Generator().manual_seed(0))
    x, label = x[chosen], None if label is None else label[chosen]
    data = compress(model, x, label=label)
    assert abs(float(bits(model, x, label).mean()) - entropy) < 0.01 * entropy  # by their number
    wanted = float(bits(model, x, label).sum())
    wanted += len(x) * math.log2(found.classes) if found.classes else 0
    stored = 0 if unknown.all() else 2 * len(x)  # deflated zeros, generously
    overhead = 8 * (70 + 16 * -(-len(x) // Codec(model).lanes)) + stored
    assert wanted < 8 * len(data) < 1.01 * wanted + overhead


def test_one_small_picture_takes_its_bits_and_what_docs_format_states():
    """Fixed are 5 bytes of mark, 8 of tail, 3 to 4 of a group, and the contents."""
    model = tiny_model(ENUMERABLE["2d"])
    x = every_image(model.config, ~model.given())
    p = torch.exp2(-bits(model, x))
    entropy = float((p * -p.log2()).sum())
    lengths = torch.tensor([8.0 * len(compress(model, one)) for one in x], dtype=torch.float64)
    fixed = 8 * len(compress(model, x[0])) - 64  # all but the stream, whose first state is 64 bits
    assert abs(float((p * lengths).sum()) - (fixed + 64)) <= 0.01 * (fixed + 64 + entropy)


def test_a_tiny_model_and_picture_compress_to_these_bytes():
    found = config((2, 3), channels=2, values=5)
    model = speaking(found)
    x = torch.arange(2 * 2 * 3 * 2).view(2, 2, 3, 2) * 7 % 5
    for given, overlap, wanted in ((x, None, GOLDEN), (x.flatten(0, 1), 1, GOLDEN_OVERLAP)):
        data = compress(model, given, overlap=overlap)
        assert data.hex() == wanted, data.hex()
        assert torch.equal(decompress(model, bytes.fromhex(wanted)), given)
    line, model = (
        torch.arange(46 * 2).view(46, 2) * 7 % 5,
        speaking(config((6,), channels=2, values=5)),
    )
    assert torch.equal(decompress(model, bytes.fromhex(GOLDEN_LARGE_REGIONS)), line)


GOLDEN_OVERLAP = (
    "8941584c03008aae09184adc38035a2a580100005527542e9d645f8825e8e7cff41497860202030205"
    "008040010401050001040300010d01d0183a222a0000007623610a"
)
GOLDEN_LARGE_REGIONS = (  # of eight tiles of a line, and of one
    "8941584c030030cd229a00000000dea9e2f2e63a48f14fc46e61eb916425b7a30840f9cc28314ae66955d0bb91"
    "6f0000d137c8e5f2dc0641502667ff150707e6010602050080400108010500012e000129028591998028000000"
    "8eb94d2c"
)
GOLDEN = (
    "8941584c0300726622a8c56e9a03180decbc00005527542e9d645f8825e8e7cff41497860202030205"
    "008040000101010002020300010d02f1684bd42a000000f9b5eeaa"
)


def on_borders(distance, only=slice(None)):
    """A model whose every logit, or that of one value, lies so far from a border of the grid."""
    model = tiny_model(config((3, 4), channels=2, values=5))
    torch.nn.init.zeros_(model.to_logits.weight)
    with torch.no_grad():
        model.to_logits.bias.copy_(torch.arange(5.0) * 20 / grid.GRID)
        model.to_logits.bias[only] += 0.5 / grid.GRID + distance
    return model


def noisy(monkeypatch, size, seed):
    """From now on every logit that is put on the grid is off by up to `size`."""
    exact, generator = grid.to_grid, torch.Generator().manual_seed(seed)

    def moved(logits):
        noise = torch.rand(logits.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return exact(logits + size * noise)

    monkeypatch.setattr(grid, "to_grid", moved)


@pytest.mark.parametrize("only", [slice(None), 3], ids=str)
@pytest.mark.parametrize("distance", [0.0, 2e-11, -2e-11, 9e-10])
def test_logits_off_by_what_machines_differ_decode_all_the_same(monkeypatch, distance, only):
    model = on_borders(distance, only)
    x, _ = examples(model.config)
    for given, overlap in ((x, 0), (x.flatten(0, 1), 1)):
        data = compress(model, given, lanes=2, overlap=overlap)
        with monkeypatch.context() as patch:
            noisy(patch, 1e-10, seed=0)
            assert torch.equal(decompress(model, data), given)


def test_without_the_notes_of_near_logits_they_would_not(monkeypatch):
    model = on_borders(0.0)
    x, _ = examples(model.config)
    monkeypatch.setattr(coding._Near, "note", lambda *_: None)
    files = [compress(model, x, lanes=2), compress(model, x.flatten(0, 1), lanes=2, overlap=1)]
    noisy(monkeypatch, 1e-10, seed=0)
    for data in files:
        with pytest.raises(StreamError, match=r"stream|pixels"):
            decompress(model, data)


def test_nothing_is_noted_of_what_a_tile_shares_with_those_before_it(monkeypatch):
    model, places = on_borders(0.0), set()
    x, _ = examples(model.config)
    picture, write = x.flatten(0, 1), coding._Near.bytes_of

    def noted(near, group):
        places.update((group, place) for place, _, _ in near.found[group])
        return write(near, group)

    monkeypatch.setattr(coding._Near, "bytes_of", noted)
    compress(model, picture, lanes=64, overlap=1)
    assert len(places) == picture.numel()


@pytest.mark.parametrize("seed", range(5))
def test_logits_off_by_more_are_caught(monkeypatch, seed):
    model = on_borders(5e-8)
    x, _ = examples(model.config)
    data = compress(model, x, lanes=2)
    noisy(monkeypatch, 1e-7, seed=seed)
    with pytest.raises(StreamError, match=r"stream|pixels"):
        decompress(model, data)


def test_notes_are_rare_and_small():
    """A logit in some 8 million lies within the tolerance of a border."""
    model = speaking(config((8, 8), channels=3, values=256))
    x, _ = examples(model.config, 4)
    region = Tiling(axes=model.config.axes).region(model.config.axes, 0)
    parts = [Part(region, one) for one in x.numpy()]
    group = coding.score(Codec(model).model, [parts], 0, 4)()[0]
    assert group[0] <= 1


def test_another_model_is_refused_by_name_and_the_same_in_another_precision_is_not(tmp_path):
    model = tiny_model(PLAIN, dtype=torch.float32)
    x, _ = examples(PLAIN)
    data = compress(model, x)
    assert torch.equal(decompress(model.double(), data), x)
    with pytest.raises(StreamError, match=r"written with model \w{8}, but this model is \w{8}"):
        decompress(tiny_model(PLAIN, seed=1), data)


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.zeros(3, 4, dtype=torch.long), "has shape"),
        (torch.zeros(1, 3, 4, 5, dtype=torch.long), "2 channels"),
        (torch.zeros(0, 3, 4, 2, dtype=torch.long), "has shape"),
        (torch.full((1, 3, 4, 2), 3), "holds 3"),
        (torch.zeros(1, 3, 4, 2), "torch.float32"),
    ],
)
def test_what_is_no_example_is_refused(x, words):
    with pytest.raises(InputError, match=words):
        compress(tiny_model(PLAIN), x)


def test_labels_that_do_not_fit_are_refused():
    x, _ = examples(PLAIN)
    with pytest.raises(InputError, match="leave label out"):
        compress(tiny_model(PLAIN), x, label=torch.zeros(5, dtype=torch.long))
    model = tiny_model(dataclasses.replace(PLAIN, classes=2))
    for label, words in [
        (None, "give label="),
        (torch.zeros(3, dtype=torch.long), r"give \(5,\)"),
        (torch.full((5,), 2), "holds 2"),
    ]:
        with pytest.raises(InputError, match=words):
            compress(model, x, label=label)


def test_a_model_whose_logits_are_no_numbers_or_too_large_is_refused():
    x, _ = examples(PLAIN)
    for scale in (math.nan, 1e6):
        model = tiny_model(PLAIN)
        with torch.no_grad():
            model.to_logits.weight.mul_(scale)
        with pytest.raises(InputError, match="can be coded"):
            compress(model, x)


def test_the_model_is_left_as_it_was():
    model = tiny_model(PLAIN, dtype=torch.float32).train()
    x, _ = examples(PLAIN)
    decompress(model, compress(model, x))
    assert model.training and next(model.parameters()).dtype == torch.float32
