"""What needs a GPU is measured in the time there is: each command once, in order, and whole."""

import os
import re
import signal
import sys
import time

import pytest
from conftest import load_script
from shell_blocks import unknown_flags

again = load_script("benchmarks/again.py")


def measurement(code, minutes=0.01, *, resumable=False):
    return again.Measurement(f"-c '{code}'", minutes, resumable)


def call(monkeypatch, measurements, *words):
    """The status of the script with other measurements in the place of its own."""
    monkeypatch.setattr(again, "MEASUREMENTS", measurements)
    monkeypatch.setattr(sys, "argv", ["again.py", *map(str, words)])
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        again.main()
    signal.signal(signal.SIGTERM, handler)
    return ended.value.code


def test_each_command_is_run_once_and_says_what_it_ran_on(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs"
    found = {
        "sum": measurement(f'open("{runs}", "a").write("x"); print(3 + 4)'),
        "wrong": measurement("print(1 / 0)"),
        "last": measurement('print("{data}"[-4:])'),
    }
    words = ("run", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert call(monkeypatch, found, *words) == 1
    assert "failed: wrong" in capsys.readouterr().out
    log = (tmp_path / "out/sum.txt").read_text()
    assert re.fullmatch(
        r"\$ python -c open.*\n# .*torch \S+, commit \S+, 2.* UTC\n7\n\n"
        r"# ended with status 0 after \d+ s\n",
        log,
    )
    wrong = (tmp_path / "out/wrong.txt").read_text()
    assert "ZeroDivisionError" in wrong and "# ended with status 1 after" in wrong
    assert "\ndata\n" in (tmp_path / "out/last.txt").read_text()

    assert call(monkeypatch, found, *words) == 0  # nothing is left to do
    assert (tmp_path / "out/sum.txt").read_text() == log
    assert call(monkeypatch, found, *words, "--only", "sum") == 0
    assert (tmp_path / "out/sum.txt").read_text().count("$ python") == 1
    assert runs.read_text() == "xx"  # it ran twice, and what it said first is gone
    call(monkeypatch, found, "show", "--out", tmp_path / "out")
    assert "sum: ended with status 0" in capsys.readouterr().out


def test_what_would_not_end_is_not_begun_but_for_what_goes_on_later(tmp_path, monkeypatch, capsys):
    begun = tmp_path / "begun"
    goes_on = f'import pathlib; pathlib.Path("{begun}").touch()'
    found = {
        "long": measurement("print(1)", 30),
        "short": measurement("print(1)", 1),
        "resumable": measurement(goes_on, 30, resumable=True),
    }
    where = ("run", "--data", tmp_path, "--out", tmp_path, "--minutes")
    call(monkeypatch, found, *where, 2)
    assert "long: passed over, would take 30 minutes" in capsys.readouterr().out
    assert not (tmp_path / "long.txt").exists() and (tmp_path / "short.txt").exists()
    assert begun.exists()
    begun.unlink()
    call(monkeypatch, found, *where[:3], "--out", tmp_path / "other", "--minutes", 0.5)
    assert not begun.exists()  # too little time is left to begin with it


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_when_time_is_over_a_command_may_save_and_ends_with_all_it_started(tmp_path, monkeypatch):
    """The command starts a process of its own; both are asked to end, and told apart from done."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import pathlib, signal, subprocess, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "(folder / 'child').write_text(str(child.pid))\n"
        "def save(*_):\n"
        "    (folder / 'saved').touch()\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "time.sleep(600)\n"
    )
    found = {"slow": again.Measurement(str(script), 30, resumable=True)}
    monkeypatch.setattr(again, "chosen", lambda names, out, left: iter(found.items()))
    log = tmp_path / "out/slow.txt"
    for minutes in (0.01, 0.1, 1):  # on a busy machine it takes a while to begin
        where = ("run", "--data", tmp_path, "--out", tmp_path / "out", "--minutes", minutes)
        assert call(monkeypatch, found, *where) == 0
        if (tmp_path / "saved").exists():
            break
    assert (tmp_path / "saved").exists() and "# stopped after" in log.read_text()
    assert again.ended(log) is None  # so the next call goes on with it
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.1)
    assert not alive(child)


def test_every_command_is_there_with_the_flags_it_is_given():
    for found in again.MEASUREMENTS.values():
        script, _, arguments = found.command.partition(" ")
        if script == "-m":
            assert all((again.ROOT / path).exists() for path in again.gpu_tests())
        else:
            assert not unknown_flags(script, arguments), found.command
