"""Reading the command line with tyro: kinds of arguments, and errors in one line."""

import contextlib
import functools
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from axial.data.sources.options import ClipOptions, HeldOutOptions, ReadOptions
from axial.sampling.config import SampleConfig
from axial.validation import unknown_name

_T = TypeVar("_T")
Reading = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[ReadOptions]]
Testing = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[HeldOutOptions]]
Clips = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[ClipOptions]]
Switch = tyro.conf.FlagCreatePairsOff[bool]
# None is no default to tell: the help text names the real one, if there is one.
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
"""Not a path: `cifar10` may be a model's name, `./cifar10` is none."""
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
How = tyro.conf.FlagCreatePairsOff[tyro.conf.OmitArgPrefixes[SampleConfig]]


def postponed(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same signature and help, but only told what to call it with."""

    @functools.wraps(command)
    def postponed(*args: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **named)

    return postponed


def parse(what: Callable[..., _T], args: Sequence[str], name: str, default: Any = None) -> _T:
    """Read flags; an unknown one ends with status 2 and one line that names the nearest."""
    how = {} if default is None else {"default": default}
    found, unknown = read(what, args, name, **how)
    if unknown:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            read(what, ["--help"], name, **how)
        flags = sorted(set(re.findall(r"--[a-z0-9-]+", shown.getvalue())))
        print(f"axial {name}: {unknown_name(unknown[0], flags, brief=True)}", file=sys.stderr)
        sys.exit(2)
    return found


def read(
    what: Callable[..., _T], args: Sequence[str], name: str, **how: Any
) -> tuple[_T, list[str]]:
    """Flags, and those that are not known; a wrong value ends with status 2 and one line."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(what, args=args, prog=f"axial {name}", return_unknown_args=True, **how)
    except SystemExit as stop:
        if stop.code:
            line = _in_one_line(told.getvalue()).replace(f" from axial {name}", "")
            print(f"axial {name}: {line}; --help tells more", file=sys.stderr)
        raise


def _in_one_line(box: str) -> str:
    """What tyro puts into a box: the text below its title, without the help of each flag."""
    rows = box.replace("│", " ").splitlines()
    rules = [i for i, row in enumerate(rows) if "──" in row or row.strip()[-2:] == "--"]
    said = rows[rules[0] + 1 : rules[1]] if len(rules) > 1 else rows
    return " ".join(" ".join(row for row in said if row[:10].strip()).split()).rstrip(".")
