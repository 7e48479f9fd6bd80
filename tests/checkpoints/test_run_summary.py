"""`axial info` of runs: one, all beneath a folder, two beside each other."""

import json
import shutil

import pytest
from conftest import fails
from small_runs import COMMON

from axial.checkpoints.run_folder import Run
from axial.checkpoints.run_summary import RunSummary
from axial.cli.main import main


@pytest.fixture(scope="module")
def runs(alone, exact, tmp_path_factory):
    """A folder with two runs on one data set, one on another part of it, and things beside them."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(alone, folder / "alone")
    shutil.copytree(exact, folder / "deep" / "er" / "exact")
    few = [*COMMON, "--steps", "1", "--validation", "5"]
    main(["train", "digits", "--split", "test", "--out", str(folder / "other"), *few])
    (folder / "notes").mkdir()
    shutil.copytree(folder / "other", folder / "damaged")
    (folder / "damaged" / "run.json").write_text("{")
    return folder


def info(capsys, *args):
    main(["info", *map(str, args)])
    return capsys.readouterr().out


def test_a_run_is_summed_up_from_its_own_files(alone, capsys):
    said = info(capsys, alone)
    state, _ = Run(alone).newest()
    for words in (
        f"run         {alone}, preset digits",
        "trained on  digits train, 1,497 examples",
        "steps       60 of 60, 0:00:",
        f"held out    {state['best']:.4f} bits/dim (best, at step {state['best_step']})",
        "classes     0 to 9\n",
        "fingerprint",
    ):
        assert words in said, words


def test_a_run_without_a_checkpoint_is_summed_up_too(alone, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    shutil.copy(alone / "run.json", tmp_path / "new")
    said = info(capsys, tmp_path / "new")
    assert "steps       0 of 60, - of training" in said and "held out    not scored yet" in said
    assert "weights     none yet" in said


def test_the_runs_beneath_a_folder_are_listed_best_first(runs, capsys):
    said = info(capsys, runs)
    scores = {name: RunSummary.of(Run(runs / name)).best for name in ("alone", "deep/er/exact")}
    wanted = sorted(scores, key=scores.get)
    train, test, note = said.split("\n\n")
    lines = [line.split() for line in train.splitlines()[2:]]
    assert [line[0] for line in lines] == wanted
    assert [line[-1] for line in lines] == [f"{scores[name]:.4f}" for name in wanted]
    assert train.startswith("digits train, 1,497 examples") and "digits" in lines[0][1]
    assert test.startswith("digits test, 300 examples") and "other" in test
    assert "Scores of one table are of the same examples, and of others are not." in note
    assert "damaged" not in said and "notes" not in said


def test_two_runs_beside_each_other_show_what_differs_and_nothing_else(runs, capsys):
    said = info(capsys, runs / "alone", runs / "deep/er/exact")
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.strip()}
    assert rows["dropout"] == ["0.1", "0.0"]
    assert "width" not in rows and "learning_rate" not in rows and "not comparable" not in said
    said = info(capsys, runs / "alone", runs / "other")
    assert "data title" in said and "steps" in said
    assert "The scores are of different held-out examples, and not comparable." in said


def test_what_is_no_run_is_refused_in_one_line(runs, tmp_path, capsys):
    assert "holds no training run" in fails(capsys, "info", str(runs / "alone"), str(tmp_path))
    assert "holds no checkpoint and no run" in fails(capsys, "info", str(tmp_path))


def test_a_log_of_nonsense_is_no_obstacle(alone, tmp_path, capsys):
    shutil.copytree(alone, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["checksum"]
    about["training"] |= {"steps": "many", "max_minutes": []}
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"step": 7, "validation": "x", "seconds": null}\n{"step": 70, "seconds": []}\n')
    assert (
        str(RunSummary.of(Run(tmp_path / "run"))).splitlines()[2].startswith("steps       70, 0:")
    )
