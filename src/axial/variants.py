"""Transformed copies of an example that a model is told of: which there are, and what each is.

Conditional augmentation, after Jun et al. 2020 ("Distribution Augmentation for Generative
Modeling"). A variant is a number below `variant_count`; 0 is the example itself.
"""

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from axial.errors import ConfigError
from axial.shape import DataShape
from axial.validation import check_choice, shown

Augment = Literal["rotate", "transpose", "colours"]
_COUNT: dict[Augment, int] = {"rotate": 4, "transpose": 2, "colours": 6}
"""How many there are of each kind, doing nothing included; in the order in which they are done."""
_COLOURS = tuple(permutations(range(3)))


def as_augment(words: Any) -> tuple[Augment, ...]:
    """Kinds of transformations, each once and in their order."""
    if not isinstance(words, tuple | list):
        raise ConfigError(f"augment is {shown(words)}: give some of {', '.join(_COUNT)}")
    for word in words:
        check_choice("augment", word, get_args(Augment))
    return tuple(word for word in _COUNT if word in words)


def check_augment(augment: Sequence[Augment], shape: DataShape) -> None:
    """Refuse transformations that examples of this shape do not have."""
    for word in augment:
        if word == "colours" and shape.frame_channels != 3:
            raise ConfigError(
                f"augment is {word}, but a picture has {shape.frame_channels} of the three "
                f"channels that it permutes: leave it out"
            )
        if word != "colours" and (len(shape.axes) < 2 or shape.axes[-1] != shape.axes[-2]):
            raise ConfigError(
                f"augment is {word}, but axes {shape.axes} do not end in two of equal length: "
                f"leave it out, or crop the data"
            )


def variant_count(augment: Sequence[Augment]) -> int:
    """How many variants of an example there are, itself included."""
    count = 1
    for word in augment:  # a plain loop: compiled models ask too
        count *= _COUNT[word]
    return count


def permutation(augment: Sequence[Augment], number: int, shape: DataShape) -> NDArray[np.int64]:
    """Where each element of a variant stands in the example: flat indices into (*axes, channels).

    The example is rotated by so many quarter turns, then transposed, then its colours are
    permuted; the number counts in these digits, the first the fastest.
    """
    x = np.arange(math.prod(shape.axes) * shape.channels).reshape(*shape.axes, shape.channels)
    for word in augment:
        number, step = divmod(number, _COUNT[word])
        if word == "rotate":
            x = np.rot90(x, step, axes=(-3, -2))
        elif word == "transpose":
            x = x.swapaxes(-3, -2) if step else x
        else:
            frames = x.reshape(*shape.axes, shape.stacked_frames, 3)
            x = frames[..., _COLOURS[step]].reshape(x.shape)
    return cast(NDArray[np.int64], x.ravel())
