"""Ranks add up, agree, and give way to a signal; alone is the case of one."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from axial import ConfigError
from axial.ranks import ranks, stopping

PROGRAM = """
import torch
from axial.ranks import ranks
with ranks("cpu") as team:
    total = team.sum(torch.tensor([1.0 + team.rank, 5.0]))
    most = team.most(7 * team.rank)
    told = team.broadcast(torch.tensor([10.0 + team.rank]))
    seen = team.any(team.rank == 1), team.any(False)
    print(f"{team.count} {team.main} {total.tolist()} {most} {told.tolist()} {seen}", flush=True)
"""


def test_two_ranks_add_up_and_agree(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*launch, "--nproc-per-node", "2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    same = "[3.0, 10.0] 7 [10.0] (True, False)"
    assert sorted(run.stdout.splitlines()) == [f"2 False {same}", f"2 True {same}"]


def test_alone_every_sum_is_its_own():
    with ranks("cpu") as team:
        assert team.main and team.count == 1
        assert team.sum(torch.tensor(3.0)) == 3 and team.most(2) == 2
        assert team.any(True) and not team.any(False)


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used here"), ranks("nowhere"):
        pass


def test_a_signal_is_noted_once_and_then_acts_again():
    with pytest.raises(KeyboardInterrupt), stopping() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGTERM)
    with stopping() as asked:
        signal.raise_signal(signal.SIGTERM)
    assert asked == [signal.SIGTERM] and signal.getsignal(signal.SIGTERM) == before
