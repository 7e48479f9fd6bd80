"""What a block becomes where its elements come one by one: folded weights, and a KV cache.

b batch, l length of a line, n heads, s query key value, e width of a head, r batch and heads.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from axial.models.layers import STEEPNESS, Block
from axial.system.devices import prefers_onednn

_FEWEST, _FEWEST_PRODUCTS = 16, 400
"""Over fewer steps, or with fewer products for each head, a CPU takes slow paths of torch's."""

_FEWEST_ROWS = 4
"""With fewer, products by oneDNN cost more than they save."""
_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""The operator that `torch.compile` puts in the place of dense layers: products that oneDNN has
the weights in its own order for, and what follows them."""


class Folded(NamedTuple):
    """A dense layer that has taken in what is linear around it.

    Its calls take rows (r, inputs), and are cheaper than a module's.
    """

    weight: Tensor
    """(inputs, outputs); on a CPU in this order, or packed, elsewhere a view of the transpose."""
    bias: Tensor
    """(outputs,)"""
    sums: Tensor
    """Those of the weights over the inputs, in float32 or better."""

    def packed(self, rows: int) -> "Folded":
        """The layer for as many rows at a time, its weight as oneDNN likes it if that is faster."""
        known = _ONEDNN is not None and self.weight.device.type == "cpu"
        if not known or self.weight.dtype != torch.float32 or rows < _FEWEST_ROWS:
            return self
        if not prefers_onednn():
            return self
        reorder = torch.ops.mkldnn._reorder_linear_weight
        return self._replace(weight=reorder(self.weight.t().contiguous(), rows))

    @property
    def matrix(self) -> Tensor:
        """The weight (inputs, outputs), unpacked."""
        return self.weight.to_dense().t() if self.weight.is_mkldnn else self.weight

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The layer."""
        if self.weight.is_mkldnn:
            found: Tensor = _ONEDNN.default(x, self.weight, self.bias, "none", [], "")
            return found if out is None else out.copy_(found)
        return torch.addmm(self.bias, x, self.weight, out=out)

    def silu(self, x: Tensor) -> Tensor:
        """The layer, then SiLU."""
        if self.weight.is_mkldnn:
            found: Tensor = _ONEDNN.default(x, self.weight, self.bias, "swish", [], "")
            return found
        return F.silu(self.apply(x), inplace=True)

    def add_to(self, x: Tensor, branch: Tensor) -> Tensor:
        """`x` plus the layer of a branch; `x` may be overwritten."""
        if self.weight.is_mkldnn:
            found: Tensor = _ONEDNN.binary(branch, x, self.weight, self.bias, "add")
            return found
        return x.addmm_(branch, self.weight).add_(self.bias)


def fold(linear: nn.Linear, norm: nn.LayerNorm | None = None, scale: Tensor | float = 1) -> Folded:
    """The layer with its norm's gain and bias in it, and a factor for each of its outputs."""
    weight, bias = linear.weight.detach().double().t(), linear.bias.detach().double()
    if norm is not None:
        bias = bias + norm.bias.detach().double() @ weight
        weight = norm.weight.detach().double().unsqueeze(1) * weight
    weight, bias = (scale * weight).to(linear.weight.dtype), scale * bias
    weight = weight.contiguous() if weight.device.type == "cpu" else weight.t().contiguous().t()
    exact = torch.promote_types(weight.dtype, torch.float32)
    return Folded(weight, bias.to(weight.dtype), weight.sum(0, dtype=exact))


class FoldedBlock:
    """The dense layers of a block, with norms, attention's scale and the nonlinearity's in them.

    x sigmoid(1.702 x) = silu(1.702 x) / 1.702. `attention` is the block's own: it knows how its
    features lie, and attends with what has been folded.
    """

    def __init__(self, block: Block, rows: int = 1) -> None:
        """To be used for as many rows at a time."""
        self.attention = attention = block.attention
        self.heads, self.width = attention.heads, attention.to_out.in_features
        size = self.width // self.heads
        scale = attention.to_out.weight.new_ones(self.heads, 3, size, dtype=torch.float64)
        scale[:, 0] = size**-0.5
        self.to_qkv = fold(attention.to_qkv, block.attention_norm, scale.flatten()).packed(rows)
        self.to_out = fold(attention.to_out).packed(rows)
        self.mlp_in = fold(block.mlp_in, block.mlp_norm, STEEPNESS).packed(rows)
        out = fold(block.mlp_out)
        out = out._replace(weight=out.weight / STEEPNESS, sums=out.sums / STEEPNESS)
        self.mlp_out = out.packed(rows)

    def tensors(self) -> list[Tensor]:
        """All weights, as they lie in memory."""
        return [*self.to_qkv, *self.to_out, *self.mlp_in, *self.mlp_out]


class InnerKVCache:
    """Queries, keys and values of the elements of a line, for one block.

    What lies beyond the element being drawn counts for nothing, as long as it is finite.
    """

    def __init__(self, block: FoldedBlock, batch: int, length: int) -> None:
        self.rows: Float[Tensor, "l b nse"]
        self.rows = block.to_qkv.bias.new_zeros(length, batch, 3 * block.width)
        self.seen = block.to_qkv.bias.new_empty(batch, block.width)
        self.seen_rle = self.seen.view(batch * block.heads, 1, -1)
        self.views: dict[int, tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]] = {}
        enough = max(_FEWEST, math.ceil(_FEWEST_PRODUCTS / self.seen_rle.shape[-1]))
        self.fewest = min(length, enough if enough <= length else _FEWEST)

    def until(self, j: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """Row j, a mask (1, 1, m), and of the first m rows q (r, 1, e), k (r, e, m), v (r, m, e).

        They are all up to j, and a few more where that is faster: then there is a mask.
        """
        if j not in self.views:
            steps = max(j + 1, self.fewest)
            q, k, v = self.rows[:steps].view(steps, len(self.seen_rle), 3, -1).unbind(2)
            mask = None
            if steps > j + 1:
                mask = self.rows.new_zeros(1, 1, steps)
                mask[..., j + 1 :] = -math.inf
            q, k, v = q[j].unsqueeze(1), k.permute(1, 2, 0), v.transpose(0, 1)
            self.views[j] = self.rows[j], mask, q, k, v
        return self.views[j]
