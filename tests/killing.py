"""Kill a command at every file event that it comes to: `kill -9`, without starting Python anew.

A forked child runs the command with an audit hook that counts what it does to files in one folder
(open to write, rename, remove, make, change the mode of, lock, flush) and kills it before the n-th.
"""

import fcntl
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.link"}


def file_events(action, folder):
    """How many file events an action comes to in a folder, by doing it in a child."""
    reader, writer = os.pipe()
    seen = _in_child(action, folder, None, writer)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert seen == 0, text
    return int(text)


def killed_at(action, folder, event):
    """Do an action in a child that dies before its n-th file event; whether it died."""
    return status_of(action, folder, event) == -signal.SIGKILL


def status_of(action, folder, event=None):
    """The status with which a child ends that does an action."""
    return _in_child(action, folder, event, None)


def _in_child(action, folder, event, report):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns where there are threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        counter = _Counter(Path(folder).resolve(), event)
        sys.addaudithook(counter.note)
        flush, lock = os.fsync, fcntl.flock
        os.fsync = lambda *args: (counter.count(), flush(*args))
        fcntl.flock = lambda *args: (counter.count(), lock(*args))
        with Path(os.devnull).open("w") as nowhere:
            sys.stdout = sys.stderr = nowhere
            action()
        if report is not None:
            os.write(report, str(counter.seen).encode())
        os._exit(0)
    except BaseException:
        if report is not None:
            os.write(report, traceback.format_exc().encode())
        os._exit(1)


class _Counter:
    def __init__(self, folder, event):
        self.folder, self.event, self.seen = folder, event, 0

    def note(self, name, args):
        if name == "open":
            path, _, flags = args
            if not flags & _WRITING or not isinstance(path, str | bytes | os.PathLike):
                return
        elif name in _EVENTS:
            path = args[0]
        else:
            return
        place = Path(os.fsdecode(path))
        # Whoever removes a tree names what is in it relative to a folder that is open.
        if not place.is_absolute() or self.folder in place.parents:
            self.count()

    def count(self):
        if self.seen == self.event:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1
