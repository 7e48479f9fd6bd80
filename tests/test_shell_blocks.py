"""Every shell block of README and docs is replayed, or says why it is not."""

import argparse
import json
import re
import shlex
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path

import formats
import numpy as np
import pytest
from conftest import config, saved
from hub_server import taken_for_real
from packed_arrays import write
from processes import Process
from serving import Client, as_form, parse, serving
from shell_blocks import APPENDED, PAGES, ROOT, blocks

from axial.cli.main import main

# What huggingface_hub says to itself.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

NOT_REPLAYED = {
    "make": "makes an environment, or runs these tests in it",
    "pip install": "needs a network; `make release-check` installs the wheel and the extras",
    "hf auth login": "asks for a token of the Hub",
    "git checkout": "is about an older version of this repository",
    "python recipes.py": "is a script of that version, and took 20 minutes of a GPU",
    "python benchmarks/": "measures a GPU; test_benchmarks.py, test_again.py run them at toy size",
    "python experiments/anomaly.py": "is run by test_anomaly.py",
    "python experiments/table1.py": "needs a GPU for hours; test_rivals.py runs it at toy size",
    "python experiments/rivals.py": "needs a GPU for hours; test_rivals.py runs it at toy size",
}
"""Commands by how they begin, and why they are not replayed."""
SHELL = {page: blocks(page.read_text()) for page in PAGES}
REPLAYED = [page for page, found in SHELL.items() if any(c.axial for b in found for c in b)]
WRITTEN = ("--out", "--map", "--json", "--trace", "--preview", "--per-example")
"""Flags that name what a command writes."""


def test_every_block_is_replayed_or_has_a_reason():
    known = [*NOT_REPLAYED, "axial ", "torchrun ", "curl "]
    used = set()
    for page, found in SHELL.items():
        for command in (command for block in found for command in block):
            begun = [how for how in known if command.text.startswith(how)]
            assert len(begun) == 1, f"{page.name}: neither replayed nor listed: {command.text}"
            assert bool(command.axial) == begun[0].startswith(("axial", "torchrun")), command
            used.add(begun[0])
    assert used == set(known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_in_fences_say_what_they_are(page):
    kinds = re.findall(r"(?ms)^```(\S*)\n.*?^```$", page.read_text())
    assert set(kinds) <= {"python", "json", "bibtex", "text"}  # a shell block is indented


def test_what_make_and_pip_are_asked_for_is_there():
    texts = {c.text for found in SHELL.values() for block in found for c in block}
    targets = {text.split()[1] for text in texts if text.startswith("make")}
    assert targets and all(f"\n{name}:" in (ROOT / "Makefile").read_text() for name in targets)
    extras = {name for text in texts for name in re.findall(r"pip install \S+\[(\w+)\]", text)}
    project = (ROOT / "pyproject.toml").read_text()
    assert extras and all(f"\n{name} = [" in project for name in extras)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """What the pages take for granted, small: pictures of 4 x 4, clips, models, runs."""
    folder = tmp_path_factory.mktemp("stand_ins")
    colour = config((4, 4), channels=3, values=256, width=16, heads=2)  # as runs have
    saved({"cifar10": colour, "photos": colour}, folder)
    for name in ("pictures", "holiday", "photographs", "cats"):
        names = ["beach.png", "a.png", *(f"{i}.png" for i in range(6))]
        formats.picture_folder(folder / name, formats.pictures(8, 6), names)
    for name in ("mine.jpg", "cat.png", "a.png", "b.png", "kept.png"):
        (folder / name).write_bytes(formats.png(formats.pictures(1, 4)[0]))
    x = formats.pictures(24, 4)
    write(folder / "train.npy", x, source="CIFAR-10")
    write(folder / "test.npy", x[:4], source="CIFAR-10", split="test")
    write(folder / "cifar-train.npy", formats.pictures(4, 32), source="CIFAR-10")
    write(folder / "strange.npy", formats.pictures(4, 8, 1) % 17, values=17)
    np.save(folder / "scans.npy", formats.pictures(12, 6, 3) % 9)
    large, labels = formats.pictures(12, 32), np.arange(12) % 10
    files = formats.cifar_files(large, labels, "python")
    formats.tar(folder / "cifar-10-python.tar.gz", files)
    pictures = {f"train_64x64/{i}.png": formats.png(p) for i, p in enumerate(large)}
    formats.tar(folder / "train_64x64.tar", pictures)
    clips = formats.pictures(18, 16)
    for place in ("softmotion30_44k/train", "softmotion30_44k/test", "clips"):
        for number in range(6):
            path = folder / place / f"{number}.mkv"
            path.parent.mkdir(parents=True, exist_ok=True)
            formats.video(path, clips[:, :2, :2])
    formats.video(folder / "clip.mp4", clips, codec="mpeg4", pix_fmt="yuv420p")
    return folder


@pytest.fixture(scope="module")
def runs(stand_ins):
    """Runs that some pages take for granted: one with classes, and another."""
    x = formats.pictures(24, 4)
    write(stand_ins / "pets.npy", x, np.arange(24) % 2, 2, names=("cat", "dog"))
    for name, data in (("pets", "pets.npy"), ("mine", "train.npy")):
        where = ["--data", str(stand_ins / data), "--out", str(stand_ins / "runs" / name)]
        main(["train", "small", *where, *APPENDED["train"].split(), "--sample-every", "1"])
    return stand_ins / "runs"


@pytest.fixture
def prepared(stand_ins, runs, tmp_path, monkeypatch):
    """Goes to a folder with what a page needs, but for what its own commands write."""

    def prepare(page):
        words = [c.axial for block in SHELL[page] for c in block if c.axial]
        made = {file for args in words for flag, file in pairwise(args) if flag in WRITTEN}
        for source in stand_ins.iterdir():
            if source.is_dir() and source != runs:
                shutil.copytree(source, tmp_path / source.name)
            elif source.is_file() and f"{source.stem}.npy" not in made:
                shutil.copyfile(source, tmp_path / source.name)
        needed = {word for args in words for word in args if word.startswith("runs/")} - made
        for name in needed:
            shutil.copytree(runs / ("pets" if name == "runs/pets" else "mine"), tmp_path / name)
        monkeypatch.chdir(tmp_path)

    return prepare


@pytest.mark.parametrize("page", REPLAYED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_from_top_to_bottom(page, prepared, monkeypatch, capsys):
    prepared(page)
    with taken_for_real("cache", monkeypatch):
        for command in (command for block in SHELL[page] for command in block if command.axial):
            replay(command, capsys)


def replay(command, capsys):
    """Run a command; what it says it writes is there, and its output is that of the page."""
    args = []
    for word in command.axial:
        args += sorted(map(str, Path().glob(word))) if "*" in word else [word]
    if args[0] == "studio":
        visit(args)
        return
    capsys.readouterr()
    main(args)
    missing = [file for flag, file in pairwise(args) if flag in WRITTEN and not Path(file).exists()]
    assert not missing, command.text
    said = capsys.readouterr().out.splitlines()[-len(command.output) :]
    assert not command.output or list(map(blank, said)) == list(map(blank, command.output))


def blank(line):
    """A line without its numbers, which are those of the stand-ins."""
    return re.sub(r"\d[\d,.]*", "0", line)


def visit(args):
    """Start a studio, open its page, and end it by Ctrl-C."""
    process = Process(*args)
    while not (found := re.search(r"http://127.0.0.1:(\d+)/", process.said())):
        assert process.poll() is None, process.err
        time.sleep(0.01)
    client = Client(int(found[1]))
    assert b"<html" in client.ask("GET", "/")[2]
    process.kill(signal.SIGINT)
    assert process.wait() == 130


STUDIO = ROOT / "docs/studio.md"
NEARER = {"place=12,7": "place=2,3", "keep=16": "keep=2", "samples/100.png": "samples/1.png"}
"""What is asked of a picture of 4 x 4, and of a run of two steps."""


def test_the_requests_of_the_page_are_answered_with_the_fields_it_shows(prepared, runs):
    prepared(STUDIO)
    answers, replayed = [], 0
    with serving("cifar10", runs=runs) as (_, client):
        names = dict(
            zip(("RUN", "OTHER"), (r["id"] for r in client.get("/api/runs")["runs"]), strict=True)
        )
        names["JOB"] = client.draw("cifar10")[1]["job"]
        text = STUDIO.read_text()
        for part in re.split(r"(?ms)^(```json\n.*?^```$)", text):
            if part.startswith("```json"):
                shown = json.loads(part.removeprefix("```json").removesuffix("```"))
                assert any(has(answer, shown) for answer in answers), (shown, answers)
                continue
            asked = [c.text for block in blocks(part) for c in block if c.text.startswith("curl")]
            answers = [] if asked else answers
            for line in asked:
                for old, new in (NEARER | names).items():
                    line = line.replace(old, new)
                answers += curl(client, shlex.split(line, comments=True)[1:])
                jobs = [a["job"] for a in answers if isinstance(a, dict) and "job" in a]
                names["JOB"] = jobs[-1] if jobs else names["JOB"]
                replayed += 1
    assert replayed == text.count("\n    curl ")


def curl(client, words):
    """What a `curl` sends, sent: its answer, or the data of each event."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-X", default=None)
    for flag in ("-H", "-F"):
        parser.add_argument(flag, action="append", default=[])
    for flag in ("-d", "-o"):
        parser.add_argument(flag)
    for flag in ("-N", "-O"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("url")
    asked = parser.parse_args(words)
    path = asked.url.removeprefix("http://127.0.0.1:7860")
    headers = dict(line.split(": ") for line in asked.H)
    body = asked.d
    if asked.F:
        fields = {}
        for name, value in (field.split("=") for field in asked.F):
            file = Path(value.removeprefix("@"))
            one = (file.name, file.read_bytes()) if value.startswith("@") else value
            fields.setdefault(name, []).append(one)
        body, more = as_form(fields)
        headers |= more
    method = asked.X or ("GET" if body is None else "POST")
    connection, response = client.open(method, path, body, headers)
    assert response.status == 200, (words, response.read())
    if headers.get("Accept") == "text/event-stream":
        answers = [data for _, data in parse(response)]
    elif "json" in response.headers["content-type"]:
        answers = [json.loads(response.read())]
    else:
        answers = [response.read()]
        Path(asked.o or path.split("/")[-1]).write_bytes(answers[0])
    connection.close()
    return answers


def has(found, shown):
    """Whether an answer has every field that a page shows, also of what lies within."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(
            name in found and has(found[name], value) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return isinstance(found, list) and (not found or not shown or has(found[0], shown[0]))
    return True
