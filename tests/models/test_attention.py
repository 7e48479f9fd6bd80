import math

import jaxtyping
import pytest
import torch
from conftest import normal
from torch.export import Dim

import axial.models.attention
from axial import AxialAttention, ConfigError, InputError

AXES = [(5,), (3, 4), (2, 3, 4), (2, 3, 1, 2)]
PLACES = [(axes, axis) for axes in AXES for axis in range(len(axes))]


def layer(axis, *, causal=False, width=8, heads=2, **settings):
    made = AxialAttention(width, heads, axis, causal=causal, **settings).double().eval()
    for number, parameter in enumerate((made.to_qkv.weight, made.to_out.weight)):
        parameter.data = normal(*parameter.shape, seed=(axis, number)) / math.sqrt(width)
    made.to_qkv.bias.data = normal(3 * width, seed=(axis, 2))
    return made


def grid(*shape, seed=0):
    return normal(*shape, seed=seed)


def attend_by_hand(made, x, memory=None):
    """Equations of the paper's section 2, one line and one head at a time."""
    heads, width = made.heads, x.shape[-1]
    size = width // heads
    weight = made.to_qkv.weight.view(heads, 3, size, width)
    bias = made.to_qkv.bias.view(heads, 3, size)
    lines = x.movedim(1 + made.axis, -2).reshape(-1, x.shape[1 + made.axis], width)
    sources = lines
    if memory is not None:
        sources = memory.movedim(1 + made.axis, -2)
        sources = sources.reshape(-1, sources.shape[-2], width)
    out = torch.zeros_like(lines)
    for r in range(len(lines)):
        for n in range(heads):
            q = lines[r] @ weight[n, 0].T + bias[n, 0]
            k = sources[r] @ weight[n, 1].T + bias[n, 1]
            v = sources[r] @ weight[n, 2].T + bias[n, 2]
            scores = q @ k.T / math.sqrt(size)
            if made.causal:
                scores = scores + torch.full_like(scores, -math.inf).triu(1)
            out[r, :, n * size : (n + 1) * size] = scores.softmax(-1) @ v
    moved = list(x.movedim(1 + made.axis, -2).shape)
    return made.to_out(out.view(moved).movedim(-2, 1 + made.axis))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("axes", "axis"), PLACES, ids=str)
def test_it_is_attention_along_each_line(axes, axis, causal):
    made, x = layer(axis, causal=causal), grid(2, *axes, 8)
    torch.testing.assert_close(made(x), attend_by_hand(made, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_axes_are_alike(causal):
    along_rows, along_columns = layer(1, causal=causal), layer(0, causal=causal)
    along_columns.load_state_dict(along_rows.state_dict())
    x = grid(2, 3, 4, 8)
    turned = along_columns(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(along_rows(x), turned, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("axes", "axis"), PLACES, ids=str)
def test_an_element_sees_its_own_line_alone_and_if_causal_only_what_is_not_later(axes, axis):
    for causal in (False, True):
        made, x = layer(axis, causal=causal), grid(1, *axes, 8)
        before = made(x)
        for place in torch.cartesian_prod(*map(torch.arange, axes)).view(-1, len(axes)).tolist():
            changed = x.clone()
            changed[0, *place] += 1
            moved = (made(changed) != before).any(-1)[0]
            index = torch.stack(torch.meshgrid(*map(torch.arange, axes), indexing="ij"), -1)
            same = torch.ones(axes, dtype=torch.bool)
            for other in set(range(len(axes))) - {axis}:
                same &= index[..., other] == place[other]
            if causal:
                same &= index[..., axis] >= place[axis]
            assert torch.equal(moved, same)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("axes", "axis"), PLACES, ids=str)
def test_an_axis_may_be_counted_from_the_end(axes, axis, causal):
    made, x = layer(axis, causal=causal), grid(2, *axes, 8)
    back = AxialAttention(8, 2, axis - len(axes), causal=causal).double().eval()
    back.load_state_dict(made.state_dict())
    assert torch.equal(back(x), made(x)) and torch.equal(back.weights(x), made.weights(x))
    if causal:
        caches = [one.cache(2, axes) for one in (made, back)]
        assert caches[0].keys.shape == caches[1].keys.shape
        if axis == 0:  # slower axes are fixed where a line is advanced
            assert torch.equal(back.advance(x, caches[1], 0), made.advance(x, caches[0], 0))
    else:
        memory = torch.cat([x, x], 1 + axis)
        assert torch.equal(back(x, memory), made(x, memory))


def test_a_layer_says_what_it_does():
    made = AxialAttention(8, 2, -1, causal=True, dropout=0.25)
    assert repr(made).startswith("AxialAttention(\n  heads=2, axis=-1, causal=True, dropout=0.25\n")


@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.parametrize("axis", [0, 1])
def test_memory_of_another_length_is_attended_line_by_line(axis, length):
    made, x = layer(axis), grid(2, 3, 4, 8)
    shape = [2, 3, 4, 8]
    shape[1 + axis] = length
    memory = grid(*shape, seed=1)
    torch.testing.assert_close(made(x, memory), attend_by_hand(made, x, memory), rtol=0, atol=1e-12)


def test_memory_of_length_one_elsewhere_is_shared_by_all_lines():
    made, x, memory = layer(0), grid(2, 3, 4, 8), grid(2, 5, 1, 8, seed=1)
    shared = made(x, memory.expand(2, 5, 4, 8))
    torch.testing.assert_close(made(x, memory), shared, rtol=0, atol=1e-12)
    one = made(x, memory[:1].expand(2, 5, 4, 8))
    torch.testing.assert_close(made(x, memory[:1]), one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 0, 8)], ids=str)
def test_nothing_attends_to_nothing(shape):
    made, x = layer(1), grid(*shape)
    assert made(x).shape == shape
    assert made.weights(x).shape == (*shape[:-1], 2, shape[2])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("axes", "axis"), PLACES, ids=str)
def test_weights_are_those_forward_uses(axes, axis, causal):
    made, x = layer(axis, causal=causal), grid(2, *axes, 8)
    weights = made.weights(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, *axes, 2).double())
    values = made.to_qkv(x).view(2, *axes, 2, 3, 4)[..., 2, :]
    lines = values.movedim(1 + axis, -3).unsqueeze(1 + axis)
    mixed = (weights.unsqueeze(-1) * lines.movedim(-3, -2)).sum(-2)
    torch.testing.assert_close(made.to_out(mixed.flatten(-2)), made(x), rtol=0, atol=1e-12)


def test_weights_over_a_memory_have_its_length():
    made, x, memory = layer(0), grid(2, 3, 4, 8), grid(2, 5, 4, 8, seed=1)
    weights = made.weights(x, memory)
    assert weights.shape == (2, 3, 4, 2, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4, 2).double())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_more_lines_than_a_kernel_takes_are_split_without_a_trace(axis, monkeypatch):
    made, x = layer(axis, causal=True), grid(4, 3, 5, 2, 8)
    whole = made(x)
    parts = made.parts(made.to_qkv(x))
    unscaled = made.attend(*parts, causal=True, scale=1.0)
    calls = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(axial.models.attention, "MOST_LINES", 3)
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, *rest, **named: (calls.append(q.shape), sdpa(q, *rest, **named))[1],
    )
    torch.testing.assert_close(made(x), whole, rtol=0, atol=1e-12)
    found = made.attend(*parts, causal=True, scale=1.0)
    torch.testing.assert_close(found, unscaled, rtol=0, atol=1e-12)
    assert len(calls) > 1 and all(max(shape[:2]) <= 3 for shape in calls)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_queries_keys_and_values_are_views_and_nothing_quadratic_is_kept(axis):
    made = layer(axis, causal=True)
    shape = [1, 1, 1, 1, 8]
    shape[1 + axis] = 256
    x = grid(*shape).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        made(x).sum().backward()
    assert max(t.untyped_storage().nbytes() for t in kept) <= 256 * 3 * 8 * 8
    assert x.grad.isfinite().all()

    q, k, v = made._project(x, None)
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_exported_layer_takes_grids_of_any_size(axis):
    made = layer(axis, causal=axis == 1)
    any_size = {dim: Dim.DYNAMIC for dim in range(4)}
    exported = torch.export.export(made, (grid(2, 3, 4, 5, 8),), dynamic_shapes=(any_size,))
    for shape in ((3, 2, 5, 4, 8), (7, 6, 3, 2, 8)):
        torch.testing.assert_close(exported.module()(grid(*shape)), made(grid(*shape)))


@pytest.mark.parametrize("axis", [0, 2])
def test_an_exported_layer_takes_batches_without_end(axis):
    made, sizes = layer(axis, causal=axis == 0), ({0: Dim("b")},)
    exported = torch.export.export(made, (grid(2, 3, 2, 4, 8),), dynamic_shapes=sizes).module()
    torch.testing.assert_close(exported(grid(7, 3, 2, 4, 8)), made(grid(7, 3, 2, 4, 8)))


def test_what_is_no_tensor_is_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of tests
    x = grid(2, 3, 8)
    with pytest.raises(InputError, match=r"x is a ndarray: give a torch.Tensor"):
        layer(0)(x.numpy())
    with pytest.raises(InputError, match=r"memory is a ndarray: give a torch.Tensor"):
        layer(0)(x, memory=x.numpy())


def test_a_layer_takes_its_own_precision_or_what_autocast_makes_of_it():
    layer, x = AxialAttention(8, 2, 0, causal=True), torch.randn(2, 3, 4, 8)
    for wrong in (torch.bfloat16, torch.float64):
        with pytest.raises(InputError, match=f"x is {wrong}, but the layer is torch.float32"):
            layer(x.to(wrong))
    with torch.autocast("cpu", torch.bfloat16):
        wanted = layer(x)
        assert torch.equal(layer(x.bfloat16()), wanted) and wanted.dtype == torch.bfloat16


def test_a_layer_whose_dense_layers_were_exchanged_takes_what_they_take():
    layer, x = AxialAttention(8, 2, 0, causal=True), torch.randn(2, 3, 4, 8, dtype=torch.float64)
    wanted = layer(x.float())
    layer.to_qkv = torch.nn.Sequential(Narrowed(), layer.to_qkv)
    torch.testing.assert_close(layer(x), wanted)


class Narrowed(torch.nn.Module):
    def forward(self, x):
        return x.float()


def test_dropout_acts_on_the_weights_while_training_only():
    made, x = layer(1, dropout=0.5), grid(64, 3, 4, 8)
    calm = made(x)
    assert torch.equal(calm, made(x))
    made.train()
    torch.manual_seed(0)
    noisy = torch.stack([made(x) for _ in range(200)])
    assert not torch.equal(noisy[0], noisy[1])
    # Dropping is unbiased: the output is linear in the weights.
    error = (noisy.mean(0) - calm).abs() / (noisy.std(0) / math.sqrt(len(noisy)))
    assert error.mean() < 1.0 and error.max() < 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AxialAttention(8, 3, 0, causal=False), "use one of [1, 2, 4, 8]"),
        (lambda: AxialAttention(8, 0, 0, causal=False), "heads is 0"),
        (lambda: AxialAttention(0, 1, 0, causal=False), "width is 0"),
        (
            lambda: AxialAttention(8, 2, -9, causal=False),
            "axis, 0 for the slowest or -1 for the fastest, is -9",
        ),
        (lambda: AxialAttention(8, 2, 0, causal=False, dropout=1.0), "dropout is 1.0"),
        (lambda: layer(1)(grid(2, 3, 8)), "at least 2 axes"),
        (lambda: AxialAttention(8, 2, -2, causal=False)(grid(2, 3, 8)), "at least 2 axes"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 3, 4, 8).long()), "memory is torch.int64"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 3, 4, 8).half()), "memory is torch.float16"),
        (lambda: layer(1)(grid(2, 3, 4, 7)), "got shape (2, 3, 4, 7)"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 2, 4, 8)), "all but axis 1"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 4, 8)), "all but axis 1"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 3, 0, 8)), "all but axis 1"),
        (lambda: layer(1)(grid(2, 3, 4, 8), grid(2, 3, 4, 6)), "all but axis 1"),
        (lambda: layer(1, causal=True)(grid(2, 3, 4, 8), grid(2, 3, 4, 8)), "no memory form"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(call, message):
    with pytest.raises((ConfigError, InputError)) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 128, 129])  # 129 is left to torch's fused attention
def test_in_bfloat16_training_on_a_cpu_is_that_of_float32_but_for_rounding(length, causal):
    torch.manual_seed(0)
    made = AxialAttention(32, 2, 0, causal=causal)
    x, towards = torch.randn(2, 2, length, 3, 32)
    found = []
    for low in (False, True):
        made.zero_grad()
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            out = made(given)
        (out.float() * towards).sum().backward()
        found.append([out.detach(), given.grad, *(p.grad for p in made.parameters())])
    for exact, near in zip(*found, strict=True):
        assert (near - exact).norm() <= 2e-2 * exact.norm()


def test_dropout_of_attention_in_bfloat16_on_a_cpu_drops_weights_at_its_rate():
    torch.manual_seed(0)
    made = AxialAttention(64, 2, 0, causal=False, dropout=0.25).bfloat16()
    q = torch.zeros(50, 64, 1, 2, 32, dtype=torch.bfloat16, requires_grad=True)
    one_hot = torch.eye(64, dtype=torch.bfloat16).view(1, 64, 1, 2, 32).expand(50, -1, -1, -1, -1)
    seen = made.attend(q, q, one_hot, causal=False).detach().float() * 64  # 0, or 1 / 0.75
    kept = seen[..., :, :] > 0
    torch.testing.assert_close(seen[kept], torch.full_like(seen[kept], 4 / 3), rtol=1e-2, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("axis", "axes"), [(0, (-1, 64, 600)), (1, (40_000, -1, 2)), (2, (200, 200, -1))], ids=str
)
@pytest.mark.parametrize("length", [8, 80])  # 80 is more than line_attention.py takes
def test_on_a_gpu_it_is_the_same_attention_beyond_the_kernels_limit(axis, axes, length):
    """Either the slower axes or the faster ones make more lines than a kernel takes."""
    torch.manual_seed(0)
    axes = tuple(length if i == axis else size for i, size in enumerate(axes))
    made = AxialAttention(16, 2, axis, causal=True).cuda()
    x = torch.randn(2, *axes, 16, device="cuda")
    slower, faster = 2 * math.prod(axes[:axis]), 2 * math.prod(axes[axis + 1 :])
    assert max(slower, faster) > 65_535
    with torch.autocast("cuda", torch.bfloat16):
        fast = made(x).float()
        fast.sum().backward()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.no_grad():
        exact = made(x)
    assert (fast - exact).norm() / exact.norm() < 1e-2
    assert made.to_qkv.weight.grad.isfinite().all()
