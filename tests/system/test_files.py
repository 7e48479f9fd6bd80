"""What takes its name whole or not at all, whoever else writes there."""

from axial.system.files import replacing


def test_of_two_who_write_one_file_each_puts_its_own_there_whole(tmp_path):
    path = tmp_path / "a.txt"
    one, two = replacing(path), replacing(path)
    first = one.__enter__()
    first.write_text("one")
    second = two.__enter__()
    second.write_text("tw")  # not all of it yet
    one.__exit__(None, None, None)
    assert path.read_text() == "one"
    second.write_text("two")
    two.__exit__(None, None, None)
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
