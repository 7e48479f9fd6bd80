import io
import os
import subprocess
import sys
from pathlib import Path

import formats
import numpy as np
import pytest
import torch
from conftest import fails

import axial
from axial.cli.main import COMMANDS, main
from axial.presets import PRESETS

CHECKPOINT = Path(__file__).parents[1] / "parity" / "tf_checkpoint"


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported") / "ours"
    main(["import", str(CHECKPOINT), "--heads", "4", "--out", str(folder)])
    return folder


def test_importing_gives_a_folder_that_scores_what_the_authors_score(imported):
    model = axial.load(imported)
    with np.load(CHECKPOINT / "expected.npz") as expected:
        x, score = torch.from_numpy(expected["x"]), torch.from_numpy(expected["bits_per_dim_ema"])
    torch.testing.assert_close(axial.bits_per_dim(model, x), score.double(), rtol=0, atol=1e-5)


def test_raw_weights_are_imported_on_request(tmp_path, imported, capsys):
    out = str(tmp_path / "raw")
    main(["import", str(CHECKPOINT), "--heads", "4", "--weights", "raw", "--out", out])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{out}: raw weights") and axial.fingerprint(axial.load(out)) in last
    assert axial.fingerprint(axial.load(out)) != axial.fingerprint(axial.load(imported))


def test_import_errors_are_one_line_and_leave_nothing(tmp_path, capsys):
    out = tmp_path / "ours"
    for source, heads, more, message in (
        (CHECKPOINT, 5, [], "does not split into 5 heads"),
        (CHECKPOINT, 4, ["--channels", "2"], "this model has 3 channels"),
        (tmp_path / "nowhere", 4, [], "no such TensorFlow checkpoint"),
        ("a\nb" + "x" * 300, 4, [], "no such TensorFlow checkpoint"),
    ):
        args = ["import", str(source), "--heads", str(heads), *more, "--out", str(out)]
        assert message in fails(capsys, *args) and not out.exists()
    out.symlink_to(out)
    for place, message in (
        (out, "is there already and not empty"),
        (out / "x", "cannot be written"),
    ):
        args = ["import", str(CHECKPOINT), "--heads", "4", "--out", str(place)]
        assert message in fails(capsys, *args)
    out.unlink()
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    args = ["import", str(CHECKPOINT), "--heads", "4", "--out", str(out)]
    assert "is there already and not empty" in fails(capsys, *args)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_import_takes_the_folder_it_stands_in(tmp_path, monkeypatch, imported):
    monkeypatch.chdir(CHECKPOINT)
    main(["import", ".", "--heads", "4", "--out", str(tmp_path / "here")])
    same = axial.fingerprint(axial.load(tmp_path / "here"))
    assert same == axial.fingerprint(axial.load(imported))


FULL = "axial: output cannot be written (No space left on device); make room for it\n"


@pytest.mark.parametrize(
    ("where", "status", "said"),
    [
        ("| true", None, ""),  # a reader that has seen enough is no error worth a word
        ("> /dev/full", 1, FULL),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
    ],
)
def test_output_that_nobody_reads_is_no_error_and_a_full_disk_is_told(where, status, said):
    command = f"{sys.executable} -m axial info small {where}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert run.stderr == said and status in (None, run.returncode)


@pytest.mark.parametrize(
    ("encoding", "said"), [("latin-1", r"\u65e5\u672c.npy"), ("utf-8", "日本.npy")]
)
def test_a_name_that_the_output_cannot_spell_is_escaped(tmp_path, monkeypatch, encoding, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    main(["data", "digits", "--split", "test", "--out", "日本.npy"])
    out = sys.stdout.buffer.getvalue().decode(encoding)
    assert out == f"{said}: digits test, 300 examples\n"


@pytest.mark.parametrize("name", PRESETS)
def test_info_describes_every_preset(name, capsys):
    main(["info", name])
    out = capsys.readouterr().out
    assert "parameters" in out and "FLOPs" in out and "logits (b, " in out


def test_info_fits_a_preset_to_data(capsys):
    main(["info", "small", "--axes", "4", "6", "8", "--channels", "2", "--values", "9"])
    assert "4 x 6 x 8, 2 channels, 9 values" in capsys.readouterr().out


def test_info_describes_a_checkpoint(imported, capsys):
    main(["info", str(imported)])
    out = capsys.readouterr().out
    assert "8 x 8, 3 channels" in out and axial.fingerprint(axial.load(imported)) in out
    message = fails(capsys, "info", str(imported), "--values", "9")
    assert "--values fits presets only" in message


def test_info_errors_are_one_line(capsys, tmp_path):
    for near in ("cifar", "CIFAR10"):
        assert "did you mean cifar10?" in fails(capsys, "info", near)
    assert "there is no file, checkpoint, preset or model 'xyzzy'" in fails(capsys, "info", "xyzzy")
    assert "holds no checkpoint and no run; `axial data`" in fails(capsys, "info", str(tmp_path))
    (tmp_path / "mine.jpg").touch()
    message = fails(capsys, "info", str(tmp_path / "mine.jpg"))
    assert "mine.jpg: is no checkpoint, packed .npy array or .axl file; `axial data`" in message
    assert "this preset is for two axes" in fails(capsys, "info", "imagenet32", "--axes", "8")
    assert "there is no file, checkpoint" in fails(capsys, "info", "x" * 300)
    for name in ("digits", "cifar10"):
        message = fails(capsys, "info", name, "--duplicates", str(tmp_path / "a.npy"))
        assert f"{name}: is no packed array; --duplicates compares these only" in message
    assert "axes is 1000" in fails(capsys, "info", "small", "--axes", str(10**50))


def test_data_packs_reports_and_draws(tmp_path, capsys):
    out, preview = tmp_path / "digits.npy", tmp_path / "digits.png"
    arguments = ["data", "digits", "--split", "test", "--out", str(out), "--preview", str(preview)]
    main(arguments)
    assert f"{preview}: exists already" in fails(capsys, *arguments)
    main([*arguments, "--overwrite"])
    said = capsys.readouterr()
    assert said.out == f"{out}: digits test, 300 examples\n" * 2
    assert "read as built in" in said.err and "17 values" in said.err
    assert np.load(out).shape == (300, 8, 8, 1) and preview.stat().st_size > 1000
    main(["info", str(out), "--duplicates", str(out)])
    said = capsys.readouterr().out
    assert "digits test" in said and "300 examples stand in" in said and "PNG" in said


def test_a_preview_never_replaces_a_picture_of_the_source(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(2))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for source, preview in (("in/00000.png", folder / "00000.png"), ("in", "in/00001.png")):
        message = fails(capsys, "data", source, "--out", "a.npy", "--preview", str(preview))
        assert f"{preview}: is part of what is read; name another" in message
    (tmp_path / "folder.png").mkdir()
    message = fails(capsys, "data", "in", "--out", "a.npy", "--preview", "folder.png")
    assert "folder.png: not a .png path in an existing folder" in message
    (tmp_path / "photo.png").write_bytes(photo := next(iter(before.values())))
    message = fails(capsys, "data", "digits", "--out", "a.npy", "--preview", "photo.png")
    assert "photo.png: exists already; choose another name" in message
    assert (tmp_path / "photo.png").read_bytes() == photo
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "a.npy").exists()


def test_data_errors_are_one_line_and_leave_nothing(tmp_path, capsys):
    common = ["--out", str(tmp_path / "a.npy")]
    assert "no such file or folder" in fails(capsys, "data", str(tmp_path / "none"), *common)
    assert "has no split 'valid'" in fails(capsys, "data", "digits", "--split", "valid", *common)
    assert "--size is 0" in fails(capsys, "data", "digits", "--size", "0", *common)
    long = str(tmp_path / ("x" * 300 + ".npy"))
    assert "xxx.npy: cannot be written" in fails(capsys, "data", "digits", "--out", long)
    assert "a.npy" in fails(capsys, "info", str(tmp_path / "a.npy"))
    assert "--out" in fails(capsys, "data", "digits", status=2)
    assert list(tmp_path.iterdir()) == []


def test_help_and_version_answer(capsys):
    for flag in ("-h", "--help"):
        main([flag])
        out = capsys.readouterr().out
        assert all(name in out for name in COMMANDS)
    main(["--version"])
    assert capsys.readouterr().out == f"axial {axial.__version__}\n"
    for name in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        said = capsys.readouterr().out
        told = {"train": "--resume", "presets": "parameters", "studio": "--port"}
        assert told.get(name, "required") in said
        assert "None" not in said and "default: False" not in said


@pytest.mark.parametrize("label", ["-1", str(10**30), "cat"])
def test_a_label_that_is_no_class_is_one_line(label, imported, tmp_path, capsys):
    out = ["--out", str(tmp_path / "x.npy"), "--label", label]
    assert "this model is unconditional; leave --label out" in fails(
        capsys, "sample", str(imported), *out
    )


def test_wrong_usage_ends_with_status_two(capsys):
    assert "did you mean import?" in fails(capsys, "imprt", status=2)
    assert "name a command" in fails(capsys, status=2)
    assert "--heads" in fails(capsys, "import", str(CHECKPOINT), status=2)
    assert "--axes" in fails(capsys, "info", "small", "--axis", "3", status=2)


@pytest.mark.parametrize(
    "args",
    [
        ["digits", "--out", "z", "--stepz", "3"],
        ["--out", "z", "--stepz", "3", "digits"],
        ["--resume", "z", "--stepz", "3"],
    ],
    ids=" ".join,
)
def test_a_misspelt_flag_of_train_is_named_wherever_it_stands(args, capsys):
    told = fails(capsys, "train", *args, status=2)
    assert told == "axial train: there is no flag '--stepz'; did you mean --steps?\n"


@pytest.mark.parametrize("words", ["--lable cat x", "--lable cat dog x", "x --lable cat"])
def test_a_misspelt_flag_is_named_wherever_it_stands(words, capsys):
    told = fails(capsys, "sample", *words.split(), "--out", "a.png", status=2)
    assert told == "axial sample: there is no flag '--lable'; did you mean --label?\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train digits --steps abc", "--steps is 'abc': use a whole number"),
        ("sample x --out a --temperature hot", "--temperature is 'hot': use a number"),
        ("train digits --optimizer x", "--optimizer is 'x': use one of adam, adamw, muon"),
        ("evaluate x --precision half", "--precision is 'half': use one of float32, bfloat16"),
        ("sample", "missing: checkpoint, --out"),
        ("sample x --out", "--out needs a value"),
        ("info small --axes 3 a", "--axes is '3', 'a': use whole numbers"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(capsys, command, told):
    line = fails(capsys, *command.split(), status=2)
    assert line.startswith(f"axial {command.split()[0]}: ") and told in line
    assert line.endswith("; --help tells more\n") and line.count("\n") == 1
    assert "default" not in line and "─" not in line


def test_python_m_axial_is_the_same_command():
    run = lambda *args: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "axial", *args], capture_output=True, text=True, check=False
    )
    assert run("--version").stdout == f"axial {axial.__version__}\n"
    failed = run("info", "cifar")
    assert failed.returncode == 1 and failed.stdout == ""
    assert failed.stderr.count("\n") == 1 and failed.stderr.startswith("axial: ")


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(own, expected):
    script = """
import os, sys
from axial.__main__ import run
sys.argv = ["axial", "--version"]
run()
print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""
    environment = {name: word for name, word in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if own is None else {"OMP_WAIT_POLICY": own}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-2:] == [expected, "False"]


@pytest.mark.parametrize("command", ["compress cifar10 x.png --out x.axl", "data ./x --out x.npy"])
def test_what_is_one_process_is_not_started_by_torchrun(command, capsys, monkeypatch):
    """Every rank would do all of the work, and write one file."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    name, *options = command.split()
    line = f"axial: `axial {name}` runs as one process: start it without torchrun, or unset RANK"
    assert fails(capsys, name, *options) == line
    main(["info", "digits"])
    for size, rank in (("1", "0"), ("", "0"), ("x", "0"), ("2", None)):
        monkeypatch.setenv("WORLD_SIZE", size)
        monkeypatch.delenv("RANK") if rank is None else monkeypatch.setenv("RANK", rank)
        assert "torchrun" not in fails(capsys, name, *options)
