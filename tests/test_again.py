"""What needs a GPU is measured in the time there is: each command once, in order, and whole."""

import os
import re
import signal
import subprocess
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
        "last": measurement('import sys; print("{data}"[-4:]); print(sys.path)'),
    }
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "added"))
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
    last = (tmp_path / "out/last.txt").read_text()
    assert "\ndata\n" in last and f"'{again.ROOT}/src', '{tmp_path}/added'" in last

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
    beside = again.Measurement("-c 'print(1)'", 30, timed=False)
    call(monkeypatch, {"beside": beside}, *where, 2)
    assert not (tmp_path / "beside.txt").exists()
    begun.unlink()
    call(monkeypatch, found, *where[:3], "--out", tmp_path / "other", "--minutes", 0.5)
    assert not begun.exists()  # too little time is left to begin with it


def test_what_is_not_timed_runs_together_and_before_what_is(tmp_path, monkeypatch):
    """Each waits for the other, for at most a minute; the timed one finds that both have ended."""
    wait = (
        "import pathlib, time; here = pathlib.Path('{out}'); (here / '%s').touch()\n"
        "end = time.monotonic() + 60\n"
        "while not (here / '%s').exists() and time.monotonic() < end: time.sleep(0.05)\n"
        "assert (here / '%s').exists(); (here / '%s-ended').touch(); import os\n"
        "names = 'OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'TORCHINDUCTOR_COMPILE_THREADS'\n"
        "print(*(os.environ.get(name) for name in names))"
    )
    found = {
        "timed": measurement(
            'import os; print(sorted(os.listdir("{out}")), "PASSIVE" in os.environ.values())'
        )
    }
    for one, other in ("ab", "ba"):
        code = f'-c "{wait % (one, other, other, one)}"'
        found[one] = again.Measurement(code, 0.1, timed=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    words = ("run", "--data", tmp_path, "--out", tmp_path, "--jobs", 2)
    assert call(monkeypatch, found, *words) == 0
    log = (tmp_path / "timed.txt").read_text()
    part = max(1, os.cpu_count() // 2)
    assert (tmp_path / "a.txt").read_text().count(f"{part} PASSIVE {part}\n") == 1
    assert (
        "'a-ended'" in log
        and "'b-ended'" in log
        and "] False" in log
        and log.count("$ python") == 1
    )


def test_what_runs_together_ends_together_when_it_is_stopped(tmp_path):
    """A signal to the script reaches all that it started, and none of them counts as ended."""
    slow, script = tmp_path / "slow.py", tmp_path / "script.py"
    slow.write_text("import time; print(1, flush=True); time.sleep(600)")
    script.write_text(
        f"import sys; sys.path.insert(0, {str(again.ROOT / 'benchmarks')!r}); import again\n"
        f"slow = again.Measurement({str(slow)!r}, 1, timed=False)\n"
        "again.MEASUREMENTS = {'a': slow, 'b': slow}\n"
        "again.main()\n"
    )
    words = [sys.executable, script, "run", "--data", tmp_path, "--out", tmp_path]
    logs = [tmp_path / "a.txt", tmp_path / "b.txt"]
    with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not all(log.exists() and "\n1\n" in log.read_text() for log in logs):
            assert time.monotonic() < end
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    for log in logs:
        assert "# stopped after" in log.read_text() and again.ended(log) is None


def test_shares_of_the_tests_are_all_of_them():
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "--collect-only", "-m"]
    command += ["gpu or kernel", "tests/system/test_devices.py"]

    def collected(*share):
        out = subprocess.run(
            [*command, *share], capture_output=True, text=True, check=True, cwd=again.ROOT
        ).stdout
        return re.findall(r"^tests\S*::.*", out, re.MULTILINE)

    odd, even = (collected("--share", f"{i}/2") for i in (1, 2))
    assert len(odd) == 3 and [*odd, *even] == [*collected()[::2], *collected()[1::2]]


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
    monkeypatch.setattr(again, "fits", lambda *_: True)
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
