"""The Gated PixelCNN (van den Oord et al. 2016) over categorical values.

A vertical stack convolves the rows above a pixel, a horizontal one its own row to the left, and is
told by the vertical one. Features of the horizontal stack belong to the channels in turn, and masks
at the pixel itself let a channel see the channels before it alone.

b batch, h height, w width, c channels, p features of a stack, v values.
"""

from typing import cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.dropout import Dropout
from axial.models.line_attention import dense_dtype
from axial.models.one_pass import OnePassModel
from axial.models.pixelcnn_config import GatedPixelCnnConfig
from axial.models.protocol import Context, Label


class GatedLayer(nn.Module):
    """One layer of both stacks."""

    def __init__(self, config: GatedPixelCnnConfig, layer: int) -> None:
        super().__init__()
        self.first = layer == 0
        self.channels, width = config.channels, config.width
        inputs = config.channels if self.first else width
        self.reach = (config.first_kernel if self.first else config.kernel) // 2
        down, across = self.reach + 1, 2 * self.reach + 1
        self.vertical = nn.Parameter(torch.empty(2 * width, inputs, down, across))
        self.vertical_bias = nn.Parameter(torch.empty(2 * width))
        self.to_horizontal = nn.Linear(2 * width, 2 * width)
        self.horizontal = nn.Parameter(torch.empty(2 * width, inputs, self.reach + 1))
        self.horizontal_bias = nn.Parameter(torch.empty(2 * width))
        self.to_out = nn.Linear(width, width)
        self.dropout = Dropout(config.dropout)

    def reset_parameters(self) -> None:
        """Draw new weights; the variance of what comes out is about that of what goes in."""
        for weight in (self.vertical, self.horizontal):
            nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
        for linear in (self.to_horizontal, self.to_out):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        biases = (self.vertical_bias, self.horizontal_bias)
        for bias in (*biases, self.to_horizontal.bias, self.to_out.bias):
            nn.init.zeros_(bias)

    def forward(
        self, v: Float[Tensor, "b i h w"], h: Float[Tensor, "b i h w"]
    ) -> tuple[Float[Tensor, "b p h w"], Float[Tensor, "b p h w"]]:
        seen = self.look_up(F.pad(v, (0, 0, self.reach, 0)))
        told = self.tell(F.pad(seen[:, :, :-1], (0, 0, 1, 0)))  # rows strictly above
        row = F.pad(h, (self.reach, 0)).unfold(3, self.reach + 1, 1)
        return gate(seen), self.look_left(row, told)

    def look_up(self, v: Float[Tensor, "b i r w"]) -> Float[Tensor, "b pp h w"]:
        """The vertical convolution, of rows that have `reach` more above them."""
        return F.conv2d(v, self.vertical, self.vertical_bias, padding=(0, self.reach))

    def tell(self, seen: Float[Tensor, "b pp h w"]) -> Float[Tensor, "b pp h w"]:
        """What the horizontal stack is told of the rows above."""
        return self.to_horizontal(seen.movedim(1, -1)).movedim(-1, 1)

    def look_left(
        self, row: Float[Tensor, "b i h w t"], told: Float[Tensor, "b pp h w"]
    ) -> Float[Tensor, "b p h w"]:
        """The horizontal stack; the last of the taps `row` is the pixel itself."""
        own = torch.ones_like(self.horizontal)
        inside = self.mask(*own.shape[:2], same=not self.first, device=own.device)
        kernel = self.horizontal * torch.cat([own[..., :-1], inside.unsqueeze(-1)], -1)
        c = torch.einsum("bihwt,oit->bohw", row, kernel)
        bias = self.horizontal_bias.view(-1, 1, 1)
        g = self.dropout(gate(c + bias + told))
        width = self.to_out.in_features
        weight = self.to_out.weight * self.mask(width, width, same=True, device=g.device)
        out = F.linear(g.movedim(1, -1), weight, self.to_out.bias).movedim(-1, 1)
        return out if self.first else out + row[..., -1]

    def mask(
        self, outputs: int, inputs: int, *, same: bool, device: torch.device
    ) -> Float[Tensor, "o i"]:
        """Which input may speak to which output at the pixel itself: by the channels they are of.

        Feature f belongs to channel f mod c, in both halves of a gate.
        """
        to = (torch.arange(outputs, device=device) % self.channels).unsqueeze(1)
        of = torch.arange(inputs, device=device) % self.channels
        return (of <= to if same else of < to).to(self.to_out.weight.dtype)


def gate(x: Float[Tensor, "b pp *grid"]) -> Float[Tensor, "b p *grid"]:
    """One half squashed, times the other half as a switch."""
    one, other = x.chunk(2, 1)
    return torch.tanh(one) * torch.sigmoid(other)


class GatedPixelCnn(OnePassModel):
    """Every pixel is predicted from the pixels above and to the left within reach."""

    family = "gated-pixelcnn"
    config: GatedPixelCnnConfig

    def __init__(self, config: GatedPixelCnnConfig) -> None:
        super().__init__(config)
        width = config.width
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.layers = nn.ModuleList(GatedLayer(config, layer) for layer in range(config.layers))
        self.head = nn.Linear(width, width)
        self.to_logits = nn.Linear(width, config.channels * config.values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; logits start at zero, so all values alike."""
        for layer in self.layers:
            cast(GatedLayer, layer).reset_parameters()
        nn.init.normal_(self.head.weight, std=self.config.width**-0.5)
        if self.label_embedding is not None:
            nn.init.normal_(self.label_embedding.weight, std=self.config.width**-0.5)
        for silent in (self.head.bias, self.to_logits.weight, self.to_logits.bias):
            nn.init.zeros_(silent)

    def smooth_embeddings(self) -> None:
        """Values enter as numbers, so near ones are alike already."""

    def all_logits(
        self, x: Int[Tensor, "b h w c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b h w c v"]:
        v = h = self.scaled(x)
        v, h = v.to(dense_dtype(v)), h.to(dense_dtype(h))
        added = self.added(label, context)
        for number, layer in enumerate(self.layers):
            if checkpointing:
                v, h = checkpoint(layer, v, h, use_reentrant=False)
            else:
                v, h = layer(v, h)
            if number == 0 and added is not None:
                v, h = v + added, h + added
        return self.read(h.movedim(1, -1))

    def scaled(self, x: Int[Tensor, "b h w c"]) -> Float[Tensor, "b c h w"]:
        """Values as numbers from -1 to 1."""
        weight = self.head.weight
        return (2.0 / (self.config.values - 1) * x.movedim(-1, 1) - 1.0).to(weight.dtype)

    def added(self, label: Label, context: Context) -> Float[Tensor, "b p *grid"] | None:
        """What a class and a context add to both stacks after the first layer."""
        found = None
        if context is not None:
            found = context.movedim(-1, 1).to(self.head.weight.dtype)
        if label is not None and self.label_embedding is not None:
            embedded = self.label_embedding(label).unsqueeze(-1).unsqueeze(-1)
            found = embedded if found is None else embedded + found
        return found

    def read(self, h: Float[Tensor, "*grid p"]) -> Float[Tensor, "*grid c v"]:
        """Two more masked layers, then logits; those of a channel read its own features."""
        config, first = self.config, cast(GatedLayer, self.layers[0])
        width, device = config.width, h.device
        weight = self.head.weight * first.mask(width, width, same=True, device=device)
        h = F.linear(F.relu(h), weight, self.head.bias)
        mask = first.mask(config.channels, width, same=True, device=device)
        weight = self.to_logits.weight * mask.repeat_interleave(config.values, 0)
        logits = F.linear(F.relu(h), weight, self.to_logits.bias)
        return rearrange(logits, "... (c v) -> ... c v", c=config.channels)

    def steps(
        self, x: Int[Tensor, "b h w c"], label: Label = None, context: Context = None
    ) -> "PixelSteps":
        return PixelSteps(self, x, self.added(label, context))


class PixelSteps:
    """Element after element of a batch: the vertical stack once a row, the horizontal by pixels.

    `rows` are the inputs of each layer's vertical stack, as far as they are known; `lines` those of
    its horizontal stack in the row at hand, with room before them.
    """

    def __init__(self, model: GatedPixelCnn, x: Tensor, added: Tensor | None) -> None:
        self.model, self.x, config = model, x, model.config
        self.layers = [cast(GatedLayer, layer) for layer in model.layers]
        height, width = config.axes
        made = model.head.weight
        inputs = [config.channels] + [config.width] * (config.layers - 1)
        self.rows = [made.new_zeros(len(x), size, height, width) for size in inputs]
        self.sizes = inputs
        self.added = None if added is None else added.expand(len(x), -1, height, width)
        self.lines: list[Tensor] = []
        self.told: list[Tensor] = []

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        channels, width = self.model.config.channels, self.model.config.axes[1]
        pixel, channel = divmod(rank, channels)
        row, column = divmod(pixel, width)
        if not channel:
            if column:
                self._look(row, column - 1)  # once more, now that all its channels are known
            else:
                self._open(row)
        h = self._look(row, column)
        return self.model.read(h)[:, channel]

    def _open(self, row: int) -> None:
        """Let the vertical stack read the row before, and start a row of the horizontal one."""
        width = self.model.config.axes[1]
        self.told = []
        for number, layer in enumerate(self.layers):
            if row:
                if number == 0:
                    line = self.x[:, row - 1 : row].clamp(min=0)
                    self.rows[0][:, :, row - 1] = self.model.scaled(line)[:, :, 0]
                start = row - 1 - layer.reach
                above = self.rows[number][:, :, max(0, start) : row]
                seen = layer.look_up(F.pad(above, (0, 0, max(0, -start), 0)))
                if number + 1 < len(self.layers):
                    v = gate(seen)[:, :, 0]
                    if number == 0 and self.added is not None:
                        v = v + self.added[:, :, row - 1]
                    self.rows[number + 1][:, :, row - 1] = v
            else:
                seen = self.rows[0].new_zeros(len(self.x), 2 * self.model.config.width, 1, width)
            self.told.append(layer.tell(seen))
        made = self.model.head.weight
        self.lines = [
            made.new_zeros(len(self.x), size, layer.reach + width)
            for size, layer in zip(self.sizes, self.layers, strict=True)
        ]

    def _look(self, row: int, column: int) -> Float[Tensor, "b p"]:
        """The horizontal stack at one pixel, of which some channels may still be missing."""
        pixel = self.x[:, row : row + 1, column : column + 1].clamp(min=0)
        h = self.model.scaled(pixel)
        for number, layer in enumerate(self.layers):
            line = self.lines[number]
            line[:, :, layer.reach + column] = h[:, :, 0, 0]
            taps = line[:, :, None, None, column : column + layer.reach + 1]
            h = layer.look_left(taps, self.told[number][..., column : column + 1])
            if number == 0 and self.added is not None:
                h = h + self.added[:, :, row : row + 1, column : column + 1]
        return h[:, :, 0, 0]
