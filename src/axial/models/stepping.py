"""One step of a drawing that goes element by element: called on a CPU, recorded on a CUDA device.

There a step is some hundred kernels of few microseconds, and to launch them one by one takes the
host far longer. A CUDA graph launches all at once, and stands for every step: where the step is
in the sequence is a number on a CPU, and in a graph a tensor that holds this number.
"""

from collections.abc import Callable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from axial.system.cuda_graph import CudaGraph

Place = int | Int[Tensor, "1"]
"""Where a step is."""


class Stepper:
    """Calls the parts of a step; on a CUDA device each is recorded once, and replayed from then on.

    A part may be called twice in a step, before it is recorded: it must do the same again.
    """

    def __init__(self, device: torch.device, length: int) -> None:
        self.records = device.type == "cuda"
        self.numbers = torch.arange(length, device=device) if self.records else None
        self.graphs: dict[tuple[str, tuple[int, ...]], CudaGraph] = {}

    def __call__(
        self, part: Callable[..., Tensor], *places: int, fixed: tuple[int, ...] = ()
    ) -> Tensor:
        """`part(*places, *fixed)`; what is fixed is so in a graph, and every other has its own.

        The result is there until the same part is called again.
        """
        if self.numbers is None:
            return part(*places, *fixed)
        at = [self.numbers[place : place + 1] for place in places]
        key = part.__name__, fixed
        if key not in self.graphs:
            self.graphs[key] = CudaGraph(lambda *at: part(*at, *fixed), *at)
        found: Tensor = self.graphs[key].replay(*at)
        return found


def take(kept: Shaped[Tensor, "..."], dim: int, place: Place) -> Tensor:
    """What is at a place of a dimension; the dimension goes."""
    if isinstance(place, int):
        return kept.select(dim, place)
    return kept.index_select(dim, place).squeeze(dim)


def put(kept: Shaped[Tensor, "..."], dim: int, place: Place, new: Shaped[Tensor, "..."]) -> None:
    """Overwrite what `take` would return."""
    if isinstance(place, int):
        kept.select(dim, place).copy_(new)
    else:
        kept.index_copy_(dim, place, new.unsqueeze(dim))


def span(kept: Shaped[Tensor, "..."], dim: int, start: Place, size: int) -> Tensor:
    """So many places of a dimension from a place on."""
    if isinstance(start, int):
        return kept.narrow(dim, start, size)
    return kept.index_select(dim, start + torch.arange(size, device=kept.device))


def hidden_after(
    newest: Place, size: int, like: Shaped[Tensor, "..."]
) -> Shaped[Tensor, "1 m"] | None:
    """What hides places of a cache that are not filled yet; None if it is cut off behind them."""
    if isinstance(newest, int):
        return None
    later = torch.arange(size, device=like.device) > newest
    return like.new_zeros(1, size).masked_fill_(later, -torch.inf)
