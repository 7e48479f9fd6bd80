"""The Block Transformer: the recorded third-party model, given frames, slices, what it reaches."""

import dataclasses
import itertools
import math
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from blocks_reach import BLOCKS, SMALL, blocks_reach

import axial
from axial import ConfigError, InputError, bits, draw
from axial.models.block_attention import BlockAttention
from axial.models.block_transformer import BlockTransformer
from axial.models.blocks_config import BlocksConfig, usual_blocks
from axial.models.families import new_model
from axial.models.likelihood import element_bits
from axial.models.slice_encoder import views, visible

RECORDED = Path(__file__).parents[1] / "parity" / "rivals" / "subscale_third_party.npz"
THEIRS = dict(np.load(RECORDED, allow_pickle=False))
CLIP = BLOCKS[2]


class TheirConfig(BlocksConfig):
    """Their masked convolution looks two frames and two rows back, which ours does not."""

    @property
    def taps(self):
        every = list(itertools.product((-2, -1, 0), (-2, -1, 0), (-1, 0, 1)))
        return tuple(every[: every.index((0, 0, 0))])


RECORDED_CONFIG = TheirConfig(
    axes=(4, 4, 4),
    subscale=(2, 2, 2),
    kernel=(3, 3, 3),
    block_shapes=((2, 2, 1), (1, 2, 2)),
    **SMALL | {"values": 4},
)


def speaking(config, seed=0):
    torch.manual_seed(seed)
    model = new_model(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def recorded_model():
    """Their weights under our names: their encoder has no positions, their decoder fixed ones."""
    theirs = {name[2:]: torch.from_numpy(v) for name, v in THEIRS.items() if name[:2] == "w/"}
    model = BlockTransformer(RECORDED_CONFIG).double()
    own = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items()}
    kernel = theirs["encoder.conv.weight"]
    own["encoder.tap_embedding.weight"] = kernel.permute(2, 3, 4, 1, 0).flatten(0, 3)
    own["encoder.tap_bias"] = theirs["encoder.conv.bias"]
    own["encoder.slice_embedding.weight"] = theirs["encoder.slice_embedding.weight"]
    own["encoder.to_width.weight"] = theirs["encoder.linear_projector.weight"].flatten(1)
    own["from_encoder.weight"] = theirs["decoder.linear_projector.weight"].flatten(1)
    tables = [theirs[f"decoder.ch_embedder.{channel}.weight"] for channel in range(2)]
    own["value_embedding.weight"] = torch.cat(tables)
    kernel = theirs["decoder.conv.conv.weight"].flatten(2)[:, :, : len(RECORDED_CONFIG.taps)]
    own["convolution.weight"] = kernel.movedim(2, 1).flatten(1)
    own["convolution.bias"] = theirs["decoder.conv.conv.bias"]
    for axis in range(3):
        angle = torch.arange(2).unsqueeze(1) * torch.tensor([1.0, 0.01]).double()
        own[f"positions.tables.{axis}"][:, 4 * axis : 4 * axis + 4] = torch.cat(
            [angle.sin(), angle.cos()], 1
        )
    for part, layer in itertools.product(("encoder.", ""), range(2)):
        name = f"{part or 'decoder.'}block_local_attention.{layer}."
        to = f"{part}layers.{layer}."
        for ours, kind in (("queries", "q"), ("keys", "k"), ("values", "v")):
            heads = theirs[f"{name}mha.w_{kind}"]
            own[f"{to}attention.to_{ours}.weight"] = heads.movedim(2, 1).flatten(0, 1)
        own[f"{to}attention.to_out.weight"] = theirs[f"{name}mha.proj.weight"]
        for axis, bank in enumerate(("dt", "dh", "dw")):
            own[f"{to}attention.relative_positions.{axis}"] = theirs[f"{name}{bank}_bank"]
        pairs = {"attention_norm": "mha.layer_norm", "mlp_norm": "ffn.0"}
        pairs |= {"mlp_in": "ffn.1", "mlp_out": "ffn.3"}
        for (ours, kind), which in itertools.product(pairs.items(), ("weight", "bias")):
            own[f"{to}{ours}.{which}"] = theirs[f"{name}{kind}.{which}"]
    first, second = (theirs[f"ch_predictor.U.{channel}.weight"] for channel in range(2))
    own["to_hidden.weight"] = torch.cat([first, second[:, :12]])
    own["channel_embedding.weight"] = second[:, 12:].T
    biases = [theirs[f"ch_predictor.U.{channel}.bias"] for channel in range(2)]
    own["to_hidden.bias"] = torch.cat(biases)
    for which in ("weight", "bias"):
        own[f"norm.{which}"] = theirs[f"ch_predictor.layer_norm.{which}"]
        own[f"to_logits.{which}"] = theirs[f"ch_predictor.P.{which}"]
    return BlockTransformer.from_weights(RECORDED_CONFIG, own)


def test_order_visible_pixels_and_centres_are_the_recorded_ones():
    config, slices = RECORDED_CONFIG, torch.arange(8)
    first = np.stack(np.unravel_index(config.pixels()[:, 0], config.axes), 1)
    assert np.array_equal(first, THEIRS["order"])
    rank = np.empty(128, int)
    rank[config.order()] = np.arange(128)
    ranks = np.moveaxis(rank.reshape(4, 4, 4, 2), -1, 0)
    assert np.array_equal(ranks, THEIRS["position_in_order"])
    for channel in range(2):
        assert np.array_equal(visible(slices, config)[..., channel], THEIRS["visible"])
    places, inside = views(slices, config)
    middle = config.kernel_taps // 2
    assert np.array_equal(places[..., middle].view(8, 2, 2, 2), THEIRS["centres"])
    assert inside[..., middle].all() and not inside.all()


def test_biases_belong_to_the_recorded_differences():
    attention = BlockAttention(RECORDED_CONFIG, (2, 2, 1), causal=False)
    for axis, name in enumerate(("rel_t", "rel_h", "rel_w")):
        for at, table in enumerate(attention.relative_positions):
            torch.nn.init.zeros_(table)
            if at == axis:
                table.detach().copy_(torch.arange(table.shape[1]).expand_as(table))
        assert np.array_equal(attention.bias()[0].detach(), THEIRS[name])


def test_the_model_is_the_recorded_third_party_one():
    x = torch.from_numpy(THEIRS["x"]).long().movedim(1, -1)
    model = recorded_model()
    found = model(x).permute(0, 4, 5, 1, 2, 3)
    torch.testing.assert_close(found, torch.from_numpy(THEIRS["logits"]), atol=1e-12, rtol=0)
    steps, every = model.steps(x), model(x).flatten(1, -2)[:, model.order()]
    stepped = torch.stack([steps.logits(rank) for rank in range(128)], 1)
    torch.testing.assert_close(stepped, every, atol=1e-12, rtol=0)


def dependence(model, x):
    """Which logits move with which element, in the order of prediction."""
    config, order = model.config, model.order()
    every = x.repeat(1 + len(order), *(1,) * (x.ndim - 1))
    changed = every.view(len(every), -1)[1:]
    changed[torch.arange(len(order)), order] += 1
    before, *after = model(every % config.values).flatten(1, -2)[:, order]
    return ((torch.stack(after) - before).abs().amax(-1) > 1e-12).T.numpy()


@pytest.mark.parametrize(
    "settings", [{"given_steps": 1}, {"given_steps": 3}, {"given_channels": 1}]
)
def test_what_is_given_is_shown_to_every_slice(settings):
    """And nothing else: neither later elements nor, within the kernel, fewer given ones."""
    slices = {"subscale": (2, 1, 2), "block_shapes": ((2, 1, 1), (1, 2, 1)), "kernel": None}
    config = dataclasses.replace(CLIP, **slices, **settings)
    model = speaking(config)
    known = {(tuple(at[:-1]), at[-1]) for at in model.given().nonzero().tolist()}
    wanted = blocks_reach(config, given=known)
    carried = ~model.given().flatten()[model.order()].numpy()
    wanted[~carried] = False
    x = torch.randint(3, (1, *config.axes, config.channels))
    found = dependence(model, x)
    assert np.array_equal(found, wanted)
    rank = np.arange(len(carried))
    early = (rank[:, None] <= rank) & ~carried & carried[:, None]
    assert found[early].any() and not found[:, carried][rank[:, None] <= rank[carried]].any()


@pytest.mark.parametrize("given_steps", [1, 3])
def test_a_given_frame_costs_nothing_and_the_rest_is_a_distribution(given_steps):
    sizes = {"axes": (4, 1), "subscale": (2, 1), "channels": 1, "given_steps": given_steps}
    model = speaking(BlocksConfig(**SMALL | sizes))
    assert list(model.slices) == ([1] if given_steps == 3 else [0, 1])
    frames = range(4 - given_steps)
    every = torch.tensor(
        [[0] * given_steps + list(x) for x in itertools.product(range(3), repeat=len(frames))]
    )
    total = (2.0 ** -bits(model, every.view(-1, 4, 1, 1))).sum()
    assert abs(float(total) - 1) < 1e-12


@pytest.mark.parametrize(
    "settings", [{}, {"given_steps": 1}, {"given_steps": 3}, {"given_channels": 1}]
)
def test_slices_add_up_to_the_whole_and_train_on_its_bits(settings):
    config = dataclasses.replace(CLIP, **settings, classes=2)
    model, x = speaking(config), torch.randint(3, (2, *CLIP.axes, 2))
    label = torch.tensor([1, 0])
    logits = model(x, label)
    free = ~model.given()
    nats = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), x, reduction="none")
    wanted = (nats * free).flatten(1).sum(1) / math.log(2)
    torch.testing.assert_close(bits(model, x, label), wanted, atol=1e-10, rtol=0)
    found = element_bits(model, x, label, planes=3)
    torch.testing.assert_close(found, nats * free / math.log(2), atol=1e-12, rtol=0)
    losses = [model.slice_bits(x, torch.full((2,), at), label) for at in model.slices]
    mean = wanted.mean() / config.elements
    torch.testing.assert_close(torch.stack(losses).mean(), mean, atol=1e-12, rtol=0)
    mixed = model.slice_bits(x, torch.tensor([model.slices[0], model.slices[-1]]), label)
    each = [
        model.slice_bits(x[i : i + 1], torch.tensor([at]), label[i : i + 1])
        for i, at in enumerate((model.slices[0], model.slices[-1]))
    ]
    torch.testing.assert_close(mixed, torch.stack(each).mean(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("config", [CLIP, BLOCKS[3]], ids=["encoder", "decoder alone"])
def test_every_parameter_speaks_and_so_do_labels_and_the_context_of_a_pixel(config):
    config = dataclasses.replace(config, classes=2)
    model, x = speaking(config), torch.randint(3, (2, *config.axes, 2))
    context = torch.randn(2, *config.axes, config.width, dtype=torch.float64, requires_grad=True)
    label = torch.tensor([0, 1])
    logits = model(x, label, context)
    (logits * torch.randn_like(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    assert (context.grad.abs().amax(-1) > 0).all()
    moved = model(x, 1 - label, context) - logits
    assert (moved.abs().amax(-1) > 0).all()
    last = torch.autograd.grad(model(x, label, context)[0, (-1,) * len(config.axes)].sum(), context)
    assert last[0][0][(-1,) * len(config.axes)].any() and not last[0][1].any()


def test_given_frames_are_kept_and_drawn_after_by_caches():
    config = dataclasses.replace(CLIP, given_steps=1)
    model, x = speaking(config), torch.randint(3, (2, *CLIP.axes, 2))
    given = torch.where(model.given(), x, -1)
    drawn = draw(model, 2, given=given)
    assert torch.equal(drawn[:, 0], x[:, 0])
    assert torch.equal(drawn, draw(model, 2, given=given, method="naive"))
    with torch.no_grad():
        steps = model.steps(x)
        stepped = torch.stack([steps.logits(rank) for rank in range(x[0].numel())], 1)
    carried = ~model.given().flatten()[model.order()]
    whole = model(x).flatten(1, -2)[:, model.order()]
    torch.testing.assert_close(stepped[:, carried], whole[:, carried], atol=1e-12, rtol=0)


def test_a_black_pixel_is_not_an_unknown_one():
    """Logits of the last slice, all before it 0, against those with all before it hidden."""
    model = speaking(BLOCKS[1])
    black = torch.zeros(1, *BLOCKS[1].axes, 2, dtype=torch.long)
    encoder, last = model.encoder, torch.tensor([1])
    shown = encoder.convolve(black, last)
    assert not torch.allclose(shown, encoder.tap_bias.expand_as(shown))
    nothing = encoder.convolve(black, torch.tensor([0]))
    assert torch.equal(nothing, encoder.tap_bias.expand_as(nothing))


def seen_earlier(config):
    """The share of the earlier pixels of a slice that a pixel sees, after each layer, in %."""
    grid = np.stack(np.indices(config.slice_axes), -1).reshape(-1, len(config.slice_axes))
    size = len(grid)
    seen = np.zeros((size, size), bool)
    for tap in config.taps:
        near = grid + tap
        inside = ((near >= 0) & (near < config.slice_axes)).all(1)
        seen[inside, np.ravel_multi_index(tuple(near[inside].T), config.slice_axes)] = True
    seen, counts = np.packbits(seen, axis=1), [seen.sum()]
    for layer in range(config.layers):
        members = {}
        for place, block in enumerate(map(tuple, (grid // config.block(layer)).tolist())):
            members.setdefault(block, []).append(place)
        for places in members.values():
            seen[places] = np.bitwise_or.accumulate(seen[places], 0)
        counts.append(np.bitwise_count(seen).sum())
    return [round(100 * int(count) / (size * (size - 1) / 2), 2) for count in counts]


@pytest.mark.parametrize(
    ("grid", "shares"),
    [
        ((4, 32, 32), [0.50, 5.06, 8.32, 21.35, 66.51, 71.70, 71.70, 72.48, 72.48]),
        ((16, 16), [2.85, 55.21, 97.97] + 6 * [99.15]),
        ((32, 32), [0.75, 15.41, 27.47, 52.63, 94.56, 98.69, 98.69, 99.38, 99.38]),
    ],
    ids=str,
)
def test_the_published_blocks_never_see_all_earlier_pixels(grid, shares):
    sizes = SMALL | {"encoder_layers": 0, "layers": 8}
    assert seen_earlier(BlocksConfig(axes=grid, subscale=(1,) * len(grid), **sizes)) == shares


def test_blocks_have_about_128_places_by_default():
    assert usual_blocks((4, 32, 32)) == ((4, 8, 4), (4, 4, 8), (1, 32, 4), (1, 4, 32))
    assert usual_blocks((16, 16)) == ((16, 8), (8, 16))
    assert usual_blocks((8, 8)) == ((8, 8),) and usual_blocks((640,)) == ((128,),)
    for grid in [(28, 28), (17, 19), (16, 32, 32), (3, 5, 7), (1, 500), (2, 2, 500)]:
        for shape in usual_blocks(grid):
            assert math.prod(shape) <= 128
            assert all(n % side == 0 for n, side in zip(grid, shape, strict=True))


def test_pairs_are_counted():
    config = CLIP
    grid = list(itertools.product(*map(range, config.slice_axes)))
    for layer, shape in enumerate(config.block_shapes):
        same = [
            [i // side for i, side in zip(a, shape, strict=True)]
            == [j // side for j, side in zip(b, shape, strict=True)]
            for a, b in itertools.product(grid, repeat=2)
        ]
        earlier = [b <= a for a, b in itertools.product(grid, repeat=2)]
        assert sum(same) == config.pairs(layer, masked=False)
        assert sum(np.logical_and(same, earlier)) == config.pairs(layer)


@pytest.mark.parametrize("config", BLOCKS, ids=lambda config: str(config.subscale))
def test_what_drawing_keeps_of_an_example_is_counted(config):
    steps = speaking(config).steps(torch.zeros(1, *config.axes, config.channels).long())
    with torch.no_grad():
        steps.logits(0)
    assert config.cache_floats == sum(kept.numel() for kept in (*steps.caches, steps.added))


def test_caches_hold_the_blocks_that_lie_open():
    sizes = {"axes": (4, 32, 32), "subscale": (1, 1, 1), "encoder_layers": 0, "layers": 8}
    config = BlocksConfig(**SMALL | sizes)
    assert [config.open_places(layer) for layer in range(4)] == [4096, 4096, 1024, 128]


def test_what_is_compiled_is_drawn_by_caches_too(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of tests
    model = speaking(BLOCKS[0])
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(draw(compiled, 2, seed=1), draw(model, 2, seed=1))


def test_embeddings_may_start_as_waves_and_biases_by_place_start_at_zero():
    model = new_model(dataclasses.replace(CLIP, values=64))
    names = [name for name, _ in model.named_parameters() if "relative_positions" in name]
    assert len(names) == 12 and not any(model.get_parameter(name).any() for name in names)
    assert not set(names) & set(model.matrices())
    model.smooth_embeddings()
    for table in (model.value_embedding, model.encoder.tap_embedding, model.channel_embedding):
        rows = table.weight.detach().view(-1, 64, table.embedding_dim)
        near, far = ((rows[:, 1:] - rows[:, :-1]), (rows[:, 32:] - rows[:, :32]))
        assert near.square().mean() < 0.5 * far.square().mean()
    assert not torch.equal(rows[0], model.value_embedding.weight[:64])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"axes": (2, 2, 2, 2)}, "blocks takes one to three"),
        ({"subscale": (2, 4)}, r"subscale is \(2, 4\), but axis 1 has 6 steps, which 4 does not"),
        ({"subscale": (2,)}, r"subscale is \(2,\): give one number for each of \(4, 6\)"),
        ({"subscale": (0, 1)}, "subscale is 0: use whole numbers of at least 1"),
        ({"block_shapes": ((2, 2),)}, r"a slice is \(2, 3\), and 3 does not split into 2 each"),
        ({"block_shapes": ()}, r"block_shapes is \(\): give the shape of each layer"),
        ({"block_shapes": ((2,),)}, r"block_shapes is \(2,\): give one number for each of"),
        ({"block_shapes": 4}, "block_shapes is 4: give the shape of each layer"),
        ({"kernel": (2, 3)}, r"kernel is \(2, 3\): use odd numbers"),
        ({"kernel": (3, 13)}, r"use odd numbers, below twice the lengths \(4, 6\)"),
        ({"encoder_layers": 0}, "encoder_layers is 0, but 4 slices know of each other"),
        ({"subscale": (1, 1)}, r"subscale \(1, 1\) leaves an encoder nothing to see: use 0"),
        ({"layers": 5000}, "number of layers is 5000: use at most 4096"),
        ({"head_width": 0}, "head_width is 0"),
        (
            {"subscale": (1, 1), "encoder_layers": 0, "given_channels": 1},
            "given_channels is 1, which a decoder alone cannot show",
        ),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        BlocksConfig(**SMALL | {"axes": (4, 6), "subscale": (2, 2)} | settings)


def test_slices_that_are_not_there_are_refused():
    model, x = speaking(BLOCKS[0]), torch.zeros(2, 8, 2, dtype=torch.long)
    with pytest.raises(InputError, match="number holds 2: its values must be 0 to 1"):
        model.slice_logits(x, torch.tensor([0, 2]))


def test_particles_are_refused_where_slices_are_interleaved():
    model = speaking(dataclasses.replace(BLOCKS[1], channels=1))
    given = torch.full((1, *model.config.axes, 1), -1)
    given[:, 0] = 0
    with pytest.raises(ConfigError, match="particles need"):
        axial.complete(model, given, particles=4)
    assert (axial.complete(model, given)[:, 0] == 0).all()
