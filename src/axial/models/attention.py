"""Attention along one axis of an N-dimensional grid.

b batch, *axes the data axes (slowest first), d model width, n heads, e width of one head,
l length of the attended axis, m length of the memory along it, r batch and slower axes folded,
f faster axes folded. `x_rlfd` has its axes in that order.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from axial.errors import ConfigError, InputError
from axial.models.dense import dense, init_dense, is_plain_linear
from axial.models.family_config import check_heads
from axial.models.kernel_choice import may_launch, served
from axial.models.line_attention import (
    attend_at_once,
    attend_lines,
    dense_dtype,
    is_supported,
)
from axial.validation import MOST_AXES, as_float, as_integer

# The fused CUDA kernels put batch and heads on grid dimensions that end here.
MOST_LINES = 65_535

_LONGEST_BY_PRODUCTS = 128
"""A line for which plain products are no slower than torch's fused attention and its gradient."""


class KVCache:
    """Keys and values of the steps of an axis that are already known, for causal attention.

    Both are buffers (r, length, f, n, e); what lies beyond the steps added so far is never read.
    """

    def __init__(
        self, keys: Float[Tensor, "r l f n e"], values: Float[Tensor, "r l f n e"]
    ) -> None:
        self.keys = keys
        self.values = values

    def add(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Put in the steps from `start` on; return all steps up to the last of them."""
        stop = start + k.shape[1]
        self.keys[:, start:stop] = k
        self.values[:, start:stop] = v
        return self.keys[:, :stop], self.values[:, :stop]


class AxialAttention(nn.Module):
    """Attention in which an element sees only its own line along `axis`.

    On an (h, w) image this costs h * w * l products instead of (h * w) ** 2, with l = h or w.
    `axis` counts the data axes from 0 for the slowest, or from the end: -1 is the fastest.
    `causal=True` hides what comes later on the line; `dropout` acts on the attention weights
    while training. Without `memory` no data is moved: whatever the axis, queries, keys and values
    are views of one dense layer's output, ordered (heads, q k v, head width) to allow it.
    """

    def __init__(
        self, width: int, heads: int, axis: int, *, causal: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        width = as_integer("width", width, at_least=1)
        heads = as_integer("heads", heads, at_least=1)
        axis = as_integer(
            "axis, 0 for the slowest or -1 for the fastest,", axis, at_least=-MOST_AXES
        )
        check_heads(width, heads)
        dropout = as_float("dropout", dropout)
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout is {dropout}: use a number from 0 up to below 1")
        if not isinstance(causal, bool):
            raise ConfigError(f"causal is {causal!r}: use True or False")
        self.heads = heads
        self.axis = axis
        self.causal = causal
        self.dropout = dropout
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self, *, out_scale: float = 1.0) -> None:
        """Draw new weights; `out_scale` near 0 makes a residual branch start as nothing."""
        width = self.to_out.in_features
        init_dense(self.to_qkv.weight, fan_in=width)
        init_dense(self.to_out.weight, fan_in=width, scale=out_scale)
        nn.init.zeros_(self.to_qkv.bias)
        nn.init.zeros_(self.to_out.bias)

    def forward(
        self, x: Float[Tensor, "b *axes d"], memory: Shaped[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b *axes d"]:
        """Attend along the line of `x`, or of `memory`.

        `memory` has the axes of `x`, but any length along `axis`; other axes may have length 1
        and are then shared by all lines.
        """
        self._check(x, memory)
        dropping = self.training and self.dropout > 0
        if memory is None and not dropping and self._is_short(x):
            weight, bias = self.to_qkv.weight, self.to_qkv.bias
            qkv = self.lines(F.linear(x, weight, bias.detach()))
            if may_launch(qkv):
                seen = attend_at_once(qkv, self.causal)
            else:
                seen = attend_lines(qkv, bias, self.causal)
        else:
            seen = self.attend(*self._project(x, memory), causal=self.causal)
        return dense(self.to_out, seen.reshape(x.shape))

    def advance(
        self, x: Float[Tensor, "b *axes d"], cache: KVCache, start: int
    ) -> Float[Tensor, "b *axes d"]:
        """Attend causally from new steps of the axis to themselves and to those in the cache.

        `x` holds one step, or all steps from 0 on; the cache takes them in.
        """
        self._check(x, None)
        q, k, v = self._project(x, None)
        assert start == 0 or q.shape[1] == 1
        k, v = cache.add(k, v, start)
        return dense(self.to_out, self.attend(q, k, v, causal=start == 0).reshape(x.shape))

    def cache(self, batch: int, axes: Sequence[int]) -> KVCache:
        """Room for `advance` on a grid of these axes; slower ones are fixed, so they take none."""
        place = self.axis % len(axes)
        length, faster = axes[place], math.prod(axes[place + 1 :])
        size = self.to_out.in_features // self.heads
        shape = (batch, length, faster, self.heads, size)
        like = self.to_qkv.weight
        return KVCache(like.new_empty(shape), like.new_empty(shape))

    def attend(
        self,
        q: Float[Tensor, "r l f n e"],
        k: Float[Tensor, "r m f n e"],
        v: Float[Tensor, "r m f n e"],
        *,
        causal: bool,
        scale: float | None = None,
    ) -> Float[Tensor, "r l f n e"]:
        """Attention proper; 1 / sqrt(e) is the usual scale."""
        if served(q):
            from axial.models import float64_triton as kernels

            if kernels.can_attend(q, k, v):
                scale = q.shape[-1] ** -0.5 if scale is None else scale
                return kernels.attend(q, k, v, causal=causal, scale=scale)
        # Faster axes ride along as heads and slower ones as batch, so no line is copied. Plain
        # torch instead of einops, whose overhead shows where elements are drawn one by one.
        shape = q.shape
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        out = _attend(q, k, v, causal=causal, dropout=dropout, scale=scale)  # (r, f n, l, e)
        return out.transpose(1, 2).view(shape)

    def weights(
        self, x: Float[Tensor, "b *axes d"], memory: Shaped[Tensor, "..."] | None = None
    ) -> Float[Tensor, "b *axes n m"]:
        """How much each element looks at each place of its line, per head: for pictures.

        This is what `forward` never builds: length-squared numbers for each line and head.
        """
        self._check(x, memory)
        q_rlfne, k_rmfne, _ = self._project(x, memory)
        scores = torch.einsum("rlfne,rmfne->rlfnm", q_rlfne, k_rmfne)
        scores = scores / math.sqrt(q_rlfne.shape[-1])
        if self.causal:
            places = torch.arange(scores.shape[-1], device=x.device)
            later = places > places.view(-1, 1, 1, 1)
            scores = scores.masked_fill(later, -math.inf)
        return scores.softmax(-1).reshape(*x.shape[:-1], self.heads, scores.shape[-1])

    def _project(
        self, x: Float[Tensor, "b *axes d"], memory: Float[Tensor, "..."] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as views (r, l or m, f, n, e)."""
        if memory is None:
            return self.parts(dense(self.to_qkv, x))

        weight = rearrange(self.to_qkv.weight, "(n s e) d -> s n e d", s=3, n=self.heads)
        bias = rearrange(self.to_qkv.bias, "(n s e) -> s n e", s=3, n=self.heads)
        query = F.linear(x, weight[0].flatten(0, 1), bias[0].flatten())
        weight_kv = rearrange(weight[1:], "s n e d -> (n s e) d")
        keys = F.linear(memory, weight_kv, rearrange(bias[1:], "s n e -> (n s e)"))
        shape = list(x.shape[:-1])
        shape[self._dim(x)] = memory.shape[self._dim(x)]
        k, v = self._folded(keys.expand(*shape, -1), parts=2).unbind(-2)
        return self._folded(query, parts=1).squeeze(-2), k, v

    def parts(self, qkv: Float[Tensor, "b *axes nse"]) -> tuple[Tensor, Tensor, Tensor]:
        """The output of `to_qkv` as views (r, l, f, n, e): queries, keys and values."""
        q, k, v = self.lines(qkv).unbind(-2)
        return q, k, v

    def lines(self, qkv: Float[Tensor, "b *axes nse"]) -> Float[Tensor, "r l f n 3 e"]:
        """The output of `to_qkv` with its lines along one dimension."""
        return self._folded(qkv, parts=3)

    def _folded(self, features: Tensor, *, parts: int) -> Tensor:
        """(b, *axes, n * parts * e) -> (r, l, f, n, parts, e), without a copy if contiguous."""
        dim, head_width = self._dim(features), features.shape[-1] // (self.heads * parts)
        slower, length, faster = (
            features.shape[:dim],
            features.shape[dim],
            features.shape[dim + 1 : -1],
        )
        # Not `numel`, which would make tracers take today's sizes for everyone's.
        folded = (math.prod(slower), length, math.prod(faster), self.heads, parts, head_width)
        return features.reshape(folded)

    def _is_short(self, x: Tensor) -> bool:
        """Whether line_attention.py serves lines and heads of this size, past a plain `to_qkv`."""
        layer, head_width = self.to_qkv, self.to_out.in_features // self.heads
        plain = is_plain_linear(layer) and layer.bias is not None
        return plain and is_supported(x, x.shape[self._dim(x)], head_width)

    def _dim(self, x: Tensor) -> int:
        """The dimension of `x` (b, *axes, d) that is attended along."""
        return 1 + self.axis if self.axis >= 0 else x.ndim - 1 + self.axis

    def extra_repr(self) -> str:
        """What the sizes of the two dense layers do not tell."""
        dropout = f", dropout={self.dropout:g}" if self.dropout else ""
        return f"heads={self.heads}, axis={self.axis}, causal={self.causal}{dropout}"

    def _check(self, x: Tensor, memory: Tensor | None) -> None:
        width, least = self.to_out.in_features, max(1 + self.axis, -self.axis)
        check_tensors(x=x, memory=memory)
        if x.ndim < least + 2 or x.shape[-1] != width or not x.is_floating_point():
            raise InputError(
                f"attention along axis {self.axis} got shape {tuple(x.shape)} of {x.dtype}: give "
                f"floating point numbers (batch, *axes, {width}) with at least {least} axes"
            )
        if is_plain_linear(self.to_qkv) and dense_dtype(x) != dense_dtype(self.to_qkv.weight):
            own = self.to_qkv.weight.dtype
            raise InputError(f"x is {x.dtype}, but the layer is {own}: convert one of them")
        dim = self._dim(x)
        if memory is None:
            return
        if self.causal:
            raise InputError("causal attention has no memory form: use causal=False with memory=")
        fits = memory.ndim == x.ndim and memory.shape[-1] == width and memory.shape[dim] > 0
        for i, (theirs, ours) in enumerate(zip(memory.shape, x.shape, strict=False)):
            fits = fits and (i == dim or theirs in (1, ours))
        if not fits:
            raise InputError(
                f"memory of shape {tuple(memory.shape)} does not lie beside x of shape "
                f"{tuple(x.shape)}: all but axis {self.axis} must be equal, or 1"
            )
        if not memory.is_floating_point() or dense_dtype(memory) != dense_dtype(x):
            raise InputError(f"memory is {memory.dtype} and x is {x.dtype}: give both in one type")


def check_tensors(**values: object) -> None:
    """Refuse anything but tensors, and None where something was left out."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"{name} is a {type(value).__name__}: give a torch.Tensor")


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float, scale: float | None
) -> Tensor:
    """`scaled_dot_product_attention` in calls small enough for every backend."""
    how: dict[str, Any] = {"dropout": dropout, "scale": scale}
    for dim in (0, 1):
        # A size that is left open in `torch.export` must not decide anything.
        if not torch.compiler.is_exporting() and q.shape[dim] > MOST_LINES:
            parts = zip(*(torch.split(t, MOST_LINES, dim) for t in (q, k, v)), strict=True)
            return torch.cat([_attend(*part, causal=causal, **how) for part in parts], dim)
    if _by_products(q, k):
        return _attend_by_products(q, k, v, causal=causal, **how)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout, scale=scale)


def _by_products(q: Tensor, k: Tensor) -> bool:
    """Whether plain products are faster, as in training on a CPU in bfloat16.

    The gradient of torch's fused attention takes eight times as long as attention itself there.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    short = q.shape[-2] <= k.shape[-2] <= _LONGEST_BY_PRODUCTS
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and short and q.requires_grad


def _attend_by_products(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float, scale: float | None
) -> Tensor:
    """The same as two products and a softmax, which is taken in float32."""
    scores = (q @ k.transpose(-1, -2)).float() * (scale or q.shape[-1] ** -0.5)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return F.dropout(scores.softmax(-1).to(v.dtype), dropout) @ v
