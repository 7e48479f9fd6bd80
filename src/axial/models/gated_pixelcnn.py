"""The Gated PixelCNN (van den Oord et al. 2016) over categorical values.

A vertical stack convolves the rows above a pixel, a horizontal one its own row to the left, and is
told by the vertical one. Features of the horizontal stack belong to the channels in turn, and masks
at the pixel itself let a channel see the channels before it alone.

b batch, h height, w width, c channels, v values; i inputs of a layer, p features of a stack, t
taps.
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
from axial.models.stepping import Place, Stepper, put, span


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
        return gate(seen), self.look_left(row, told, *self.masked())

    def look_up(self, v: Float[Tensor, "b i r w"]) -> Float[Tensor, "b pp h w"]:
        """The vertical convolution, of rows that have `reach` more above them."""
        return F.conv2d(v, self.vertical, self.vertical_bias, padding=(0, self.reach))

    def tell(self, seen: Float[Tensor, "b pp h w"]) -> Float[Tensor, "b pp h w"]:
        """What the horizontal stack is told of the rows above."""
        return self.to_horizontal(seen.movedim(1, -1)).movedim(-1, 1)

    def masked(self) -> tuple[Float[Tensor, "pp i t"], Float[Tensor, "p p"]]:
        """The weights of the horizontal stack, at the pixel itself those of what may be seen."""
        own = torch.ones_like(self.horizontal)
        inside = self.mask(*own.shape[:2], same=not self.first, device=own.device)
        kernel = self.horizontal * torch.cat([own[..., :-1], inside.unsqueeze(-1)], -1)
        width = self.to_out.in_features
        return kernel, self.to_out.weight * self.mask(width, width, same=True, device=own.device)

    def look_left(
        self,
        row: Float[Tensor, "b i h w t"],
        told: Float[Tensor, "b pp h w"],
        kernel: Float[Tensor, "pp i t"],
        weight: Float[Tensor, "p p"],
    ) -> Float[Tensor, "b p h w"]:
        """The horizontal stack by its `masked` weights; the last tap of `row` is the pixel."""
        c = torch.einsum("bihwt,oit->bohw", row, kernel)
        g = self.dropout(gate(c + self.horizontal_bias.view(-1, 1, 1) + told))
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
        return self.read(h.movedim(1, -1), *self.masked())

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

    def masked(self) -> tuple[Float[Tensor, "p p"], Float[Tensor, "cv p"]]:
        """The weights of the last two layers: a channel's logits read its own features."""
        config, first = self.config, cast(GatedLayer, self.layers[0])
        width, device = config.width, self.head.weight.device
        mask = first.mask(config.channels, width, same=True, device=device)
        return (
            self.head.weight * first.mask(width, width, same=True, device=device),
            self.to_logits.weight * mask.repeat_interleave(config.values, 0),
        )

    def read(
        self, h: Float[Tensor, "*grid p"], head: Float[Tensor, "p p"], last: Float[Tensor, "cv p"]
    ) -> Float[Tensor, "*grid c v"]:
        """Logits of all channels, by the `masked` weights."""
        h = F.linear(F.relu(h), head, self.head.bias)
        logits = F.linear(F.relu(h), last, self.to_logits.bias)
        return rearrange(logits, "... (c v) -> ... c v", c=self.config.channels)

    def steps(
        self, x: Int[Tensor, "b h w c"], label: Label = None, context: Context = None
    ) -> "PixelSteps":
        return PixelSteps(self, x, self.added(label, context))


class PixelSteps:
    """Element after element of a batch: the vertical stack once a row, the horizontal by pixels.

    `rows` are the inputs of each layer's vertical stack, as far as they are known; `lines` those of
    its horizontal stack in the row at hand, with room before them, and `told` what it is told.
    """

    def __init__(self, model: GatedPixelCnn, x: Tensor, added: Tensor | None) -> None:
        self.model, self.x, config = model, x, model.config
        self.layers = [cast(GatedLayer, layer) for layer in model.layers]
        height, width = config.axes
        made = model.head.weight
        inputs = [config.channels] + [config.width] * (config.layers - 1)
        self.rows = [made.new_zeros(len(x), size, height, width) for size in inputs]
        self.added = None if added is None else added.expand(len(x), -1, height, width)
        self.lines = [
            made.new_zeros(len(x), size, layer.reach + width)
            for size, layer in zip(inputs, self.layers, strict=True)
        ]
        self.told = [made.new_zeros(len(x), 2 * config.width, 1, width) for _ in inputs]
        self.weights = [layer.masked() for layer in self.layers], model.masked()
        self.call = Stepper(x.device, height * width)

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        pixel, channel = divmod(rank, self.model.config.channels)
        row, column = divmod(pixel, self.model.config.axes[1])
        if not (channel or column):
            self._open(row)
        again = not channel and column > 0
        return self.call(self._at, row, column, fixed=(channel, again))

    def _at(self, row: Place, column: Place, channel: int, again: bool) -> Float[Tensor, "b v"]:
        """A channel of a pixel; first, if asked, the pixel before it, whose last is known now."""
        if again:
            self._look(row, column - 1)
        return self.model.read(self._look(row, column), *self.weights[1])[:, channel]

    def _open(self, row: int) -> None:
        """Let the vertical stack read the row before, and start a row of the horizontal one."""
        for number, layer in enumerate(self.layers):
            self.lines[number].zero_()
            told = self.told[number]
            if not row:
                told.copy_(layer.tell(told.new_zeros(told.shape)))
                continue
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
            told.copy_(layer.tell(seen))

    def _look(self, row: Place, column: Place) -> Float[Tensor, "b p"]:
        """The horizontal stack at one pixel, of which some channels may still be missing."""
        pixel = span(span(self.x, 1, row, 1), 2, column, 1)
        h = self.model.scaled(pixel.clamp(min=0))
        for number, (layer, weights) in enumerate(zip(self.layers, self.weights[0], strict=True)):
            line = self.lines[number]
            put(line, 2, layer.reach + column, h[:, :, 0, 0])
            taps = span(line, 2, column, layer.reach + 1)[:, :, None, None]
            h = layer.look_left(taps, span(self.told[number], 3, column, 1), *weights)
            if number == 0 and self.added is not None:
                h = h + span(span(self.added, 2, row, 1), 3, column, 1)
        return h[:, :, 0, 0]
