"""Variants of an example: how many, what each is, and which data has none."""

import numpy as np
import pytest
from conftest import config

from axial import ConfigError, DataShape
from axial.models.config import Sizes
from axial.presets import PRESETS
from axial.variants import as_augment, permutation, variant_count

EVERY = ("rotate", "transpose", "colours")


@pytest.mark.parametrize(
    "shape",
    [
        DataShape(axes=(4, 4), channels=3),
        DataShape(axes=(2, 4, 4), channels=3),
        DataShape(axes=(4, 4), channels=6, frames=2),
    ],
    ids=str,
)
def test_variants_all_differ_lose_nothing_and_leave_the_first_as_it_is(shape):
    count = np.prod(shape.axes) * shape.channels
    found = [permutation(EVERY, number, shape) for number in range(variant_count(EVERY))]
    assert len(found) == 48 and len({tuple(one) for one in found}) == 48
    assert np.array_equal(found[0], np.arange(count))
    assert all(np.array_equal(np.sort(one), np.arange(count)) for one in found)
    both = {tuple(one[other]) for one in found for other in found}
    assert both == {tuple(one) for one in found}  # one after another is one of them again


def test_time_and_frames_stay_in_their_order():
    clip = DataShape(axes=(2, 4, 4), channels=3)
    stacked = DataShape(axes=(4, 4), channels=6, frames=2)
    for number in range(48):
        assert (permutation(EVERY, number, clip).reshape(2, -1) // 48 == [[0], [1]]).all()
        assert (permutation(EVERY, number, stacked).reshape(-1, 2, 3) % 6 // 3 == [[0], [1]]).all()


def test_a_part_of_the_kinds_has_the_variants_of_the_part():
    shape = DataShape(axes=(3, 3), channels=3)
    x = np.arange(27).reshape(3, 3, 3)
    for number in range(4):
        assert np.array_equal(permutation(("rotate",), number, shape), np.rot90(x, number).ravel())
    assert np.array_equal(permutation(("transpose",), 1, shape), x.swapaxes(0, 1).ravel())
    assert np.array_equal(permutation(("colours",), 5, shape), x[..., ::-1].ravel())
    assert np.array_equal(
        permutation(("rotate", "colours"), 4 * 5 + 1, shape), np.rot90(x)[..., ::-1].ravel()
    )


def test_kinds_are_named_once_each_in_any_order():
    assert as_augment(["colours", "rotate", "colours"]) == ("rotate", "colours")
    assert Sizes(augment=("colours", "rotate")).given == {"augment": ("rotate", "colours")}
    found = config((3, 3), channels=3, augment=["colours", "transpose"])
    assert (found.augment, found.variants) == (("transpose", "colours"), 12)
    assert type(found).from_json(found.to_json()) == found
    assert "augment" not in config((3, 3), channels=3).to_json()


@pytest.mark.parametrize(
    ("axes", "channels", "augment", "message"),
    [
        (
            (3, 4),
            3,
            ("rotate",),
            r"augment is rotate, but axes \(3, 4\) do not end in two of equal",
        ),
        ((9,), 3, ("transpose",), r"augment is transpose, but axes \(9,\) do not end"),
        ((3, 3), 1, ("colours",), "augment is colours, but a picture has 1 of the three channels"),
        ((3, 3), 3, ("mirror",), "augment is 'mirror': use one of rotate, transpose, colours"),
        ((3, 3), 3, "rotate", "augment is 'rotate': give some of rotate, transpose, colours"),
        ((3, 3), 3, (3,), "augment is 3: use one of"),
    ],
)
def test_what_data_does_not_have_is_refused(axes, channels, augment, message):
    with pytest.raises(ConfigError, match=message):
        config(axes, channels=channels, augment=augment)


def test_other_families_have_no_variants():
    with pytest.raises(ConfigError, match="this family of models has none"):
        Sizes(augment=("rotate",)).applied(PRESETS["strided-cifar10"]().model)
