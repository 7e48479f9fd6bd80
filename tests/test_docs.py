"""What the documentation says is what the running model does."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import load_script
from shell_blocks import unknown_flags
from test_layout import ROOMS

import axial
from axial.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def figures():
    return load_script("tools/order_figures.py")


def places(axes):
    return list(itertools.product(*map(range, axes)))


def field(axes, inside):
    """The set of positions that a formula of docs/order.md describes, as a mask."""
    mask = torch.zeros(axes, dtype=torch.bool)
    for e in places(axes):
        mask[e] = inside(e)
    return mask


@pytest.mark.parametrize("name", ["IMAGE", "VOLUME"])
def test_each_level_sees_what_the_page_says(figures, name):
    config = getattr(figures, name)
    model = figures.speaking(config)
    channel, last = config.channels // 2, len(config.axes) - 1
    for p in places(config.axes):
        for k in range(last):
            saw = figures.seen(model, f"outer_decoders.{k}", p, channel, shifted=k)[..., channel]
            assert torch.equal(saw, field(config.axes, lambda e: e[:k] == p[:k] and e[k] < p[k]))
            saw = figures.seen(model, f"outer_decoders.{k}", p, channel)[..., channel]
            assert torch.equal(saw, field(config.axes, lambda e: e[:k] == p[:k] and e[k] <= p[k]))
        saw = figures.seen(model, "inner_decoder", p, channel)[..., channel]
        inside = lambda e: e[:last] == p[:last] and e[last] < p[last]  # noqa: E731
        assert torch.equal(saw, field(config.axes, inside))
        saw = figures.seen(model, "", p, channel)
        assert torch.equal(saw[..., channel], field(config.axes, lambda e: e < p))
        assert saw[..., :channel].all() and not saw[..., channel + 1 :].any()


def test_the_encoder_sees_all_of_the_earlier_channels_alone(figures):
    model = figures.speaking(figures.IMAGE)
    for channel in range(3):
        saw = figures.seen(model, "encoder", (2, 3), channel)
        assert saw[..., :channel].all() and not saw[..., channel:].any()


def test_the_figures_are_those_the_script_draws(figures, tmp_path):
    import matplotlib.image

    figures.main(tmp_path)
    for name in ("order_image.png", "order_channels.png", "order_volume.png"):
        drawn = matplotlib.image.imread(tmp_path / name)
        committed = matplotlib.image.imread(figures.FIGURES / name)
        assert drawn.shape == committed.shape
        # Letters may differ by a hair, a square may not: its inside is 16 pixels wide and more.
        height, width = (size // 16 * 16 for size in drawn.shape[:2])
        apart = abs(drawn - committed)[:height, :width].max(-1)
        tiles = apart.reshape(height // 16, 16, width // 16, 16).mean((1, 3))
        assert tiles.max() < 0.15


def every_page():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("src/axial/checkpoints/shipped/*/*.md"),
    ]
    return {page: page.read_text() for page in pages}


def anchors(text):
    """What a link may name of a page: its headings as GitHub spells them."""
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_file_and_heading_a_page_points_to_is_there():
    pages = every_page()
    for page, text in pages.items():
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
            if target.startswith("http"):
                continue
            found = (page.parent / target).resolve() if target else page
            assert found.exists(), (page, target)
            assert not anchor or anchor in anchors(pages[found]), (page, target, anchor)


def test_the_table_of_rooms_is_that_of_the_source():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"(?m)^\| (.*?) \|", text[text.index("## Rooms") : text.index("## Where")])
    rooms = [" ".join(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows]
    assert "\n".join(filter(None, rooms)) == ROOMS


def test_every_script_a_page_names_is_there_with_the_flags_it_shows():
    named = [
        (page, *found)
        for page, text in every_page().items()
        for found in re.findall(r"\b((?:benchmarks|experiments|tools)/\w+\.py)([^`\n]*)", text)
    ]
    assert len(named) > 15
    for page, script, rest in named:
        assert not (missing := unknown_flags(script, rest)), (page, script, missing)


def test_every_command_a_page_shows_is_known_with_its_flags(capsys):
    flags = {}
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        flags[name] = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    in_a_block, in_a_line = r"(?m)^    .*?\baxial (\w+) (.*)$", r"`axial\s([a-z]+)\b([^`]*)`"
    shown = [
        (page, *found)
        for page, text in every_page().items()
        for found in re.findall(in_a_block, text) + re.findall(in_a_line, text)
    ]
    assert len(shown) > 60
    for page, name, rest in shown:
        unknown = set(re.findall(r"--[a-z][a-z-]*", rest)) - flags.get(name, set())
        assert name in flags and not unknown, (page, name, rest)


PAGES = sorted(page for page, text in every_page().items() if "```python" in text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run_from_top_to_bottom(tmp_path, page):
    small = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": (2, 1)}
    config = axial.ModelConfig(axes=(8, 8), channels=3, **small)
    # A folder goes before the model that ships under its name, which would take a minute here.
    axial.save(axial.AxialTransformer(config), tmp_path / "cifar10")
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # what was recorded of others' models
    script = "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, cwd=tmp_path)
