"""After `kill -9` at any file event there is the old or the new, never a mixture, and the same
command then does what it is asked for and cleans up."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import config, saved, tiny_model
from killing import file_events, killed_at, status_of
from packed_arrays import write, write_pictures
from small_runs import TINY

import axial
from axial.cli.main import main
from axial.codec.inputs import compress_files
from axial.media.output import Output
from axial.shape import DataShape
from axial.system.files import sha256

TRAINING = [*TINY, "--steps", "4", "--batch", "4", "--warmup", "1", "--save-every", "2"]
TRAINING += ["--validate-every", "2", "--sample-every", "0", "--log-every", "1"]
TENSORFLOW = Path(__file__).parents[1] / "parity" / "tf_checkpoint"


@pytest.fixture(autouse=True)
def own_temporary_folders(tmp_path, monkeypatch):
    """What other processes leave is not cleaned up here, which would be more file events."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Models and data that the commands read."""
    folder = tmp_path_factory.mktemp("given")
    saved({"model": config((3, 3), values=9, classes=2)}, folder)
    rng = np.random.default_rng(0)
    for name in ("old", "new"):
        x, labels = rng.integers(0, 9, (4, 3, 3, 1), np.uint8), rng.integers(0, 2, 4)
        write(folder / f"{name}.npy", x, labels, 2, values=9)
        compress_files(folder / "model", [folder / f"{name}.npy"], folder / f"{name}.axl")
    return folder


def chosen(events, stride, last=0):
    """Which of so many file events to be killed at: some, and the last, unless KILL_ALL is set."""
    some = range(0, events, 1 if os.environ.get("KILL_ALL") else stride)
    return sorted({*some, *range(events - last, events)})


def tree(folder):
    """Every name in a folder; that of the lock of a run may stay."""
    return sorted(str(path) for path in folder.rglob("*") if path.name != ".lock")


def packed(path):
    """What a packed array holds, read as every command reads it."""
    found = axial.open_packed(path)
    found.check()
    beside = [None if one is None else one.tolist() for one in (found.labels, found.sizes)]
    return found.array.tolist(), beside, found.description.title


def drawn(path):
    """A file and the record that is its own."""
    own = sha256(path)
    records = [
        file for file in (Path(f"{path}.json"), Path(f"{path}.json.pending")) if file.exists()
    ]
    texts = [text for file in records if json.loads(text := file.read_text())["sha256"] == own]
    return own, texts[0]


def scored(place):
    """The result, in whichever of its files are there."""
    found = {
        path.name: path.read_bytes() for path in place.glob("x.*") if path.suffix != ".partial"
    }
    if "x.json" in found:
        found["x.json"] = json.loads(found["x.json"])["bits_per_dim"]
    return found


def kill_everywhere(folder, before, command, read, last):
    """Kill a command at its file events over what `before` makes; check what is read then.

    Every killed one is followed by the same command, which has the last word and leaves nothing
    of the dead one.
    """
    place = folder / "place"
    place.mkdir()
    before(place)
    shutil.copytree(place, folder / "before")

    def start():
        shutil.rmtree(place)
        shutil.copytree(folder / "before", place)

    def act():
        main(command(place))

    old = read(place)
    events = file_events(act, place)
    new, names = read(place), tree(place)
    assert old != new
    for event in chosen(events, stride=16, last=last):
        start()
        assert killed_at(act, place, event), f"event {event} of {events} never came"
        found = read(place)
        part = isinstance(found, dict) and any(found.items() <= one.items() for one in (old, new))
        assert part or found in (old, new), f"killed at event {event} of {events}: a mixture"
        yield event, found == new
        assert status_of(act, place) == 0
        assert read(place) == new, f"killed at event {event} of {events}: not done again"
        assert tree(place) == names, event


@pytest.mark.parametrize(
    ("name", "last"),
    [("data", 10), ("sample", 10), ("evaluate", 5), ("complete", 2), ("compress", 4),
     ("decompress", 10)],
)  # fmt: skip
def test_killed_at_any_file_event(name, last, given, tmp_path):
    model = str(given / "model")

    def command(place, data="new", seed=1):
        x, out, source = str(place / "x.npy"), ["--out", str(place / "x.npy")], str(given / data)
        return {
            "data": ["data", f"{source}.npy", *out, "--workers", "1", "--overwrite"],
            "sample": ["sample", model, *out, "--count", "2", "--seed", str(seed), "--overwrite"],
            "compress": [
                *["compress", model, f"{source}.npy", "--out", str(place / "x.axl"), "--verify"],
                "--overwrite",
            ],
            "decompress": ["decompress", f"{source}.axl", *out, "--overwrite"],
            "complete": ["complete", model, f"{source}.npy", *out, "--keep", "1", "--overwrite"],
            "evaluate": [
                *["evaluate", model, "--data", f"{source}.npy", "--json", str(place / "x.json")],
                *["--per-example", x, "--map", str(place / "x.png"), "--overwrite"],
            ],
        }[name]

    def before(place):
        main(command(place, "old", 0))

    def read(place):
        if name == "evaluate":
            return scored(place)
        if name == "compress":
            return sha256(place / "x.axl")
        return (packed if name in ("data", "decompress") else drawn)(place / "x.npy")

    moments = list(kill_everywhere(tmp_path, before, command, read, last))
    assert any(new for _, new in moments) and not all(new for _, new in moments)


@pytest.mark.parametrize(
    ("name", "there", "stride"), [("import", False, 7), ("import", True, 6), ("train", True, 100)]
)
def test_a_folder_that_is_made_is_there_whole_or_not_at_all(name, there, stride, tmp_path):
    """Killed while it trains, a run is resumed instead, and ends as it would have."""
    place, run = tmp_path / "place", tmp_path / "place" / "run"
    made = {
        "import": ["import", str(TENSORFLOW), "--heads", "2", "--out", str(run)],
        "train": [
            "train",
            "small",
            "--data",
            str(tmp_path / "x.npy"),
            "--out",
            str(run),
            *TRAINING,
        ],
    }[name]

    def start():
        shutil.rmtree(place, ignore_errors=True)
        (run if there else place).mkdir(parents=True)

    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 9, (40, 3, 3, 1), np.uint8))
    start()
    main(made)  # here, so that what is imported on the way is there for all children
    start()
    events = file_events(lambda: main(made), place)
    wanted, names = axial.fingerprint(axial.load(run)), tree(place)
    for event in chosen(events, stride):
        start()
        assert killed_at(lambda: main(made), place, event)
        # What was there in full is refused by the command that made it; a run is then resumed.
        there_before = (run / "run.json").exists() or (run / "model.safetensors").exists()
        status = status_of(lambda: main(made), place)
        assert status == 1 or not there_before
        if status == 1 and name == "train":
            assert status_of(lambda: main(["train", "--resume", str(run)]), place) == 0, event
        assert axial.fingerprint(axial.load(run)) == wanted, f"event {event} of {events}"
        assert tree(place) == names, f"event {event} of {events}"


def write_packed(place, number):
    write(place / "x.npy", np.full((2, 2, 2, 1), number, np.uint8), np.full(2, number), 5)


def write_sizes(place, number):
    """An array of pictures, of different sizes or not, over one of the other kind."""
    if number % 2:
        write_pictures(place / "x.npy", [np.full((n, 2, 1), number, np.uint8) for n in (1, 3)])
    else:
        write_packed(place, number)


def write_drawn(place, number):
    output = Output(place / "x.npy", DataShape(axes=(2, 2), channels=1), overwrite=True)
    output.write(np.full((2, 2, 2, 1), number), {"number": number})


def write_model(place, number):
    axial.save(tiny_model(config((2,)), seed=number), place)


@pytest.mark.parametrize(
    ("act", "read"),
    [
        (write_packed, lambda place: packed(place / "x.npy")),
        (write_sizes, lambda place: packed(place / "x.npy")),
        (write_drawn, lambda place: drawn(place / "x.npy")),
        (write_model, lambda place: axial.fingerprint(axial.load(place))),
    ],
)
def test_killed_half_way_and_then_again_while_another_is_written(act, read, tmp_path):
    """The first dies when its array is in place and the rest is pending, the second anywhere."""
    place, half = tmp_path / "place", tmp_path / "half"
    place.mkdir()
    known = []
    for number in range(3):
        act(place, number)
        known.append(read(place))
    first, second = lambda: act(place, 1), lambda: act(place, 2)

    def start(folder):
        shutil.rmtree(place)
        shutil.copytree(folder, place)

    act(place, 0)
    shutil.copytree(place, tmp_path / "before")
    events = file_events(first, place)
    for event in reversed(range(events)):
        start(tmp_path / "before")
        killed_at(first, place, event)
        if read(place) == known[1] and [*place.glob("*.pending")]:
            shutil.copytree(place, half)
            break
    for event in chosen(events, stride=3, last=10):
        start(half)
        killed_at(second, place, event)
        assert read(place) in known[1:], f"killed at event {event} of {events}: a mixture"
