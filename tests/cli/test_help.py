"""Help: examples that work, real values of presets, plain types; and completion by a shell."""

import re
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest

from axial.cli.main import COMMANDS, examples, main
from axial.cli.parsing import help_of
from axial.presets import PRESETS


def said(capsys, *args):
    try:
        main(args)
    except SystemExit as done:
        assert done.code in (0, None)
    return capsys.readouterr().out


def test_help_of_a_command_is_found_in_either_order(capsys):
    for name in COMMANDS:
        assert said(capsys, "help", name) == said(capsys, name, "--help")
    assert said(capsys, "help") == said(capsys, "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_two_examples_with_flags_that_it_has(name):
    help_text = help_of(name)
    flags = set(re.findall(r"--[a-z0-9-]+", help_text.split("examples:")[0]))
    shown = examples(COMMANDS[name]).splitlines()[1:]
    assert len(shown) >= 2 and all(line in help_text for line in shown)
    for line in shown:
        words = line.split()
        assert words[0] == "axial" and words[1] in COMMANDS
        if words[1] == name:
            assert {word for word in words if word.startswith("--")} <= flags, line


@pytest.mark.parametrize("name", ["small", "cifar10", "bair", "strided-cifar10"])
def test_every_setting_is_shown_with_the_value_that_the_preset_has(name, capsys):
    text = " ".join(re.sub("[\u2500-\u257f]", " ", said(capsys, "help", "train", name)).split())
    recipe = PRESETS[name]()
    wanted = {"steps": recipe.training.steps, "learning-rate": recipe.training.learning_rate}
    wanted |= {"warmup": recipe.training.warmup, "optimizer": recipe.training.optimizer}
    wanted |= {"width": recipe.model.width, "heads": recipe.model.heads}
    for flag, value in wanted.items():
        following = re.split(rf" --{flag} (?:N|X|\{{[\w,]+\}}) ", text)[1]
        assert re.search(r"\(default: ([^)]*)\)", following)[1] == str(value), flag


@pytest.mark.parametrize("name", COMMANDS)
def test_types_are_plain(name):
    for word in ("INT", "FLOAT", "STR", "{[", "None", "default: False"):
        assert not re.search(rf"(?<![A-Z]){re.escape(word)}\b", help_of(name)), word


@pytest.mark.parametrize("name", COMMANDS)
def test_texts_flow_without_the_line_breaks_of_the_source(name):
    seen = 0
    for line, following in pairwise(map(str.rstrip, help_of(name).splitlines())):
        column = len(following) - len(following.lstrip())
        if column > 8 and line[column - 2 : column] == "  " and line[column:].strip():
            seen += 1
            assert len(line) + 1 + len(following.split()[0]) > 78, (line, following)
    assert seen or name in ("presets", "completion", "push")


def test_presets_are_listed_with_parameters_and_cost(capsys):
    lines = said(capsys, "presets").splitlines()
    rows = {line.split()[0]: line for line in lines if line}
    assert PRESETS.keys() < rows.keys()
    assert "14.2 M" in rows["cifar10"] and "minutes" in rows["cifar10"]
    assert "505.2 M" in rows["imagenet32"] and "days" in rows["imagenet32"]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script of each shell, as the command prints it."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        text = subprocess.run(
            [sys.executable, "-m", "axial", "completion", shell], capture_output=True, check=True
        ).stdout
        (folder / shell).write_bytes(text)
    return folder


def completed(script, cwd, *words):
    """What bash offers for the last word of a command line."""
    line = " ".join(f"'{word}'" for word in ("axial", *words))
    ask = f"source {script / 'bash'}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _axial; "
    ask += "printf '%s\\n' \"${COMPREPLY[@]}\""
    shown = subprocess.run(["bash", "-c", ask], cwd=cwd, capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    return set(shown.stdout.splitlines())


def test_a_shell_completes_commands_flags_choices_names_and_files(script, tmp_path):
    (tmp_path / "sales.npy").touch()
    assert completed(script, tmp_path, "s") >= {"sample"}
    assert completed(script, tmp_path, "help", "eva") == {"evaluate"}
    assert completed(script, tmp_path, "train", "cifar10-") == {"cifar10-paper"}
    assert completed(script, tmp_path, "train", "small", "--max-") == {"--max-minutes"}
    assert completed(script, tmp_path, "train", "--optimizer", "") == {"adam", "adamw", "muon"}
    assert completed(script, tmp_path, "sample", "c") == {"cifar10"}
    assert completed(script, tmp_path, "evaluate", "cifar10", "--data", "sa") == {"sales.npy"}
    assert "--label" in completed(script, tmp_path, "sample", "cifar10", "--")
    every = completed(script, tmp_path, "studio", "--")
    assert "--help" in every and all(flag.strip("-") for flag in every)


def test_a_name_with_spaces_is_one_name(script, tmp_path):
    (tmp_path / "my cats.npy").touch()
    assert completed(script, tmp_path, "evaluate", "cifar10", "--data", "my") == {"my cats.npy"}


def test_the_scripts_of_other_shells_are_theirs(script):
    fish = (script / "fish").read_text()
    assert "-n '__fish_seen_subcommand_from train' -l optimizer -x -a 'adam adamw muon'" in fish
    assert (script / "zsh").read_text().startswith("autoload")
    for shell in ("zsh", "fish"):
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(script / shell)], check=True)
