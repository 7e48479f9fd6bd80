"""Where models in float64, as the codec has them, are computed by kernels of their own."""

from types import ModuleType

import torch
from torch import Tensor

from axial.system.devices import runs_triton


def float64_kernels(x: Tensor) -> ModuleType | None:
    """Those of float64_triton.py, where they serve: on a GPU, nothing being differentiated."""
    if x.dtype != torch.float64 or not x.is_cuda:
        return None
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not runs_triton(x.device):
        return None
    from axial.models import float64_triton

    return float64_triton
