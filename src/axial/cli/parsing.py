"""Reading the command line with tyro: kinds of arguments, help texts, and errors in one line."""

import contextlib
import functools
import io
import re
import sys
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
Switches = Annotated[_T, tyro.conf.FlagCreatePairsOff]
Switch = Annotated[Switches[bool], _QUIET]
Name = Annotated[str | None, _QUIET]
Count = Annotated[int | None, _QUIET]
File = Annotated[Path | None, _QUIET]
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
    fields = (
        replace(field, type=Annotated[field.type, _QUIET])  # type: ignore[arg-type]
        if field.default is None or field.default is False
        else field
        for field in found.fields
    )
    return replace(found, fields=tuple(fields))


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
