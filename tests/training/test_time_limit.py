"""A run with a limit in time ends on time, its schedule too, whatever happens on the way."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_runs import ALONE, TINY, plan

import axial
from axial import ConfigError
from axial.checkpoints.run_folder import Run
from axial.training import loop, samples, time_limit
from axial.training.loop import train
from axial.training.run_logger import RunLogger
from axial.training.start import create
from axial.training.time_limit import Clock

MINUTES = 0.2  # 12 seconds, by the clock of these tests


@pytest.fixture
def clock(monkeypatch):
    """A machine that compiles for 100 s; a step takes 0.2 s, from the tenth on perhaps longer.

    Scoring takes 1 s, drawing 30 s. Its time does not depend on what else this one has to do.
    """
    found = SimpleNamespace(now=0.0, later=0.2, compiled=False, rates=[])
    learn, score, draw = loop.Trainer.step, loop.score, samples.draw

    def step(self, number, batch):
        found.now += 0.2 if number < 10 else found.later
        if not found.compiled:
            found.now, found.compiled = found.now + 100, True
        reading = learn(self, number, batch)
        found.rates.append(float(self.rate))
        return reading

    def scored(*words, **how):
        found.now += 1.0
        return score(*words, **how)

    def drawn(*words, **how):
        found.now += 30.0
        return draw(*words, **how)

    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(loop.Trainer, "step", step)
    monkeypatch.setattr(loop, "score", scored)
    monkeypatch.setattr(samples, "draw", drawn)
    return found


def timed(**settings):
    """A plan whose number of steps would last for another time."""
    few = {"batch": 4, "max_minutes": MINUTES, "save_every": 20, "sample_every": 25}
    return plan(
        **few, **{"steps": 1000, "warmup": 3, "log_every": 7, "validate_every": 15} | settings
    )


def assert_ended_on_time(run, outcome, clock):
    """Not late, early by at most a step and a score, the rate near zero; scored and saved."""
    state, _ = run.newest()
    assert 60 * MINUTES - 1.01 * (clock.later + 1) < state["seconds"] < 60 * MINUTES + 0.01
    assert state["step"] == outcome.step == state["plan"]["steps"]
    assert clock.rates[-1] < 0.05 * max(clock.rates) and max(clock.rates) == pytest.approx(3e-3)
    assert [r["step"] for r in run.log() if "validation" in r][-1] == outcome.step
    assert axial.load(run.folder).config.axes == (8, 8)


@pytest.mark.parametrize("later", [0.1, 0.2, 0.4])
def test_a_run_ends_on_time_whatever_its_pace_becomes(later, clock, tmp_path):
    clock.later = later
    run, packed = create(timed(), tmp_path / "run", ALONE)
    outcome = train(run, packed, ALONE)
    assert_ended_on_time(run, outcome, clock)
    steps = [record["step"] for record in run.log() if "loss" in record]
    assert set(range(7, outcome.step, 7)) <= set(steps)
    before = [path.stat().st_mtime_ns for path in run.checkpoints()]
    assert train(run, packed, ALONE).step == outcome.step  # nothing is left of its time
    assert [path.stat().st_mtime_ns for path in run.checkpoints()] == before


def test_a_run_that_is_validated_only_at_its_end_is_not_late_either(clock, tmp_path):
    run, packed = create(timed(validate_every=1000), tmp_path / "run", ALONE)
    train(run, packed, ALONE)
    assert 60 * MINUTES - 5 < run.newest()[0]["seconds"] < 60 * MINUTES + 0.01


def test_a_resumed_run_has_what_is_left_of_its_time(clock, tmp_path, monkeypatch):
    run, packed = create(timed(steps=3), tmp_path / "run", ALONE)
    record = RunLogger.record

    def asked(self, step, **facts):
        record(self, step, **facts)
        if step == 21:  # the next step sees it
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "record", asked)
        assert train(run, packed, ALONE).signal == signal.SIGTERM
    state, _ = run.newest()
    assert state["seconds"] == pytest.approx(21 * 0.2 + 1, abs=0.01)  # 22 steps and a score
    assert state["plan"]["costs"]["validate_every"] == pytest.approx(1)
    assert state["plan"]["seconds_each"] == pytest.approx(0.2)
    clock.now += 1000
    clock.compiled = False
    outcome = train(run, packed, ALONE)
    assert_ended_on_time(run, outcome, clock)
    assert (
        outcome.step == 45
    )  # in 11.6 s, two steps for nothing; one more step would need a fourth score


def test_ranks_agree_on_the_number_of_steps(tmp_path):
    few = [*TINY, "--batch", "8", "--max-minutes", "0.03", "--log-every", "1000"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*start, "-m", "axial", "train", "digits", "--out", tmp_path / "run", *few]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    state = Run(tmp_path / "run").newest()[0]
    assert 0 < state["step"] == state["plan"]["steps"] < time_limit.UNKNOWN_STEPS


def test_everything_due_before_the_end_and_at_the_end_is_reserved_for(monkeypatch):
    now = SimpleNamespace(time=0.0)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: now.time))
    config = replace(plan().training, validate_every=10, save_every=25)
    kept = {"steps": 5, "seconds_each": 1.0}
    costs = {"validate_every": 5.0, "save_every": 2.0}

    def planned(step, left):
        clock = Clock(100.0, used=100.0 - left, kept=kept | {"costs": costs}, validation=9)
        clock.plan(config, step)
        return clock.steps

    assert [planned(3, 7 + seconds) for seconds in (0, 0.9, 1, 7)] == [3, 3, 4, 10]
    assert [planned(3, 7 + seconds) for seconds in (8, 12.9, 13)] == [10, 10, 11]  # scored at 10
    assert [planned(10, 7 + seconds) for seconds in (0, 5.9, 6)] == [10, 10, 11]  # and to be yet
    assert planned(3, 7 + 22 + 5 + 5) == 25 and planned(3, -5.0) == 3
    assert [planned(3, 7 + 23 + 5 + 5 + saved) for saved in (0, 1.9, 2)] == [25, 25, 26]
    clock = Clock(100.0, validation=6)
    clock.plan(config, 1)
    assert (clock.steps, clock.due) == (time_limit.UNKNOWN_STEPS, 2)
    now.time = 0.5
    clock.plan(config, 2)
    # A validation counts as six steps until one was measured: 10, 20, ... and one at the end.
    assert (clock.steps, clock.due) == (2 + 199 - 6 * 13, 2 + 1 + 4)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "4", True])
def test_minutes_are_a_positive_number(wrong):
    with pytest.raises(ConfigError, match="max_minutes is"):
        replace(plan().training, max_minutes=wrong)
