"""tools/fuzz.py damages every kind of file that is read, and tells good outcomes from bad ones."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from conftest import load_script

TOOLS = Path(__file__).parents[1] / "tools"
MISBEHAVING = f"""
import os, sys, time
sys.path.insert(0, {str(TOOLS)!r})
import fuzz
from fuzz_kinds import KINDS, Kind

def write(folder):
    (folder / "a").write_bytes(bytes(range(100)))
    return folder / "a"

def spoilt(act):
    return lambda path, scratch: None if path.read_bytes() == bytes(range(100)) else act(path)

def refuse(path):
    try:
        bytearray(1 << 31)
    except MemoryError as error:
        raise fuzz.AxialError("refused for want of memory") from error

def leave(path):
    path.with_name("left").touch()
    raise fuzz.AxialError("refused")

def loop(path):
    while True:
        pass

acts = dict(loop=loop, wait=lambda path: time.sleep(3600), eat=lambda path: bytearray(1 << 31))
acts |= dict(refuse=refuse, die=lambda path: os.abort(), fail=lambda path: [][1], leave=leave)
KINDS.clear()
KINDS.update({{name: Kind(write, spoilt(act), False) for name, act in acts.items()}})
other = spoilt(lambda path: path.read_bytes())
KINDS.update(plain=Kind(write, other, False), checked=Kind(write, other, True))
KINDS["same"] = Kind(write, lambda path, scratch: 1, True)
fuzz.CPU_SECONDS, fuzz.WALL_SECONDS = 1, 15
fuzz.main()
"""


def fuzz(tmp_path, *command):
    """Run it, and read what it found: status, table, failures by case."""
    out = tmp_path / "found.json"
    run = subprocess.run(
        [sys.executable, *map(str, command), "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.exists(), run.stderr
    found = json.loads(out.read_text())
    return run, found["table"], {row["case"]: row for row in found["failed"]}


def test_damaged_files_of_every_kind_are_refused_or_read_and_nothing_else(tmp_path):
    run, table, failed = fuzz(tmp_path, TOOLS / "fuzz.py", "--seed", 0, "--count", 276)
    assert failed == {} and run.returncode == 0
    kinds = load_script("tools/fuzz.py").KINDS
    assert set(table) == set(kinds)
    assert sum(sum(row.values()) for row in table.values()) == 276
    assert all(row["refused"] for kind, row in table.items() if kinds[kind].checksum)


def test_whatever_a_reader_does_is_told_and_the_next_case_is_read(tmp_path):
    run, table, failed = fuzz(tmp_path, "-c", MISBEHAVING, "--seed", 3, "--count", 10)
    columns = {"loop": "hang", "wait": "hang", "eat": "memory", "refuse": "memory"}
    columns |= dict.fromkeys(("die", "fail", "leave"), "traceback")
    columns |= {"plain": "other data", "checked": "other data", "same": "same"}
    assert {kind: {name for name, n in row.items() if n} for kind, row in table.items()} == {
        kind: {outcome} for kind, outcome in columns.items()
    }
    assert all(row[columns[kind]] == 1 for kind, row in table.items())
    assert {case.partition(":")[0] for case in failed} == set(columns) - {"plain", "same"}
    assert "fail:3  traceback: IndexError: list index out of range" in run.stdout
    assert run.returncode == 1


def test_a_case_is_named_by_kind_and_number_and_is_always_the_same():
    tool = load_script("tools/fuzz.py")
    data = bytes(range(256)) * 4
    damaged = [tool.Case("bmp", number).damage(data) for number in range(300)]
    assert damaged == [tool.Case("bmp", number).damage(data) for number in range(300)]
    assert damaged != [tool.Case("gif", number).damage(data) for number in range(300)]
    assert sum(found != data for found in damaged) > 280 and len(set(damaged)) > 280
    assert {len(found) > len(data) for found in damaged} == {True, False}
    text = b'{"axes": [2, 3], "width": 8}\n'
    found = {tool.Case("config", number).damage(text) for number in range(300)}
    assert any(b"null" in text for text in found) and any(b"[" * 5000 in text for text in found)
    assert tool.Case("bmp", -1).damage(data) == data


def test_half_of_the_damage_is_within_right_checksums_and_may_then_be_other_data():
    tool = load_script("tools/fuzz.py")
    data, whole = gzip.compress(bytes(range(256))), bytes(range(256))
    cases = [tool.Case("tar.gz", number) for number in range(40)]
    inside = [gzip.decompress(case.damage(data)) for case in cases if case.inside]
    assert len(inside) == 20 and sum(found != whole for found in inside) > 5
    fails = [tool.Found(case, "other data").fails for case in cases]
    assert fails == [not case.inside for case in cases]
