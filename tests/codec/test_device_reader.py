"""Groups read where the model is: what the host would read, and on a GPU without asking it."""

import itertools

import numpy as np
import pytest
import torch
from codec.test_codec import examples, noisy, on_borders, speaking
from codec.test_rans import STREAMS, VALUES, tables, written
from conftest import VARIANTS, config, tiny_model
from kernel_device import KERNEL_DEVICE
from models.test_families import ONE_EACH

import axial
from axial import StreamError, compress, decompress
from axial.codec import codec, device_reader, grid, rans
from axial.sampling.levels import InnerLevel

gpu = pytest.mark.gpu
LANES = 4


@pytest.fixture
def by_device(monkeypatch):
    """A CPU reads as a GPU does, but for its graphs and kernels; returns how many lines it was."""
    lines, settle = [], InnerLevel.settle

    def counted(self, line, *rest):
        lines.append(line.shape)
        return settle(self, line, *rest)

    monkeypatch.setattr(codec, "suits", lambda device, values: True)
    monkeypatch.setattr(InnerLevel, "settle", counted)
    return lines


@pytest.mark.parametrize("name", VARIANTS)
def test_what_comes_out_is_what_went_in(name, by_device):
    model = tiny_model(VARIANTS[name])
    x, label = examples(model.config)
    assert torch.equal(decompress(model, compress(model, x, label=label, lanes=2)), x)
    assert by_device


@pytest.mark.parametrize("found", ONE_EACH, ids=lambda c: type(c).__name__)
def test_every_family_is_read_so(found, by_device):
    model = speaking(found)
    larger = torch.randint(found.values, (*(n + 1 for n in found.axes), found.channels))
    for overlap in (0, 1):
        data = compress(model, larger, lanes=3, overlap=overlap)
        assert torch.equal(decompress(model, data), larger)


@pytest.mark.parametrize("mode", ["encode", "rows", "columns"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_hangs_over_and_the_planes_of_grey_follow(mode, channels, by_device):
    layers = {} if mode == "encode" else {"encoder_layers": 0}
    model = tiny_model(config((3, 4), channels=3, channel_mode=mode, **layers))
    x = torch.randint(3, (2, 5, 7, channels))
    for batch, overlap in itertools.product((1, 64), (0, 1)):
        data = compress(model, x, lanes=3, overlap=overlap)
        assert torch.equal(decompress(model, data, batch=batch), x)


@pytest.mark.parametrize("only", [slice(None), 3], ids=str)
@pytest.mark.parametrize("distance", [0.0, -2e-11, 9e-10])
def test_logits_near_a_border_go_the_way_that_was_noted(monkeypatch, distance, only, by_device):
    model = on_borders(distance, only)
    x, _ = examples(model.config)
    data = compress(model, x, lanes=2)
    noisy(monkeypatch, 1e-10, seed=0)
    assert torch.equal(decompress(model, data), x)


def test_planes_that_follow_are_not_walked(by_device):
    model = tiny_model(config((3, 4), channels=3))
    x = torch.randint(3, (2, 3, 4, 3))
    for given, lines in ((x, 9), (x[..., :1], 3)):
        by_device.clear()
        decompress(model, compress(model, given))
        assert len(by_device) == lines


def test_a_line_may_take_a_word_for_every_element_of_every_lane(by_device):
    model = speaking(config((2, 6), values=1000))
    x, _ = examples(model.config, 20)
    assert torch.equal(decompress(model, compress(model, x, lanes=10)), x)


def test_other_logits_are_refused(monkeypatch, by_device):
    model = on_borders(5e-8)
    x, _ = examples(model.config)
    data = compress(model, x, lanes=2)
    noisy(monkeypatch, 1e-7, seed=1)
    with pytest.raises(StreamError, match=r"stream|pixels"):
        decompress(model, data)


def test_a_stream_that_lost_its_last_word_is_refused(monkeypatch, by_device):
    model = tiny_model(config((3, 4), channels=2, values=40))
    x, _ = examples(model.config)
    data = compress(model, x, lanes=2)
    whole = codec.GroupReader.__init__
    monkeypatch.setattr(
        codec.GroupReader,
        "__init__",
        lambda self, config, groups, *rest: whole(self, config, [g[:-4] for g in groups], *rest),
    )
    with pytest.raises(StreamError, match="ends before its last value"):
        decompress(model, data)


def lanes_and_streams(device="cpu"):
    """Streams of some lanes each: what tells them apart, and the values that went in."""
    bounds, values = tables()
    wanted = np.random.default_rng(1).random(values.shape) < 0.8
    streams, _ = written(bounds, values, wanted)
    state, words, places = rans.Reader(streams).progress()
    steps = len(values) // LANES
    ahead = np.minimum(places[:, None] + np.arange(len(values)), len(words) - 1)
    tensors = [state, np.zeros_like(places), words[ahead]]
    state, taken, words = (torch.from_numpy(t.astype(np.int64)).to(device) for t in tensors)
    bounds, values, wanted = (
        torch.from_numpy(t.astype(kind)).view(steps, LANES, STREAMS, -1).movedim(2, 1).to(device)
        for t, kind in ((bounds, np.int64), (values, np.int64), (wanted, bool))
    )
    return state, taken, words, bounds.flatten(1, 2), values.flatten(1), wanted.flatten(1)


def check_lanes(read_lanes, device="cpu"):
    state, taken, words, bounds, values, wanted = lanes_and_streams(device)
    assert bounds.shape[-1] == VALUES + 1
    for step, want in enumerate(wanted):
        found = read_lanes(state, taken, words, bounds[step], want)
        assert torch.equal(found[want], values[step][want]), step
    assert (state ^ (1 << rans.SEAL_BITS)).tolist() == [1, 2, 2**31 - 1]


def test_lanes_take_turns_at_their_stream_and_leave_its_seal():
    check_lanes(device_reader.read_lanes_plainly)


@pytest.mark.kernel
def test_the_kernel_reads_what_plain_operations_read():
    from axial.codec.rans_triton import read_lanes

    check_lanes(read_lanes, KERNEL_DEVICE)


@gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_cpu_wrote_a_gpu_reads_without_the_host(name):
    model = tiny_model(VARIANTS[name])
    x, label = examples(model.config)
    data = compress(model, x, label=label, lanes=2)
    for batch in (1, 64):  # the second batch of the first replays what was recorded
        assert torch.equal(decompress(model.cuda(), data, batch=batch), x)


@gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_tiles_that_overlap_are_read_run_by_run_on_a_gpu(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    label = torch.zeros(1, dtype=torch.long) if found.classes else None
    x = torch.randint(3, (1, *(2 * n + 1 for n in found.axes), found.channels))
    data = compress(model, x, label=label, overlap=1)
    assert torch.equal(decompress(model.cuda(), data), x)


@gpu
def test_tiles_of_the_shipped_model_go_from_gpu_to_cpu_and_back():
    model = axial.load("cifar10")
    x = axial.draw(model, 4, seed=0)
    on_cpu, on_gpu = compress(model, x), compress(axial.load("cifar10").cuda(), x)
    assert torch.equal(decompress(axial.load("cifar10").cuda(), on_cpu), x)
    assert torch.equal(decompress(model, on_gpu), x)


@gpu
def test_a_line_on_a_gpu_waits_for_nothing(monkeypatch):
    """The host hands over a line and looks at no number of it."""
    model = speaking(config((4, 6), channels=3, values=20)).cuda()
    x, _ = examples(model.config)
    data = compress(model, x)
    asked = []
    monkeypatch.setattr(InnerLevel, "ask", lambda *_: asked.append(1))
    assert torch.equal(decompress(model, data), x) and not asked


@pytest.mark.kernel
@pytest.mark.parametrize("values", [2, 3, 256, 1000])
def test_the_kernel_finds_the_shares_that_plain_operations_find(values):
    from axial.codec.grid_triton import shares

    rng = np.random.default_rng(values)
    logits = rng.normal(0, 8, (12, values))
    logits[:4] = (rng.integers(-900, 900, (4, values)) + 0.5) / grid.GRID  # on borders, all of them
    logits[4:6, values // 2 :] = -400  # beyond the table
    notes = rng.choice([-1, -1, 0, 1], (12, values)).astype(np.int8)
    notes[6:] = -1
    biases = rng.integers(-127, 128, (12, values)).astype(np.int8)
    biases[7, ::2], biases[8] = grid.ABSENT, grid.ABSENT
    biases[9:] = 0
    given = [torch.from_numpy(t).to(KERNEL_DEVICE) for t in (logits, notes, biases)]
    wanted = device_reader.shares_plainly(*given)
    assert torch.equal(shares(*given), wanted)
    scattered = [torch.stack([t, t], -1)[..., 0] for t in given]
    assert torch.equal(shares(*scattered), wanted)
