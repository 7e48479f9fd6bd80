"""float32 is float32 in all that scores and draws, whatever the process allows torch to do."""

import pytest
import torch
from conftest import VARIANTS, random_input, tiny_model
from torch import backends

from axial import bits, bits_per_dim, complete, draw, element_bits, load
from axial.models.causal import order
from axial.sampling.noise import gumbel
from axial.system.devices import exact_float32

OPERATORS = [
    backends.cuda.matmul,
    backends.cudnn.conv,
    backends.cudnn.rnn,
    backends.mkldnn.matmul,
    backends.mkldnn.conv,
]
WITHIN = 2e-6
"""Bits/dim that a GPU may find otherwise than a CPU: float32 rounding over a thousand elements."""
TIE = 1e-3
"""Between two values whose scores are as close, rounding may decide."""


def settings():
    """All of them; the older ones cannot be read where the newer contradict them."""
    found = [operator.fp32_precision for operator in OPERATORS]
    for older in (torch.get_float32_matmul_precision, lambda: backends.cudnn.allow_tf32):
        try:
            found.append(older())
        except RuntimeError:
            found.append("contradicted")
    return found


def allow_by_older_setting():
    torch.set_float32_matmul_precision("medium")
    backends.cudnn.allow_tf32 = True


def allow_by_newer_setting():
    for operator in OPERATORS:
        operator.fp32_precision = "tf32"


def allow_convolutions_alone():
    backends.cudnn.conv.fp32_precision = "tf32"
    backends.cudnn.rnn.fp32_precision = "ieee"


@pytest.fixture
def as_before():
    """Every setting as it was, after a test that changes them."""
    matmul, cudnn = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    operators = [operator.fp32_precision for operator in OPERATORS]
    yield
    torch.set_float32_matmul_precision(matmul)
    backends.cudnn.allow_tf32 = cudnn
    for operator, precision in zip(OPERATORS, operators, strict=True):
        operator.fp32_precision = precision


@pytest.mark.parametrize(
    "allow",
    [lambda: None, allow_by_older_setting, allow_by_newer_setting, allow_convolutions_alone],
)
def test_float32_is_exact_inside_and_all_settings_are_as_before_after_it(allow, as_before):
    allow()
    before = settings()
    with pytest.raises(KeyError), exact_float32():
        assert settings()[: len(OPERATORS)] == ["ieee"] * len(OPERATORS)
        torch.ones(2, 2) @ torch.ones(2, 2)
        raise KeyError
    assert settings() == before


def test_threads_that_overlap_compute_exactly_and_leave_the_settings_as_they_were(as_before):
    allow_by_older_setting()
    before, first, second = settings(), exact_float32(), exact_float32()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as another thread may, before the one that came later
    assert backends.cudnn.conv.fp32_precision == "ieee"
    second.__exit__(None, None, None)
    assert settings() == before


@pytest.mark.parametrize("score", [bits, bits_per_dim, element_bits], ids=lambda f: f.__name__)
def test_scoring_is_exact_whatever_the_process_allows(score, as_before):
    allow_by_older_setting()
    model, seen = watched()
    x, _, _ = random_input(model.config, 2)
    score(model, x)
    assert seen == {"ieee"} and backends.cudnn.conv.fp32_precision == "tf32"


@pytest.mark.parametrize("method", ["cached", "semi-parallel", "naive"])
def test_drawing_and_completing_are_exact_whatever_the_process_allows(method, as_before):
    allow_by_older_setting()
    model, seen = watched()
    x, _, _ = random_input(model.config, 2)
    draw(model, 2, method=method)
    assert seen == {"ieee"}
    seen.clear()
    x[:, 1:] = -1
    complete(model, x, particles=3, method=method)
    assert seen == {"ieee"} and backends.cudnn.conv.fp32_precision == "tf32"


def watched():
    """A model, and what its convolution is allowed to compute in whenever it is called."""
    model, seen = tiny_model(VARIANTS["2d-channels"]), set()
    layer = model.encoder.convolution
    layer.register_forward_hook(lambda *_: seen.add(backends.cudnn.conv.fp32_precision))
    return model, seen


@pytest.fixture(scope="module")
def shipped():
    """The model of the package on both devices, and 16 pictures that it draws on the CPU."""
    on_cpu, on_gpu = load("cifar10").float(), load("cifar10", device="cuda").float()
    torch.set_num_threads(2)  # more of them stand still where tests run side by side
    drawn = draw(on_cpu, 16, batch=16)
    yield on_cpu, on_gpu, drawn
    torch.set_num_threads(1)


@pytest.mark.gpu
@pytest.mark.parametrize("score", [bits_per_dim, bits, element_bits], ids=lambda f: f.__name__)
def test_a_gpu_scores_the_shipped_model_as_a_cpu_does(score, shipped, as_before):
    on_cpu, on_gpu, x = shipped
    allow_by_older_setting()
    elements = 1 if score is bits_per_dim else on_cpu.config.elements
    apart = (score(on_gpu, x) - score(on_cpu, x)).flatten(1 if score is element_bits else 0)
    apart = apart.sum(1) if score is element_bits else apart
    assert apart.abs().max() / elements < WITHIN


@pytest.mark.gpu
def test_a_gpu_draws_from_the_shipped_model_what_a_cpu_draws(shipped, as_before):
    on_cpu, on_gpu, drawn = shipped
    allow_by_older_setting()
    check_but_for_ties(on_cpu, drawn, draw(on_gpu, 16, batch=16).cpu(), torch.arange(16))


@pytest.mark.gpu
def test_a_gpu_completes_by_the_shipped_model_what_a_cpu_completes(shipped, as_before):
    on_cpu, on_gpu, drawn = shipped
    allow_by_older_setting()
    given = drawn.clone()
    given[:, 20:] = -1
    one, other = (complete(m, given, batch=16).cpu() for m in (on_cpu, on_gpu))
    check_but_for_ties(on_cpu, one, other, torch.arange(16))


def check_but_for_ties(model, wanted, found, images):
    """Equal pictures, or at the first element that differs two values that were as good."""
    places = order(model.config)
    for image, one, other in zip(images, wanted, found, strict=True):
        differs = (one.flatten() != other.flatten())[places].nonzero()
        if not len(differs):
            continue
        element = int(places[differs[0]])
        logits = model.double()(one.unsqueeze(0)).flatten(0, -2)[element]
        model.float()
        noise = gumbel(0, image.view(1), torch.tensor([element]), model.config.values)[0, 0]
        scores = (logits + noise)[[int(x.flatten()[element]) for x in (one, other)]]
        assert (scores[0] - scores[1]).abs() < TIE, f"image {image}, element {element}"
