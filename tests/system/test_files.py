"""What takes its name whole or not at all, whoever else writes there, or died there."""

import os
import signal
import tempfile

import formats
import numpy as np
import pytest
from conftest import config, saved
from packed_arrays import write
from small_runs import ALONE, TINY, plan

from axial.cli.main import main
from axial.system.files import (
    open_file,
    remove_all_dead,
    remove_dead,
    replacing,
    scratch_folder,
    temporary_folder,
)
from axial.training.start import create


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_the_dead_left_goes_and_what_the_living_have_stays(tmp_path):
    path = tmp_path / "a.txt"
    reader, writer = os.pipe()
    if not (child := os.fork()):
        with scratch_folder(path) as folder:
            (folder / "half").write_text("half")
            os.write(writer, b"!")
            signal.pause()
    os.read(reader, 1)
    (left,) = names(tmp_path)
    with replacing(path) as scratch:
        scratch.write_text("whole")
    assert names(tmp_path) == [left, "a.txt"] and remove_dead(path)
    with pytest.raises(BlockingIOError), scratch_folder(path, alone=True):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with scratch_folder(path, alone=True):
        assert left not in names(tmp_path)
    assert names(tmp_path) == ["a.txt"]
    for end in (reader, writer):
        os.close(end)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_temporary_folder_of_a_killed_command_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not (child := os.fork()):
        with temporary_folder() as folder:
            (folder / "data.npy").write_text("large")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = names(tmp_path)
    with temporary_folder() as folder:
        assert names(tmp_path) == [folder.name] != [left]
        assert folder.stat().st_mode & 0o777 == 0o700
    assert names(tmp_path) == []


def test_links_under_the_names_of_scratch_files_are_not_followed(tmp_path):
    """Neither written through nor emptied, and not removed either: they are not ours."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("keep")
    for name in ("a.npy", "a.json", "a.labels.npy", "run"):
        (tmp_path / f".{name}-unfinished").symlink_to(mine / ("precious" if "." in name else ""))
        (tmp_path / f".{name}-unfinished-0123abcd").symlink_to(mine)
    planted = tmp_path / ".a.npy-unfinished-planted"
    planted.mkdir()
    (planted / ".lock").symlink_to(mine / "precious")
    before = names(tmp_path)
    write(tmp_path / "a.npy", formats.pictures(2, 4), np.arange(2), 2)
    create(plan(), tmp_path / "run", ALONE)
    assert set(names(tmp_path)) == {*before, "a.npy", "a.json", "a.labels.npy", "run"}
    assert names(mine) == ["precious"] and (mine / "precious").read_text() == "keep"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    saved({"model": config((8, 8), values=17)}, folder)
    return folder / "model"


@pytest.mark.parametrize("name", ["data", "sample", "folder", "evaluate", "complete", "train"])
def test_links_that_lead_round_in_a_circle_are_replaced_or_refused_in_one_line(
    name, model, tmp_path
):
    loop = tmp_path / ("loop.npy" if name in ("data", "sample", "complete") else "loop")
    loop.symlink_to(loop)
    command = {
        "data": ["data", "digits", "--out", loop],
        "sample": ["sample", model, "--out", loop, "--count", 1],
        "folder": ["sample", model, "--out", loop, "--count", 1],
        "evaluate": ["evaluate", model, "--data", "digits", "--json", loop, "--limit", 1],
        "complete": ["complete", model, "digits", "--out", loop, "--examples", 1, "--keep", 1],
        "train": ["train", "digits", "--out", loop, "--steps", 1, "--batch", 2, *TINY],
    }[name]
    try:
        main([*map(str, command)])
    except SystemExit as ended:
        assert str(ended.code).startswith(f"axial: {loop}: ") and "\n" not in str(ended.code)
    else:
        assert loop.is_file() and not loop.is_symlink()
    assert [path for path in names(tmp_path) if path.startswith(".")] == []


def test_pipes_and_devices_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(OSError, match=r"is no file|Is a directory"):
            open_file(path)


def test_what_lies_deep_in_a_new_folder_has_the_permissions_of_new_files(tmp_path):
    with replacing(tmp_path / "x") as scratch:
        (scratch / "deep").mkdir(parents=True)
        (scratch / "deep" / "a").touch(mode=0o600)
    (tmp_path / "new").touch()
    assert (tmp_path / "x" / "deep" / "a").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_only_the_scratch_folders_of_the_dead_are_removed(tmp_path):
    with replacing(tmp_path / "x") as scratch:
        dead = tmp_path / ".y-unfinished-0123"
        dead.mkdir()
        remove_all_dead(tmp_path)
        assert not dead.exists() and scratch.parent.is_dir()
        scratch.write_text("whole")
    assert (tmp_path / "x").read_text() == "whole"
