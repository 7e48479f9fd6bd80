"""The runs page sees what a training writes, as it writes it, and nothing else of the disk."""

import json
import shutil

import numpy as np
import pytest
from conftest import run
from PIL import Image
from serving import serving
from small_runs import COMMON
from tiny_studio import models  # noqa: F401

from axial.checkpoints.run_folder import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two runs, one of them deeper, and what looks like runs but is none."""
    folder = tmp_path_factory.mktemp("runs")
    short = [*COMMON, "--sample-every", "20"]
    short[short.index("--steps") + 1] = "40"
    run("train", "digits", "--out", folder / "one", *short)
    (folder / "deep").mkdir()
    shutil.copytree(folder / "one", folder / "deep" / "two")
    about = Run(folder / "one").about
    about["training"]["batch"] = 16
    about.pop("checksum", None)
    (folder / "deep" / "two" / "run.json").write_text(json.dumps(about))
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    (folder / "link").symlink_to(folder / "one")
    (folder / "no-run").mkdir()
    return folder


@pytest.fixture(scope="module")
def client(models, runs):
    with serving(models / "labels", runs=runs) as (_, client):
        yield client


def listed(client):
    return {found["name"]: found for found in client.get("/api/runs")["runs"]}


def test_every_run_below_the_folder_is_listed_with_how_far_it_is(client, runs):
    found = listed(client)
    assert found.keys() == {"one", "deep/two", "damaged"}
    log = Run(runs / "one").log()
    one = found["one"]
    assert one["step"] == 40 and one["steps"] == 40 and one["preset"] == "digits"
    assert one["loss"] == [r["loss"] for r in log if "loss" in r][-1]
    assert one["validation"] == [r["validation"] for r in log if "validation" in r][-1]
    assert one["samples"] == 2 and one["error"] is None and one["parameters"] > 1000
    assert "run.json" in found["damaged"]["error"] and found["damaged"]["step"] is None


def test_the_log_comes_as_it_grows_and_a_line_cut_short_is_left_for_later(client, runs):
    name = listed(client)["one"]["id"]
    first = client.get(f"/api/runs/{name}/log")
    whole = Run(runs / "one").log()
    assert first["records"] == whole and not first["restarted"] and not first["more"]
    path = runs / "one" / "log.jsonl"
    kept = path.read_bytes()
    try:
        with path.open("ab") as file:
            file.write(b'{"step": 41, "loss": 1.5}\n{"step": 42, "lo')
        second = client.get(f"/api/runs/{name}/log?after={first['next']}")
        assert second["records"] == [{"step": 41, "loss": 1.5}]
        assert listed(client)["one"]["loss"] == 1.5
        with path.open("ab") as file:
            file.write(b'ss": 1.25}\n')
        third = client.get(f"/api/runs/{name}/log?after={second['next']}")
        assert third["records"] == [{"step": 42, "loss": 1.25}]
        assert client.get(f"/api/runs/{name}/log?after={third['next']}")["records"] == []
        path.write_bytes(kept)  # a resumed run cuts its log back
        again = client.get(f"/api/runs/{name}/log?after={third['next']}")
        assert again["restarted"] and again["records"] == whole
        assert listed(client)["one"]["step"] == 40
    finally:
        path.write_bytes(kept)


def test_a_long_log_comes_in_pieces(client, runs, monkeypatch):
    import axial.studio.runs

    monkeypatch.setattr(axial.studio.runs, "_LINES", 7)
    name, after, records, more = listed(client)["one"]["id"], 0, [], True
    while more:
        part = client.get(f"/api/runs/{name}/log?after={after}")
        records += part["records"]
        after, more = part["next"], part["more"]
        assert len(part["records"]) <= 7
    assert records == Run(runs / "one").log()


def test_samples_are_those_of_the_run_and_no_other_files(client, runs):
    name = listed(client)["one"]["id"]
    about = client.get(f"/api/runs/{name}")
    assert [sample["step"] for sample in about["samples"]] == [20, 40]
    for sample in about["samples"]:
        found = client.get(sample["png"])
        name_of = {20: "samples/step-00000020.png", 40: "samples.png"}
        assert found == (runs / "one" / name_of[sample["step"]]).read_bytes()
    secret = runs / "secret.png"
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(secret)
    (runs / "one" / "samples" / "step-00000030.png").symlink_to(secret)
    assert client.ask("GET", f"/api/runs/{name}/samples/30.png")[0] == 404
    assert client.ask("GET", f"/api/runs/{name}/samples/-1.png")[0] in (404, 422)
    assert about["about"]["training"]["batch"] == 8


def test_settings_stand_side_by_side_and_what_differs_is_marked(client):
    found = listed(client)
    ids = [found["one"]["id"], found["deep/two"]["id"]]
    compared = client.get(f"/api/compare?run={ids[0]}&run={ids[1]}")
    rows = {row["name"]: row for row in compared["settings"]}
    assert rows["batch"] == {"name": "batch", "values": [8, 16], "differs": True}
    assert [row["name"] for row in compared["settings"] if row["differs"]] == ["batch"]
    assert [r["name"] for r in compared["runs"]] == ["one", "deep/two"]


@pytest.mark.parametrize("name", ["..", "one", "%2e%2e", "0" * 12, "deep%2ftwo"])
def test_a_run_is_known_by_its_number_alone(client, name):
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/log", f"/api/compare?run={name}"):
        assert client.ask("GET", path)[0] == 404


def test_without_a_folder_there_are_no_runs(models):
    with serving(models / "labels") as (_, client):
        assert client.get("/api/runs") == {"folder": None, "runs": []}
        assert client.get("/api")["runs"] is False


def test_a_run_that_begins_later_is_found(client, runs):
    shutil.copytree(runs / "one", runs / "late")
    import time

    time.sleep(1.1)
    assert "late" in listed(client)
    shutil.rmtree(runs / "late")
    time.sleep(1.1)
    assert "late" not in listed(client)
