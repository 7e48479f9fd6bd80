"""The layers of PixelCNN++ (Salimans et al. 2017): normalised convolutions, gated residual blocks.

Two streams cross them: u sees the rows above a pixel, ul those and the pixels to its left, and is
told by u. Weights are g v / |v| for each output.

b batch, h height, w width, i inputs, o outputs and f features of a convolution.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from axial.models.dropout import Dropout
from axial.models.pixelcnn_config import LayerKind, PixelCnnPpConfig

Streams = tuple[Float[Tensor, "b f h w"], Float[Tensor, "b f h w"]]
"""u and ul."""


class NormedConv(nn.Module):
    """A convolution that sees no rows below; no columns to the right either, unless `centred`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int] = (1, 1),
        *,
        centred: bool = True,
        stride: int = 1,
        start: float = 1.0,
    ) -> None:
        super().__init__()
        self.centred, self.stride, self.start = centred, stride, start
        self.v = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        self.g = nn.Parameter(torch.empty(outputs))
        self.b = nn.Parameter(torch.empty(outputs))

    def reset_parameters(self) -> None:
        """Draw new weights; `start` is how much comes out of them at first."""
        nn.init.normal_(self.v, std=0.05)
        nn.init.constant_(self.g, self.start)
        nn.init.zeros_(self.b)

    def weight(self) -> Float[Tensor, "o i y x"]:
        """The kernel, each output's of length g."""
        length = torch.linalg.vector_norm(self.v, dim=(1, 2, 3))
        return self.v * (self.g / length).view(-1, 1, 1, 1)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o hh ww"]:
        high, wide = self.v.shape[2:]
        left, right = (wide // 2, wide // 2) if self.centred else (wide - 1, 0)
        x = F.pad(x, (left, right, high - 1, 0))
        return F.conv2d(x, self.weight(), self.b, stride=self.stride)


class NormedTransposed(NormedConv):
    """Doubles both sides: what a pixel says is added to four others, or six if `centred`."""

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o hh ww"]:
        out = F.conv_transpose2d(x, self.weight().transpose(0, 1), self.b, stride=2)
        return out[..., 1:] if self.centred else out


def concat_elu(x: Tensor, dim: int = 1) -> Tensor:
    """The exponential linear unit of the features and of their opposites."""
    return F.elu(torch.cat([x, -x], dim))


class GatedResidual(nn.Module):
    """Two convolutions and a gate, added to a stream; it may be told something aside."""

    def __init__(self, width: int, aside: int, *, centred: bool, dropout: float) -> None:
        super().__init__()
        kernel = (2, 3 if centred else 2)
        self.first = NormedConv(2 * width, width, kernel, centred=centred)
        self.aside = NormedConv(2 * aside, width) if aside else None
        self.second = NormedConv(2 * width, 2 * width, kernel, centred=centred, start=0.1)
        self.dropout = Dropout(dropout)

    def forward(
        self, h: Float[Tensor, "b f h w"], told: Float[Tensor, "b a h w"] | None = None
    ) -> Float[Tensor, "b f h w"]:
        c = self.first(concat_elu(h))
        if self.aside is not None and told is not None:
            c = c + self.aside(concat_elu(told))
        return h + F.glu(self.second(self.dropout(concat_elu(c))), 1)


class Pair(nn.Module):
    """A residual block for each stream. A `joined` one is told what the way down kept, too."""

    def __init__(self, config: PixelCnnPpConfig, *, joined: bool) -> None:
        super().__init__()
        width, rate = config.width, config.dropout
        self.u = GatedResidual(width, width * joined, centred=True, dropout=rate)
        self.ul = GatedResidual(width, width * (1 + joined), centred=False, dropout=rate)

    def forward(self, u: Tensor, ul: Tensor, *kept: Tensor) -> Streams:
        u = self.u(u, *kept[:1])
        return u, self.ul(ul, torch.cat([u, *kept[1:]], 1))


class Resample(nn.Module):
    """Both streams at half the height and width, or at twice."""

    def __init__(self, config: PixelCnnPpConfig, *, double: bool) -> None:
        super().__init__()
        kind, width = NormedTransposed if double else NormedConv, config.width
        self.u = kind(width, width, (2, 3), stride=2)
        self.ul = kind(width, width, (2, 2), centred=False, stride=2)

    def forward(self, u: Tensor, ul: Tensor) -> Streams:
        return self.u(u).to(u.dtype), self.ul(ul).to(ul.dtype)


def new_layer(config: PixelCnnPpConfig, kind: LayerKind) -> Pair | Resample:
    """A layer of the plan."""
    if kind in ("pair", "joined"):
        return Pair(config, joined=kind == "joined")
    return Resample(config, double=kind == "double")


class Stem(nn.Module):
    """Both streams from the picture; here alone they are moved off the pixel they predict."""

    def __init__(self, config: PixelCnnPpConfig) -> None:
        super().__init__()
        inputs, width = config.channels + 1, config.width
        self.u = NormedConv(inputs, width, (2, 3))
        self.above = NormedConv(inputs, width, (1, 3))
        self.left = NormedConv(inputs, width, (2, 1), centred=False)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Streams:
        u, above = (F.pad(conv(x)[:, :, :-1], (0, 0, 1, 0)) for conv in (self.u, self.above))
        ul = above + F.pad(self.left(x)[..., :-1], (1, 0))
        return u.to(x.dtype), ul.to(x.dtype)
