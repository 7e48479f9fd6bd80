"""The slice encoder of the Block Transformer: what is known before a slice is predicted.

b batch, *axes the data axes (slowest first), *part the grid of a slice, p its pixels, k pixels in
the encoder's view, c channels, s width of a pixel's embedding, d width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.block_attention import BlockLayer
from axial.models.blocks_config import BlocksConfig
from axial.models.causal import given
from axial.models.layers import Positions
from axial.models.line_attention import dense_dtype


def visible(number: Int[Tensor, " b"], config: BlocksConfig) -> Bool[Tensor, "b *axes c"]:
    """What the encoder may show while a slice is predicted: earlier slices and what is given."""
    numbers = torch.zeros((), dtype=torch.long, device=number.device)
    for length, factor in zip(config.axes, config.subscale, strict=True):
        step = torch.arange(length, device=number.device) % factor
        numbers = factor * numbers.unsqueeze(-1) + step
    earlier = numbers.unsqueeze(-1) < number.view(-1, *(1,) * (1 + len(config.axes)))
    return earlier | given(config, number.device)


def views(
    number: Int[Tensor, " b"], config: BlocksConfig
) -> tuple[Int[Tensor, "b p k"], Bool[Tensor, "b p k"]]:
    """The pixels around each pixel of a slice that the encoder sees, and whether there are such.

    The one in the middle is the pixel itself.
    """
    device, count, rest = number.device, len(config.axes), number
    assert config.kernel is not None
    places, inside = torch.zeros((), dtype=torch.long, device=device), None
    stride = 1
    for axis in reversed(range(count)):
        side, factor, length = config.kernel[axis], config.subscale[axis], config.axes[axis]
        first, rest = rest % factor, rest // factor
        steps = factor * torch.arange(length // factor, device=device).unsqueeze(1)
        steps = steps + torch.arange(-(side // 2), side // 2 + 1, device=device)
        at = first.view(-1, 1, 1) + steps
        view = [len(number)] + [1] * (2 * count)
        view[1 + axis], view[1 + count + axis] = steps.shape
        there = ((at >= 0) & (at < length)).view(view)
        places = places + stride * at.clamp(0, length - 1).view(view)
        inside = there if inside is None else inside & there
        stride *= length
    shape = (len(number), config.positions, config.kernel_taps)
    assert inside is not None
    return places.reshape(shape), inside.reshape(shape)


class SliceEncoder(nn.Module):
    """What the decoder of a slice is told of the slices before it."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.config = config
        small, looked_at = config.embedding_width, config.kernel_taps * config.channels
        # The kernel of a convolution over one-hot planes: of each tap and channel, a row a value.
        self.tap_embedding = nn.Embedding(looked_at * config.values, small)
        self.tap_bias = nn.Parameter(torch.empty(small))
        self.positions = Positions(config.slice_axes, small)
        self.slice_embedding = nn.Embedding(config.slice_count, small)
        self.to_width = nn.Linear(small, config.width, bias=False)
        self.layers = nn.ModuleList(
            BlockLayer(config, layer, causal=False) for layer in range(config.encoder_layers)
        )

    def forward(
        self,
        x: Int[Tensor, "b *axes c"],
        number: Int[Tensor, " b"],
        condition: Float[Tensor, "b *ones_or_part d"] | None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, "b *part d"]:
        u = self.convolve(x, number) + self.positions()
        u = u + self.slice_embedding(number).view(len(x), *(1,) * (x.ndim - 2), -1)
        z = self.to_width(u)
        z = z if condition is None else z + condition
        return run(self.layers, z, checkpointing=checkpointing)

    def convolve(
        self, x: Int[Tensor, "b *axes c"], number: Int[Tensor, " b"]
    ) -> Float[Tensor, "b *part s"]:
        """A strided convolution over one-hot planes, by looking up the rows of its kernel.

        What is not visible, or outside of the grid, has no row: it is no value, not even 0.
        """
        config, weight = self.config, self.tap_embedding.weight
        shown = torch.where(visible(number, config), x, -1).flatten(1, -2)
        places, inside = views(number, config)
        example = torch.arange(len(x), device=x.device).view(-1, 1, 1)
        values = shown[example, places].masked_fill(~inside.unsqueeze(-1), -1).flatten(2)
        first = config.values * torch.arange(values.shape[-1], device=x.device)
        rows, counted = (values.clamp(min=0) + first).flatten(0, 1), (values >= 0).flatten(0, 1)
        u = F.embedding_bag(rows, weight, mode="sum", per_sample_weights=counted.to(weight.dtype))
        return (u + self.tap_bias).view(len(x), *config.slice_axes, -1)


def run(
    layers: nn.ModuleList, h: Float[Tensor, "b *part d"], *, checkpointing: bool
) -> Float[Tensor, "b *part d"]:
    """Layers one after another; under autocast they add to numbers as short as theirs."""
    h = h.to(dense_dtype(h))
    for layer in layers:
        h = checkpoint(layer, h, use_reentrant=False) if checkpointing else layer(h)
    return h
