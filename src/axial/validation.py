"""The checks that configurations and public calls share; they need no torch."""

import difflib
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from axial.errors import ConfigError

_Config = TypeVar("_Config")
Precision = Literal["float32", "bfloat16"]
"""What a model computes in."""
Weights = Literal["ema", "raw"]
"""Which of the weights of a run."""

MOST_AXES = 8
"""More axes no data has that a model could learn; a file may say anything."""
_HOTTEST = 1e300
"""Times the noise of a value, a higher temperature would be no number."""


def as_integer(name: str, value: Any, *, at_least: int, below: int = 1 << 31) -> int:
    """The value as a plain int, numpy's included; refused unless whole and within its range."""
    try:
        number = operator.index(value)
    except TypeError:
        number = at_least - 1
    if isinstance(value, bool) or not at_least <= number < below:
        what = f"of at least {at_least}" if number < at_least else f"below {below}"
        raise ConfigError(f"{name} is {shown(value)}: use whole numbers {what}")
    return number


def shown(value: object) -> str:
    """A value in one line, which may be the contents of a file."""
    return repr(value) if len(repr(value)) < 40 else f"{repr(value)[:36]} ..."


def counted(number: int, thing: str) -> str:
    """How many there are in words: 1 example, 2,000 examples, 3 classes."""
    return f"{number:,} {thing}" + ("es" if thing.endswith("s") else "s") * (number != 1)


def as_lengths(name: str, lengths: Any) -> tuple[int, ...]:
    """One whole number of at least 1 for each axis, as a tuple."""
    if not isinstance(lengths, tuple | list) or len(lengths) > MOST_AXES:
        raise ConfigError(
            f"{name} is {shown(lengths)}: give one whole number for each axis, up to {MOST_AXES}"
        )
    return tuple(as_integer(name, length, at_least=1) for length in lengths)


def as_float(name: str, value: Any) -> float:
    """The value as a plain float, numpy's included; refused unless it is one number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(operator.mul(value, 1.0))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"{name} is {shown(value)}: use a number") from error


def as_temperature(value: Any) -> float:
    """What logits are divided by; 0 for the likeliest value."""
    temperature = as_float("temperature", value)
    if not 0 <= temperature <= _HOTTEST:
        raise ConfigError(
            f"temperature is {temperature}: use 0 (argmax) or a positive number up to {_HOTTEST}"
        )
    return temperature


def check_choices(config: object, **choices: tuple[str | None, ...]) -> None:
    """Refuse fields of a configuration that are none of some words."""
    for name, known in choices.items():
        check_choice(name, getattr(config, name), known)


def check_choice(name: str, value: object, known: Sequence[str | None]) -> None:
    """Refuse what is none of some words."""
    if value not in known:
        words = ", ".join(choice for choice in known if choice)
        raise ConfigError(f"{name} is {shown(value)}: use one of {words}")


def from_json(
    kind: type[_Config], values: Mapping[str, Any], what: str, *, strict: bool = False
) -> _Config:
    """The dataclass that JSON values describe; unknown names are refused.

    With `strict` so are values of other types; most classes look at these themselves.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"{what}: {unknown[0]!r} is not a setting of this version; upgrade axial-transformers"
        )
    hints = get_type_hints(kind) if strict else {}
    for name, value in values.items():
        if strict and not _is(value, hints[name]):
            raise ConfigError(f"{what}: {name} is {shown(value)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error


def _is(value: object, hint: Any) -> bool:
    """Whether a value is of a type: a class, one of some words, or a union of such."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    return type(value) is hint or any(_is(value, part) for part in get_args(hint))


def unknown_name(kind: str, name: str, known: Iterable[str], *, listed: str = "") -> str:
    """Say that there is no such thing, and which one may be meant, or where all are listed."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else listed or f"there are {', '.join(known)}"
    return f"there is no {kind} {name!r}; {hint}"
