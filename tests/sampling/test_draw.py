import jaxtyping
import pytest
import torch
from conftest import (
    BUDGET,
    BULKY,
    ENUMERABLE,
    VARIANTS,
    config,
    every_image,
    random_input,
    request_for,
    takes_its_budget,
    tiny_model,
)

import axial.sampling.draw
from axial import AxialError, bits, complete, draw, prolong
from axial.models.causal import given as always_given
from axial.models.causal import order
from axial.sampling.noise import gumbel

METHODS = ["cached", "semi-parallel", "naive"]
FEW = ["1d", "2d-rows", "2d-columns-labels", "2d-given-both", "2d-lstm", "3d-channels"]


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "cached") for name in VARIANTS), *((name, "semi-parallel") for name in FEW)],
)
def test_each_value_is_the_argmax_of_its_own_logits_and_noise(name, method):
    found = VARIANTS[name]
    model = tiny_model(found)
    known = request_for(found, 3)
    x = draw(model, 3, seed=5, temperature=0.7, method=method, **known)
    noise = gumbel(5, torch.arange(3), torch.arange(x[0].numel()), found.values)
    logits = model(x, known["label"], known["context"]).flatten(1, -2)
    chosen = (logits / 0.7 + noise).argmax(-1).view_as(x)
    free = ~always_given(found)
    assert torch.equal(x[:, free], chosen[:, free])
    assert torch.equal(x[:, ~free], known["given"][:, ~free])
    noise = noise.view(*x.shape, -1)
    assert torch.equal(x, draw(model, 3, temperature=0.7, noise=noise, method=method, **known))


@pytest.mark.parametrize("name", [*FEW, "2d-stacked-clip", "4d-channels"])
def test_every_method_draws_the_same_picture(name):
    found = ENUMERABLE[name]
    model = tiny_model(found)
    known = request_for(found, 2)
    slow = draw(model, 2, seed=9, method="naive", **known)
    for method in METHODS:
        assert torch.equal(draw(model, 2, seed=9, method=method, **known), slow)


@pytest.mark.parametrize("name", ["2d-channels", "2d-labels", "3d-columns"])
def test_requests_of_several_seeds_drawn_as_one_are_the_pictures_of_each(name):
    found = VARIANTS[name]
    model, known = tiny_model(found), request_for(VARIANTS[name], 6)
    seeds, images = [7, 1 << 40, 7, 3, 7, (1 << 63) - 1], [0, 0, 1, 5, 1 << 33, 2]
    how = {"temperature": 0.8, **known}
    for batch in (None, 4):
        together = draw(
            model, 6, seed=torch.tensor(seeds), first=torch.tensor(images), batch=batch, **how
        )
        for i, (seed, image) in enumerate(zip(seeds, images, strict=True)):
            own = {k: v if v is None else v[i : i + 1] for k, v in known.items()}
            alone = draw(model, 1, seed=seed, first=image, temperature=0.8, **own)
            assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("name", ["1d-labels", "2d-channels", "3d-columns", "2d-lstm"])
def test_neither_batch_size_nor_how_a_request_is_split_changes_a_picture(name, monkeypatch):
    found = VARIANTS[name]
    model = tiny_model(found)
    known = request_for(found, 7)
    whole = draw(model, 7, seed=2, **known)
    assert len(whole.unique(dim=0)) > 1
    parts = []
    for row in range(7):
        alone = {k: None if v is None else v[row : row + 1] for k, v in known.items()}
        parts.append(draw(model, 1, seed=2, first=row, **alone))
    assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setattr(axial.sampling.draw, "_WORKING_BYTES", 1)
    assert torch.equal(draw(model, 7, seed=2, **known), whole)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "cached") for name in ("1d", "2d-labels", "2d-rows", "2d-lstm", "3d-deep")),
        *((name, "semi-parallel") for name in ("2d-columns", "2d-lstm")),
    ],
)
def test_going_on_from_any_prefix_gives_the_picture_it_was_cut_from(name, method):
    found = VARIANTS[name]
    model = tiny_model(found)
    _, label, _ = random_input(found, 2)
    x = draw(model, 2, seed=1, label=label)
    sequence = order(found)
    for kept in range(len(sequence) + 1):
        prefix = x.clone().view(2, -1)
        prefix[:, sequence[kept:]] = -1
        prefix = prefix.view_as(x)
        assert torch.equal(draw(model, 2, seed=1, given=prefix, label=label, method=method), x)


@pytest.mark.parametrize("method", METHODS)
def test_kept_values_stay_and_one_prefix_serves_all(method):
    found = config((2, 3), channels=3)
    model = tiny_model(found)
    kept = torch.full((1, *found.axes, 3), -1)
    kept[0, 1, :, 1] = 2
    x = draw(model, 4, given=kept, method=method)
    assert (x[:, 1, :, 1] == 2).all() and len(x.unique(dim=0)) > 1
    assert torch.equal(x, draw(model, 4, given=kept.expand(4, -1, -1, -1)))


def test_the_layout_of_what_is_given_does_not_matter():
    found = VARIANTS["2d-channels"]
    model = tiny_model(found)
    x = draw(model, 2)
    x[..., 1:] = -1
    turned = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert not turned.is_contiguous()
    assert torch.equal(draw(model, 2, given=turned), draw(model, 2, given=x))


def test_one_label_and_one_context_serve_all():
    found = VARIANTS["2d-labels"]
    model = tiny_model(found)
    _, label, context = random_input(found, 1)
    one = draw(model, 3, label=label, context=context)
    each = draw(model, 3, label=label.expand(3), context=context.expand(3, -1, -1, -1))
    assert torch.equal(one, each)


def test_labels_may_be_integers_of_any_type():
    model, label = tiny_model(ENUMERABLE["2d-labels"]), torch.tensor([1, 0, 1])
    wanted = draw(model, 3, label=label)
    for method, dtype in zip(METHODS, (torch.uint8, torch.int16, torch.int32), strict=True):
        assert torch.equal(draw(model, 3, label=label.to(dtype), method=method), wanted)


def hooked(layer):
    layer.register_forward_hook(lambda module, args, out: 2 - out)


def replaced(layer):
    layer.forward = lambda *args, forward=layer.forward, **how: 2 - forward(*args, **how)


def exchanged(layer):
    kind = type(layer)

    class Adapted(kind):
        def forward(self, *args, **how):
            return 2 - kind.forward(self, *args, **how)

    layer.__class__ = Adapted


EVERYWHERE = ["outer_decoders.0", "outer_decoders.0.1", "outer_decoders.0.1.attention.to_qkv"]
EVERYWHERE += ["inner_decoder.0", "inner_decoder.0.attention", "inner_decoder.0.mlp_norm"]


@pytest.mark.parametrize("change", [hooked, replaced, exchanged])
@pytest.mark.parametrize("place", ["embedding", *EVERYWHERE, "norm", "to_logits"])
def test_layers_that_the_caches_would_not_run_are_refused_there_and_run_elsewhere(place, change):
    model = tiny_model(VARIANTS["2d"])
    before = bits(model, torch.zeros(1, *VARIANTS["2d"].axes, 1).long())
    if change is exchanged and place in ("outer_decoders.0.1.attention.to_qkv", "to_logits"):
        layer = model.get_submodule(place)
        model.set_submodule(place, torch.nn.Sequential(layer, torch.nn.Tanh()))
    else:
        change(model.get_submodule(place))
    message = rf'{place} of this model was exchanged or has hooks.*method="semi-parallel"'
    with pytest.raises(AxialError, match=message):
        draw(model, 8)
    after = bits(model, torch.zeros(1, *VARIANTS["2d"].axes, 1).long())
    assert not torch.equal(before, after)  # it is run where the model is
    drawn = draw(model, 8, method="semi-parallel")
    assert torch.equal(drawn, draw(model, 8, method="naive"))


@pytest.mark.parametrize("name", ["2d-channels", "2d-lstm"])
def test_a_compiled_or_watched_model_draws_the_same(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of tests
    model = tiny_model(VARIANTS[name])
    before = draw(model, 3)
    assert torch.equal(draw(torch.compile(model, backend="eager"), 3), before)
    model.outer_decoders[0][1] = torch.compile(model.outer_decoders[0][1], backend="eager")
    model.to_logits = torch.compile(model.to_logits, backend="eager")
    assert torch.equal(draw(model, 3), before)
    model.norm.register_full_backward_hook(lambda module, before, after: None)
    assert torch.equal(draw(model, 3), before)  # there is nothing to go back through
    hooked(model.outer_decoders[0][1].attention)
    with pytest.raises(AxialError, match=r"outer_decoders\.0\.1\.attention of this model was"):
        draw(model, 3)


def test_settings_of_layers_that_the_caches_would_not_heed_are_refused_but_for_dropouts():
    model = tiny_model(config((3, 4), dropout=0.5))
    before = draw(model, 8)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.25
    assert torch.equal(draw(model, 8), before)
    model.norm.eps = 1.0
    with pytest.raises(AxialError, match="norm of this model was exchanged"):
        draw(model, 8)
    model = tiny_model(VARIANTS["2d-lstm"])
    hooked(model.inner_decoder.lstm)
    with pytest.raises(AxialError, match=r"inner_decoder\.lstm of this model was exchanged"):
        draw(model, 8)


def test_noise_may_forbid_all_values_of_what_is_given():
    model = tiny_model(VARIANTS["2d"])
    given = torch.full((1, *VARIANTS["2d"].axes, 1), -1)
    given[0, 0, 0] = 2
    noise = torch.zeros(*given.shape, VARIANTS["2d"].values)
    noise[0, 0, 0] = -torch.inf
    assert draw(model, 1, given=given, noise=noise)[0, 0, 0] == 2


def test_candidates_are_compared_in_double_precision():
    found = config((2, 2))
    model = tiny_model(found, dtype=torch.float32)
    torch.nn.init.zeros_(model.to_logits.weight)
    torch.nn.init.zeros_(model.to_logits.bias)
    noise = torch.ones(1, 2, 2, 1, 3, dtype=torch.float64)
    noise[..., 1] += 1e-12
    assert (draw(model, 1, noise=noise) == 1).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_model_whose_logits_are_not_finite_is_refused(method, wrong):
    model = tiny_model(config((2, 2)))
    draw(model, 2, method=method)
    model.to_logits.bias.data[1] = wrong
    with pytest.raises(AxialError, match="logits are not finite"):
        draw(model, 2, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_many_float16_logits_are_finite_though_their_sum_in_float16_is_not(method):
    found = config((2, 2), values=256)
    model = tiny_model(found, dtype=torch.float16)
    model.to_logits.bias.data += 100.0
    assert not model(draw(model, 3, method=method)).sum().isfinite()


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_noise_that_forbids_a_value_does_so_at_every_temperature(temperature):
    found = VARIANTS["2d-channels"]
    model = tiny_model(found)
    shape = (2, *found.axes, found.channels, found.values)
    noise = torch.zeros(shape, dtype=torch.float64)
    likeliest = draw(model, 2, noise=noise, temperature=temperature)
    assert (likeliest == 0).any() and torch.equal(likeliest, draw(model, 2, temperature=0.0))
    noise[..., 0] = -torch.inf
    x = draw(model, 2, noise=noise, temperature=temperature)
    logits = model(x)
    logits[..., 0] = -torch.inf
    assert torch.equal(x, logits.argmax(-1))


def test_the_estimate_of_memory_is_what_drawing_takes(monkeypatch):
    noise = config((2, 8), values=4000, width=8)
    monkeypatch.setattr(axial.sampling.draw, "_WORKING_BYTES", BUDGET)
    for found in (*BULKY, noise):
        model = tiny_model(found, dtype=torch.float32)
        count = axial.sampling.draw.draws_at_once(model)
        assert count > 1
        known = torch.zeros(count, *found.axes, found.channels, dtype=torch.long)
        known[:, -1, :, -1] = -1
        assert takes_its_budget(lambda m=model, k=known: draw(m, len(k), given=k))


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-20])
def test_no_temperature_or_a_tiny_one_is_argmax_whatever_the_seed(temperature):
    model = tiny_model(VARIANTS["2d-channels"])
    x = draw(model, 2, temperature=temperature, seed=1)
    assert torch.equal(x, draw(model, 2, temperature=temperature, seed=2))
    assert torch.equal(x[0], x[1]) and torch.equal(model(x).argmax(-1), x)


@pytest.mark.parametrize("name", ["2d", "2d-channels", "1d-given-channels"])
def test_draws_follow_the_models_own_probabilities(name):
    found = ENUMERABLE[name]
    model = tiny_model(found)
    known = request_for(found, 1)
    count = 20_000
    x = draw(model, count, seed=11, given=known["given"]).flatten(1)
    free = ~always_given(found)
    images = every_image(found, free)
    images[:, ~free] = known["given"][:, ~free]
    expected = count * (-bits(model, images)).exp2()
    key = found.values ** torch.arange(x.shape[1])
    place = torch.searchsorted((images.flatten(1) @ key).sort().values, x @ key)
    ranks = (images.flatten(1) @ key).argsort()
    observed = torch.bincount(place, minlength=len(images)).double()
    expected = expected[ranks]
    # Images too rare for the approximation are counted together.
    rare = expected < 10
    observed = torch.cat([observed[~rare], observed[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    chi_square = ((observed - expected) ** 2 / expected.clamp(min=1e-9)).sum()
    freedom = len(observed) - 1
    assert freedom >= 8
    assert (chi_square - freedom) / (2 * freedom) ** 0.5 < 4


FREE = config((2, 2), channels=2)
KEEP = config((2, 2), channels=2, given_channels=1)
BLANK = torch.full((1, 2, 2, 2), -1)


@pytest.mark.parametrize(
    ("found", "settings", "message"),
    [
        (FREE, {"count": 0}, "count is 0"),
        (FREE, {"first": -1}, "first is -1"),
        (FREE, {"first": torch.tensor([0, -1])}, "first holds -1"),
        (FREE, {"seed": torch.zeros(2, dtype=torch.long)}, "seed has shape (2,): give one"),
        (FREE, {"first": 1 << 63}, "first is 9223372036854775808: use whole numbers below"),
        (FREE, {"given": BLANK.to(torch.uint64)}, "given is torch.uint64, which has no -1"),
        (FREE, {"temperature": -0.5}, "temperature is -0.5: use 0 (argmax) or a positive number"),
        (FREE, {"temperature": float("nan")}, "temperature is nan"),
        (FREE, {"noise": torch.full((3, 2, 2, 2, 3), torch.nan)}, "noise holds what is no number"),
        (FREE, {"noise": torch.full((3, 2, 2, 2, 3), -torch.inf)}, "noise forbids every value of"),
        (FREE, {"temperature": 1.7e308}, "temperature is 1.7e+308: use 0 (argmax) or a positive"),
        (FREE, {"method": "magic"}, "method is 'magic': use one of cached, semi-parallel, naive"),
        (FREE, {"seed": -1}, "seed is -1"),
        (FREE, {"seed": 1 << 64}, "seed is 18446744073709551616: use whole numbers below"),
        (FREE, {"given": BLANK[:, :1]}, "given has shape (1, 1, 2, 2): use (3 or 1, 2, 2, 2)"),
        (FREE, {"given": BLANK.expand(2, -1, -1, -1)}, "given has shape (2, 2, 2, 2)"),
        (FREE, {"given": BLANK - 1}, "given holds -2"),
        (FREE, {"given": BLANK + 4}, "given holds 3"),
        (FREE, {"given": BLANK.float()}, "given is torch.float32"),
        (FREE, {"noise": torch.zeros(3, 2, 2, 3)}, "noise has shape (3, 2, 2, 3)"),
        (FREE, {"label": torch.zeros(3, dtype=torch.long)}, "this model is unconditional"),
        (FREE, {"context": torch.zeros(2, 2, 2, 8)}, "context has shape (2, 2, 2, 8)"),
        (KEEP, {}, "this model continues the first 1 channels and 0 steps"),
        (KEEP, {"given": BLANK}, "put them into given="),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(found, settings, message):
    settings = {"count": 3} | settings
    with pytest.raises(AxialError) as caught:
        draw(tiny_model(found), settings.pop("count"), **settings)
    assert message in caught.value.as_written and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["2d", "2d-columns", "3d-channels"])
def test_every_method_fills_up_around_a_part_that_is_no_prefix(name):
    model = tiny_model(VARIANTS[name])
    x, _, _ = random_input(model.config, 3)
    given = torch.full_like(x, -1)
    last = len(model.config.axes)
    given.select(last, 0).copy_(x.select(last, 0))  # the first column
    drawn = draw(model, 3, given=given, method="naive")
    assert torch.equal(drawn.select(last, 0), x.select(last, 0)) and (drawn >= 0).all()
    for method in ("cached", "semi-parallel"):
        assert torch.equal(draw(model, 3, given=given, method=method), drawn)


def test_what_is_no_tensor_is_refused_by_its_name(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as it is outside of tests
    picture, clip = tiny_model(FREE), tiny_model(config((3, 2, 2), classes=2))
    x, clips = BLANK.numpy() + 1, torch.zeros(1, 3, 2, 2, 1, dtype=torch.long)
    for message, call in {
        "x is a ndarray": lambda: picture(x),
        "label is a list": lambda: clip(clips, [0]),
        "channel is a int": lambda: picture.channel_logits(BLANK + 1, 0),
        "context is a list": lambda: picture(BLANK + 1, context=[0.0]),
        "given is a ndarray": lambda: draw(picture, 3, given=x),
        "noise is a list": lambda: draw(picture, 3, noise=[0.0]),
        "given is a list": lambda: complete(picture, [0]),
        "start is a ndarray": lambda: prolong(clip, clips.numpy(), 9),
    }.items():
        with pytest.raises(AxialError, match=f"^{message}: give a torch.Tensor$"):
            call()
