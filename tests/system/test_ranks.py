"""Ranks add up, agree, and give way to a signal; alone is the case of one."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import launch

import axial
from axial import ConfigError
from axial.system import ranks as ranks_module
from axial.system.ranks import ranks, share, stopping

PROGRAM = """
import sys
import time
import torch
from axial import ConfigError
from axial.system.ranks import ranks
def fail():
    if team.is_rank0:
        raise ConfigError("told once")
    print("never", flush=True)
with ranks("cpu") as team:
    total = team.sum(torch.tensor([1.0 + team.rank, 5.0]))
    most = team.all_reduce_max(7 * team.rank)
    told = team.broadcast(torch.tensor([10.0 + team.rank]))
    seen = team.any(team.rank == 1), team.any(False)
    line = f"{team.count} {team.is_rank0} {total.tolist()} {most} {told.tolist()} {seen}"
    sys.stdout.write(line + "\\n")  # in one piece, or two ranks' lines mix
    sys.stdout.flush()
    try:
        team.rank0_first(fail)
    finally:
        time.sleep(2 * team.is_rank0)
"""


def test_two_ranks_add_up_and_agree_and_tell_once_what_fails_however_long_that_takes(tmp_path):
    """Torchrun ends all ranks once one has ended."""
    run = launch(tmp_path, PROGRAM)
    same = "[3.0, 10.0] 7 [10.0] (True, False)"
    assert sorted(run.stdout.splitlines()) == [f"2 False {same}", f"2 True {same}"]
    assert run.returncode == 1 and run.stderr.count("ConfigError: told once") == 1
    assert "Connection closed" not in run.stderr


@pytest.mark.parametrize("count, ends", [(1, ["gone"]), (2, [])])
def test_a_rank_that_is_done_is_gone_before_the_threads_of_torch_could_abort_it(count, ends):
    program = (
        "import atexit, runpy, sys; atexit.register(print, 'gone'); "
        "sys.argv[1:] = ['--version']; runpy.run_module('axial', run_name='__main__')"
    )
    env = os.environ | {"WORLD_SIZE": str(count)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [f"axial {axial.__version__}", *ends]


def test_alone_every_sum_is_its_own():
    with ranks("cpu") as team:
        assert team.is_rank0 and team.count == 1
        assert team.sum(torch.tensor(3.0)) == 3 and team.all_reduce_max(2) == 2
        assert team.any(True) and not team.any(False)


@pytest.mark.parametrize(
    ("count", "batch", "ranks"), [(5, 2, 2), (16, 16, 3), (100, 7, 4), (4, 16, 8), (2, 1, 3)]
)
def test_ranks_share_whole_batches_and_nothing_twice(count, batch, ranks):
    shares = [share(count, rank, ranks, batch) for rank in range(ranks)]
    assert [i for part in shares for i in range(count)[part]] == list(range(count))
    assert all(part.start % batch == 0 or part.start == count for part in shares)
    assert shares[0].stop > 0  # rank 0 shows how far it is, and writes the trace


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used here"), ranks("nowhere"):
        pass


def test_a_signal_is_noted_its_echo_ignored_and_a_later_one_obeyed(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(KeyboardInterrupt), stopping() as asked:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert asked == [signal.SIGINT]
        now += ranks_module._SAME_WISH_SECONDS + 0.1
        signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGTERM)
    with stopping() as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) == before
