"""Table 1 and the comparison of families: what is seen is measured, rows are trained and told."""

import itertools
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import load_script, normal
from torch.utils.flop_counter import FlopCounterMode

import axial
from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.families import new_model
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.presets import PRESETS
from axial.shape import DataShape

rivals = load_script("experiments/rivals.py")
table1 = load_script("experiments/table1.py")
receptive_field, rival_rows = sys.modules["receptive_field"], sys.modules["rival_rows"]
timing = sys.modules["table1_timing"]

CIFAR = DataShape(axes=(32, 32), channels=3)
SMALL = {"channels": 2, "values": 3, "width": 8, "heads": 2}
SEEN = [
    ModelConfig(
        axes=(3, 4), encoder_layers=2, decoder_layers=(2, 1), **SMALL | {"channels": 3, "width": 16}
    ),
    FullConfig(axes=(2, 3), layers=1, **SMALL),
    StridedConfig(axes=(3, 4), layers=1, **SMALL),
    StridedConfig(axes=(3, 4), layers=2, stride=4, cycle=("local", "strided"), **SMALL),
    StridedConfig(axes=(3, 4), layers=2, stride=4, cycle=("local",), **SMALL),
    Local1dConfig(axes=(2, 7), block=4, layers=2, **SMALL),
    Local2dConfig(axes=(4, 6), block=(2, 4), flange=(1, 3), layers=1, **SMALL),
    Local2dConfig(axes=(6, 4), block=(2, 2), flange=(2, 2), layers=2, norm="pre", **SMALL),
    GatedPixelCnnConfig(
        axes=(5, 6), channels=2, values=3, width=16, layers=2, first_kernel=3, kernel=5
    ),
    PixelCnnPpConfig(axes=(8, 12), channels=1, width=4, layers=1, components=2),
    BlocksConfig(
        axes=(4, 8),
        subscale=(2, 2),
        block_shapes=((2, 2), (1, 4)),
        encoder_layers=2,
        layers=2,
        head_width=4,
        embedding_width=6,
        **SMALL,
    ),
]
"""Few of these see everything in the end."""


def command(script, *words):
    """Run a script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script.__name__, *map(str, words)])
        script.main()


def pairs_that_speak(config):
    """How many elements move the logits of others, by changing one at a time in two pictures."""
    model = new_model(config).double().eval()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        std = 1.5 if name.endswith(".g") else 0.3
        parameter.data = std * normal(*parameter.shape, seed=(0, number))
    shape = (*config.axes, config.channels)
    count = math.prod(shape)
    moved = torch.zeros(count, count, dtype=torch.bool)
    for picture in np.random.default_rng(0).integers(config.values, size=(2, count)):
        x = torch.from_numpy(picture).repeat(count + 1, 1)
        x[range(count), range(count)] += config.values // 2
        with torch.no_grad():
            logits = model((x % config.values).view(-1, *shape)).flatten(1, -2)
        moved |= (logits[:-1] - logits[-1]).abs().amax(-1) > 1e-12
    return int(moved.sum())


@pytest.mark.parametrize("config", SEEN, ids=lambda config: type(config).__name__)
def test_receptive_fields_by_masks_are_those_of_models(config):
    assert list(receptive_field.reached_pairs(config))[-1] == pairs_that_speak(config)


def test_the_figures_of_the_specification_come_out():
    """Those of the papers' masks, computed elsewhere, at 32 x 32."""

    def percent(preset):
        found = receptive_field.shares(rival_rows.config_of(preset, 32))
        return pytest.approx([100 * share for share in found], abs=0.055)

    assert percent("strided-cifar10") == [1.1, 100]
    one = receptive_field.shares(rival_rows.config_of("local-1d-cifar10", 32))
    assert pytest.approx([100 * one[at] for at in (0, 3, 7, 10)], abs=0.055) == [
        23.6,
        61.1,
        91.7,
        100,
    ]
    assert percent("local-2d-cifar10-12m") == [41.7, 77.5, 93.05]
    whole = replace(
        PRESETS["blocks-cifar10-45m"]().model,
        subscale=(1, 1),
        encoder_layers=0,
        block_shapes=None,
        kernel=None,
    )
    inside = [100 * share for share in receptive_field.share_within_slice(whole)]
    assert inside == pytest.approx([15.4, 27.5, 52.6, 94.6, 98.7, 98.7, 99.4, 99.4], abs=0.055)
    reached = list(receptive_field._pixelcnnpp(PRESETS["pixelcnnpp-cifar10"]().model).ravel())
    assert sum(int(word).bit_count() for word in reached) == 522_336
    for side, preset in itertools.product((8, 64), ("cifar10", "full-cifar10", "strided-cifar10")):
        assert receptive_field.shares(rival_rows.config_of(preset, side))[-1] == 1


def test_pairs_and_exponents_are_those_of_the_specification():
    expected = {
        "axial": ([3 * 32_768], 1.5),
        "full": ([4_720_128], 2.0),
        "strided": ([290_352, 50_688], 1.5),
        "local-1d": ([1_115_648], 1.22),
        "blocks": ([66_048, 131_072], 1.35),
        "pixelcnn++": ([], 1.0),
    }
    for name, (pairs, exponent) in expected.items():
        preset = rival_rows.ROWS[name].equal
        assert table1.pairs(rival_rows.config_of(preset, 32)) == pairs
        assert table1.grown(preset)["pairs"] == pytest.approx(exponent, abs=0.02)


WIDE = GatedPixelCnnConfig(axes=(4, 12), values=3, width=4, layers=2, first_kernel=3)
"""Four columns of it are not counted but taken to be like those before."""


@pytest.mark.parametrize("config", [WIDE, SEEN[-1]], ids=lambda config: type(config).__name__)
def test_what_is_done_ahead_is_what_a_drawing_does_when_it_opens_a_line(config):
    steps = (
        new_model(config)
        .eval()
        .steps(torch.zeros(1, *config.axes, config.channels, dtype=torch.long))
    )
    total, opening, opened = FlopCounterMode(display=False), steps._open, []

    def counted(number):
        before = total.get_total_flops()
        opening(number)
        opened.append(total.get_total_flops() - before)

    steps._open = counted
    with torch.no_grad(), total, table1.sdpa_kernel(table1.SDPBackend.MATH):
        for rank in range(math.prod(config.axes) * config.channels):
            steps.logits(rank)
    share = sum(opened) / total.get_total_flops()
    assert table1.ahead(config) == pytest.approx(share, rel=1e-9) and 0.1 < share < 0.9


def test_of_the_axial_model_all_but_the_inner_level_is_ahead():
    config = SEEN[0]
    width, length = config.width, config.axes[1]
    inner = 2 * (4 + 2) * width**2 + 4 * length * width + 2 * width * config.values
    inner *= len(config.slices) * math.prod(config.axes)
    assert table1.ahead(config) == pytest.approx(1 - inner / axial_flops(config))
    assert table1.ahead(SEEN[1]) == table1.ahead(SEEN[5]) == 0


def axial_flops(config):
    return len(config.slices) * config.pass_flops()


def test_the_table_says_which_words_do_not_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table1, "ahead", lambda config: 0.5 * isinstance(config, BlocksConfig))
    out = tmp_path / "table.md"
    command(table1, "--rows", "local-1d", "blocks", "--sides", 8, 64, "--out", out)
    text = capsys.readouterr().out
    assert out.read_text() == text and out.with_suffix(".png").stat().st_size > 10_000
    assert '"no" does not hold at 8 x 8, but: 45.3 % at 64 x 64' in text
    assert '**Block Transformer**: semi-parallel "no" does not hold: 50.0 %' in text
    assert "takes a GPU" in text


def test_what_takes_a_gpu_runs_at_toy_size_and_is_kept(tmp_path):
    out = tmp_path / "table.md"
    rows = ["axial", "blocks"]
    first = timing.timings(rows, "cpu", toy=True, out=out)
    kept = tmp_path / "table_timing.json"
    found = json.loads(kept.read_text())["rows"]
    assert all(found[row][what] > 0 for row in rows for what in ("core", "best", "draw"))
    assert {"time, plain", "memory, fused"} <= found["axial"].keys()
    assert timing.timings(rows, "cpu", toy=True, out=out) == first  # nothing is timed again
    assert (tmp_path / "table_timing.png").stat().st_size > 5000
    kept.write_text(json.dumps({"device": "another", "rows": {}}))
    with pytest.raises(SystemExit, match="is of another, not of CPU; remove it"):
        timing.timings(rows, "cpu", toy=True, out=out)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_to_a_window_is_the_local_half():
    config = StridedConfig(axes=(4, 8), channels=1, values=3, width=32, heads=2, layers=2)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 32, 16).unbind()
    local = timing.SequenceAttention(config, 1)._local(q, k, v)
    flex = timing.window_attention(32, 8, "cpu")(q, k, v)
    torch.testing.assert_close(flex, local, atol=1e-5, rtol=1e-5)


def test_rows_have_about_the_cost_of_cifar10_and_its_recipe():
    ours = PRESETS["cifar10"]()
    for row in rivals.ROWS:
        recipe = rivals.recipe_of(row, CIFAR, rate=4e-3, seed=2)
        cost = len(recipe.model.slices) * recipe.model.pass_flops()
        assert 0.9 < cost / axial_flops(ours.model) < 1.65  # full attention counts what is masked
        same = {"optimizer", "schedule", "batch", "flip", "embeddings", "ema_horizon", "warmup"}
        for name in same:
            assert getattr(recipe.training, name) == getattr(ours.training, name)
        assert (recipe.training.learning_rate, recipe.training.seed) == (4e-3, 2)
        assert recipe.training.validation == 5000 and recipe.training.hold_out == "last"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(rivals, "HELD_OUT", 20)
    monkeypatch.setattr(rivals, "VALIDATE_EVERY", 1)
    return ["--steps", 2, "--batch", 4, "--warmup", 1, "--device", "cpu", "--pictures", 2]


def test_a_row_is_trained_in_parts_and_its_best_rate_with_more_seeds(
    quick, pictures, tmp_path, capsys
):
    out = tmp_path / "out"
    row = ["run", "axial", "--data", pictures, "--out", out, "--width", 20, *quick]
    command(rivals, *row, "--most", 1)
    assert "call this again" in capsys.readouterr().out
    (first,) = out.glob("axial/*/result.json")
    written = first.stat().st_mtime_ns
    command(rivals, *row, "--seeds", 2)
    results = [json.loads(path.read_text()) for path in sorted(out.glob("axial/*/result.json"))]
    assert first.parent.name == "0.001-0" and first.stat().st_mtime_ns >= written
    assert {(r["rate"], r["seed"]) for r in results if r["seed"] == 0} == {
        (rate, 0) for rate in rivals.RATES
    }
    best = min((r for r in results if r["seed"] == 0), key=lambda r: r["held_out"])
    tested = [r for r in results if r["test"]]
    assert {(r["rate"], r["seed"]) for r in tested} == {(best["rate"], 0), (best["rate"], 1)}
    model = axial.load(out / "axial" / f"{best['rate']:g}-0" / "run")
    test = axial.evaluate(model, axial.open_packed(pictures / "test.npy")).bits_per_dim
    assert best["test"]["bits_per_dim"] == test and best["draw"]["pictures"] == 2
    assert best["steps"] == 2 and best["flops_a_step"] == 4 * 3 * model.config.pass_flops()
    command(rivals, *row, "--seeds", 2)  # all of it is there
    command(rivals, "table", out)
    assert "There is no axial row and rival to compare yet." in capsys.readouterr().out


def test_rates_may_be_tried_in_shorter_trainings(quick, pictures, tmp_path, monkeypatch):
    """The best of them is trained for long, alone; what was tried is not."""
    out, lengths = tmp_path / "out", []
    train = axial.train

    def short(recipe, *, max_minutes, **how):
        lengths.append(max_minutes)
        return train(recipe, steps=1 + (recipe.training.learning_rate == 4e-3), **how)

    monkeypatch.setattr(rivals.axial, "train", short)
    words = [w for i, w in enumerate(quick) if "--steps" not in quick[max(0, i - 1) : i + 1]]
    row = ["run", "axial", "--data", pictures, "--out", out, "--width", 20, *words]
    command(rivals, *row, "--minutes", 4, "--trial-minutes", 1.5, "--seeds", 2)
    assert lengths == [1.5, 1.5, 1.5, 4, 4]
    results = {p.parent.name: json.loads(p.read_text()) for p in out.glob("axial/*/result.json")}
    trials = {f"{rate:g}-trial" for rate in rivals.RATES}
    best = min((results[name] for name in trials), key=lambda r: r["held_out"])["rate"]
    assert results.keys() == trials | {f"{best:g}-0", f"{best:g}-1"}
    for name, result in results.items():
        assert (result["test"] is None) == result["trial"] == (name in trials)
        assert result["minutes"] == (1.5 if name in trials else 4)


def test_the_table_tells_what_shorter_trials_found(tmp_path, capsys):
    fake(tmp_path, "axial", 3.02, rate=2e-3, test=3.04)
    for rate, bits in ((1e-3, 3.25), (2e-3, 3.2), (4e-3, None)):
        fake(tmp_path, "axial", bits, rate=rate, trial=True)
    fake(tmp_path, "full", 3.1, trial=True)  # of this row there is no more yet
    command(rivals, "table", tmp_path)
    line = next(t for t in capsys.readouterr().out.splitlines() if t.startswith("| axial"))
    assert "| 3.0200 +- 0.0090 | 3.0400 |" in line and "| 4.00 |" in line
    assert "0.001: 3.2500, 0.002: 3.2000, 0.004: diverged (tried for 1 min) |" in line


def test_a_run_that_was_begun_is_resumed(quick, pictures, tmp_path, monkeypatch):
    out = tmp_path / "out"
    row = ["run", "local-1d", "--data", pictures, "--out", out, "--width", 16, *quick, "--most", 1]

    def killed(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rivals, "write_result", killed)
        command(rivals, *row)
    (inside,) = out.glob("local-1d/*/run")
    before = (inside / "run.json").read_text()
    command(rivals, *row)
    assert (inside / "run.json").read_text() == before
    assert json.loads((inside.parent / "result.json").read_text())["steps"] == 2


def fake(out, row, bits, *, rate=2e-3, seed=0, test=None, trial=False):
    """What a run leaves."""
    folder = out / row / rivals.Task(rate, seed, trial).name
    folder.mkdir(parents=True)
    result = {"row": row, "rate": rate, "seed": seed, "trial": trial}
    if bits is not None:
        result["minutes"] = 1.0 if trial else 4.0
        result |= {"preset": rivals.ROWS[row].equal, "parameters": 14_000_000, "steps": 6000}
        result |= {"flops_to_score": 88e9, "flops_a_step": 5e12, "seconds": 240.0}
        result |= {"held_out": bits, "standard_error": 0.009, "test": None, "draw": None}
        if test:
            result["test"] = {"bits_per_dim": test}
            result["draw"] = {"pictures": 64, "seconds": 1.5}
        looks = [{"step": s, "seconds": s / 25, "held_out": bits + 1 / s} for s in (2000, 6000)]
        (folder / "log.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    (folder / "result.json").write_text(json.dumps(result))


def test_the_table_says_which_row_is_ahead_and_by_how_much(tmp_path, capsys):
    out, page = tmp_path / "out", tmp_path / "table.md"
    for seed, bits in enumerate((3.01, 3.012, 3.008)):
        fake(out, "axial", bits, seed=seed, test=3.03)
        fake(out, "strided", bits + 0.05, seed=seed, test=3.08)
    fake(out, "axial", 3.05, rate=1e-3)
    fake(out, "axial", None, rate=4e-3)  # diverged
    fake(out, "strided", 3.09, rate=4e-3)
    command(rivals, "table", out, "--out", page)
    text = capsys.readouterr().out
    assert page.read_text() == text and page.with_suffix(".png").stat().st_size > 10_000
    first, second = [line for line in text.splitlines() if line.startswith(("| axial", "| str"))]
    assert first.startswith("| axial") and "3.0100 +- 0.0090, mean of 3, spread 0.0040" in first
    assert "0.001: 3.0500, 0.002: 3.0100, 0.004: diverged |" in first
    assert "0.004: 3.0900 (at the border) | 2.80 |" in second and "1.50 s for 64" in second
    assert "the best rival, strided, 3.0600: 0.0500 more." in text
    assert "Seeds make 0.0040: axial is ahead." in text
    assert "Of strided the best rate is at the border" in text


def test_without_three_seeds_nothing_is_ahead(tmp_path, capsys):
    fake(tmp_path, "axial", 3.1)
    fake(tmp_path, "full", 3.0)
    command(rivals, "table", tmp_path)
    text = capsys.readouterr().out
    assert "0.1000 less. They have not been run with three seeds each" in text
    with pytest.raises(SystemExit, match="has no results"):
        command(rivals, "table", tmp_path / "none")


def test_the_kept_table_is_what_the_script_says_of_what_is_seen():
    text = (table1.Path(table1.__file__).parent / "results" / "table1_cpu.md").read_text()
    for name, row in rival_rows.ROWS.items():
        found = receptive_field.shares(rival_rows.config_of(row.published, 16))[-1]
        line = next(line for line in text.splitlines() if line.startswith(f"| {row.model} |"))
        assert line.split(" | ")[2] == table1._percent(found), name


def test_the_figure_shows_what_masks_promise_and_nothing_later(monkeypatch):
    figure = load_script("tools/rivals_figure.py")
    monkeypatch.setattr(figure, "PICTURES", 1)
    axial_row, strided = figure.FAMILIES[0], figure.FAMILIES[2]
    for shown in (axial_row, strided):
        *layers, prediction = figure.seen(shown.config)
        before = figure.earlier(shown.config)
        assert torch.equal(prediction, before) and set(shown.layers) == set(range(len(layers)))
        assert not any((layer & ~before).any() for layer in layers)
    row, column, channel = figure.ASKED
    expected = torch.zeros_like(before)
    expected[: row + 1, column, channel - 1] = True
    assert torch.equal(layers[0], expected)


def test_the_page_shows_what_the_scripts_say(capsys):
    root = table1.Path(table1.__file__).parents[1]
    page = (root / "docs" / "rivals.md").read_text()
    kept = (root / "experiments" / "results" / "table1_cpu.md").read_text()
    tables = [part for part in kept.split("\n\n") if part.startswith("|")]
    command(rivals, "hours")
    assert all(table in page for table in [*tables, capsys.readouterr().out.strip()])
    assert len(tables) == 2
