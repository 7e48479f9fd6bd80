import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor, nn

from axial.models.causal import shift


def test_a_call_is_checked_unless_one_like_it_was_right():
    checked = []

    def checker(fn):
        checked.append(fn)
        return beartype(fn)

    @jaxtyping.jaxtyped(typechecker=checker)
    def flat(x: Float[Tensor, "a b"], *more: nn.Module) -> Float[Tensor, " b"]:
        return x.flatten()  # right for one row alone

    flat(torch.ones(1, 3))
    count = len(checked)
    for _ in range(2):  # what was wrong is not taken for right
        for x in (torch.ones(2, 3), torch.ones(3), torch.ones(1, 3, dtype=torch.int64)):
            with pytest.raises(jaxtyping.TypeCheckError):
                flat(x)
    for x in (torch.ones(1, 3), torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 4)):
        flat(x, nn.Linear(1, 1))
    assert checked and len(checked) > count  # an error has its argument looked for


def test_the_shapes_of_the_package_are_checked(monkeypatch):
    shift(torch.ones(1, 3, 4), 0)
    monkeypatch.setattr("axial.models.causal.F.pad", lambda x, sides: x)
    with pytest.raises(jaxtyping.TypeCheckError):
        shift(torch.ones(1, 4, 4), 0)
