import math

import pytest
import torch
from conftest import config
from kernel_device import KERNEL_DEVICE

from axial.sampling.noise import SeededNoise, _uniform, _word, gumbel, threefry


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # the known answers published with the generator
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_generator_gives_its_known_answers(key, counter, words):
    as_int32 = lambda word: torch.tensor(word).to(torch.int32)  # noqa: E731
    found = threefry(*map(as_int32, key), *map(as_int32, counter))
    assert tuple(int(word) & 0xFFFFFFFF for word in found) == words


def test_noise_is_what_it_was():
    """The rule is fixed: a seed gives the same picture for good."""
    noise = gumbel((5 << 32) | 7, torch.tensor([3, 1 << 40]), torch.tensor([0, 9]), 300)
    recorded = [
        [2.513690533130266, -0.06865653070862812],
        [1.3324687046695471, 0.11124145317583237],
    ]
    expected = torch.tensor(recorded, dtype=torch.float64)
    torch.testing.assert_close(noise[:, :, 299], expected, rtol=1e-13, atol=0)
    for seed in (0x7FFFFFFF, 0x80000000, (1 << 64) - 1):
        assert gumbel(seed, torch.arange(2), torch.arange(2), 3).isfinite().all()


def test_noise_depends_on_seed_image_element_and_value_and_nothing_else():
    images, elements = torch.arange(5), torch.arange(7)
    whole = gumbel(3, images, elements, 11)
    for b in range(5):
        for e in range(7):
            assert torch.equal(
                gumbel(3, images[b : b + 1], elements[e : e + 1], 6),
                whole[b : b + 1, e : e + 1, :6],
            )
    assert whole.unique().numel() == whole.numel()
    for other in (gumbel(4, images, elements, 11), gumbel(3 + (1 << 32), images, elements, 11)):
        assert not (whole == other).any()
    far = gumbel(3, images + (1 << 32), elements, 11)
    assert not (whole == far).any()


def test_noise_is_standard_gumbel():
    noise = gumbel(0, torch.arange(100), torch.arange(100), 100).flatten()
    count = len(noise)
    assert noise.mean().item() == pytest.approx(0.5772157, abs=5 * 1.2825 / math.sqrt(count))
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.01)
    # Kolmogorov-Smirnov: largest distance to exp(-exp(-x)), 0.1 % level.
    uniform = (-(-noise).exp()).exp().sort().values
    steps = torch.arange(1, count + 1) / count
    assert (uniform - steps).abs().max() < 1.95 / math.sqrt(count)


def test_extreme_bits_are_half_a_step_of_52_bits_from_0_and_1(monkeypatch):
    half = 53 * math.log(2)
    for word, wanted in ((0, -math.log(half)), (0xFFFFFFFF, half)):
        extreme = torch.tensor([[[word]]]).to(torch.int32)
        answer = lambda *args, w=extreme: (w.clone(), w.clone())  # noqa: E731
        monkeypatch.setattr("axial.sampling.noise.threefry", answer)
        found = gumbel(0, torch.arange(1), torch.arange(1), 1)
        assert found.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_noise():
    images, elements = torch.arange(64), torch.arange(300)
    here = gumbel(12345678901234567890, images, elements, 256)
    there = gumbel(12345678901234567890, images.cuda(), elements.cuda(), 256).cpu()
    torch.testing.assert_close(there, here, rtol=1e-14, atol=1e-14)
    words = [
        threefry(7, 9, images.int().to(device), elements[:64].int().to(device))
        for device in ("cpu", "cuda")
    ]
    assert all(torch.equal(a, b.cpu()) for a, b in zip(*words, strict=True))


@pytest.mark.kernel
@pytest.mark.parametrize("values", [2, 256, 300])
def test_the_kernel_makes_the_same_noise_of_the_same_bits(values):
    from axial.sampling import noise_triton as kernels

    image = torch.tensor([0, 3, (1 << 40) + 1, (1 << 63) - 1], device=KERNEL_DEVICE)
    element = torch.tensor([0, 9, 77, 12287, 1 << 33], device=KERNEL_DEVICE)
    for seed in (0, 1, 0x7FFFFFFF, 0x80000000, 12345678901234567890, (1 << 64) - 1):
        given = _word(seed), _word(seed >> 32), image, element, values
        uniform = _uniform(*given)
        assert torch.equal(kernels.uniform(*given), uniform)
        wanted = -(-uniform.log()).log()
        torch.testing.assert_close(kernels.gumbel(*given), wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_noise_of_a_drawing_is_scaled_by_its_temperature(temperature):
    found = config((2, 3), values=5)
    noise = SeededNoise(3, torch.arange(2), found, temperature)
    plain = gumbel(3, torch.arange(2), torch.arange(6), 5)
    assert torch.equal(noise(torch.arange(3)), temperature * plain[:, :3])
    assert torch.equal(noise(torch.arange(3, 6)), temperature * plain[:, 3:])
