"""The page in a real browser: what people see, click and type, against what the library says."""

import io
import re
import shlex
import signal
import time

import numpy as np
import pytest
import torch
from browser import Window, chromium, studio
from conftest import config, run, saved
from PIL import Image
from processes import Process
from small_runs import COMMON

import axial

MODELS = {
    "colour": config((8, 8), channels=3, values=256),
    "slow": config((16, 16), channels=3, values=256, width=96, heads=4, mlp_ratio=4),
    "slowest": config(
        (32, 32), channels=3, values=256, width=256, heads=4, mlp_ratio=4, decoder_layers=(2, 8)
    ),
    "clip": config((4, 6, 6), values=16, classes=3),
}
GROWTH = """() => {
  const seen = new Set();
  window.seen = seen;
  (function look() {
    const canvas = document.querySelector(".grid canvas");
    const done = document.querySelector(".files .command");
    if (canvas && !done) seen.add(canvas.toDataURL());
    if (!done) requestAnimationFrame(look);
  })();
}"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = saved(MODELS, tmp_path_factory.mktemp("models"))
    (folder / "runs").mkdir()
    return folder


@pytest.fixture(scope="module")
def site(place):
    with studio(*(place / name for name in MODELS), runs=place / "runs") as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def window(browser, site):
    found = Window(browser, site, viewport={"width": 1200, "height": 800})
    yield found
    found.close()


def load(place, name):
    return axial.load(place / name)


def file(x, name="given.png", kind="png"):
    """An upload of a picture (h, w, 3)."""
    out = io.BytesIO()
    Image.fromarray(x).save(out, kind)
    return {"name": name, "mimeType": f"image/{kind}", "buffer": out.getvalue()}


def picture(height=8, width=8, *, seed=0):
    return np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)


def finished(page):
    page.wait_for_selector(".files .command")


def test_a_picture_grows_into_what_draw_gives_and_its_command_makes_it_again(
    window, place, tmp_path
):
    page = window.open("draw", "slow")
    page.get_by_label("Seed", exact=True).fill("7")
    page.evaluate(GROWTH)
    window.press("Draw")
    finished(page)
    assert page.evaluate("seen.size") > 3, "pixels changed at least three times before the end"

    expected = axial.draw(load(place, "slow"), 4, seed=7).numpy()
    for k in range(4):
        shown = window.pixels(".grid canvas", k)
        assert np.array_equal(shown[..., :3], expected[k]) and (shown[..., 3] == 255).all()
    assert np.array_equal(window.saved("Array (.npy)"), expected)

    command = shlex.split(page.locator(".files .command code").inner_text())
    assert command[:2] == ["axial", "sample"]
    command[command.index("--out") + 1] = str(tmp_path / "again.npy")
    run(*command[1:])
    assert np.array_equal(np.load(tmp_path / "again.npy"), expected)


def test_a_picture_is_enlarged_saved_and_handed_on(window, place):
    page = window.open("draw", "colour")
    window.press("Draw")
    finished(page)
    page.locator(".picture").nth(2).click()
    expected = axial.draw(load(place, "colour"), 4).numpy()[2]
    assert np.array_equal(window.pixels("dialog canvas")[..., :3], expected)
    with page.expect_download() as waiting:
        page.locator("dialog").get_by_role("button", name="PNG").click()
    with Image.open(waiting.value.path()) as png:
        assert np.array_equal(np.asarray(png.convert("RGB")), expected)
    page.keyboard.press("ArrowRight")
    assert page.locator("dialog h2").inner_text() == "seed 0, number 4"
    page.keyboard.press("ArrowLeft")
    page.locator("dialog").get_by_role("button", name="Complete").click()
    page.wait_for_selector(".mask")
    shown = window.pixels(".mask canvas")
    assert np.array_equal(shown[:4, :, :3], expected[:4]) and not shown[4:].any()


def test_cancel_stops_the_server_within_lines_and_whoever_waited_is_next(window, browser, site):
    page = window.open("draw", "slowest")
    page.get_by_label("Pictures").fill("64")  # many times longer than the rest of this test
    other = Window(browser, site)
    other.open("draw", "slowest").get_by_label("Temperature").fill("0.5")  # no part of that batch
    window.press("Draw")
    page.wait_for_selector("progress[value]")
    other.press("Draw")
    other.page.wait_for_selector("text=Waiting: 1 job before this one")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=cancelled")
    assert page.get_by_role("button", name="Draw", exact=True).is_visible()
    other.page.wait_for_selector("progress[value]")
    other.page.keyboard.press("Escape")
    other.page.wait_for_selector("text=cancelled")
    other.close()
    until = time.monotonic() + 60
    while queue(page, "slowest") != {"running": 0, "waiting": 0}:
        assert time.monotonic() < until, "the server still draws"
    window.open("draw", "colour")
    window.press("Draw")
    finished(page)


def queue(page, model):
    return page.evaluate(f"fetch('/api/models/{model}').then((a) => a.json())")["queue"]


def test_a_painted_part_is_drawn_again_and_the_rest_is_kept(window, place):
    page = window.open("complete", "colour")
    page.set_input_files("input[type=file]", file(picture(24, 40)))
    page.wait_for_selector(".crop .frame")
    original = window.saved("Save what the model sees (.npy)")
    assert np.array_equal(original[0], mean_of_areas(picture(24, 40)[:, 8:32], 3))

    page.get_by_text("Brush", exact=True).click()
    stage = page.locator(".pixelstage").bounding_box()
    each = stage["width"] / 8
    page.mouse.move(stage["x"] + 2.5 * each, stage["y"] + 2.5 * each)
    page.mouse.down()
    page.mouse.move(stage["x"] + 5.5 * each, stage["y"] + 5.5 * each)
    page.mouse.up()
    kept = window.pixels(".mask canvas")[..., 3] == 255
    assert not kept[[2, 4, 5], [2, 4, 5]].any() and kept[0].all() and kept[:, 7].all()

    page.get_by_label("Continuations").fill("3")
    window.press("Complete")
    finished(page)
    assert page.locator(".result .badge").inner_text() == "not exact"
    given = torch.from_numpy(original.astype(np.int64))
    given[0, ~kept] = -1
    expected = axial.draw(load(place, "colour"), 3, given=given).numpy()
    for k in range(3):
        assert np.array_equal(window.pixels(".grid canvas", k + 1)[..., :3], expected[k])


def mean_of_areas(x, side):
    height, width, _ = x.shape
    areas = x.reshape(height // side, side, width // side, side, 3).astype(np.float64)
    return np.floor(areas.mean((1, 3)) + 0.5).astype(np.uint8)


def test_the_page_says_when_a_completion_is_exact(window, place):
    page = window.open("complete", "colour")
    window.hand_over("paste", file(picture()))
    badge = page.locator(".keeping .badge")
    badge.wait_for()
    assert badge.inner_text() == "not exact"
    page.get_by_label("Particles").fill("8")
    assert badge.inner_text() == "particle filter"
    window.press("Complete")
    finished(page)
    assert page.locator(".result .badge").inner_text() == "particle filter"
    given = torch.from_numpy(picture().astype(np.int64))[None].repeat(4, 1, 1, 1)
    given[:, 4:] = -1
    expected = axial.complete(load(place, "colour"), given, particles=8).numpy()
    for k in range(4):
        assert np.array_equal(window.pixels(".grid canvas", k + 1)[..., :3], expected[k])
    page.get_by_text("Channels", exact=True).click()
    assert badge.inner_text() == "exact conditional"
    page.get_by_label("blue").check()
    assert badge.inner_text() == "not exact"  # green is between red and blue
    page.get_by_label("green").check()
    assert "Everything is kept" in page.locator(".keeping .exactness").inner_text()
    assert page.get_by_role("button", name="Complete", exact=True).is_disabled()


def test_bits_of_a_picture_and_of_a_pixel_are_those_of_the_model(window, place):
    page = window.open("bits", "colour")
    window.hand_over("drop", file(picture()))
    model, x = load(place, "colour"), torch.from_numpy(picture().astype(np.int64))[None]
    with torch.no_grad():
        logs = model(x)[0].double().log_softmax(-1) / np.log(2)
    bits = -logs.gather(-1, x[0, ..., None])[..., 0]
    figure = page.locator(".figure b")
    figure.wait_for()
    assert figure.inner_text() == f"{bits.mean():.3f}"
    rows = page.locator(".sizes tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()][:3] == ["colour", "PNG", "WebP"]

    each = bits.sum(-1) / np.sort(bits.sum(-1).flatten())[int(0.999 * 64)]
    heat = (255 * (3 * each[..., None] - torch.arange(3)).clamp(0, 1)).round().numpy()
    shown = window.pixels(".stages figure:last-child canvas")[..., :3]
    assert np.allclose(shown, heat, atol=1)

    stage = page.locator(".stages .pixelstage").first.bounding_box()
    page.mouse.click(stage["x"] + stage["width"] * 5.5 / 8, stage["y"] + stage["height"] * 2.5 / 8)
    page.wait_for_selector("text=The pixel at row 2, column 5")
    assert tells(page, x, bits, 2, 5)
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("text=The pixel at row 3, column 5")
    assert tells(page, x, bits, 3, 5)

    heat = window.pixels(".stages .overlay")  # the last layer: along the row, up to the pixel
    lit = heat[..., :3].any(-1)
    assert lit[3, :6].any() and not lit[np.arange(8) != 3].any() and not lit[3, 6:].any()
    page.get_by_label("Layer").select_option(index=0)
    assert not np.array_equal(window.pixels(".stages .overlay"), heat)


def tells(page, x, bits, i, j):
    text = f"true value {int(x[0, i, j, 0])}: .* {bits[i, j, 0]:.2f} bits"
    return re.fullmatch(text, page.locator(".chart .reading").inner_text())


def test_compressed_pictures_come_back_equal_from_the_page_and_from_the_command(
    window, place, tmp_path
):
    page = window.open("compress", "colour")
    given = {"a.png": picture(), "b.png": picture(12, 10, seed=1)}  # one needs several tiles
    page.set_input_files("input[type=file]", [file(x, name) for name, x in given.items()])
    page.wait_for_selector(".sizes")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Save pictures.axl").click()
    waiting.value.save_as(tmp_path / "pictures.axl")
    size = (tmp_path / "pictures.axl").stat().st_size
    assert page.locator(".result h2").inner_text() == f"2 pictures in {size:,} B"

    window.press("Restore and compare")
    page.wait_for_selector(".good:text-is('✓ every pixel is equal')")
    run(
        "decompress",
        tmp_path / "pictures.axl",
        "--out",
        tmp_path / "back",
        "--model",
        place / "colour",
    )
    for name, x in given.items():
        with Image.open(tmp_path / "back" / name) as png:
            assert np.array_equal(np.asarray(png), x)

    page.reload()
    page.select_option("#model", "colour")
    page.set_input_files("input[type=file]", tmp_path / "pictures.axl")
    page.wait_for_selector(".result img")
    for k, x in enumerate(given.values()):
        assert np.array_equal(window.pixels(".result img", k)[..., :3], x)
    broken = bytearray((tmp_path / "pictures.axl").read_bytes())
    broken[-20] ^= 1
    page.set_input_files("input[type=file]", upload("broken.axl", bytes(broken)))
    page.wait_for_selector(".job .problem:has-text('the file')")


def test_runs_move_while_a_real_training_writes_them(window, place):
    page = window.open("runs")
    page.wait_for_selector("text=There is no run in")
    settings = [*COMMON, "--sample-every", "20", "--steps", "100000"]  # until it is ended
    training = Process("train", "digits", "--out", place / "runs" / "one", *settings)
    page.wait_for_selector(".run.alive")
    curve = page.locator(".plot .curve path").first
    states = set()
    for _ in range(100):
        states.add(curve.get_attribute("d"))
        if len(states) > 2:
            break
        page.wait_for_timeout(200)
    assert len(states) > 2, "the curve stands still"
    assert training.poll() is None, "the curve moved while it was being written"
    page.wait_for_selector(".sheets img")
    training.kill(signal.SIGINT)
    training.wait()

    run(
        "train", "digits", "--out", place / "runs" / "two", *COMMON, "--steps", "40", "--batch", "4"
    )
    page.wait_for_selector(".run:has-text('two')")
    page.get_by_label("two").check()
    page.wait_for_selector(".settings th:has-text('two')")
    marked = page.locator(".settings .differs").all_inner_texts()
    assert ["batch", "8", "4"] in [row.split("\t") for row in marked]
    assert page.locator(".plot .curve").count() == 4  # training and held out, of both
    sheet = page.locator(".sheets img").first
    newest = sheet.get_attribute("src")
    page.get_by_label("Samples at step").fill("0")
    assert sheet.get_attribute("src") != newest
    assert sheet.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0


def test_a_clip_is_played_and_looked_at_from_three_sides(window, place):
    page = window.open("draw", "clip")
    page.get_by_label("Class").select_option("2")
    window.press("Draw")
    finished(page)
    clip = axial.draw(load(place, "clip"), 4, label=torch.full((4,), 2)).numpy()[0, ..., 0]
    shade = np.round(clip * 255 / 15).astype(np.uint8)
    assert np.array_equal(window.pixels(".grid canvas")[..., 0], shade[0])
    page.get_by_label("frame").focus()
    page.keyboard.press("ArrowRight")
    assert np.array_equal(window.pixels(".grid canvas")[..., 0], shade[1])
    page.get_by_label("Slices along").select_option("2")
    page.get_by_label("frame").fill("3")
    assert np.array_equal(window.pixels(".grid canvas")[..., 0], shade[:, :, 3])
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector(".player output:text-is('frame 6 of 6')")
    page.locator(".picture").first.click()
    with page.expect_download() as waiting:
        page.locator("dialog").get_by_role("link", name="GIF").click()
    with Image.open(waiting.value.path()) as moving:
        assert moving.n_frames == 4


def test_a_phone_shows_every_view_without_scrolling_sideways(browser, site):
    phone = Window(browser, site, viewport={"width": 360, "height": 700}, has_touch=True)
    page = phone.open("draw", "colour")
    window_fits(page)
    phone.press("Draw")
    finished(page)
    window_fits(page)
    page.locator(".picture").first.tap()
    assert page.locator("dialog").bounding_box()["width"] <= 360
    phone.press("Where the bits go")
    stage = page.locator(".stages .pixelstage").first
    stage.wait_for()
    stage.tap(position={"x": 20, "y": 20})
    page.wait_for_selector(".histogram")
    window_fits(page)
    page = phone.open("complete")
    page.set_input_files("input[type=file]", file(picture(60, 300)))
    page.wait_for_selector(".mask")
    window_fits(page)
    for view in ("compress", "runs"):
        phone.open(view)
        window_fits(page)
    phone.close()


def window_fits(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_everything_is_reached_by_the_keyboard_alone(window):
    page = window.open("draw", "colour")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reach(page, "document.activeElement.id.startsWith('field')")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    finished(page)
    assert page.locator(".picture").count() == 2
    reach(page, "document.activeElement.matches('.picture')")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    reach(page, "document.activeElement.textContent === 'Copy'")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.matches('.picture')")
    page.keyboard.press("Enter")
    reach(page, "document.activeElement.textContent === 'Complete'")
    page.keyboard.press("Enter")
    page.wait_for_selector(".mask")
    reach(page, "document.activeElement.value === 'rows'")
    page.keyboard.press("ArrowLeft")  # round to the brush
    before = window.pixels(".mask canvas")
    assert (before[..., 3] == 255).all()
    reach(page, "document.activeElement.matches('.pixelstage')", keys="Shift+Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert not window.pixels(".mask canvas")[1, 0].any()


def reach(page, condition, keys="Tab"):
    """Press a key until something has the focus, which must then be visible."""
    for _ in range(60):
        page.keyboard.press(keys)
        if page.evaluate(condition):
            assert page.evaluate(
                "(e => getComputedStyle(e.matches('input[type=radio]') ? e.nextSibling : e)"
                ".outlineStyle)(document.activeElement)"
            ) not in ("none", "")
            return
    raise AssertionError(f"no key leads there: {condition}")


def test_what_is_refused_is_said_where_it_was_asked(window):
    page = window.open("complete", "colour")
    wrong = io.BytesIO()
    np.save(wrong, np.zeros((4, 4, 3), np.uint8))
    page.set_input_files("input[type=file]", upload("x.npy", wrong.getvalue()))
    said = page.locator(".source .problem")
    said.wait_for()
    assert said.inner_text() == "x.npy: has shape (4, 4, 3): the model takes (8, 8, 3)"
    page.set_input_files("input[type=file]", upload("x.png", b"not a picture"))
    page.wait_for_selector("text=x.png: the browser cannot read this file")
    page = window.open("draw")
    page.route("**/draw", lambda route: route.abort())
    window.press("Draw")
    page.wait_for_selector("text=the server does not answer")
    page.unroute("**/draw")
    window.press("Draw")
    finished(page)
    assert page.locator(".problem").count() == 0
    assert all("Failed to load resource" in said for said in window.complaints)  # what was refused
    window.complaints.clear()


def upload(name, data):
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def test_dark_and_light_follow_the_system(browser, site):
    grounds = []
    for scheme in ("light", "dark"):
        window = Window(browser, site, color_scheme=scheme)
        page = window.open("draw")
        colours = page.evaluate(
            "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
        )
        grounds.append([sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours])
        window.close()
    (light, ink), (dark, chalk) = grounds
    assert light > 200 > ink + 100 and dark < 60 < chalk - 100
