"""The log is one JSON object a line; a terminal gets a display, a pipe plain lines."""

import json
import os
import pty
import struct
import subprocess
import sys
import time

import numpy as np

from axial.media.sheets import write_sheet
from axial.system.crc32c import masked_crc32c
from axial.system.protobuf import read_fields
from axial.training.run_logger import RunLogger
from axial.training.tensorboard import EventFile


def test_the_log_has_one_object_a_line_and_a_pipe_gets_plain_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    with RunLogger(tmp_path / "log", steps=20, first=0) as watch:
        watch.record(1, loss=2.5)
        watch.progress(1, "2.5 bits/dim")
        watch.progress(2, "too soon for another line")
        watch.progress(20, "the end")
        watch.say("scored")
    assert json.loads((tmp_path / "log").read_text()) == {"step": 1, "loss": 2.5}
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("step 1 of 20  2.5 bits/dim")
    assert shown[1:] == ["step 20 of 20  the end", "scored"]


def test_lines_on_a_pipe_tell_the_time_left(tmp_path, capsys, monkeypatch):
    now = 5.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with RunLogger(tmp_path / "log", steps=1004, first=4) as watch:
        now += 0.1
        watch.progress(14, "2.5 bits/dim")
    assert "step 14 of 1,004  2.5 bits/dim  0:00:10 left" in capsys.readouterr().err


def test_quiet_ranks_say_and_write_nothing(tmp_path, capsys):
    with RunLogger(None, steps=20, first=0) as watch:
        watch.record(1, loss=2.5)
        watch.progress(20, "2.5 bits/dim")
        watch.say("scored")
    assert capsys.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


def test_a_terminal_gets_a_live_display(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom axial.training.run_logger import RunLogger\n"
        "with RunLogger(Path(sys.argv[1]), steps=20, first=4) as watch:\n"
        "    watch.progress(10, '2.5 bits/dim')\n"
        "    watch.say('[scored]')\n"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "log"],
        stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait() == 0
    assert b"step 10 of 20  2.5 bits/dim" in shown and b"[scored]" in shown
    assert "━".encode() in shown


def records(path):
    raw = path.read_bytes()
    while raw:
        (size,) = struct.unpack("<Q", raw[:8])
        assert struct.unpack("<I", raw[8:12])[0] == masked_crc32c(raw[:8])
        data, check = raw[12 : 12 + size], raw[12 + size : 16 + size]
        assert struct.unpack("<I", check)[0] == masked_crc32c(data)
        yield dict(read_fields(data))
        raw = raw[16 + size :]


def test_tensorboards_events_hold_curves_and_pictures(tmp_path):
    write_sheet(tmp_path / "sheet.png", np.zeros((4, 8, 8, 1), np.uint8))
    events = EventFile(tmp_path / "events")
    with RunLogger(tmp_path / "log", steps=9, first=0, events=events) as watch:
        watch.record(300, loss=2.5, grad_norm=0.25, skipped=True)
        watch.picture(7, tmp_path / "sheet.png")
    (path,) = (tmp_path / "events").iterdir()
    first, curves, _, picture = records(path)
    assert first[3] == b"brain.Event:2"
    assert curves[2] == 300
    values = [dict(read_fields(value)) for number, value in read_fields(curves[5])]
    found = {v[1].decode(): struct.unpack("<f", struct.pack("<I", v[2]))[0] for v in values}
    assert found == {"loss": 2.5, "grad_norm": 0.25}
    ((_, value),) = read_fields(picture[5])
    image = dict(read_fields(dict(read_fields(value))[4]))
    assert image[4] == (tmp_path / "sheet.png").read_bytes()
    assert image[1] == image[2] == 134
