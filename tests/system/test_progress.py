import axial.system.progress
from axial.system.progress import counting


def test_on_a_pipe_a_line_comes_now_and_then(monkeypatch, capsys):
    with counting("scored", 3000) as tell:
        tell(10)
        monkeypatch.setattr(axial.system.progress, "LINE_SECONDS", 0.0)
        tell(2000)
    assert capsys.readouterr().err == "scored: 2,000 of 3,000\n"
    with counting("packing", None) as tell:
        tell(7)
    assert capsys.readouterr().err == "packing: 7\n"
    with counting("packing", 9, shown=False) as tell:
        tell(7)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with counting("scored", 30) as tell:
        tell(30)
    assert "scored" in capsys.readouterr().err
