"""Processes of `axial`, forked from one that has imported torch: what starts one costs no time.

That one, the server, has run nothing and started no thread; it is a process of its own, for the
tests have. Run as a script, this file is the server.
"""

import atexit
import functools
import importlib
import json
import os
import runpy
import socket
import sys
import time
from pathlib import Path

SLOW = ("matplotlib.figure", "rich.progress", "sklearn.datasets", "torch._dynamo")
"""What takes long to import, beside torch."""


@functools.cache
def server():
    """The socket of the server, which ends when that is closed, with us."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    os.set_inheritable(theirs.fileno(), True)
    _, pipe = os.pipe()  # Python treats what it starts with as a pipe as one to the end
    streams = [(os.POSIX_SPAWN_DUP2, pipe, number) for number in (1, 2)]
    pid = os.posix_spawn(command[0], command, environment, setsid=True, file_actions=streams)
    theirs.close()
    atexit.register(lambda: (ours.close(), os.waitpid(pid, 0)))  # what it cost is ours
    return ours


class Process:
    """A command in a process group of its own; once it has ended, what it said is `out`, `err`."""

    def __init__(self, *args, env=None, script=None, err=None):
        self._fds = [os.memfd_create(name) for name in ("out", "err")]
        how = {"args": [*map(str, args)], "env": env or {}, "cwd": str(Path.cwd())}
        how |= {"path": sys.path, "script": script and str(script)}
        self.pid = self._ask(how, [self._fds[0], err or self._fds[1]])
        self.returncode = None

    def _ask(self, what, fds=()):
        socket.send_fds(server(), [json.dumps(what).encode()], fds)
        return json.loads(server().recv(1 << 16))

    def poll(self):
        if self.returncode is None:
            self.returncode = self._ask({"poll": self.pid})
            if self.returncode is not None:
                self.out, self.err = (os.pread(fd, 1 << 24, 0).decode() for fd in self._fds)
                for fd in self._fds:
                    os.close(fd)
        return self.returncode

    def said(self):
        """What it has printed so far."""
        return os.pread(self._fds[0], 1 << 16, 0).decode()

    def wait(self):
        while self.poll() is None:
            time.sleep(0.005)
        return self.returncode

    def kill(self, number):
        """Send a signal to it and to what it has started."""
        os.killpg(self.pid, number)


def ranks(count, *args, script=None):
    """A job of so many ranks, as torchrun would start it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    each = [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [Process(*args, env=job, script=script) for job in each]


def run_to_end(count, *args, script=None):
    """What must succeed, on so many ranks."""
    job = ranks(count, *args, script=script)
    assert [process.wait() for process in job] == [0] * count, [process.err for process in job]


def serve(asked):
    """Fork whatever is asked for, and tell how it ended."""
    for module in ("axial.cli.train", "axial.training.loop", "axial.training.start", *SLOW):
        importlib.import_module(module)
    while True:
        data, fds, _, _ = socket.recv_fds(asked, 1 << 16, 2)
        if not data:
            return None
        what = json.loads(data)
        if "poll" in what:
            pid, status = os.waitpid(what["poll"], os.WNOHANG)
            asked.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
            continue
        if not (pid := os.fork()):
            return what, fds
        for fd in fds:
            os.close(fd)
        asked.send(json.dumps(pid).encode())


if __name__ == "__main__":
    connection = socket.socket(fileno=int(sys.argv[1]))
    if (job := serve(connection)) is not None:
        connection.close()
        os.setpgid(0, 0)
        for number, fd in enumerate(job[1], 1):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.update(job[0]["env"])
        os.chdir(job[0]["cwd"])
        sys.argv, sys.path = [job[0]["script"] or "axial", *job[0]["args"]], job[0]["path"]
        if job[0]["script"]:
            runpy.run_path(job[0]["script"], run_name="__main__")
        else:
            runpy.run_module("axial", run_name="__main__", alter_sys=True)
