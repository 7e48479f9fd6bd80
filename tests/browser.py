"""Chromium, driven by Playwright, before a real `axial studio` in a process of its own."""

import base64
import json
import shutil
import signal
import socket
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
from playwright.sync_api import sync_playwright
from processes import Process

QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
QUIET += ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
"""A browser that asks nobody for anything; as root it runs only without its sandbox."""
PATIENCE = 120_000
"""Milliseconds until a thing that does not happen is an error."""

READ = """async (shown) => {
  if (shown.decode) await shown.decode();
  const [width, height] = [shown.naturalWidth ?? shown.width, shown.naturalHeight ?? shown.height];
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(shown, 0, 0, width, height);
  return [width, height, [...copy.getImageData(0, 0, width, height).data]];
}"""

HAND_OVER = """([kind, name, type, data]) => {
  const raw = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([raw], name, { type }));
  const how = { bubbles: true, cancelable: true };
  const pasted = new ClipboardEvent("paste", { ...how, clipboardData: files });
  document.body.dispatchEvent(
    kind === "paste" ? pasted : new DragEvent("drop", { ...how, dataTransfer: files }),
  );
}"""


@contextmanager
def chromium():
    """The browser; where there is none, a failure that says what to install."""
    path = shutil.which("chromium")
    assert path, "the tests of the studio need a browser: apt-get install chromium"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield found
        found.close()


@contextmanager
def studio(*models, runs):
    """The address of a server of these models, once all are loaded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Process("studio", *models, "--port", port, "--runs", runs, "--no-browser")
    site = f"http://127.0.0.1:{port}"
    try:
        while not all(model["state"] == "ready" for model in ask(site, "/api/models", server)):
            time.sleep(0.05)
        yield site
    finally:
        server.kill(signal.SIGINT)
        server.wait()


def ask(site, path, server):
    """The models that the server names; none while it does not answer yet."""
    assert server.poll() is None, server.err
    try:
        with urllib.request.urlopen(site + path) as answer:
            return json.load(answer)["models"]
    except OSError:
        return [{"state": "starting"}]


class Window:
    """A page of the studio and what the browser complains about."""

    def __init__(self, browser, site, **how):
        self.site, self.complaints, self.elsewhere = site, [], []
        self.context = browser.new_context(accept_downloads=True, **how)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("request", self._asked)

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, request):
        if not request.url.startswith((self.site, "blob:", "data:")):
            self.elsewhere.append(request.url)

    def open(self, view, model=None):
        """Show a view, of a model."""
        self.page.goto(f"{self.site}/#{view}")
        self.page.wait_for_selector("#view > .view, #view > .empty:not(:text('Loading'))")
        if model:
            self.page.select_option("#model", model)
            self.page.wait_for_selector(f"#view .view, #view .empty:has-text('{model}')")
        return self.page

    def press(self, name):
        """Click a button."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def saved(self, name):
        """The array of the .npy file that a button hands out."""
        with self.page.expect_download() as waiting:
            self.press(name)
        return np.load(waiting.value.path())

    def hand_over(self, kind, file):
        """Drop a file on the page, or paste it."""
        data = base64.b64encode(file["buffer"]).decode()
        self.page.evaluate(HAND_OVER, [kind, file["name"], file["mimeType"], data])

    def pixels(self, selector, number=0):
        """What a canvas or an image holds, (h, w, 4)."""
        width, height, values = self.page.locator(selector).nth(number).evaluate(READ)
        return np.array(values, np.uint8).reshape(height, width, 4)

    def close(self):
        """Close it; whatever was done in it, the browser had nothing to complain about."""
        self.context.close()
        assert self.complaints == [] and self.elsewhere == []
