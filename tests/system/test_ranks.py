"""Ranks add up, agree, and give way to a signal; alone is the case of one."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from conftest import config, launch
from processes import Process
from processes import ranks as start_ranks

import axial
from axial import ConfigError
from axial.checkpoints import tensors
from axial.system import ranks as ranks_module
from axial.system.ranks import ranks, share, stopping


def test_what_a_signal_raises_is_not_taken_for_damage(tmp_path, monkeypatch):
    axial.save(axial.AxialTransformer(config()), tmp_path)

    class Swallowing:
        def __init__(self, weights):
            self.weights = weights

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def __getattr__(self, name):
            try:
                signal.raise_signal(signal.SIGTERM)
            except BaseException as error:
                raise RuntimeError("could not determine the shape") from error
            return getattr(self.weights, name)

    opened = tensors.safe_open
    monkeypatch.setattr(tensors, "safe_open", lambda *how: Swallowing(opened(*how)))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit) as caught:
            tensors.read_tensors(tmp_path / "model.safetensors")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 143


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


TWICE = """
import torch
from axial.system.ranks import ranks
for _ in range(2):
    with ranks("cpu") as team:
        print(int(team.sum(torch.tensor(1 + team.rank))))
"""


def test_a_process_may_join_its_job_again(tmp_path):
    (tmp_path / "twice.py").write_text(TWICE)
    job = start_ranks(2, script=tmp_path / "twice.py")
    assert [(process.wait(), process.out) for process in job] == [(0, "3\n3\n")] * 2


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
    with (
        pytest.raises(ConfigError, match="device is 'nowhere': use cpu, cuda or cuda:N"),
        ranks("nowhere"),
    ):
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


ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "job, told",
    [
        ({"RANK": "abc"}, "RANK is 'abc': unset it"),
        ({"RANK": "9" * 5000}, "RANK is '999"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'"),
        ({"WORLD_SIZE": "0"}, "RANK is 0, but WORLD_SIZE 0"),
        ({"RANK": "1"}, "RANK is 1, but WORLD_SIZE 1: unset both"),
        ({"RANK": "2", "WORLD_SIZE": "2", **ADDRESS}, "RANK is 2, but WORLD_SIZE 2"),
        ({"WORLD_SIZE": "2", **ADDRESS}, "WORLD_SIZE is 2, but RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "0", **ADDRESS, "MASTER_PORT": "x"}, "at 127.0.0.1:x ("),
        ({"WORLD_SIZE": "2", "RANK": "0", **ADDRESS, "MASTER_PORT": "99999"}, "at 127.0.0.1:99999"),
    ],
    ids=str,
)
def test_a_job_that_is_none_is_refused_in_one_line(job, told, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ADDRESS):
        monkeypatch.delenv(name, raising=False)
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught, ranks("cpu"):
        pass
    assert told in str(caught.value) and "torchrun" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.fixture
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


LONE = """
import runpy
from datetime import timedelta
from pathlib import Path

import axial.system.ranks as module

def joins(*args):
    Path(__file__).with_name("joining").touch()
    join(*args)

join, module._join = module._join, joins
module._JOIN_TIMEOUT = timedelta(seconds=SECONDS)
runpy.run_module("axial", run_name="__main__", alter_sys=True)
"""


def lone(tmp_path, rank, free_port, *, seconds):
    """A rank of two that is started alone."""
    (tmp_path / "lone.py").write_text(LONE.replace("SECONDS", str(seconds)))
    job = {"WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank, **ADDRESS, "MASTER_PORT": free_port}
    train = ["train", "digits", "--out", tmp_path / "run", "--device", "cpu"]
    return Process(*train, env=job, script=tmp_path / "lone.py")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_waits_for_others_in_vain_ends_in_time_with_one_line(tmp_path, rank, free_port):
    process = lone(tmp_path, rank, free_port, seconds=1)
    assert process.wait() == 1
    (line,) = process.err.splitlines()
    assert line.startswith(
        f"axial: rank {rank} of 2 cannot join the others at 127.0.0.1:{free_port} ("
    )
    assert line.endswith("; start every rank, best with torchrun")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_waits_for_others_is_ended_by_a_signal(tmp_path, rank, number, free_port):
    process = lone(tmp_path, rank, free_port, seconds=1000)
    while not (tmp_path / "joining").exists():
        time.sleep(0.01)
    time.sleep(0.2)  # it is perhaps, perhaps not waiting by now
    process.kill(number)
    assert process.wait() in (-number, 128 + number)


STUCK = """
import runpy
import axial.system.ranks as module

module._SAME_WISH_SECONDS = module._OBEY_SECONDS = 0.2
runpy.run_module("axial", run_name="__main__", alter_sys=True)
"""


def test_a_second_signal_ends_a_rank_that_waits_for_one_that_does_not_answer(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    few = ["--width", 8, "--heads", 2, "--batch", 2, "--steps", 10**6, "--device", "cpu"]
    few += ["--log-every", 1]
    train = ["train", "digits", "--out", tmp_path / "run", *few]
    waits, stands = start_ranks(2, *train, script=tmp_path / "stuck.py")
    try:
        while not (tmp_path / "run/log.jsonl").exists():
            assert waits.poll() is None, waits.err
            time.sleep(0.01)
        stands.kill(signal.SIGSTOP)
        time.sleep(0.5)
        waits.kill(signal.SIGTERM)
        time.sleep(0.5)
        assert waits.poll() is None  # the first asks to save
        waits.kill(signal.SIGTERM)
        assert waits.wait() == 143
    finally:
        stands.kill(signal.SIGKILL)
        stands.wait()
