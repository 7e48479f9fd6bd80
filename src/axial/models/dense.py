"""Dense layers: how they start out, and what computes them where torch is slow.

b batch, *axes the data axes, i inputs, o outputs.
"""

import math
from typing import TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from axial.system.devices import prefers_onednn

# Standard deviation of a standard normal cut off at two standard deviations.
_TRUNCATED_STD = 0.87962566103423978

_PARTS = 16
"""From as many examples on torch hands a 1 x 1 convolution to oneDNN on one thread, too."""
_WORTH_IT = 1 << 20
"""Products below which a call costs more than it saves."""
_MANY_ROWS = 1 << 12
"""From as many rows on, float64 products gain more on a GPU than filling in the bias costs."""


def init_dense(weight: Tensor, *, fan_in: int, scale: float = 1.0) -> None:
    """Fill with a truncated normal whose variance after truncation is `scale / fan_in`."""
    std = math.sqrt(scale / fan_in) / _TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def dense(layer: nn.Module, x: Float[Tensor, "b *axes i"]) -> Float[Tensor, "b *axes o"]:
    """`layer(x)`, but for rounding.

    On processors that MKL is slow on, large float32 products go to oneDNN. Torch computes float32
    products by MKL and convolutions by oneDNN, so that is a convolution with windows of one
    position. On a GPU, large float64 products go to cuBLAS: with a bias torch asks cuBLASLt, which
    takes nearly twice as long.
    """
    if _takes_cublas(layer, x):
        rows = x.reshape(-1, x.shape[-1])
        bias = layer.bias.expand(len(rows), -1)
        return torch.addmm(bias, rows, layer.weight.t()).view(*x.shape[:-1], -1)
    if not _takes_convolution(layer, x):
        return layer(x)
    image = x.reshape(_PARTS, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # features first, as views
    weight = layer.weight.view(*layer.weight.shape, 1, 1)
    out = F.conv2d(image, weight, layer.bias).permute(0, 2, 3, 1)
    return out.reshape(*x.shape[:-1], -1)


def _takes_cublas(layer: nn.Module, x: Tensor) -> TypeGuard[nn.Linear]:
    if x.dtype != torch.float64 or not x.is_cuda or torch.compiler.is_compiling():
        return False
    plain = is_plain_linear(layer) and layer.bias is not None
    return plain and math.prod(x.shape[:-1]) >= _MANY_ROWS


def _takes_convolution(layer: nn.Module, x: Tensor) -> TypeGuard[nn.Linear]:
    # What is compiled has the compiler's choice of products; and in `torch.export` a size that is
    # left open must not decide anything.
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not prefers_onednn():
        return False
    if x.dtype != torch.float32 or torch.is_autocast_enabled("cpu") or not is_plain_linear(layer):
        return False
    rows = math.prod(x.shape[:-1])
    return rows % _PARTS == 0 and rows * layer.weight.numel() >= _WORTH_IT


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer computes what its kind does and no more: nobody exchanged or hooked it."""
    changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return type(layer) is kind and not changed


def is_plain_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """The same of a dense layer that is differentiated, too."""
    return is_plain(layer, nn.Linear) and not (layer._backward_hooks or layer._backward_pre_hooks)
