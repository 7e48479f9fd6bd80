"""What runs on a GPU keeps its tensors there: everything that takes a device, on a pretended one.

`pretend_cuda` refuses what a GPU refuses. Machines without one so see each mistake that would
else wait for the next run on a GPU.
"""

import io
import threading

import numpy as np
import pytest
import torch
from codec.test_codec import sizes_of_decoders
from conftest import config, normal, random_input, tiny_model
from pretend_cuda import DeviceError, WaitError, pretend_cuda

import axial
from axial import TrainConfig, bits, complete, compress, decompress, draw, stream
from axial.codec import codec
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.models.blocks_config import BlocksConfig
from axial.models.families import new_model
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.system.cuda_graph import CudaGraph
from axial.training.config import Recipe

AXIAL = {
    "encode": config((3, 4), channels=3, values=5),
    "rows": config((3, 4), channels=2, channel_mode="rows"),
    "lstm": config((3, 4), channels=2, inner="lstm"),
    "clip": config((3, 2, 3), channels=2, given_steps=1),
    "labels": config((3, 4), channels=2, classes=3),
    "given": config((3, 4), channels=3, given_channels=1),
}
SMALL = {"axes": (4, 4), "channels": 2, "values": 5}
HEADS = SMALL | {"width": 8, "heads": 2}
OTHERS = {
    "full": FullConfig(layers=1, **HEADS),
    "strided": StridedConfig(layers=2, **HEADS),
    "gated-pixelcnn": GatedPixelCnnConfig(layers=2, width=8, **SMALL),
    "pixelcnn++": PixelCnnPpConfig(axes=(4, 4), channels=2, width=4, layers=1, components=2),
    "local-1d": Local1dConfig(layers=1, block=5, **HEADS),
    "local-2d": Local2dConfig(layers=1, block=(2, 4), flange=(1, 2), **HEADS),
    "blocks": BlocksConfig(encoder_layers=1, layers=1, head_width=4, subscale=(2, 1), **HEADS),
}


def speaking(config):
    """A model of any family in float64, its weights drawn by numpy."""
    if config in AXIAL.values():
        return tiny_model(config)
    model = new_model(config).double().eval()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = 0.3 * normal(*parameter.shape, seed=number)
    return model


@pytest.fixture
def gpu(monkeypatch):
    with pretend_cuda(monkeypatch) as places:
        yield places


@pytest.fixture(params=AXIAL | OTHERS)
def pair(request, gpu):
    """A model on the CPU, the same on the GPU, examples and labels."""
    found = (AXIAL | OTHERS)[request.param]
    x, label, _ = random_input(found, 3)
    return speaking(found), speaking(found).cuda(), x, label


def test_tensors_of_two_devices_do_not_meet(gpu):
    near, far = torch.ones(3), torch.ones(3, device="cuda")
    assert far.device.type == "cuda" and (2 * far).cpu().device == near.device == torch.device(
        "cpu"
    )
    assert torch.equal(far[torch.arange(2)], torch.tensor(1.0) * far[:2])  # both are allowed
    for wrong in (
        lambda: near + far,
        lambda: torch.cat([near, far]),
        lambda: near[far.long()],
        lambda: torch.where(far > 0, near, far),
        lambda: torch.nn.Linear(3, 3)(far),
    ):
        with pytest.raises(DeviceError):
            wrong()
    with pytest.raises(TypeError, match="cpu"):
        far.numpy()


def test_a_cuda_graph_computes_when_it_is_replayed_and_waits_for_nothing(gpu):
    total = torch.zeros(2, device="cuda")
    graph = CudaGraph(lambda x: total.add_(x) * 2, torch.ones(2, device="cuda"), ready=True)
    assert total.tolist() == [0, 0]
    assert graph.replay(torch.tensor([1.0, 5.0])).tolist() == [2, 10] and total.tolist() == [1, 5]
    for wrong in (
        lambda x: x[x > 0],
        lambda x: x + float(x[0]),
        lambda x: x + torch.ones(2).to(x.device),
    ):
        with pytest.raises(WaitError):
            CudaGraph(wrong, total, ready=True)


def test_threads_capture_one_after_the_other(gpu):
    """To begin a capture waits for the whole device, and breaks the capture of another thread."""
    x, errors = torch.ones(2, device="cuda"), []

    def capture(run):
        try:
            CudaGraph(run, x, ready=True)
        except WaitError as error:
            errors.append(error)

    other = threading.Thread(target=capture, args=[torch.neg])

    def slow(x):
        other.start()
        other.join(0.2)
        return x + 1

    capture(slow)
    other.join()
    assert not errors


def on_gpu(*inputs):
    return [None if t is None else t.cuda() for t in inputs]


@pytest.mark.parametrize("waiting", [False, True])
def test_a_gpu_scores(pair, waiting):
    model, far, x, label = pair
    found = bits(far, *(x, label) if waiting else on_gpu(x, label))
    torch.testing.assert_close(found.cpu(), bits(model, x, label))


def test_a_gpu_draws_and_streams(pair):
    model, far, x, label = pair
    given = torch.where(model.given(), x, -1)
    near = draw(model, 3, given=given, label=label, batch=2)
    assert torch.equal(draw(far, 3, given=given, label=label, batch=2).cpu(), near)
    there = on_gpu(given, label)
    *_, last = stream(far, 3, given=there[0], label=there[1], batch=2)
    assert torch.equal(last.cpu(), near)


def test_a_gpu_completes(pair):
    model, far, x, label = pair
    known = x.clone()
    known[:, -1] = -1  # a prefix of each channel
    if model.config.given_channels:
        known[..., : model.config.given_channels] = x[..., : model.config.given_channels]
    particles = 1 if model.family == "local-2d" else 2
    near, there = (complete(each, known, particles=particles, label=label) for each in (model, far))
    assert torch.equal(there.cpu(), near)


def test_a_gpu_compresses_and_decompresses(pair):
    model, far, x, label = pair
    data = compress(far, *on_gpu(x), label=label)
    assert data == compress(model, x, label=label)
    assert torch.equal(decompress(far, data), x) and torch.equal(decompress(model, data), x)


@pytest.mark.parametrize("many, wanted", [(1, [2, 4, 16, 32]), (9, [4, 16, 32]), (99, [4, 32])])
def test_a_gpu_decodes_runs_of_all_widths_by_decoders_of_at_most_two_sizes(
    gpu, monkeypatch, many, wanted
):
    monkeypatch.setattr(codec, "_MANY", many)
    sizes, model = sizes_of_decoders(monkeypatch), tiny_model(config((4, 4)))
    pictures = [Example(np.full((26, 52, 1), i)) for i in range(2)]  # 4 x 4 tiles a region
    own, file = Codec(model.cuda(), lanes=16, overlap=1), io.BytesIO()
    entries = [(Entry(name=f"{i}", grid=x.x.shape[:2]), [x]) for i, x in enumerate(pictures)]
    own.write(file, own.contents(), entries)
    for batch in (4, 32):
        back = [e.x for _, e in own.read(file, read_contents(file), batch=batch)]
        assert all(np.array_equal(a, b.x) for a, b in zip(back, pictures, strict=True))
    assert sorted(sizes) == wanted  # each is made once


def test_a_gpu_fits_palettes(gpu):
    model = speaking(AXIAL["encode"])
    picture = torch.randint(model.config.values - 1, (40, 40, model.config.channels))
    data = compress(speaking(AXIAL["encode"]).cuda(), picture.cuda())
    contents = read_contents(io.BytesIO(data))
    assert contents.entries[0].palette and data == compress(model, picture)
    assert torch.equal(decompress(model, data), picture)


def test_a_gpu_evaluates(pair):
    model, far, x, label = pair
    near, there = (axial.evaluate(each, x, label) for each in (model, far))
    assert there.bits_per_dim == pytest.approx(near.bits_per_dim)


@pytest.mark.parametrize(
    ("family", "optimizer"),
    [*((family, "adamw") for family in ["lstm", *OTHERS]), ("encode", "muon")],
)
def test_a_gpu_trains(gpu, family, optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr("axial.training.metrics.matrix_peak", lambda *args: 1e12)  # of a real one
    found = (AXIAL | OTHERS)[family]
    x = np.random.default_rng(0).integers(found.values, size=(40, *found.axes, found.channels))
    settings = {"steps": 6, "batch": 4, "save_every": 3, "validate_every": 6, "sample_every": 0}
    how = TrainConfig(
        learning_rate=1e-3, optimizer=optimizer, precision="float32", labels=False, **settings
    )
    near, far = (
        axial.train(Recipe(model=found, training=how), data=x, out=tmp_path / device, device=device)
        for device in ("cpu", "cuda")
    )
    assert far.best == pytest.approx(near.best, rel=1e-4)
