"""Every family beside the axial one: who sees whom, that it is a distribution, its caches."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from blocks_reach import BLOCKS, blocks_reach
from conftest import normal
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import axial
from axial import ConfigError, bits, draw
from axial.models.blocks_config import BlocksConfig
from axial.models.cost import forward_flops
from axial.models.families import new_model
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig

SMALL = {"values": 3, "width": 8, "heads": 2, "mlp_ratio": 2, "qk_ratio": 0.5}
FULL = [FullConfig(axes=axes, channels=2, layers=2, **SMALL) for axes in [(4,), (2, 3), (2, 2, 2)]]
STRIDED = [
    StridedConfig(axes=axes, channels=2, layers=4, stride=stride, **SMALL)
    for axes, stride in [((6,), 3), ((3, 4), None), ((2, 2, 3), 4), ((3, 2), 2)]
]
LOCAL = {"values": 3, "width": 8, "heads": 2, "mlp_ratio": 2, "layers": 3, "channels": 2}
LOCAL_1D = [
    Local1dConfig(axes=axes, block=block, **LOCAL)
    for axes, block in [((7,), 4), ((2, 4), 3), ((2, 2, 2, 2), 5), ((2, 3), 7)]
]
LOCAL_2D = [
    Local2dConfig(axes=(4, 3), block=(2, 3), flange=(1, 2), **LOCAL),
    Local2dConfig(axes=(4, 2), block=(2, 2), flange=(2, 0), norm="pre", **LOCAL),
    Local2dConfig(axes=(2, 4), block=(1, 4), flange=(1, 3), position_kind="learned", **LOCAL),
]
PIXELCNN = [
    GatedPixelCnnConfig(axes=axes, channels=channels, values=3, width=24, layers=3, **kernels)
    for axes, channels, kernels in [
        ((4, 5), 2, {"first_kernel": 3}),
        ((3, 4), 3, {"first_kernel": 5, "kernel": 1}),
        ((5, 3), 1, {"first_kernel": 3, "kernel": 5}),
    ]
]
PIXELCNNPP = [
    PixelCnnPpConfig(axes=axes, channels=channels, width=4, layers=1, components=2)
    for axes, channels in [((4, 8), 2), ((8, 4), 1)]
]
SEQUENCES = FULL + STRIDED
ALL = SEQUENCES + LOCAL_1D + LOCAL_2D + PIXELCNN + BLOCKS + PIXELCNNPP
ENUMERABLE = [FULL[1], STRIDED[1], LOCAL_1D[1], LOCAL_2D[0], PIXELCNN[0], BLOCKS[1]]
ONE_EACH = [*ENUMERABLE, PIXELCNNPP[0]]


def name(config):
    size = getattr(config, "stride", getattr(config, "block", config.channels))
    size = getattr(config, "subscale", size)
    return f"{type(config).__name__}-{'x'.join(map(str, config.axes))}-{size}"


def speaking(config, seed=0):
    """A model in float64 in which every layer speaks."""
    model = new_model(config).double().eval()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        std = 1.5 if name.endswith(".g") else 0.3  # more, and softmax sees one key alone
        parameter.data = std * normal(*parameter.shape, seed=(seed, number))
    return model


def see(config, layer):
    """The mask of a layer, by the formulas of the papers."""
    i, j = np.indices((config.length, config.length))
    stride = getattr(config, "stride", None)
    earlier = j <= i
    if isinstance(config, Local1dConfig):
        block = config.length if config.length < 2 * config.block else config.block
        return earlier & (i // block - j // block <= 1)
    if isinstance(config, Local2dConfig):
        (high, wide), (above, beside) = config.block, config.flange
        row, column = (part[config.order()] for part in np.divmod(i[:, 0], config.grid[1]))
        top, left = (row // high * high)[:, None], (column // wide * wide)[:, None]
        left_of, right_of = column >= left - beside, column < left + wide + beside
        over = (top - above <= row) & (row < top) & left_of & right_of
        aside = (top <= row) & (row < top + high) & left_of & (column < left)
        return over | aside | (earlier & (i // config.query == j // config.query))
    return {
        "full": lambda: earlier,
        "local": lambda: earlier & (i - j < stride),
        "strided": lambda: earlier & ((i - j) % stride == 0),
    }[config.pattern(layer)]()


def pixelcnn_reach(config):
    """What each prediction of a Gated PixelCNN depends on, tap by tap."""
    (high, wide), groups = config.axes, range(config.channels)
    pixels = list(itertools.product(range(high), range(wide)))
    v = {(y, x): {(y, x, g) for g in groups} for y, x in pixels}
    h = {(y, x, g): {(y, x, g)} for y, x in pixels for g in groups}
    for layer in range(config.layers):
        m = (config.kernel if layer else config.first_kernel) // 2
        above, c = {}, {}
        for y, x in pixels:
            taps = itertools.product(range(y - m, y + 1), range(x - m, x + m + 1))
            above[y, x] = set().union(*(v.get(tap, set()) for tap in taps))
            for g in groups:
                left = (h.get((y, x - d, k), set()) for d in range(1, m + 1) for k in groups)
                own = (h[y, x, k] for k in groups if (k <= g if layer else k < g))
                c[y, x, g] = set().union(*left, *own, above.get((y - 1, x), set()))
        h = {
            (y, x, g): set().union(
                *(c[y, x, k] for k in groups if k <= g), h[y, x, g] if layer else ()
            )
            for y, x, g in h
        }
        v = above
    found = np.zeros((*config.axes, config.channels) * 2, bool)
    for y, x, g in h:
        for seen in set().union(*(h[y, x, k] for k in groups if k <= g)):
            found[(y, x, g, *seen)] = True
    return found.reshape(len(h), len(h))


def pixelcnnpp_reach(axes, layers):
    """Which pixels each pixel of a PixelCNN++ depends on, tap by tap: (pixel, pixel)."""
    count = axes[0] * axes[1]

    def moved(z, down, right):
        (high, wide), out = z.shape[:2], np.zeros_like(z)
        here = np.s_[max(down, 0) : high + min(down, 0), max(right, 0) : wide + min(right, 0)]
        there = np.s_[max(-down, 0) : high - max(down, 0), max(-right, 0) : wide - max(right, 0)]
        out[here] = z[there]
        return out

    def conv(z, rows, columns):
        return np.logical_or.reduce([moved(z, i, j) for i in range(rows) for j in columns])

    def u_conv(z):
        return conv(z, 2, (-1, 0, 1))

    def ul_conv(z):
        return conv(z, 2, (0, 1))

    def double(z, taps, first):
        out = np.zeros((2 * z.shape[0], 2 * z.shape[1] + 1, count), bool)
        for i in (0, 1):
            for j in taps:
                out[i::2, j : j + 2 * z.shape[1] - 1 : 2] |= z
        return out[:, first : first + 2 * z.shape[1]]

    def block(z, told, conv):
        return z | conv(conv(z) | told)

    x = np.eye(count, dtype=bool).reshape(*axes, count)
    us = [moved(u_conv(x), 1, 0)]
    uls = [moved(conv(x, 1, (-1, 0, 1)), 1, 0) | moved(conv(x, 2, (0,)), 0, 1)]
    for stage in range(3):
        for _ in range(layers):
            us.append(block(us[-1], False, u_conv))
            uls.append(block(uls[-1], us[-1], ul_conv))
        if stage < 2:
            us.append(u_conv(us[-1])[::2, ::2])
            uls.append(ul_conv(uls[-1])[::2, ::2])
    u, ul = us.pop(), uls.pop()
    for stage in range(3):
        for _ in range(layers + (stage > 0)):
            u = block(u, us.pop(), u_conv)
            ul = block(ul, u | uls.pop(), ul_conv)
        if stage < 2:
            u, ul = double(u, (0, 1, 2), 1), double(ul, (0, 1), 0)
    assert not us and not uls
    return ul.reshape(count, count)


def reach(config, layers):
    """What each prediction depends on after some layers: position i carries element i - 1."""
    if isinstance(config, GatedPixelCnnConfig):
        return pixelcnn_reach(config)
    if isinstance(config, BlocksConfig):
        return blocks_reach(config)
    if isinstance(config, PixelCnnPpConfig):
        pixels, channels = pixelcnnpp_reach(config.axes, layers), config.channels
        inside = np.kron(np.eye(len(pixels)), np.tri(channels, k=-1))
        return np.kron(pixels, np.ones((channels, channels))) + inside > 0
    seen = np.eye(config.length, dtype=bool)
    for layer in range(layers):
        seen = (see(config, layer).astype(int) @ seen.astype(int)) > 0
    return np.pad(seen[:, 1:], ((0, 0), (0, 1)))


def dependence(model):
    """Which logits move with which element, in the order of prediction, for any of some pictures.

    In one of them a rectifier may hide what an element does.
    """
    config, order = model.config, model.order()
    shape = (2, *config.axes, config.channels)
    pictures = torch.from_numpy(np.random.default_rng(0).integers(config.values, size=shape))
    moved = np.zeros((len(order), len(order)), bool)
    for x in pictures.split(1):
        changed = x.flatten(1).repeat(len(order), 1)
        changed[range(len(order)), order] += config.values // 2
        both = torch.cat([x, changed.view(-1, *x.shape[1:]) % config.values])
        with torch.no_grad():
            before, after = model(both).flatten(1, -2)[:, order].split([1, len(order)])
        moved |= ((after - before).abs().amax(-1) > 1e-12).T.numpy()
    return moved


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_prediction_depends_on_exactly_what_the_masks_promise(config, layers):
    if layers > config.layers:
        layers = config.layers
    config = dataclasses.replace(config, layers=layers)
    assert np.array_equal(dependence(speaking(config)), reach(config, layers))


@pytest.mark.parametrize("config", STRIDED, ids=name)
def test_two_layers_of_different_patterns_see_everything_before(config):
    for cycle in (("strided", "local"), ("local", "strided")):
        both = dataclasses.replace(config, layers=2, cycle=cycle)
        every = np.tri(config.length, k=-1, dtype=bool)
        assert np.array_equal(reach(both, 2), every)


@pytest.mark.parametrize("config", ENUMERABLE, ids=name)
def test_probabilities_of_all_pictures_add_up_to_one(config):
    smaller = {Local2dConfig: {"block": (1, 2), "flange": (1, 1)}, Local1dConfig: {"block": 2}}
    smaller |= {BlocksConfig: {"subscale": (3,), "block_shapes": None, "kernel": None}}
    smaller = (smaller | {StridedConfig: {"stride": 2}}).get(type(config), {})
    axes = (3, 1) if isinstance(config, Local2dConfig | GatedPixelCnnConfig) else (3,)
    model = speaking(dataclasses.replace(config, axes=axes, channels=2, classes=2, **smaller))
    every = torch.tensor(list(itertools.product(range(3), repeat=6))).view(-1, *axes, 2)
    label = torch.ones(len(every), dtype=torch.long)
    assert abs(float((2.0 ** -bits(model, every, label)).sum()) - 1) < 1e-12


@pytest.mark.parametrize("config", ALL, ids=name)
def test_cached_drawing_equals_naive(config):
    config = dataclasses.replace(config, classes=2)
    model = speaking(config)
    context = torch.randn(3, *config.axes, config.width, dtype=torch.float64)
    how = {"seed": 3, "label": torch.tensor([0, 1, 1]), "context": context}
    x = draw(model, 3, **how)
    assert torch.equal(x, draw(model, 3, method="naive", **how))
    given = torch.where(torch.rand(x.shape) < 0.4, x, -1)
    again = draw(model, 3, given=given, **how)
    assert torch.equal(again, draw(model, 3, given=given, method="naive", **how))
    assert torch.equal(torch.stack(list(axial.stream(model, 3, **how)))[-1], x)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_steps_give_the_logits_of_the_whole_pass(config):
    model = speaking(config)
    x = torch.randint(config.values, (2, *config.axes, config.channels))
    whole = model(x).flatten(1, -2)
    with torch.no_grad():
        steps = model.steps(x)
        stepped = torch.stack([steps.logits(rank) for rank in range(x[0].numel())], 1)
    torch.testing.assert_close(stepped, whole[:, model.order()], atol=1e-12, rtol=0)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_an_untrained_model_knows_nothing_and_examples_do_not_mix(config):
    x = torch.randint(config.values, (2, *config.axes, config.channels))
    if config in SEQUENCES + PIXELCNN + BLOCKS:
        model = new_model(config).double()
        assert (axial.bits_per_dim(model, x) - np.log2(3)).abs().max() < 1e-12
    model = speaking(config)
    changed = torch.cat([x[:1], (x[1:] + 1) % 3])
    assert torch.equal(model(x)[0], model(changed)[0])


@pytest.mark.parametrize("config", ALL, ids=name)
def test_costs_are_counted_from_the_configuration(config):
    config = dataclasses.replace(config, classes=3)
    model = speaking(config)
    assert config.parameters() == sum(p.numel() for p in model.parameters())
    x = torch.zeros(1, *config.axes, config.channels, dtype=torch.long)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        model(x, torch.tensor([0]))
    assert forward_flops(config) == counted.get_total_flops()
    if not isinstance(config, GatedPixelCnnConfig | BlocksConfig | PixelCnnPpConfig):
        assert sum(see(config, 0).ravel()) == config.pairs(0)


@pytest.mark.parametrize("config", ONE_EACH, ids=name)
def test_a_saved_model_is_loaded_as_its_family(config, tmp_path):
    model = speaking(config)
    axial.save(model, tmp_path / "model")
    found = axial.load(tmp_path / "model")
    assert type(found) is type(model) and found.config == config
    assert axial.fingerprint(found) == axial.fingerprint(model)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (StridedConfig, {"stride": 5}, "stride is 5, which does not divide the 12 elements"),
        (StridedConfig, {"stride": 0}, "stride is 0"),
        (StridedConfig, {"cycle": ()}, r"cycle is \(\): name the pattern"),
        (StridedConfig, {"cycle": ("diagonal",)}, "cycle is 'diagonal': use one of full, strided"),
        (FullConfig, {"qk_ratio": 0.4}, "qk_ratio is 0.4: queries of 3.2 features"),
        (FullConfig, {"heads": 3}, "width 8 does not split into 3 heads"),
        (FullConfig, {"given_channels": 1}, "given_channels is 1, which a sequence of elements"),
    ],
)
def test_what_cannot_work_is_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**{"axes": (2, 3), "channels": 2, "layers": 1} | SMALL | settings)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Local1dConfig, {"block": 0}, "block is 0"),
        (Local1dConfig, {"norm": "both"}, "norm is 'both': use one of post, pre"),
        (Local1dConfig, {"given_channels": 1}, "given_channels is 1, which a sequence of elements"),
        (
            Local2dConfig,
            {"block": (2, 5)},
            "but 6 elements do not split into 5",
        ),
        (Local2dConfig, {"block": (3, 6)}, "but 2 rows do not split into 3"),
        (Local2dConfig, {"block": 4}, "block is 4: give rows, and elements of a row"),
        (Local2dConfig, {"axes": (2, 3, 4)}, "local-2d is for pictures"),
        (Local2dConfig, {"flange": (3, 1)}, r"flange is \(3, 1\): the picture has \(2, 6\)"),
        (Local1dConfig, {"layers": 5000}, "number of layers is 5000: use at most 4096"),
        (GatedPixelCnnConfig, {"axes": (2, 3, 4)}, "a PixelCNN is for pictures"),
        (GatedPixelCnnConfig, {"kernel": 4}, "kernel is 4: use an odd number"),
        (GatedPixelCnnConfig, {"width": 7}, "width 7 does not split into 2 channels"),
        (Local2dConfig, {"block": (1, 2), "given_steps": 1, "axes": (4, 3)}, None),
        (Local2dConfig, {"block": (2, 2), "given_steps": 1}, "given_.* a picture in rectangles"),
    ],
)
def test_blocks_and_kernels_that_cannot_be_are_refused(kind, settings, message):
    settings = {"axes": (2, 3), "block": (2, 3)} | settings
    if kind is Local2dConfig:
        settings = {"flange": (1, 1)} | settings
    if message is None:
        assert kind(**LOCAL | settings).given_steps == 1
        return
    if kind is Local1dConfig:
        settings = {"block": 2} | {k: v for k, v in settings.items() if v != (2, 3) or k == "axes"}
    every = LOCAL | settings
    if kind is GatedPixelCnnConfig:
        every = {k: v for k, v in every.items() if k not in ("block", "heads", "mlp_ratio")}
    with pytest.raises(ConfigError, match=message):
        kind(**every)


def test_particles_are_refused_where_what_is_kept_is_no_prefix_of_rectangles():
    config = dataclasses.replace(LOCAL_2D[0], axes=(4, 6), channels=1, block=(2, 3))
    given = torch.full((1, 4, 6, 1), -1)
    given[:, 0] = 0
    with pytest.raises(ConfigError, match="particles need"):
        axial.complete(speaking(config), given, particles=4)


@pytest.mark.parametrize("config", ALL, ids=name)
def test_what_drawing_keeps_is_counted_when_it_is_split(config):
    """By the tensors that a drawing under way holds, for one example."""
    model = speaking(config)
    steps = model.steps(torch.zeros(1, *config.axes, config.channels, dtype=torch.long))
    with torch.no_grad():
        steps.logits(0)
    held, seen = 0, set()
    queue = [value for key, value in vars(steps).items() if key not in ("model", "x", "weights")]
    while queue:
        one = queue.pop()
        if isinstance(one, torch.Tensor) and one.is_floating_point() and id(one) not in seen:
            held += one.numel()
        elif isinstance(one, list | tuple):
            queue.extend(one)
        seen.add(id(one))
    room = 8 * config.line * config.values + config.positions * config.position_floats
    assert held <= config.cache_floats + room and config.cache_floats <= 2 * held


def test_given_steps_are_known_to_all_and_carry_no_bits():
    config = dataclasses.replace(FULL[1], given_steps=1)
    model = speaking(config)
    x = torch.randint(3, (2, 2, 3, 2))
    assert not model(x)[:, 0].any() and config.elements == 6
    given = torch.where(torch.arange(2).view(1, 2, 1, 1) == 0, x, -1)
    drawn = draw(model, 2, given=given)
    assert torch.equal(drawn[:, 0], x[:, 0])
    assert torch.equal(drawn, draw(model, 2, given=given, method="naive"))


def test_layers_of_a_pixelcnn_add_to_the_horizontal_stack():
    config = dataclasses.replace(PIXELCNN[0], layers=2)
    deep, shallow = speaking(config), speaking(dataclasses.replace(config, layers=1))
    shallow.load_state_dict(deep.state_dict(), strict=False)
    torch.nn.init.zeros_(deep.layers[1].to_out.weight)
    torch.nn.init.zeros_(deep.layers[1].to_out.bias)
    x = torch.randint(3, (2, *config.axes, config.channels))
    torch.testing.assert_close(deep(x), shallow(x), atol=1e-12, rtol=0)
