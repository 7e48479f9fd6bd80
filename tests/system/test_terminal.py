"""What a terminal would obey comes out escaped, wherever it stands."""

import formats
import numpy as np
import pytest
from packed_arrays import write

from axial.cli.main import main
from axial.system.progress import Display
from axial.system.terminal import printable

BAD = "\x1b]0;owned\x07\x1b[2J\x9b1m\r\u202e"


def test_text_stays_and_control_characters_are_escaped():
    assert printable("Bäume (日本)\nnext") == "Bäume (日本)\nnext"
    assert printable(BAD) == r"\x1b]0;owned\x07\x1b[2J\x9b1m\r\u202e"


def test_no_command_sends_what_a_terminal_obeys(tmp_path, capsys):
    x = formats.pictures(2, 4)
    odd = write(tmp_path / f"{BAD}.npy", x, np.arange(2), 2, [BAD, "dog"], source=BAD)
    for command in (
        ["data", odd, "--out", tmp_path / f"{BAD}2.npy", "--workers", "1"],
        ["data", odd, "--out", odd],
        ["data", odd.with_name(f"{BAD}none"), "--out", odd],
        ["info", odd],
        ["info", f"{BAD}none"],
        [f"{BAD}command"],
        ["sample", f"{BAD}none"],
        ["train", f"{BAD}none", "--out", "x"],
        ["data", odd, f"--{BAD}"],
    ):
        try:
            main([*map(str, command)])
        except SystemExit as ended:
            print(ended.code)
        shown = capsys.readouterr()
        for text in (shown.out, shown.err):
            assert all(line.isprintable() for line in text.splitlines()), (command, text)


@pytest.mark.parametrize("terminal", [False, True])
def test_no_display_sends_what_a_terminal_obeys(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    with Display("x", 3) as display:
        display.show(1, BAD, now=True)
        display.say(BAD)
    said = capsys.readouterr().err
    assert r"\x1b]0;owned\x07" in said and "\x1b]0;" not in said and "\x9b" not in said
