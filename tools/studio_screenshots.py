"""Screenshots of the studio with the shipped model: those of the documentation, or every view.

    python tools/studio_screenshots.py                      # four for docs/figures
    python tools/studio_screenshots.py --every FOLDER       # all, dark and light, wide and narrow

It starts `axial studio`, opens it in Chromium, draws four pictures, completes one, looks at where
its bits go, compresses it, and shows two short runs on the digits. On two CPU cores this takes a
few minutes.
"""

import argparse
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
MODEL = "cifar10"
WIDE, NARROW, HEIGHT = 1280, 360, 860
"""Pixels of the window."""
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PATIENCE = 600_000
"""Milliseconds that a picture may take."""


def train_two(folder: Path) -> None:
    """Two short runs on the digits that differ in one setting, unless they are there."""
    often = ["--log-every", "2", "--validate-every", "25", "--sample-every", "50"]
    for width in ("24", "48"):
        if not (run := folder / f"digits-width-{width}").exists():
            sizes = ["--width", width, "--steps", "200", "--batch", "32"]
            command = ["train", "digits", "--out", str(run), *sizes, *often]
            subprocess.run([sys.executable, "-m", "axial", *command], check=True)


@contextlib.contextmanager
def studio(runs: Path) -> Iterator[str]:
    """The address of a server, once its model is loaded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "axial", "studio", MODEL, "--no-browser"]
    server = subprocess.Popen([*command, "--port", port, "--runs", str(runs)])
    site = f"http://127.0.0.1:{port}"
    try:
        while not is_ready(site):
            if server.poll() is not None:
                sys.exit("studio_screenshots: the server has ended")
            time.sleep(0.2)
        yield site
    finally:
        server.terminate()
        server.wait()


def is_ready(site: str) -> bool:
    """Whether the model can be asked."""
    try:
        with urllib.request.urlopen(f"{site}/api/models/{MODEL}") as answer:
            return bool(json.load(answer)["state"] == "ready")
    except OSError:
        return False


class Tour:
    """One page that is led through all views; what is drawn stays, and is shown in every size."""

    def __init__(self, page: Page, site: str, folder: Path, *, every: bool) -> None:
        self.page, self.site, self.folder, self.every = page, site, folder, every
        page.set_default_timeout(PATIENCE)

    def show(self, view: str) -> None:
        """Go to a view."""
        self.page.goto(f"{self.site}/#{view}")
        self.page.wait_for_selector("#view > .view")

    def press(self, name: str) -> None:
        """Click a button."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def shoot(self, name: str) -> None:
        """Write what is seen, once for the documentation, or in every size and colour."""
        if not self.every:
            self.resize(WIDE)
            self.page.screenshot(path=self.folder / f"studio_{name}.png")
            return
        for width in (NARROW, WIDE):
            self.resize(width, whole=name != "enlarged")
            for scheme in SCHEMES:
                self.page.emulate_media(color_scheme=scheme)
                self.page.wait_for_timeout(200)
                self.page.screenshot(path=self.folder / f"{name}_{width}_{scheme}.png")
        self.page.emulate_media(color_scheme="light")

    def resize(self, width: int, *, whole: bool = True) -> None:
        """Make the window so wide, and as high as what it shows."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        if whole:
            self.page.wait_for_timeout(200)
            height = self.page.evaluate("document.documentElement.scrollHeight")
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.wait_for_timeout(200)
            least = self.page.evaluate("document.querySelector('footer').offsetTop + 60")
            self.page.set_viewport_size({"width": width, "height": least})

    def draw(self) -> None:
        """Four pictures while the last of their colours grows, and one of them enlarged."""
        self.show("draw")
        if self.every:
            self.shoot("empty")
        self.press("Draw")
        lines = self.page.locator(".result header .dim")
        while not re.match(r"line [89]\d|\d pictures", lines.inner_text()):
            self.page.wait_for_timeout(50)
        if not self.every:
            self.shoot("draw")
        self.page.wait_for_selector(".files .command")
        if self.every:
            self.shoot("draw")
            self.open_picture()
            self.shoot("enlarged")
            self.page.keyboard.press("Escape")

    def open_picture(self) -> None:
        """Enlarge the second picture."""
        self.page.locator(".picture").nth(1).click()

    def complete(self) -> None:
        """The upper rows of a picture, continued."""
        self.show("draw")
        self.open_picture()
        self.press("Complete")
        self.page.wait_for_selector(".mask")
        self.press("Complete")
        self.page.wait_for_selector(".files .command")
        self.shoot("complete")
        if self.every:
            self.page.get_by_text("Brush", exact=True).click()
            place = self.page.locator(".pixelstage").bounding_box()
            assert place is not None
            self.page.mouse.move(place["x"] + 90, place["y"] + 120)
            self.page.mouse.down()
            self.page.mouse.move(place["x"] + 210, place["y"] + 160, steps=5)
            self.page.mouse.up()
            self.shoot("brush")

    def bits(self) -> None:
        """The map of a picture, and one pixel of it."""
        self.show("draw")
        self.open_picture()
        self.press("Where the bits go")
        self.page.wait_for_selector(".stages")
        self.page.locator(".stages .pixelstage").first.click(position={"x": 200, "y": 240})
        self.page.wait_for_selector(".heads canvas")
        self.page.get_by_label("Layer").select_option(index=4)
        self.shoot("bits")

    def compress(self) -> None:
        """The picture as a file, restored."""
        self.show("draw")
        self.open_picture()
        with self.page.expect_download() as waiting:
            self.page.locator("dialog").get_by_role("button", name="PNG").click()
        path = self.folder / "given.png"
        waiting.value.save_as(path)
        self.page.keyboard.press("Escape")
        self.show("compress")
        self.page.set_input_files(".view input[type=file]", path)
        self.page.wait_for_selector(".sizes")
        self.press("Restore and compare")
        self.page.wait_for_selector(".good")
        self.shoot("compress")

    def runs(self) -> None:
        """Two runs in one plot."""
        self.show("runs")
        self.page.wait_for_selector(".run")
        for box in self.page.locator(".run input").all():
            box.check()
        self.page.wait_for_selector(".settings .differs")
        self.page.wait_for_timeout(500)
        self.shoot("runs")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder of the four pictures")
    parser.add_argument("--every", type=Path, help="all views and sizes, into this folder instead")
    parser.add_argument("--runs", type=Path, help="folder of the runs; made where they are missing")
    parser.add_argument("--views", nargs="+", default=["draw", "complete", "bits", "runs"])
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("studio_screenshots: no browser found: apt-get install chromium")
    folder = options.every or options.out
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs = options.runs or Path(scratch)
        train_two(runs)
        with studio(runs) as site, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
            page = browser.new_page(viewport={"width": WIDE, "height": HEIGHT})
            tour = Tour(page, site, folder, every=options.every is not None)
            for view in options.views:
                getattr(tour, view)()
            browser.close()


if __name__ == "__main__":
    main()
