"""Build the documentation site: the Markdown of the repository, an API reference and the notebook.

    python tools/build_docs.py --out build/docs

Pages keep the places they have in the repository, so that links that work on a code host work
here. Every link of the built pages is followed, and nothing may come from another host.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import notebooks

import axial

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "docs/*.*", "src/axial/checkpoints/shipped/*/README.md")
_LINK = re.compile(r"\]\(([^)#\s]+)#?[^)]*\)")


def public_names() -> dict[str, list[str]]:
    """The names of `axial` by subject, as the table of docs/python.md has them."""
    text = (ROOT / "docs/python.md").read_text()
    rows = re.findall(r"(?m)^\| (.+?) \| (`.*) \|$", text[: text.index("\n## ")])
    return {subject: re.findall(r"`(\w+)`", names) for subject, names in rows}


def api_page() -> str:
    """One entry for each public name, from its docstring."""
    parts = ["# API reference\n\nEvery public name of `axial`; examples: [python.md](python.md)."]
    for subject, names in public_names().items():
        parts.append(f"## {subject.capitalize()}")
        parts += [f"::: axial.{name}" for name in names]
    parts.append("## Presets\n\nEach is a function from the shape of the data to a `Recipe`.")
    parts.append("::: axial.presets\n    options:\n      show_root_toc_entry: false")
    parts[-1] += "\n      show_root_heading: false\n      heading_level: 3"
    return "\n\n".join(parts) + "\n"


def gather(pages: Path) -> None:
    """Copy every page, and every file that one links to, to where it lies in the repository."""
    waiting = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        target = pages / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix not in (".md", ".ipynb"):
            shutil.copyfile(source, target)
            continue
        text = notebooks.as_markdown(source) if source.suffix == ".ipynb" else source.read_text()
        linked = [(source.parent / link).resolve() for link in _LINK.findall(text)]
        waiting += [file for file in linked if file.is_file() and file.is_relative_to(ROOT)]
        text = re.sub(r"\.ipynb([)#])", r".md\1", text)
        target.with_suffix(".md").write_text(text)
    (pages / "docs/api.md").write_text(api_page())


class _Page(HTMLParser):
    """What a built page points to, what it loads, and what in it can be pointed to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text())

    def has(self, fragment: str) -> bool:
        """Whether the page has what the end of a link names."""
        return unquote(fragment) in self.ids

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's target and its id."""
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and (link := found.get("href")) is not None:
            self.links.append(link)
        elif link := found.get("src") or (found.get("href") if tag == "link" else None):
            self.loaded.append(link)


def broken_links(site: Path) -> list[str]:
    """What is wrong with the links of a site, a line each."""
    pages = {path.resolve(): _Page(path) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        wrong += [f"{name}: loads {link}" for link in page.loaded if urlsplit(link).netloc]
        if name == Path("404.html"):  # served at any depth, so its links begin at the root
            continue
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                wrong.append(f"{name}: {link} is not there")
            elif parts.fragment and target in pages and not pages[target].has(parts.fragment):
                wrong.append(f"{name}: {link} names no heading")
    return wrong


def build(out: Path) -> Path:
    """Gather the pages in `out` and build the site there; the folder of the site."""
    for part in ("pages", "site"):
        shutil.rmtree(out / part, ignore_errors=True)
    (out / "pages").mkdir(parents=True)
    gather(out / "pages")
    shutil.copyfile(ROOT / "zensical.toml", out / "zensical.toml")
    env = os.environ | {"PYTHONPATH": str(Path(axial.__file__).parent.parent)}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=out, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"zensical:\n{done.stdout}{done.stderr}")
    if wrong := broken_links(out / "site"):
        raise SystemExit("\n".join(wrong))
    return out / "site"


def main() -> None:
    """Build, and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "build/docs", help="where to build")
    site = build(parser.parse_args().out)
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")


if __name__ == "__main__":
    main()
