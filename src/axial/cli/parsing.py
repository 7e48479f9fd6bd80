"""Reading the command line with tyro: kinds of arguments, help texts, and errors in one line."""

import contextlib
import functools
import io
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
    if typing.get_origin(field.type) is Annotated:  # says for itself what it is called
        return field
    hint = {"help_behavior_hint": ""} if field.default is None or field.default is False else {}
    kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
    kind = kinds[0] if isinstance(field.type, types.UnionType) and kinds else field.type
    several = typing.get_origin(kind) is tuple
    name = _PLAIN.get(typing.get_args(kind)[0] if several else kind)
    if name is not None:
        hint["metavar"] = f"{name} ..." if several else name
    return replace(field, type=Annotated[field.type, tyro.conf.arg(**hint)]) if hint else field


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
        line = printable(unknown_name(unknown[0], flags_of(what, name, **how), brief=True))
        print(f"axial {name}: {line}", file=sys.stderr)
        sys.exit(2)
    return found


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
    return sorted(set(re.findall(r"--[a-z0-9-]+", shown.getvalue())))


def read(
    what: Callable[..., _T], args: Sequence[str], name: str, **how: Any
) -> tuple[_T, list[str]]:
    """Flags, and those that are not known; a wrong value ends with status 2 and one line."""
    # Not public yet: without it tyro says the same in a box.
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", contextlib.nullcontext)
    with hook(_refuse):
        return tyro.cli(
            what,
            args=args,
            prog=f"axial {name}",
            return_unknown_args=True,
            config=_MARKERS,
            registry=_RULES,
            **how,
        )


def _refuse(event: Any) -> None:
    """Say in one line what is wrong; what a later tyro may find wrong it says itself."""
    argument = getattr(event, "argument", None)
    flag = argument.display_name() if argument else "a value"
    match type(event).__name__:
        case "MissingArgs":
            names = [missing.arg.display_name() for missing in event.missing_arguments]
            line = f"missing: {', '.join(names)}"
        case "InvalidChoice":
            line = f"{flag} is {event.value!r}: use one of {', '.join(event.choices)}"
        case "BadValue":
            line = f"{flag} needs a value"
        case "InstantiationFailure":
            line = f"{flag}: {' '.join(event.message.split())}"
        case _:
            return
    print(f"{event.prog}: {printable(line)}; --help tells more", file=sys.stderr)
    sys.exit(2)
