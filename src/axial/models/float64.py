"""Where models in float64, as the codec has them, are computed by kernels of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from axial.system.devices import runs_triton


class _Allowed(threading.local):
    depth = 0


_allowed = _Allowed()


@contextmanager
def kernels_allowed() -> Iterator[None]:
    """Where the package itself scores and draws, so that nothing is differentiated or transformed.

    The kernels know no gradients, and neither `torch.func` nor forward-mode derivatives.
    """
    _allowed.depth += 1
    try:
        yield
    finally:
        _allowed.depth -= 1


def served(x: Tensor) -> bool:
    """Whether the kernels of float64_triton.py are to be used: on a GPU, where that is allowed."""
    if x.dtype != torch.float64 or _allowed.depth <= 0 or torch.is_grad_enabled():
        return False
    return not torch.compiler.is_compiling() and runs_triton(x.device)
