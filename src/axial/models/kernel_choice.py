"""Where layers are computed by kernels of the package's own: on a GPU, as it scores and draws."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from axial.system.devices import runs_triton

_WORTH_IT = 1 << 18
"""Numbers below which torch's kernels take less time to launch than ours save."""


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
    """Whether the kernels of float64_triton.py are to be used: for models as the codec has them."""
    return x.dtype == torch.float64 and may_launch(x)


def fused(x: Tensor) -> bool:
    """Whether those of elementwise_triton.py are: what torch takes several passes for."""
    if not x.is_cuda or torch.compiler.is_compiling():
        return False  # at once, as a CPU is asked for each element that it draws
    if x.dtype != torch.float64:
        large = x.is_floating_point() and x.numel() >= _WORTH_IT
        if not large or torch.is_autocast_enabled("cuda"):
            return False
    return may_launch(x)


def may_launch(x: Tensor) -> bool:
    """Whether kernels can be called as they are: nobody differentiates, transforms or compiles."""
    if torch.compiler.is_compiling():  # first: what is a thread's own is not for compilers
        return False
    return _allowed.depth > 0 and not torch.is_grad_enabled() and runs_triton(x.device)
