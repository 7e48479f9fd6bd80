import itertools
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import VARIANTS, config, normal, random_input, tiny_model
from torch.export import Dim
from torch.utils.flop_counter import FlopCounterMode

from axial import AxialError, AxialTransformer, InputError, bits_per_dim, draw
from axial.models.causal import given
from axial.models.cost import forward_flops, training_flops
from axial.models.layers import Block, PlaneConvolution, waves
from axial.models.protocol import evaluating


def rows_of(inputs, rows):
    """Some examples of a batch."""
    return [None if value is None else value[rows] for value in inputs]


@pytest.mark.parametrize("name", VARIANTS)
def test_one_channel_one_example_and_none_are_what_scoring_all_of_them_gives(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, context = inputs = random_input(found, 4)
    every = model(x, label, context)
    channel = torch.arange(4) % (found.channels - found.given_channels) + found.given_channels
    one = model.channel_logits(x, channel, label, context)
    for row in range(4):
        torch.testing.assert_close(one[row], every[row, ..., channel[row], :], rtol=0, atol=1e-12)
        alone = model(*rows_of(inputs, slice(row, row + 1)))
        torch.testing.assert_close(alone[0], every[row], rtol=0, atol=1e-12)
    assert model(*rows_of(inputs, slice(0))).shape == (0, *every.shape[1:])
    assert not every[:, given(found)].any()  # given elements are not predicted
    assert every[:, ~given(found)].abs().sum(-1).all()


@pytest.mark.parametrize("name", ["1d", "2d-channels", "2d-lstm", "3d-rows", "4d-channels"])
def test_an_untrained_model_is_the_uniform_distribution(name):
    found = VARIANTS[name]
    torch.manual_seed(0)
    model = AxialTransformer(found)
    x, label, context = random_input(found, 2)
    score = bits_per_dim(model, x, label, context.float())
    assert (score - math.log2(found.values)).abs().max() < 1e-4


def test_weights_start_as_the_authors_draw_them():
    torch.manual_seed(0)
    found = config((64, 64), channels=3, values=256, width=256, heads=4, mlp_ratio=2, classes=64)
    model = AxialTransformer(found)

    def check(weight, variance, *, truncated=True):
        assert weight.var().item() == pytest.approx(variance, rel=0.05)
        if truncated:
            largest = weight.abs().max().item() / math.sqrt(variance)
            assert largest == pytest.approx(2 / 0.8796, rel=0.02)

    block = model.outer_decoders[0][0]
    check(block.attention.to_qkv.weight, 1 / 256)
    check(block.attention.to_out.weight, 1e-10 / 256)
    check(block.mlp_in.weight, 1 / 256)
    check(block.mlp_out.weight, 1e-10 / 512)
    check(model.to_logits.weight, 1e-10 / 256)
    check(model.encoder.convolution.weight, 1 / (6 * 9))
    tables = [model.embedding.weight, model.label_embedding.weight, *model.positions.tables]
    for table in [*tables, *model.encoder.positions.tables]:
        check(table, 25 / 256, truncated=False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        if "norm.weight" in name:
            assert (parameter == 1).all()


@pytest.mark.parametrize("count", [3, 8, 17, 300, 65536])
def test_waves_tell_rows_apart_the_nearest_least_and_all_alike(count):
    table = waves((count, 64), 8, std=0.5).double()
    assert table.square().mean() == pytest.approx(0.25, rel=1e-4)
    near, far = ((table[step:] - table[:-step]).norm(dim=1) for step in (1, 2))
    assert near.max() < 1.02 * near.min()
    assert near.max() < far.min()
    of_the_first = (table[1:] - table[0]).norm(dim=1)
    assert of_the_first.argmin() == 0 and of_the_first[0] > 0.05 * table.norm(dim=1).mean()


@pytest.mark.parametrize("count", [2, 3])
def test_waves_of_few_rows_are_far_apart(count):
    for one, other in itertools.combinations(waves((count, 64), 8, std=0.5), 2):
        assert F.cosine_similarity(one, other, dim=0) < 0.1


def test_smooth_embeddings_are_alike_where_near_and_as_long_as_those_drawn():
    torch.manual_seed(0)
    model = AxialTransformer(config((32, 32), channels=3, values=256, width=256, classes=5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.smooth_embeddings()
    assert all(parameter.grad_fn is None for parameter in model.parameters())
    positions = [*model.positions.tables, *model.encoder.positions.tables]
    tables = [model.embedding.weight, *positions]
    for table in tables:
        half = len(table) // 2
        assert table.var().item() == pytest.approx(25 / 256, rel=0.05)
        assert F.cosine_similarity(table[:-1], table[1:]).min() > 0.7
        assert F.cosine_similarity(table[:half], table[half:]).abs().max() < 0.5
    for one, other in itertools.combinations(positions, 2):
        assert F.cosine_similarity(one.flatten(), other.flatten(), dim=0).abs() < 0.2
    places = {value.data_ptr() for value in tables}
    for name, value in model.state_dict().items():  # labels have no order, nor has any other
        assert torch.equal(value, before[name]) == (value.data_ptr() not in places), name


@pytest.mark.parametrize("axes", [(5,), (3, 4), (2, 3, 4)], ids=str)
def test_the_sum_of_taps_is_the_convolution(axes):
    torch.manual_seed(0)
    convolution = PlaneConvolution(len(axes), 3, 5).double()
    convolution.reset_parameters()
    torch.nn.init.normal_(convolution.bias)
    x = torch.randn(2, *axes, 3, dtype=torch.float64)
    taps = convolution._sum_of_taps(x)
    torch.testing.assert_close(convolution(x), taps, rtol=0, atol=1e-12)


def test_four_axes_convolve_like_three_when_the_fourth_has_length_one():
    torch.manual_seed(0)
    four, three = PlaneConvolution(4, 2, 5).double(), PlaneConvolution(3, 2, 5).double()
    four.reset_parameters()
    torch.nn.init.normal_(four.bias)
    three.load_state_dict({"weight": four.weight[:, :, 1].clone(), "bias": four.bias})
    x = torch.randn(2, 1, 2, 3, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(four(x)[:, 0], three(x[:, 0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["2d-channels", "3d", "2d-lstm", "2d-rows"])
def test_recomputing_activations_changes_memory_and_nothing_else(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, _ = random_input(found, 4)
    channel = torch.arange(4) % found.channels
    gradients, kept = [], []
    for checkpointing in (False, True):
        model.zero_grad()
        sizes = []
        pack = lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1]  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = (
                model.channel_logits(x, channel, label, checkpointing=checkpointing)
                .logsumexp(-1)
                .sum()
            )
            kept.append(sum(sizes))
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert kept[1] < 0.7 * kept[0]


@pytest.mark.parametrize("name", ["2d-channels", "3d-rows"])
def test_recomputing_runs_every_block_twice(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, _, _ = random_input(found, 2)
    runs = {}
    for where, module in model.named_modules():
        if isinstance(module, Block):
            hook = lambda *args, w=where: runs.update({w: runs.get(w, 0) + 1})  # noqa: E731
            module.attention.to_qkv.register_forward_hook(hook)
    model(x, checkpointing=True).sum().backward()
    blocks = found.encoder_layers + sum(found.decoder_layers)
    assert list(runs.values()) == [2] * blocks


@pytest.mark.parametrize("name", [n for n in VARIANTS if not n.startswith("4d")])
def test_cost_is_counted_from_the_configuration(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    assert found.parameters() == sum(parameter.numel() for parameter in model.parameters())
    model.requires_grad_(False)
    x, label, _ = random_input(found, 1)
    channel = torch.full((1,), found.channels - 1)
    plain = torch.nn.attention.SDPBackend.MATH
    with torch.nn.attention.sdpa_kernel(plain):
        with FlopCounterMode(display=False) as one:
            model.channel_logits(x, channel, label)
        with FlopCounterMode(display=False) as every:
            model(x, label)
    assert one.get_total_flops() == found.pass_flops()
    assert every.get_total_flops() == forward_flops(found)


def test_one_channel_of_forty_eight_costs_one():
    found = config((4, 4), channels=48, width=16)
    assert forward_flops(found) == 48 * found.pass_flops()
    assert training_flops(found) == 3 * found.pass_flops()


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.int8, torch.int16, torch.int32),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
    ids=str,
)
def test_any_integer_type_will_do(dtype):
    found = VARIANTS["2d-labels"]
    model = tiny_model(found)
    x, label, context = random_input(found, 2)
    assert torch.equal(model(x.to(dtype), label.to(dtype), context), model(x, label, context))
    one = model.channel_logits(x, torch.tensor([0, 1]), label)
    channel = torch.tensor([0, 1], dtype=dtype)
    assert torch.equal(model.channel_logits(x.to(dtype), channel, label.to(dtype)), one)


@pytest.mark.parametrize("name", VARIANTS)
def test_label_and_context_speak_to_every_prediction(name):
    found = VARIANTS[name]
    model = tiny_model(found)
    x, label, context = random_input(found, 1)
    free = ~given(found)
    before = model(x, label, context)
    assert (model(x, label, 2 * context) != before).any(-1)[:, free].all()
    assert torch.equal(model(x, label, torch.zeros_like(context)), model(x, label))
    if label is not None:
        other = (label + 1) % (max(found.classes, 1) * found.variants)
        assert (model(x, other, context) != before).any(-1)[:, free].all()


def test_each_variant_is_told_apart_and_a_label_of_a_class_alone_is_of_the_example_itself():
    plain = config((3, 3), channels=3, classes=2)
    model = tiny_model(replace(plain, augment=("rotate", "colours")))
    x, _, _ = random_input(plain, 1)
    every = model(x.expand(48, -1, -1, -1), torch.arange(48))
    assert len({tuple(one.flatten().tolist()) for one in every}) == 48
    weights = model.state_dict()
    assert weights.pop("variant_embedding.weight").shape == (23, 8)
    without = AxialTransformer.from_weights(plain, weights)
    label = torch.arange(2)
    assert torch.equal(
        model(x.expand(2, -1, -1, -1), label), without(x.expand(2, -1, -1, -1), label)
    )
    with pytest.raises(InputError, match="label holds 48: its values must be 0 to 47"):
        model(x, torch.tensor([48]))
    with pytest.raises(InputError, match="conditioned on 2 classes: give label="):
        model(x)


@pytest.mark.parametrize("mode", ["encode", "rows"])
def test_without_a_label_an_unconditional_model_means_the_example_itself(mode):
    model = tiny_model(config((2, 2), channels=3, channel_mode=mode, augment=("transpose",)))
    x, _, context = random_input(model.config, 3)
    zero = torch.zeros(3, dtype=torch.long)
    assert torch.equal(model(x), model(x, zero))
    assert torch.equal(model(x, None, context), model(x, zero, context))
    assert not torch.equal(model(x), model(x, zero + 1))
    for method in ("cached", "semi-parallel", "naive"):
        assert torch.equal(draw(model, 3, method=method), draw(model, 3, method=method, label=zero))


@pytest.mark.parametrize("name", ["2d-labels", "3d-rows-labels", "1d-columns-labels"])
def test_a_label_is_a_vector_that_is_added_to_the_context(name):
    model = tiny_model(VARIANTS[name])
    x, label, context = random_input(model.config, 2)
    both = model(x, label, context)
    vector = model.label_embedding(label).view(2, *(1,) * len(model.config.axes), -1)
    torch.nn.init.zeros_(model.label_embedding.weight)
    torch.testing.assert_close(both, model(x, label, context + vector), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_context_of_another_precision_is_taken(dtype):
    found = VARIANTS["2d-labels"]
    model = tiny_model(found, dtype=dtype)
    x, label, context = random_input(found, 2)
    assert torch.equal(model(x, label, context), model(x, label, context.to(dtype)))


@pytest.mark.parametrize("name", ["1d", "2d-deep", "3d-deep", "4d-deep", "3d-lstm"])
def test_the_decoder_is_the_formula_of_the_design(name):
    """Every level is given the input and the shifted outputs of all levels before it."""
    found = VARIANTS[name]
    model = tiny_model(found)
    plane = torch.randint(3, (2, *found.axes), generator=torch.Generator().manual_seed(0))
    ctx = torch.randn(2, *found.axes, 8, dtype=torch.float64)
    last = len(found.axes) - 1
    h = model.embedding(plane)
    pos = torch.zeros(*found.axes, 8, dtype=torch.float64)
    for axis, table in enumerate(model.positions.tables):
        pos += table.view(*(1,) * axis, -1, *(1,) * (last - axis), 8)

    def shifted(x, axis):
        return torch.cat([torch.zeros_like(x.narrow(axis + 1, 0, 1)), x], axis + 1).narrow(
            axis + 1, 0, x.shape[axis + 1]
        )

    u = []
    for k in range(last):
        inputs = h + pos + ctx + sum(shifted(u[j], j) for j in range(k))
        for block in model.outer_decoders[k]:
            inputs = block(inputs)
        u.append(inputs)
    r = shifted(h, last) + pos + ctx + sum(shifted(u[k], k) for k in range(last))
    logits = model.to_logits(model.norm(model.inner_decoder(r)))
    ours = model._decode(plane, ctx, checkpointing=False)
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-12)


def test_lstm_gates_start_as_dense_layers_with_the_forget_gate_open():
    torch.manual_seed(0)
    lstm = AxialTransformer(config((4, 4), inner="lstm", width=128)).inner_decoder.lstm
    for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0):
        assert weight.var().item() == pytest.approx(1 / 128, rel=0.05)
    forget = torch.zeros(512)
    forget[128:256] = 1
    assert torch.equal(lstm.bias_ih_l0, forget) and not lstm.bias_hh_l0.any()


def test_dropout_acts_while_training_only_and_evaluating_restores_every_mode():
    found = config((3, 4), dropout=0.5)
    model = tiny_model(found)
    x, _, _ = random_input(found, 2)
    calm = model(x)
    model.train()
    model.norm.eval()
    torch.manual_seed(0)
    assert not torch.equal(model(x), model(x))
    with evaluating(model):
        assert torch.equal(model(x), calm)
        assert not model(x).requires_grad
    assert model.training and not model.norm.training and model.embedding.training


@pytest.mark.parametrize(("part", "other"), [("decoder", "encoder"), ("encoder", "decoder")])
def test_dropout_of_encoder_and_decoder_are_apart(part, other):
    rates = {"decoder": "dropout", "encoder": "encoder_dropout"}
    found = config((3, 4), channels=2, **{rates[part]: 0.5})
    model = tiny_model(found).train()
    x, _, _ = random_input(found, 2)
    inputs = {"encoder": (x, torch.ones(2, dtype=torch.long), None)}
    inputs["decoder"] = (x[..., 0], torch.randn(2, 3, 4, 8, dtype=torch.float64))
    run = {
        "encoder": model.encoder,
        "decoder": partial(model._decode, checkpointing=False),
    }
    torch.manual_seed(0)
    assert not torch.equal(*(run[part](*inputs[part]) for _ in range(2)))
    assert torch.equal(*(run[other](*inputs[other]) for _ in range(2)))


def test_shapes_can_be_asked_for_without_any_memory():
    sizes = config((3, 4), channels=2)
    with torch.device("meta"):
        model, x = AxialTransformer(sizes), torch.zeros(5, 3, 4, 2, dtype=torch.long)
    assert model(x, checked=True).shape == (5, 3, 4, 2, sizes.values)


@pytest.mark.parametrize("branch", ["attention", "mlp"])
def test_dropout_acts_on_each_residual_branch(branch):
    found = config((3, 4), dropout=0.5)
    block = tiny_model(found).outer_decoders[0][0].train()
    silent = block.mlp_out if branch == "attention" else block.attention.to_out
    torch.nn.init.zeros_(silent.weight)
    torch.nn.init.zeros_(silent.bias)
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    torch.manual_seed(0)
    added = block(x) - x
    block.eval()
    whole = block(x) - x
    dropped = added == 0
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(added[~dropped], 2 * whole[~dropped])


def test_learning_eight_images_by_heart():
    found = config((4, 4), values=4, width=32, heads=4)
    torch.manual_seed(0)
    model = AxialTransformer(found)
    x = torch.randint(4, (8, 4, 4, 1), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = F.cross_entropy(model(x).flatten(0, -2), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Eight equally likely images of 16 elements: no model needs less than 3 bits for one.
    assert 3 / 16 <= bits_per_dim(model, x).mean() < 0.25


def x_like(found, **changes):
    shape = changes.pop("shape", (2, *found.axes, found.channels))
    return torch.full(shape, changes.pop("fill", 0), dtype=changes.pop("dtype", torch.long))


PLAIN, LABELLED = config((3, 4), channels=2), config((3, 4), channels=2, classes=3)
LABEL = torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("found", "x", "label", "message"),
    [
        (PLAIN, x_like(PLAIN, fill=3), None, "x holds 3: its values must be 0 to 2"),
        (PLAIN, x_like(PLAIN, fill=-1), None, "x holds -1"),
        (PLAIN, x_like(PLAIN, dtype=torch.float32), None, "x is torch.float32"),
        (PLAIN, x_like(PLAIN, dtype=torch.bool), None, "x is torch.bool"),
        (PLAIN, x_like(PLAIN, dtype=torch.complex64), None, "x is torch.complex64"),
        (PLAIN, x_like(PLAIN, shape=(2, 4, 3, 2)), None, "takes (batch, 3, 4, 2)"),
        (PLAIN, x_like(PLAIN, shape=(2, 3, 4)), None, "x has shape (2, 3, 4)"),
        (PLAIN, x_like(PLAIN, shape=(2, 3, 4, 3)), None, "then 2 channels"),
        (PLAIN, x_like(PLAIN), LABEL, "unconditional"),
        (LABELLED, x_like(LABELLED), None, "conditioned on 3 classes: give label="),
        (LABELLED, x_like(LABELLED), LABEL + 3, "label holds 3: its values must be 0 to 2"),
        (LABELLED, x_like(LABELLED), LABEL - 1, "label holds -1"),
        (LABELLED, x_like(LABELLED), LABEL.float(), "label is torch.float32"),
        (LABELLED, x_like(LABELLED), LABEL[:1], "label has shape (1,): give (2,)"),
    ],
)
def test_bad_input_is_refused_in_one_line(found, x, label, message):
    model = tiny_model(found)
    for call in (model, lambda *args: bits_per_dim(model, *args)):
        with pytest.raises(InputError) as caught:
            call(x, label)
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert isinstance(caught.value, AxialError)


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (torch.tensor([1, 2]), "channel holds 2: its values must be 0 to 1"),
        (torch.tensor([1]), "channel has shape (1,)"),
        (torch.tensor([0.0, 1.0]), "channel is torch.float32"),
    ],
)
def test_a_channel_that_is_not_there_is_refused(channel, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        tiny_model(PLAIN).channel_logits(x_like(PLAIN), channel)


def test_a_given_channel_is_not_predicted():
    found = config((3, 4), channels=3, given_channels=1)
    with pytest.raises(InputError, match="channel holds 0: its values must be 1 to 2"):
        tiny_model(found).channel_logits(x_like(found), torch.tensor([0, 1]))


def test_a_context_of_the_wrong_shape_or_type_is_refused():
    model = tiny_model(PLAIN)
    for context in (torch.zeros(2, 3, 4, 7), torch.zeros(2, 3, 4, 8, dtype=torch.long)):
        with pytest.raises(InputError, match=r"context has shape .* of shape \(2, 3, 4, 8\)"):
            model(x_like(PLAIN), None, context)
        with pytest.raises(InputError, match="context has shape"):
            model.channel_logits(x_like(PLAIN), torch.tensor([0, 1]), None, context)


@pytest.mark.filterwarnings("ignore:The tensor attributes self.inner_decoder.lstm")  # torch's own
@pytest.mark.parametrize("name", ["2d-lstm", "2d-rows-labels", "2d-given-both"])
def test_an_exported_model_takes_batches_of_any_size(name):
    made, inputs = tiny_model(VARIANTS[name]), random_input(VARIANTS[name], 2)
    sizes = [None if value is None else {0: Dim.DYNAMIC} for value in inputs]
    exported = torch.export.export(made, inputs, dynamic_shapes=sizes).module()
    others = random_input(VARIANTS[name], 5)
    torch.testing.assert_close(exported(*others), made(*others))


def test_it_compiles_without_a_break_and_needs_no_compiler_to_be_imported():
    # In a process of its own: the checks of shapes that tests switch on break compilation.
    script = """
import sys, torch, axial
axial.load, axial.draw
sizes = dict(axes=(3, 4), channels=2, values=5, width=8, heads=2, decoder_layers=(2, 1), classes=3)
axial.AxialTransformer.of_shapes(axial.ModelConfig(**sizes, encoder_layers=2))
assert torch.version.cuda or "torch._dynamo" not in sys.modules  # there a model may be compiled
variants = [dict(encoder_layers=2, given_channels=1), dict(encoder_layers=2, given_steps=1),
            dict(encoder_layers=0, channel_mode="rows"), dict(encoder_layers=2, channels=3,
            augment=("colours",), stochastic_depth=0.5)]
channel = torch.tensor([1, 1])
for variant in variants:
    model = axial.AxialTransformer(axial.ModelConfig(**(sizes | variant)))
    model.reset_parameters(final_scale=1.0)
    x = torch.randint(5, (2, 3, 4, model.config.channels))
    label = torch.tensor([0, 3 * model.config.variants - 1])
    for checkpointing in (False, True) if variant is variants[0] else (False,):
        torch.compiler.reset()
        step = torch.compile(model.channel_logits, fullgraph=True, backend="eager")
        torch.manual_seed(0)
        compiled = step(x, channel, label, checkpointing=checkpointing)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled, model.channel_logits(x, channel, label))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_stochastic_depth_drops_whole_branches_of_the_decoder_more_often_the_deeper():
    found = config((3, 4), channels=2, decoder_layers=(3, 2), stochastic_depth=0.5)
    model = tiny_model(found).train()
    rates = [
        block.branch_rate
        for level in (*model.outer_decoders, model.inner_decoder)
        for block in level
    ]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert [block.branch_rate for block in model.encoder.blocks] == [0, 0]
    x, _, _ = random_input(found, 2)
    torch.manual_seed(0)
    assert not torch.equal(model(x), model(x))
    with evaluating(model):
        assert torch.equal(model(x), tiny_model(replace(found, stochastic_depth=0.0))(x))


@pytest.mark.parametrize("branch", ["attention", "mlp"])
def test_a_branch_is_dropped_for_an_example_or_not_and_on_average_is_what_it_was(branch):
    found = config((3, 4), decoder_layers=(2, 1), stochastic_depth=0.4)
    block = tiny_model(found).inner_decoder[0].train()
    silent = block.mlp_out if branch == "attention" else block.attention.to_out
    torch.nn.init.zeros_(silent.weight)
    torch.nn.init.zeros_(silent.bias)
    x = normal(1, 3, 4, 8).expand(2000, 3, 4, 8)
    torch.manual_seed(0)
    added = block(x) - x
    block.eval()
    whole = block(x[:1]) - x[:1]
    dropped = (added == 0).flatten(1).all(1)
    torch.testing.assert_close(added[~dropped] * 0.6, whole.expand_as(added[~dropped]))
    assert abs(dropped.double().mean() - 0.4) < 4 * (0.4 * 0.6 / 2000) ** 0.5
    assert dropped.any() and not dropped.all()


def test_some_blocks_of_a_level_are_a_list_of_them():
    level = tiny_model(VARIANTS["2d"]).inner_decoder
    assert list(level[:1]) == [level[0]] and list(level[-1:]) == [level[-1]]
