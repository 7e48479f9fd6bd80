"""Reading the command line with tyro: kinds of arguments, help texts, and errors in one line."""

import contextlib
import functools
import inspect
import io
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from axial.system.terminal import printable
from axial.validation import unknown_name

_T = TypeVar("_T")
_QUIET = tyro.conf.arg(help_behavior_hint="")
"""None and False are no defaults to tell: the help text names the real one, if there is one."""


def quiet(metavar: str) -> Any:
    """The same for a value, which help calls `metavar`."""
    return tyro.conf.arg(help_behavior_hint="", metavar=metavar)


Switches = Annotated[_T, tyro.conf.FlagCreatePairsOff]
Switch = Annotated[Switches[bool], _QUIET]
Name = Annotated[str | None, quiet("NAME")]
Count = Annotated[int | None, quiet("N")]
Number = Annotated[float | None, quiet("X")]
File = Annotated[Path | None, quiet("FILE")]
Folder = Annotated[Path | None, quiet("DIR")]
_PLAIN = {int: "N", float: "X", str: "NAME", Path: "FILE"}
"""What help calls a value of a type; a tuple has several."""
_MARKERS = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.DisallowNone,
    tyro.conf.PositionalMetavarFromFieldName,
)
_RULES = ConstructorRegistry()
_inside: list[StructTypeInfo] = []


@_RULES.struct_rule
def _quiet_defaults(kind: StructTypeInfo) -> StructConstructorSpec | None:
    """A dataclass as tyro reads it, with the same said of its fields."""
    if _inside:
        return None
    _inside.append(kind)
    try:
        found = ConstructorRegistry.get_struct_spec(kind)
    finally:
        _inside.clear()
    if not isinstance(found, StructConstructorSpec):
        return None
    return replace(found, fields=tuple(map(_plain_field, found.fields)))


def _plain_field(field: Any) -> Any:
    """A field whose type is told in plain words, and a default only where it is one."""
    field = replace(field, helptext=functools.partial(_flowing, field.helptext))
    if typing.get_origin(field.type) is Annotated:  # says for itself what it is called
        return field
    silent = field.default is None or field.default is False or field.default == ()
    hint: dict[str, Any] = {"help_behavior_hint": ""} if silent else {}
    kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
    kind = kinds[0] if isinstance(field.type, types.UnionType) and kinds else field.type
    several = typing.get_origin(kind) is tuple
    one = typing.get_args(kind)[0] if several else kind
    name = _PLAIN.get(one)
    if several and typing.get_origin(one) is Literal:
        name = f"{{{','.join(typing.get_args(one))}}}"
    if name is not None:
        hint["metavar"] = f"{name} ..." if several else name
    return replace(field, type=Annotated[field.type, tyro.conf.arg(**hint)]) if hint else field


def _flowing(told: str | Callable[[], str | None] | None) -> str | None:
    """A help text without the line breaks that it has in the source."""
    text = told() if callable(told) else told
    return None if text is None else " ".join(text.split())


def postponed(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same signature and help, but only told what to call it with."""

    @functools.wraps(command)
    def postponed(*args: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **named)

    told: Any = postponed
    # Each argument's text on one line, for tyro would keep the breaks; and nothing to unwrap.
    told.__doc__ = re.sub(r"\n {8}(?=\S)", " ", inspect.getdoc(command) or "")
    told.__signature__ = inspect.signature(command)
    del told.__wrapped__
    return postponed


def parse(what: Callable[..., _T], args: Sequence[str], name: str, default: Any = None) -> _T:
    """Read flags; an unknown one ends with status 2 and one line that names the nearest."""
    how = {} if default is None else {"default": default}
    found, unknown = read(what, args, name, **how)
    if unknown:
        _refuse_unknown(unknown[0], flags_of(what, name, **how), f"axial {name}")
    return found


def _refuse_unknown(word: str, known: Sequence[str], command: str) -> None:
    kind = "flag" if word.startswith("-") else "argument"
    line = unknown_name(kind, word, known, listed="--help lists all")
    print(f"{command}: {printable(line)}", file=sys.stderr)
    sys.exit(2)


def help_of(name: str) -> str:
    """What a command says with --help."""
    from axial.cli.main import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([name, "--help"])
    return shown.getvalue()


def flags_of(what: Callable[..., Any], name: str, **how: Any) -> list[str]:
    """Every flag that a command has."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        read(what, ["--help"], name, **how)
    return sorted(set(re.findall(r"--[a-z][a-z0-9-]*", shown.getvalue())))


def read(
    what: Callable[..., _T], args: Sequence[str], name: str, **how: Any
) -> tuple[_T, list[str]]:
    """Flags, and those that are not known; a wrong value ends with status 2 and one line."""
    # Not public yet: without it tyro says the same in a box.
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", contextlib.nullcontext)
    try:
        with hook(functools.partial(_refuse, args, lambda: flags_of(what, name, **how))):
            return tyro.cli(
                what,
                args=args,
                prog=f"axial {name}",
                return_unknown_args=True,
                config=_MARKERS,
                registry=_RULES,
                **how,
            )
    except _ReorderedError as better:
        return read(what, better.args, name, **how)


class _ReorderedError(Exception):
    """The same arguments in an order that can be read."""


def _before_flag(args: Sequence[str], count: int) -> list[str] | None:
    """Arguments whose one flag with values to spare gives its last ones up, to stand before it.

    A flag that takes several values takes all that follow: `--label cat dog MODEL`.
    """
    starts = [i for i, arg in enumerate(args) if arg.startswith("-")]
    runs = pairwise([*starts, len(args)])
    found = [(start, end) for start, end in runs if end - start - 1 > count]
    if len(found) != 1:
        return None
    start, end = found[0]
    kept = end - count
    return [*args[:start], *args[kept:end], *args[start:kept], *args[end:]]


def _refuse(args: Sequence[str], known: Callable[[], list[str]], event: Any) -> None:
    """Say in one line what is wrong; what a later tyro may find wrong it says itself."""
    argument = getattr(event, "argument", None)
    flag = argument.display_name() if argument else "a value"
    if not flag.startswith("-"):  # what is missing may be lost behind a flag that is misspelt
        flags = [arg.split("=")[0].replace("_", "-") for arg in args if arg.startswith("--")]
        for unknown in [flag for flag in flags if flag not in known()]:
            _refuse_unknown(unknown, known(), event.prog)
    match type(event).__name__:
        case "MissingArgs":
            names = [missing.arg.display_name() for missing in event.missing_arguments]
            count = sum(not name.startswith("-") for name in names)
            if count and (better := _before_flag(args, count)) is not None:
                raise _ReorderedError(*better)
            line = f"missing: {', '.join(names)}"
        case "InvalidChoice":
            choices = [choice for choice in event.choices if choice != "None"]  # no word to give
            line = f"{flag} is {event.value!r}: use one of {', '.join(choices)}"
        case "BadValue":
            line = f"{flag} needs a value"
        case "InstantiationFailure":
            line = _plain_failure(flag, " ".join(event.message.split()))
        case _:
            return
    print(f"{event.prog}: {printable(line)}; --help tells more", file=sys.stderr)
    sys.exit(2)


def _plain_failure(flag: str, message: str) -> str:
    """Why a value is none; of numbers Python and tyro say it in words of their own."""
    if found := re.search(r"(int\(\) with base 10|string to float): ('.*')", message):
        kind = "a whole number" if found[1].startswith("int") else "a number"
        return f"{flag} is {found[2]}: use {kind}"
    if found := re.search(r"INT.* from \[(.*?)\]\.", message):
        return f"{flag} is {found[1]}: use whole numbers"
    return f"{flag}: {message}"
