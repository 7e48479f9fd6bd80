"""The layers a model is built of: blocks, positions, the encoder's convolution, the LSTM.

b batch, *axes the data axes (slowest first), d model width, i input planes.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.attention import AxialAttention, KVCache
from axial.models.config import ModelConfig
from axial.models.dense import dense, init_dense, is_plain
from axial.models.dropout import Dropout
from axial.models.kernel_choice import fused
from axial.models.line_attention import dense_dtype

NORM_EPS = 1e-5
STEEPNESS = 1.702
"""Of the sigmoid in the nonlinearity."""


class Block(nn.Module):
    """A pre-norm transformer block: attention along one axis, then a feed-forward layer."""

    def __init__(
        self, config: ModelConfig, axis: int, *, causal: bool, branch_rate: float = 0.0
    ) -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.attention_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.attention = AxialAttention(width, config.heads, axis, causal=causal)
        self.mlp_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.mlp_in = nn.Linear(width, hidden)
        self.mlp_out = nn.Linear(hidden, width)
        self.dropout = Dropout(config.dropout)
        self.branch_rate = branch_rate

    def reset_parameters(self, *, final_scale: float) -> None:
        """Draw new weights; `final_scale` is that of each branch's last dense layer."""
        self.attention.reset_parameters(out_scale=final_scale)
        init_linear(self.mlp_in)
        init_linear(self.mlp_out, scale=final_scale)

    def forward(
        self, x: Float[Tensor, "b *axes d"], cache: KVCache | None = None, start: int = 0
    ) -> Float[Tensor, "b *axes d"]:
        """Transform all of `x`, or with a cache the steps of an axis from `start` on."""
        normed = normalize(self.attention_norm, x)
        if cache is None:
            x = x + self._dropped(self.attention(normed))
        else:
            x = x + self._dropped(self.attention.advance(normed, cache, start))
        hidden = nonlinearity(dense(self.mlp_in, normalize(self.mlp_norm, x)))
        return x + self._dropped(dense(self.mlp_out, hidden))

    def _dropped(self, branch: Float[Tensor, "b *axes d"]) -> Float[Tensor, "b *axes d"]:
        """Dropout, and in training stochastic depth: all of the branch, for some examples."""
        branch = self.dropout(branch)
        if not (self.training and self.branch_rate):
            return branch
        exact = torch.promote_types(branch.dtype, torch.float32)  # 1 / (1 - rate) is, nearly
        each = branch.new_ones(branch.shape[0], *(1,) * (branch.ndim - 1), dtype=exact)
        return (branch * F.dropout(each, self.branch_rate)).to(branch.dtype)


def normalize(layer: nn.LayerNorm, x: Float[Tensor, "*grid d"]) -> Float[Tensor, "*grid d"]:
    """`layer(x)`, but for rounding."""
    if fused(x) and is_plain(layer, nn.LayerNorm) and layer.bias is not None:
        from axial.models import elementwise_triton as kernels

        if layer.weight.shape == x.shape[-1:] and layer.weight.dtype == x.dtype:
            return kernels.normalize(x, layer.weight, layer.bias, layer.eps)
    return cast(Tensor, layer(x))


def nonlinearity(x: Tensor) -> Tensor:
    """The authors' approximation of GELU."""
    if fused(x):
        from axial.models import elementwise_triton as kernels

        return kernels.gate(x, STEEPNESS)
    return x * torch.sigmoid(STEEPNESS * x)


class Blocks(nn.ModuleList):
    """Blocks one after another, each along its own axis; masked along `causal_axis` alone.

    `branch_rates` is how often the branches of each are dropped in training; default: never.
    """

    def __init__(
        self,
        config: ModelConfig,
        axes: Sequence[int],
        causal_axis: int | None = None,
        branch_rates: Sequence[float] | None = None,
    ) -> None:
        super().__init__(
            Block(config, axis, causal=axis == causal_axis, branch_rate=rate)
            for axis, rate in zip(axes, branch_rates or (0.0,) * len(axes), strict=True)
        )

    def forward(
        self, x: Float[Tensor, "b *axes d"], *, checkpointing: bool = False
    ) -> Float[Tensor, "b *axes d"]:
        """Under autocast blocks add to numbers as short as those that they add."""
        x = x.to(dense_dtype(x))
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        return x

    def __iter__(self) -> Iterator[Block]:
        return cast(Iterator[Block], super().__iter__())

    def __getitem__(self, at: Any) -> Any:
        """One block, or a plain list of some of them."""
        return nn.ModuleList(list(self)[at]) if isinstance(at, slice) else super().__getitem__(at)

    def caches(self, batch: int, plane: Sequence[int]) -> list[Any]:
        """Room for what each masked block must remember of the axis it is masked along."""
        attentions = [block.attention for block in self]
        return [layer.cache(batch, plane) if layer.causal else None for layer in attentions]

    def advance(
        self, x: Float[Tensor, "b *axes d"], caches: list[Any], start: int
    ) -> Float[Tensor, "b *axes d"]:
        """Transform new steps of the masked axis, given all before them in the caches."""
        for block, cache in zip(self, caches, strict=True):
            x = block(x, cache, start)
        return x


class LSTM(nn.Module):
    """The paper's other inner decoder (section 4.1): one LSTM layer along the last axis.

    `torch.compile` does not trace torch's LSTM: it breaks its graph here, and with
    `fullgraph=True` refuses.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.width, config.width, batch_first=True)

    def reset_parameters(self) -> None:
        """Draw dense layers like all others; forget gates start open, as is usual for LSTMs."""
        width = self.lstm.hidden_size
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                init_dense(parameter, fan_in=width)
            else:
                nn.init.zeros_(parameter)
        nn.init.ones_(self.lstm.get_parameter("bias_ih_l0")[width : 2 * width])

    def forward(
        self, x: Float[Tensor, "b *axes d"], *, checkpointing: bool = False
    ) -> Float[Tensor, "b *axes d"]:
        """Run along each line from a zero state; `checkpointing` has nothing to save here."""
        out, _ = self.lstm(x.flatten(0, -3))
        return out.view(x.shape)


def waves(shape: Sequence[int], shortest: int, *, std: float) -> Float[Tensor, "n d"]:
    """Sines and cosines over the rows, their periods from twice as long to `shortest` rows."""
    count, width = shape
    longest, shortest = 2 * count, min(count, shortest)
    pitch = torch.logspace(-math.log2(longest), -math.log2(shortest), (width + 1) // 2, base=2)
    angle = 2 * math.pi * torch.arange(count).unsqueeze(1) * pitch
    return 2**0.5 * std * torch.cat([angle.sin(), angle.cos()], 1)[:, :width]


class Positions(nn.Module):
    """Additive factorized positions: one table per axis, summed by broadcasting."""

    def __init__(self, axes: Sequence[int], width: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(torch.empty(length, width) for length in axes)

    def reset_parameters(self, *, std: float) -> None:
        """Draw all tables from a normal."""
        for table in self.tables:
            nn.init.normal_(table, std=std)

    def forward(self) -> Float[Tensor, "*axes d"]:
        last = len(self.tables) - 1
        grids = [
            table.view(-1, *(1,) * (last - i), table.shape[-1])
            for i, table in enumerate(self.tables)
        ]
        return sum(grids[1:], grids[0])


class PlaneConvolution(nn.Module):
    """A 3-wide zero-padded convolution over any number of axes, features last."""

    def __init__(self, axes: int, inputs: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, inputs, *(3,) * axes))
        self.bias = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Draw new weights."""
        init_dense(self.weight, fan_in=self.weight[0].numel())
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "b *axes i"]) -> Float[Tensor, "b *axes d"]:
        axes = x.ndim - 2
        convolve: Callable[..., Tensor] | None = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}.get(axes)
        if convolve is not None:
            return convolve(x.movedim(-1, 1), self.weight, self.bias, padding=1).movedim(1, -1)
        return self._sum_of_taps(x)

    def _sum_of_taps(self, x: Float[Tensor, "b *axes i"]) -> Float[Tensor, "b *axes d"]:
        """The same for any number of axes: one dense layer for each of the 3 ** axes taps."""
        axes = x.shape[1:-1]
        padded = F.pad(x, (0, 0) + (1, 1) * len(axes))
        out = self.bias.expand(*x.shape[:-1], -1)
        weights = self.weight.flatten(2)
        for number, tap in enumerate(itertools.product(range(3), repeat=len(axes))):
            window = tuple(slice(at, at + length) for at, length in zip(tap, axes, strict=True))
            out = out + F.linear(padded[(slice(None), *window)], weights[:, :, number])
        return out


def init_linear(linear: nn.Linear, *, scale: float = 1.0) -> None:
    """Draw a dense layer's weights; its bias starts at zero."""
    init_dense(linear.weight, fan_in=linear.in_features, scale=scale)
    nn.init.zeros_(linear.bias)
