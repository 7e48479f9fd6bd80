"""`axial studio` as people start and end it."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import refused
from serving import Client, as_json
from tiny_studio import models  # noqa: F401


def started(*args, cwd):
    """The process, its first line, and the seconds from the command to it."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "axial", "studio", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return process, process.stdout.readline(), time.monotonic() - start


def ended(process, sign):
    """Status and words of a process that is told to end, and the seconds it took."""
    start = time.monotonic()
    process.send_signal(sign)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err, time.monotonic() - start


def test_the_page_answers_before_the_model_is_there_and_ctrl_c_ends_it_at_once(models, tmp_path):
    process, line, _ = started(models / "slow", "--port", "0", cwd=tmp_path)
    try:
        client = Client(int(line.split(":")[3].split("/")[0]))
        assert line.startswith("axial studio: http://127.0.0.1:")
        first = client.get("/api/models")["models"][0]  # torch takes longer to import than this
        assert first["state"] == "loading" and first["axes"] is None
        assert client.ask("GET", "/")[0] == 200
        status, headers, data = client.ask("POST", "/api/models/slow/draw", *as_json({}))
        assert status == 503 and data["error"]["kind"] == "loading" and headers["retry-after"]
        until = time.monotonic() + 60
        while client.get("/api/models/slow")["state"] != "ready":
            assert time.monotonic() < until
            time.sleep(0.05)
        with client.events("slow", "draw", *as_json({"count": 64})) as events:
            assert any(name == "lines" for name, _ in events)
            status, words, seconds = ended(process, signal.SIGINT)
        assert (status, words) == (130, "") and seconds < 10
    finally:
        process.kill()
        process.communicate()


def test_being_asked_to_end_while_loading_ends_it(models, tmp_path):
    process, _, _ = started(models / "slow", "--port", "0", cwd=tmp_path)
    status, words, seconds = ended(process, signal.SIGTERM)
    assert (status, words) == (143, "") and seconds < 15


def test_another_host_demands_the_token_that_is_printed(models, tmp_path):
    process, line, _ = started(models / "labels", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    try:
        url = line.split()[2]
        port, token = int(url.split(":")[2].split("/")[0]), url.split("token=")[1]
        assert len(token) >= 20
        assert Client(port).ask("GET", "/api")[0] == 401
        own = Client(port, headers={"Authorization": f"Bearer {token}"})
        assert own.ask("GET", "/api")[0] == 200
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no such checkpoint" in refused("studio", "missing", "--port", "0")
    assert "is no folder" in refused("studio", "--runs", "missing")
    assert "use whole numbers below 65536" in refused("studio", "--port", "99999")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = refused("studio", "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in message and "another --port" in message
    assert "cannot listen on no.such.host.example" in refused(
        "studio", "--host", "no.such.host.example"
    )


def test_the_extra_that_is_missing_is_named(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else find(name, *a)
    )
    assert 'pip install "axial-transformers[studio]"' in refused("studio")


@pytest.mark.parametrize("name", ["config", "server", "app"])
def test_the_server_starts_without_torch(name):
    script = f"import axial.studio.{name}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
