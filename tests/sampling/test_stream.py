"""A stream shows the drawing line by line, and leaves nothing behind between or after its items."""

import gc
import inspect
import weakref
from contextlib import ExitStack, contextmanager

import pytest
import torch
from conftest import VARIANTS, config, request_for, tiny_model

from axial import AxialError, draw, stream
from axial.models.causal import order
from axial.sampling.draw import Request
from axial.sampling.kv_cache import DecoderState

SETTINGS = {"seed": 3, "temperature": 0.8, "first": 4}


def lines_of(found):
    return order(found).view(-1, found.plane_axes[-1])


def lines_missing(found, given):
    """How many lines have something to draw."""
    return int((given.flatten(1)[:, lines_of(found)] < 0).any(0).any(1).sum())


@pytest.mark.parametrize("name", [name for name in VARIANTS if "labels" not in name])
def test_items_are_what_there_is_after_each_line_and_the_last_is_the_drawing(name):
    found = VARIANTS[name]
    model, known = tiny_model(found), request_for(found, 3)
    wanted = draw(model, 3, **known, **SETTINGS)
    items = list(stream(model, 3, **known, **SETTINGS))
    assert len(items) == lines_missing(found, known["given"])
    assert torch.equal(items[-1], wanted) and items[-1].dtype == wanted.dtype
    seen = known["given"].flatten(1)
    missing = [line for line in lines_of(found) if (seen[:, line] < 0).any()]
    for item, line in zip(items, missing, strict=True):
        seen[:, line] = wanted.flatten(1)[:, line]
        assert torch.equal(item.flatten(1), seen)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("2d-labels", "cached"),
        ("2d-lstm", "cached"),
        ("3d-columns-given", "cached"),
        ("2d-labels", "semi-parallel"),
        ("1d-rows-labels", "semi-parallel"),
        ("1d-rows-labels", "naive"),
    ],
)
def test_several_batches_are_drawn_one_after_another_by_every_method(name, method):
    found = VARIANTS[name]
    model, known = tiny_model(found, dtype=torch.float32), request_for(found, 5)
    how = {**known, **SETTINGS, "method": method, "batch": 2}
    told = []
    wanted = draw(model, 5, finished=lambda x: told.append(x.clone()), **how)
    items = list(stream(model, 5, **how))
    assert torch.equal(items[-1], wanted) and len(items) == len(told)
    assert all(torch.equal(*pair) for pair in zip(items, told, strict=True))
    lines = lines_missing(found, known["given"])
    assert len(items) == 3 * lines
    assert (items[lines - 1][:2] >= 0).all() and (items[lines - 1][2:] < 0).any()


@pytest.mark.parametrize(
    ("name", "method"), [("2d", "naive"), ("2d-rows", "semi-parallel"), ("3d-columns", "cached")]
)
def test_only_lines_with_something_missing_are_items_and_at_least_there_is_one(name, method):
    found = VARIANTS[name]
    model = tiny_model(found)
    whole = draw(model, 2)
    (item,) = stream(model, 2, given=whole, method=method)
    assert torch.equal(item, whole) and item is not whole
    kept = whole.clone().flatten(1)
    kept[1, lines_of(found)[-2, -1]] = -1  # one element of one picture
    (item,) = stream(model, 2, given=kept.view_as(whole), method=method)
    assert torch.equal(item, whole)


def test_an_item_is_the_callers_to_keep_and_to_change():
    model = tiny_model(VARIANTS["2d-channels"])
    wanted, kept = draw(model, 2), []
    for item in stream(model, 2):
        kept.append(item.clone())
        item.fill_(1)
    assert torch.equal(kept[-1], wanted) and item.eq(1).all()


def test_the_arguments_are_those_of_draw():
    ours, theirs = (inspect.signature(call).parameters.values() for call in (stream, draw))
    assert [str(p) for p in ours] == [str(p) for p in theirs if p.name != "finished"]


def test_what_cannot_be_drawn_is_refused_at_the_call():
    model = tiny_model(VARIANTS["2d"])
    for count, settings, message in (
        (0, {}, "count is 0"),
        (2, {"batch": 0}, "batch is 0"),
        (2, {"noise": torch.zeros(1)}, "noise has shape"),
    ):
        with pytest.raises(AxialError, match=message):
            stream(model, count, **settings)


def test_a_model_that_the_caches_would_not_run_is_refused_at_the_call():
    model = tiny_model(VARIANTS["2d"])
    model.to_logits.register_forward_hook(lambda module, args, out: 2 - out)
    with pytest.raises(AxialError, match="to_logits of this model was exchanged"):
        stream(model, 2)
    *_, last = stream(model, 2, method="semi-parallel")
    assert torch.equal(last, draw(model, 2, method="naive"))


def settings_of(model):
    """All that a caller could see of the process and the model."""
    return (
        [module.training for module in model.modules()],
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.backends.cudnn.rnn.fp32_precision,
    )


@contextmanager
def unusual_settings(model):
    """Settings that drawing must not see, on top of those of the process."""
    before = torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision
    torch.set_num_threads(2)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    model.train()
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.mkldnn.matmul.fp32_precision = before[1]


ENDS = ["exhausted", "closed", "dropped", "failed", "thrown"]


def finish(items, end, model):
    """Bring a stream to its end, unless it is to be dropped; return the error, as notebooks do."""
    if end == "closed":
        items.close()
        assert next(items, None) is None
    elif end == "exhausted":
        assert len(list(items)) > 2
    elif end == "thrown":
        with pytest.raises(ZeroDivisionError) as error:
            items.throw(ZeroDivisionError())
        return error
    elif end == "failed":
        # Not by a hook: torch's closure around hooks keeps their output as long as the error.
        model.positions.forward = lambda *args: 1 / 0
        with pytest.raises(ZeroDivisionError) as error:
            list(items)
        return error
    return None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("method", ["cached", "semi-parallel"])
def test_between_items_and_afterwards_all_settings_are_the_callers(method, end):
    found = config((3, 4), channels=2, dropout=0.5)
    model = tiny_model(found, dtype=torch.float32)
    wanted = draw(model, 2)
    with unusual_settings(model):
        model.encoder.eval()  # a part that was in another mode than the rest
        unusual = settings_of(model)
        assert any(unusual[0]) and not all(unusual[0]) and unusual[1] and unusual[4] == 2
        items = stream(model, 2, method=method)
        assert settings_of(model) == unusual
        for _ in range(2):
            item = next(items)
            assert settings_of(model) == unusual
        if end == "exhausted":
            for item in items:
                assert settings_of(model) == unusual and (item >= 0).any()
            assert torch.equal(item, wanted)
        else:
            finish(items, end, model)
        del items
        assert settings_of(model) == unusual


@pytest.mark.parametrize("name", ["2d-channels", "2d-lstm"])
def test_a_caller_may_change_modes_between_items(name):
    model = tiny_model(VARIANTS[name])
    wanted = draw(model, 3)
    modes = [torch.inference_mode, torch.enable_grad, torch.no_grad, ExitStack]
    with torch.inference_mode():
        items = stream(model, 3, given=torch.full_like(wanted, -1))
    item = None
    for turn in range(len(lines_of(VARIANTS[name]))):
        with modes[turn % len(modes)]():
            item = next(items)
        assert not item.is_inference() and not item.requires_grad
    assert torch.equal(item, wanted) and next(items, None) is None


@contextmanager
def no_collector():
    """What goes must go by itself: a cycle would keep a GPU's memory for a while."""
    gc.collect()
    gc.disable()
    gc.freeze()  # what there is already need not be looked through
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def caches():
    """References to all that requests and decoders of this process keep."""
    kept = [o for o in gc.get_objects() if type(o) in (DecoderState, Request)]
    for state in [o for o in kept if type(o) is DecoderState]:
        outer = [cache for level in state.outer_caches for cache in level if cache]
        kept += [*outer, *(t for cache in outer for t in (cache.keys, cache.values))]
        kept += [state.inner, *getattr(state.inner.decoder, "caches", [])]
    return [weakref.ref(found) for found in kept]


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *(("2d-channels", end) for end in (*ENDS, "never begun")),
        *(("2d-lstm", end) for end in ("closed", "failed")),
        *(("3d-columns", end) for end in ("dropped", "failed")),
    ],
)
def test_whichever_way_it_ends_no_cache_stays(name, end):
    model = tiny_model(VARIANTS[name])
    with no_collector():
        items = stream(model, 2, batch=1)
        refs = caches()
        assert len(refs) == 1  # what is asked for
        if end != "never begun":
            next(items)
            refs = [*caches(), weakref.ref(next(items))]
            assert len(refs) > 5 and all(ref() is not None for ref in refs)
        error = finish(items, end, model)
        if end in ("dropped", "never begun"):
            del items
        assert caches() == [] and all(ref() is None for ref in refs)
    assert (error is None) == (end not in ("failed", "thrown"))


def test_an_error_inside_a_level_frees_the_caches_though_the_error_is_kept():
    model = tiny_model(VARIANTS["2d-channels"])
    with no_collector():
        items = stream(model, 2)
        next(items)
        (state,) = (o for o in gc.get_objects() if type(o) is DecoderState)
        state.inner.table = None
        refs = caches()
        del state
        with pytest.raises(AttributeError, match="index_select") as error:
            next(items)
        assert all(ref() is None for ref in refs) and next(items, None) is None
    assert error is not None  # kept until here, as a notebook would


def test_damaged_logits_are_refused_at_their_line_not_at_the_end():
    model = tiny_model(VARIANTS["2d-channels"])
    items = stream(model, 2)
    next(items)
    model.embedding.weight.data.fill_(torch.nan)
    with pytest.raises(AxialError, match="logits are not finite"):
        next(items)


@pytest.mark.parametrize(
    ("name", "method"),
    [("2d-channels", "cached"), ("2d-lstm", "cached"), ("1d-rows", "semi-parallel")],
)
def test_streams_of_one_model_do_not_see_each_other_nor_a_drawing(name, method):
    model = tiny_model(VARIANTS[name])
    wanted = [draw(model, 3, seed=seed) for seed in range(3)]
    alone = [list(stream(model, 3, seed=seed, method=method)) for seed in range(2)]
    together = [[], []]
    streams = [stream(model, 3, seed=seed, method=method) for seed in range(2)]
    for pair in zip(*streams, strict=True):
        for seen, item in zip(together, pair, strict=True):
            seen.append(item)
        assert torch.equal(draw(model, 3, seed=2, method=method), wanted[2])
    for seed in range(2):
        assert all(torch.equal(*pair) for pair in zip(together[seed], alone[seed], strict=True))
        assert torch.equal(together[seed][-1], wanted[seed])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("end", ENDS)
def test_a_gpu_gets_all_its_memory_back(dtype, end):
    found = config((8, 16), channels=3, values=20, width=48, heads=3, decoder_layers=(2, 3))
    model = tiny_model(found, dtype=dtype).to("cuda")
    wanted = draw(model, 4, batch=4)
    del wanted
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with no_collector():
        items = stream(model, 4, batch=4)
        assert torch.cuda.memory_allocated() == before
        next(items), next(items)
        assert torch.cuda.memory_allocated() > before
        error = finish(items, end, model)
        if end == "dropped":
            del items
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
    assert (error is None) == (end not in ("failed", "thrown"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_streams_on_a_gpu_do_not_see_each_other(dtype):
    model = tiny_model(VARIANTS["2d-deep"], dtype=dtype).to("cuda")
    wanted = [draw(model, 4, seed=seed, batch=3) for seed in range(2)]
    streams = [stream(model, 4, seed=seed, batch=3) for seed in range(2)]
    for pair in zip(*streams, strict=True):
        last = pair
    assert all(torch.equal(*pair) for pair in zip(last, wanted, strict=True))
