"""Shapes in signatures are checked once for each kind of call, not for each call.

Most calls of a test run are repetitions: the same model, tensors of the same shapes and types. To
check them all takes longer than the calls themselves. `conftest` imports this before anything of
the package, whose functions jaxtyping decorates as they are imported (`--jaxtyping-packages` in
pyproject.toml).
"""

import functools
from collections import defaultdict
from collections.abc import Hashable
from types import CodeType
from typing import Any

import jaxtyping
from torch import Tensor, nn

_check = jaxtyping.jaxtyped
_right: defaultdict[CodeType, set[Hashable]] = defaultdict(set)
"""Kinds of calls that were found right, of each function."""


def jaxtyped(fn: Any, *, typechecker: Any) -> Any:
    """`jaxtyping.jaxtyped`, but a call like one that was found right is not checked again."""
    if isinstance(fn, type):
        return _check(fn, typechecker=typechecker)
    if not any("jaxtyping" in repr(hint) for hint in fn.__annotations__.values()):
        return fn  # other types are mypy's
    right = _right[fn.__code__]  # which a function inside another shares with the next like it
    checked = None  # to make it takes longer than to call it

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        key = (*map(kind, args), *kwargs, *map(kind, kwargs.values()))
        if key in right:
            return fn(*args, **kwargs)
        checked = checked or _check(fn, typechecker=typechecker)
        result = checked(*args, **kwargs)
        right.add(key)
        return result

    return call


def kind(value: Any) -> Hashable:
    """What checks can depend on: shapes and types of tensors, and which model they are for."""
    if isinstance(value, Tensor):
        sizes = value.shape
        if not all(type(size) is int for size in sizes):  # symbols, while a model is exported
            return object()
        return type(value), sizes, value.dtype
    if isinstance(value, list | tuple):
        return type(value), *map(kind, value)
    return (type(value), id(value)) if isinstance(value, nn.Module) else type(value)


jaxtyping.jaxtyped = functools.partial(functools.partial, jaxtyped)
