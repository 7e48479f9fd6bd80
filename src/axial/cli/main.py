"""The command line: which command runs, and how it ends.

Torch is imported inside the command that needs it, so that help answers at once.
"""

import errno
import inspect
import io
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import axial
from axial.cli.complete import complete
from axial.cli.completion import completion
from axial.cli.compress import compress
from axial.cli.data import data
from axial.cli.decompress import decompress
from axial.cli.evaluate import evaluate
from axial.cli.import_tensorflow import import_
from axial.cli.info import info
from axial.cli.parsing import flags_of, parse, postponed
from axial.cli.presets import presets
from axial.cli.push import push
from axial.cli.sample import sample
from axial.cli.studio import studio
from axial.cli.train import TrainFlags, train
from axial.errors import AxialError, ConfigError, is_out_of_memory
from axial.system.terminal import printable
from axial.validation import unknown_name

_ONE_PROCESS = ("compress", "data", "decompress", "import", "push", "studio")
"""Commands that several ranks would each do whole, at one place."""
_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)


COMMANDS: dict[str, Callable[..., None]] = {
    "complete": complete,
    "compress": compress,
    "completion": completion,
    "data": data,
    "decompress": decompress,
    "evaluate": evaluate,
    "import": import_,
    "info": info,
    "presets": presets,
    "push": push,
    "sample": sample,
    "studio": studio,
    "train": train,
}


def main(args: Sequence[str] | None = None) -> None:
    """Run a subcommand; end with one line and status 1 on an error that the user can mend."""
    if threading.current_thread() is threading.main_thread():
        # So that being asked to end cleans up like any other error.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name it cannot spell
    try:
        _dispatch(args)
        sys.stdout.flush()
    except AxialError as error:
        line = _with_flags(" ".join(error.as_written.splitlines()), args)
        sys.exit(f"axial: {printable(line)}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sys.exit("axial: not enough memory for this; ask for fewer, shorter or smaller ones")
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed at the end
        if error.errno == errno.EPIPE:  # whoever read our output has seen enough
            sys.exit(1)
        sys.exit(f"axial: output cannot be written ({error.strerror}); make room for it")
    except KeyboardInterrupt:
        sys.exit(130)


def _dispatch(args: Sequence[str] | None) -> None:
    args = sys.argv[1:] if args is None else args
    if args and args[0] == "help":
        args = [*args[1:], "--help"]
    name = args[0] if args else ""
    if name in ("-h", "--help"):
        print(_overview())
    elif name == "--version":
        print(f"axial {axial.__version__}")
    elif name not in COMMANDS:
        what = unknown_name("command", name, COMMANDS) if args else "name a command"
        print(f"{_overview()}\n\naxial: {printable(what)}", file=sys.stderr)
        sys.exit(2)
    else:
        command = COMMANDS[name]
        if name in _ONE_PROCESS and _is_a_rank() and not {"-h", "--help"} & set(args):
            raise ConfigError(
                f"`axial {name}` runs as one process: start it without torchrun, or unset RANK"
            )
        try:
            if command is train:  # its defaults depend on its arguments
                train(args[1:])
            else:
                parse(postponed(command), args[1:], name)()
        except SystemExit as done:
            if done.code == 0 and {"-h", "--help"} & set(args):
                print(examples(command))
            raise


def _is_a_rank() -> bool:
    """Whether this is one of several processes of a job, as torchrun starts them."""
    count = os.environ.get("WORLD_SIZE", "")
    return "RANK" in os.environ and count.isdecimal() and int(count) > 1


def _with_flags(message: str, args: Sequence[str] | None) -> str:
    """An error that begins with the name of a setting, begun with its flag."""
    command = COMMANDS.get(next(iter(sys.argv[1:] if args is None else args), ""))
    if command is None or not (found := re.match(r"([a-z_]+)(?= is )", message)):
        return message
    what = TrainFlags if command is train else command
    flag = f"--{found[1].replace('_', '-')}"
    return f"{flag}{message[found.end() :]}" if flag in flags_of(what, "") else message


def _overview() -> str:
    """The commands with the first line of each one's help.

    Not left to tyro, which imports a third of a second's worth of modules to join subcommands.
    """
    lines = ["usage: axial COMMAND ...", "", "Axial Transformers: exact-likelihood models.", ""]
    for name, command in COMMANDS.items():
        lines.append(f"  {name:<12}{(command.__doc__ or '').splitlines()[0]}")
    more = "axial help COMMAND lists the options of a command, with examples."
    return "\n".join([*lines, "", more])


def examples(command: Callable[..., None]) -> str:
    """The commands that a docstring shows, as its help ends."""
    text = inspect.getdoc(command) or ""
    _, found, shown = text.partition("Examples:\n")
    return f"examples:\n{textwrap.indent(textwrap.dedent(shown).rstrip(), '  ')}" if found else ""
