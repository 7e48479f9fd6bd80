"""The documentation site and the notebook: strict, complete, and nothing from elsewhere."""

import re
import tomllib
from pathlib import Path

import pytest
from conftest import load_script

import axial

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs/first_steps.ipynb"


@pytest.fixture(scope="module")
def builder():
    return load_script("tools/build_docs.py")


@pytest.fixture(scope="module")
def site(builder, tmp_path_factory):
    return builder.build(tmp_path_factory.mktemp("docs"))  # ends the test where it is not strict


def test_the_site_has_every_page_and_every_public_name(site):
    for page in ROOT.glob("docs/*.md"):
        assert (site / "docs" / page.with_suffix(".html").name).is_file(), page
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    listed = set(re.findall(r"'([^']*\.md)'", str(nav)))
    built = {
        str(file.relative_to(site).with_suffix(".md")).replace("index.md", "README.md")
        for file in site.rglob("*.html")
    }
    assert listed == built - {"404.md"}
    reference = (site / "docs/api.html").read_text()
    missing = [name for name in axial.__all__ if f'id="axial.{name}"' not in reference]
    assert not missing


def test_public_names_stand_in_the_table_of_the_page(builder):
    named = [name for names in builder.public_names().values() for name in names]
    assert sorted(named) == axial.__all__


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="gone.html">x</a>', "gone.html is not there"),
        ('<img src="gone.png">', "gone.png is not there"),
        ('<a href="#gone">x</a>', "#gone names no heading"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn.example.org"),
        ('<link href="//fonts.example.org/x.css">', "loads //fonts.example.org"),
    ],
)
def test_a_broken_or_foreign_link_is_told(builder, tmp_path, body, said):
    (tmp_path / "index.html").write_text(f'<h1 id="top"></h1><a href="#top">t</a>{body}')
    assert [line for line in builder.broken_links(tmp_path) if said in line]


def test_a_sound_page_has_no_broken_links(builder, tmp_path):
    (tmp_path / "a b.html").write_text('<h1 id="top"></h1>')
    (tmp_path / "index.html").write_text('<a href="a%20b.html#top">x</a><a href="http://x">y</a>')
    assert builder.broken_links(tmp_path) == []


def test_the_notebook_runs_and_shows_what_it_kept(tmp_path, monkeypatch):
    notebooks = load_script("tools/notebooks.py")
    small = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": (2, 1)}
    # In place of the shipped model, which would take a minute.
    model = axial.AxialTransformer(axial.ModelConfig(axes=(8, 8), channels=3, **small))
    axial.save(model, tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    cells, kept = notebooks.run(NOTEBOOK), notebooks.read(NOTEBOOK)["cells"]
    for cell, old in zip(cells, kept, strict=True):
        if cell["cell_type"] == "code":
            kinds = [[sorted(one.get("data", one)) for one in c["outputs"]] for c in (cell, old)]
            assert kinds[0] == kinds[1], old["source"]
    printed = [o["text"] for cell in cells for o in cell.get("outputs", []) if "text" in o]
    assert "equal: True\n" in printed[1]
    assert float(printed[2][0].split()[0]) < 0.2  # bits/dim, of 2 for a model that knows nothing


def test_the_table_of_extras_is_that_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs/install.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \|.*\| (.*?) ?\|$", text))
    own = extras["optional-dependencies"]
    assert rows.keys() == own.keys()
    for name, row in rows.items():
        if name not in ("all", "dev", "docs"):
            packages = [re.match(r"[\w-]+", package)[0] for package in own[name]]
            assert row == ", ".join(packages)
    everything = set(re.findall(r"\w+", own["all"][0].split("[")[1]))
    assert everything == own.keys() - {"all", "dev", "docs"}
    assert all(f"Python :: 3.{minor}" in str(extras["classifiers"]) for minor in (11, 12, 13))
