"""Muon: momentum whose matrices are made orthogonal before they are taken off the weights.

m matrices of a stack, i rows and j columns of one; n heads, s query, key and value, e width of a
head, d model width.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from axial.training.parallel import local_part, whole

MOMENTUM = 0.95
SCALE = 0.2
"""Root mean square of an update at rate 1, as Adam's often is: one rate and decay serve both."""
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
# Below this length a gradient counts as nothing; far above where float32 squares vanish.
_SHORTEST = 1e-15
# Numbers in a stack: enough to fill a GPU, few enough that its copies are small beside a model.
_MOST = 1 << 26


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, on stacks of equal matrices.

    As in torch's fused optimizers gradients are divided by `grad_scale`, and where `found_inf`
    is 1 nothing changes. The host never waits, and never decides: a step can be captured in a
    CUDA graph, if "lr" is a tensor. Momenta are views of their stack: load them by copying.

    `values` is what of each of the `parameters` lies on this rank; its gradient is read there.
    `heads` are those of a parameter that holds queries, keys and values together, else None.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        parameters: Mapping[str, Tensor],
        *,
        heads: Mapping[str, int | None],
        weight_decay: float,
    ) -> None:
        stacks = _stacks(values, parameters, heads)
        super().__init__(stacks, {"lr": 0.0, "weight_decay": weight_decay})
        for group in self.param_groups:
            group["momentum"] = torch.stack([value.detach() for value in group["params"]]).zero_()
            for value, momentum in zip(group["params"], group["momentum"], strict=True):
                self.state[value] = {"momentum": momentum}
        device = self.param_groups[0]["params"][0].device
        self.grad_scale = torch.ones((), device=device)
        self.found_inf = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights, or with `found_inf` leave everything as it is."""
        for group in self.param_groups:
            weights, momentum, like = group["params"], group["momentum"], group["like"]
            taken = (1 - self.found_inf).to(momentum.dtype)
            gradient = torch.stack([value.grad for value in weights]) / self.grad_scale
            gradient.masked_fill_(self.found_inf > 0, 0.0)  # 0 * nan would be nan
            momentum.lerp_(gradient, taken * (1 - MOMENTUM))
            ahead = gradient.lerp_(momentum, MOMENTUM)
            # The products need no more; float32 where there are no fast bfloat16 ones.
            ahead = ahead.to(torch.bfloat16 if ahead.is_cuda else torch.float32)
            update = local_part(direction(whole(ahead, like), group["heads"]), like)
            update = update.to(momentum.dtype)
            update.add_(torch.stack(weights), alpha=group["weight_decay"])
            torch._foreach_sub_(weights, (update * (taken * group["lr"])).unbind())


def _stacks(
    values: Mapping[str, Tensor], parameters: Mapping[str, Tensor], heads: Mapping[str, int | None]
) -> Iterator[dict[str, Any]]:
    """Parameters of equal shape and meaning together: a few large products, not many small."""
    found: dict[tuple[torch.Size, int | None], list[str]] = {}
    for name in values:
        found.setdefault((parameters[name].shape, heads[name]), []).append(name)
    for (shape, split), names in found.items():
        most = max(1, _MOST // shape.numel())
        for first in range(0, len(names), most):
            some = names[first : first + most]
            yield {
                "params": [values[name] for name in some],
                "like": parameters[some[0]],
                "heads": split,
            }


def direction(x: Float[Tensor, "m i j"], heads: int | None) -> Float[Tensor, "m i j"]:
    """What momenta `x` take off their weights at rate 1: orthogonal, of the length of Adam's.

    Queries, keys and values are three maps that share a parameter, so with `heads` each of its
    three (d, d) matrices, over all heads, is made orthogonal by itself.
    """
    if heads is not None:
        x = rearrange(x, "m (n s e) d -> (m s) (n e) d", n=heads, s=3)
    x = orthogonalise(x) * (SCALE * max(x.shape[1:]) ** 0.5)
    if heads is not None:
        x = rearrange(x, "(m s) (n e) d -> m (n s e) d", n=heads, s=3)
    return x


def orthogonalise(x: Float[Tensor, "m i j"]) -> Float[Tensor, "m i j"]:
    """U V^T, nearly, of each matrix U S V^T, in the precision of `x`, by Newton-Schulz.

    Singular values come out at 0.68 to 1.21 if they were above 0.002 of the matrix's length, the
    root of its sum of squares; smaller ones grow at most 485 times, and zeros stay.
    """
    if x.shape[1] > x.shape[2]:
        return orthogonalise(x.mT).mT
    a, b, c = _QUINTIC
    length = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    x = x / length.clamp(min=_SHORTEST)
    for _ in range(_ITERATIONS):  # x <- a x + (b x x^T + c (x x^T)^2) x, on singular values alone
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
