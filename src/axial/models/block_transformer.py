"""The Block Transformer: the Video Transformer of Weissenborn et al. (2019), for 1 to 3 axes.

An example is dealt out into slices, as x[a::2, b::2], predicted one after another. An encoder sees
the pixels of earlier slices around each pixel of the slice at hand; a decoder sees the slice itself
up to the pixel; a head predicts the pixel's channels in turn.

b batch, *axes the data axes (slowest first), *part the grid of a slice, p its pixels, t
neighbours that a pixel sees at first, m slices, c channels, s width of a pixel's embedding,
d width, v values.
"""

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from axial.models.block_attention import BlockLayer, join_axes, split_axes
from axial.models.blocks_config import BlocksConfig
from axial.models.dense import init_dense
from axial.models.layers import NORM_EPS, Positions, waves
from axial.models.protocol import (
    Context,
    Examples,
    Label,
    SteppedModel,
    check_integers,
    check_one_each,
)
from axial.models.slice_encoder import SliceEncoder, run
from axial.models.stepping import Place, Stepper, take

EMBEDDING_SCALE = 5.0
"""Embeddings and position tables start as normals of this standard deviation over sqrt(width)."""
VALUE_PERIOD, POSITION_PERIOD = 8, 4
"""Rows of the shortest waves that embeddings and position tables may start as."""


class BlockTransformer(SteppedModel):
    """Slices in raster order of their first pixels, each in raster order, channels innermost."""

    family = "blocks"
    config: BlocksConfig

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__(config)
        width, small, channels = config.width, config.embedding_width, config.channels
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.encoder: SliceEncoder | None = None
        self.from_encoder: nn.Linear | None = None
        if config.encoder_layers:
            self.encoder = SliceEncoder(config)
            self.from_encoder = nn.Linear(width, width, bias=False)
        self.value_embedding = nn.Embedding(channels * config.values, small)
        self.taps = config.taps
        self.convolution = nn.Linear(len(self.taps) * small, width)
        self.positions = Positions(config.slice_axes, width)
        self.layers = nn.ModuleList(
            BlockLayer(config, layer, causal=True) for layer in range(config.layers)
        )
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.to_hidden = nn.Linear(width, channels * width)
        earlier = channels * (channels - 1) // 2
        self.channel_embedding = nn.Embedding(earlier * config.values, width) if earlier else None
        self.to_logits = nn.Linear(width, config.values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; logits start at zero, so all values alike, and so do biases."""
        config = self.config
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                last = name.endswith(("attention.to_out", "mlp_out"))
                depth = config.encoder_layers if name.startswith("encoder.") else config.layers
                scale = 0.5 / depth if last else 1.0
                init_dense(module.weight, fan_in=module.in_features, scale=scale)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self._std(module))
            elif isinstance(module, Positions):
                module.reset_parameters(std=EMBEDDING_SCALE * module.tables[0].shape[1] ** -0.5)
        for name, parameter in self.named_parameters():
            if "relative_positions" in name or name == "encoder.tap_bias":
                nn.init.zeros_(parameter)
        nn.init.zeros_(self.to_logits.weight)

    def _std(self, table: nn.Embedding) -> float:
        """That of one row at the start: less where many rows are added up."""
        added = 1
        if self.encoder is not None and table is self.encoder.tap_embedding:
            added = self.config.kernel_taps * self.config.channels
        elif table in (self.value_embedding, self.channel_embedding):
            added = self.config.channels
        return EMBEDDING_SCALE * (table.embedding_dim * added) ** -0.5

    def smooth_embeddings(self) -> None:
        """Each set of rows, one for each value or step, has its waves in an order of its own."""
        tables = [self.value_embedding, self.channel_embedding]
        tables += [] if self.encoder is None else [self.encoder.tap_embedding]
        for table in tables:
            if table is not None:
                for rows in torch.split(table.weight.detach(), self.config.values):
                    _draw_waves(rows, VALUE_PERIOD, self._std(table))
        for positions in (m for m in self.modules() if isinstance(m, Positions)):
            for rows in positions.tables:
                std = EMBEDDING_SCALE * rows.shape[1] ** -0.5
                _draw_waves(rows.detach(), POSITION_PERIOD, std)

    def blocks(self) -> Iterator[nn.Module]:
        return (module for module in self.modules() if isinstance(module, BlockLayer))

    def matrices(self) -> dict[str, int | None]:
        """Those of the layers: maps between features at one place."""
        kinds = ("to_queries", "to_keys", "to_values", "to_out", "mlp_in", "mlp_out")
        names = (name for name, _ in self.named_parameters())
        return {name: None for name in names if name.endswith(tuple(f"{k}.weight" for k in kinds))}

    def slice_of(self, x: Examples, number: Int[Tensor, " b"]) -> Tensor:
        """The pixels (b, *part, c) of one slice of each example."""
        return self._dealt(x)[torch.arange(len(x), device=x.device), number]

    def _dealt(self, x: Shaped[Tensor, "b *axes c"]) -> Shaped[Tensor, "b m *part c"]:
        """All slices, one after another."""
        count = len(self.config.axes)
        found = split_axes(x, self.config.subscale)  # (b, *part, *first pixel, c)
        found = found.movedim(tuple(range(1 + count, 1 + 2 * count)), tuple(range(1, 1 + count)))
        return found.flatten(1, count)

    def slice_logits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        context: Context = None,
        **how: bool,
    ) -> Float[Tensor, "b *part c v"]:
        if not how.get("checked"):
            self.check(x, label, context)
            check_one_each("number", number, x)
            check_integers("number", number, at_least=0, below=self.config.slice_count)
        checkpointing = how.get("checkpointing", False)
        x, label = x.long(), None if label is None else label.long()
        part = self.slice_of(x, number)
        added = self.added(x, number, label, context, checkpointing=checkpointing)
        h = run(self.layers, self.convolve(part) + added, checkpointing=checkpointing)
        g = self.norm(h)
        return torch.stack([self.read(g, part, k) for k in range(self.config.channels)], -2)

    def slice_bits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, ""]:
        """As of any model; a slice counts by its elements that are not given."""
        x, config = x.long(), self.config
        logits = self.slice_logits(x, number, label, checkpointing=checkpointing, checked=True)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
        counted = self.slice_of(~self.given(x.device).expand(x.shape), number).flatten()
        wanted = self.slice_of(x, number).flatten()
        nats = F.cross_entropy(exact, wanted, reduction="none") * counted
        each = len(x) * config.elements / len(config.slices)  # elements of a slice, on average
        return nats.sum() / (each * math.log(2))

    def all_logits(
        self, x: Int[Tensor, "b *axes c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes c v"]:
        config, count = self.config, len(self.config.axes)
        how = {"checkpointing": checkpointing, "checked": True}
        found = []
        for at in config.slices:
            number = torch.full((len(x),), at, device=x.device)
            found.append(self.slice_logits(x, number, label, context, **how))
        found = [torch.zeros_like(found[0])] * config.slices.start + found
        dealt = torch.stack(found, 1).view(len(x), *config.subscale, *found[0].shape[1:])
        first = tuple(range(1, 1 + count))
        return join_axes(dealt.movedim(first, tuple(count + at for at in first)), count)

    def added(
        self,
        x: Int[Tensor, "b *axes c"],
        number: Int[Tensor, " b"],
        label: Label,
        context: Context,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, "*b_part d"]:
        """What is added to the input of the decoder: positions, and what the encoder saw.

        A class and a context are added to the encoder's input; without one, here.
        """
        found = None
        if context is not None:
            found = self.slice_of(context.to(self.norm.weight.dtype), number)
        if label is not None and self.label_embedding is not None:
            embedded = self.label_embedding(label).view(len(x), *(1,) * len(self.config.axes), -1)
            found = embedded if found is None else embedded + found
        if self.encoder is not None and self.from_encoder is not None:
            z = self.encoder(x, number, found, checkpointing=checkpointing)
            found = self.from_encoder(z)
        return self.positions() if found is None else self.positions() + found

    def embed(self, x: Int[Tensor, "*grid c"]) -> Float[Tensor, "*grid s"]:
        """The sum over channels of what stands for their values."""
        first = self.config.values * torch.arange(self.config.channels, device=x.device)
        return self.value_embedding(x + first).sum(-2)

    def convolve(self, part: Int[Tensor, "b *part c"]) -> Float[Tensor, "b *part d"]:
        """The masked convolution; it is what moves the input on: a place does not see itself."""
        taps, axes = self.taps, part.shape[1:-1]
        reach = [max(abs(step) for step in steps) for steps in zip(*taps, strict=True)]
        room = [side for length in reversed(reach) for side in (length, length)]
        padded = F.pad(self.embed(part), (0, 0, *room))
        windows = [
            tuple(
                slice(most + step, most + step + length)
                for most, step, length in zip(reach, tap, axes, strict=True)
            )
            for tap in taps
        ]
        seen = torch.cat([padded[(slice(None), *window)] for window in windows], -1)
        return self.convolution(seen)

    def read(
        self, g: Float[Tensor, "*grid d"], x: Int[Tensor, "*grid c"], channel: int
    ) -> Float[Tensor, "*grid v"]:
        """Logits of a channel, told the values of the channels before it."""
        width, config = self.config.width, self.config
        own = slice(channel * width, (channel + 1) * width)
        hidden = F.linear(g, self.to_hidden.weight[own], self.to_hidden.bias[own])
        if channel and self.channel_embedding is not None:
            before = channel * (channel - 1) // 2 + torch.arange(channel, device=x.device)
            rows = (x[..., :channel] + config.values * before).flatten(0, -2)
            told = F.embedding_bag(rows, self.channel_embedding.weight, mode="sum")
            hidden = hidden + told.view(hidden.shape).to(hidden.dtype)
        return self.to_logits(F.relu(hidden))

    def steps(
        self, x: Int[Tensor, "b *axes c"], label: Label = None, context: Context = None
    ) -> "BlockSteps":
        return BlockSteps(self, x, label, context)


def _draw_waves(rows: Float[Tensor, "n d"], shortest: int, std: float) -> None:
    drawn = torch.randperm(rows.shape[1])
    rows.copy_(waves(rows.shape, shortest, std=std)[:, drawn])


class BlockSteps:
    """Element after element of a batch: the encoder once a slice, the decoder once a pixel.

    Each layer keeps the keys and values of its blocks that are open: begun, and not ended.
    """

    def __init__(
        self, model: BlockTransformer, x: Tensor, label: Tensor | None, context: Tensor | None
    ) -> None:
        self.model, self.x, self.label, self.context = model, x, label, context
        config, weight = model.config, model.norm.weight
        self.flat = x.view(len(x), -1, config.channels)
        self.pixels, self.neighbours = config.pixels(), _neighbours(config)
        self.outside = (self.neighbours < 0).to(x.device)
        self.around = self.neighbours.to(x.device, copy=True)
        self.layers = [cast(BlockLayer, layer) for layer in model.layers]
        self.biases = [layer.attention.bias() for layer in self.layers]
        self.slots = [_slots(config, layer) for layer in range(config.layers)]
        self.tables = [torch.tensor(slots, device=x.device) for slots in self.slots]
        self.caches = [
            layer.attention.cache(len(x), config.open_places(number))
            for number, layer in enumerate(self.layers)
        ]
        self.added = weight.new_zeros(len(x), config.positions, config.width)
        self.g = weight.new_zeros(len(x), config.width)
        self.call = Stepper(x.device, self.flat.shape[1])

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        config = self.model.config
        pixel, channel = divmod(rank, config.channels)
        number, place = divmod(pixel, config.positions)
        if number not in config.slices:
            return self.added.new_zeros(len(self.x), config.values)
        if not channel:
            if not place:
                self._open(number)
            self.call(self._advance, place)
        return self.call(self._read, int(self.pixels[number, place]), fixed=(channel,))

    def _open(self, number: int) -> None:
        """Let the encoder see the slices before it."""
        pixels = torch.from_numpy(self.pixels[number])
        self.around.copy_(pixels[self.neighbours.clamp(min=0)])
        numbers = torch.full((len(self.x),), number, device=self.x.device)
        x = self.x.clamp(min=0)
        added = self.model.added(x, numbers, self.label, self.context)
        self.added.copy_(added.expand(len(x), *self.model.config.slice_axes, -1).flatten(1, -2))

    def _advance(self, place: Place) -> Float[Tensor, "b d"]:
        """The decoder at one pixel, of which nothing need be known yet."""
        model = self.model
        seen = model.embed(self.flat[:, take(self.around, 0, place)].clamp(min=0))
        seen = seen.masked_fill(take(self.outside, 0, place).unsqueeze(-1), 0.0)
        h = model.convolution(seen.flatten(1)) + take(self.added, 1, place)
        for number, kept in enumerate(zip(self.layers, self.caches, self.biases, strict=True)):
            layer, *cache_and_bias = kept
            h = layer.advance(h, *cache_and_bias, *self._slot(number, place))
        return self.g.copy_(model.norm(h))

    def _slot(self, layer: int, place: Place) -> Sequence[Place]:
        """Which of the open blocks of a layer a place belongs to, and where in it."""
        if isinstance(place, int):
            return self.slots[layer][place]
        found = take(self.tables[layer], 0, place)
        return found[:1], found[1:]

    def _read(self, pixel: Place, channel: int) -> Float[Tensor, "b v"]:
        """A channel of it, the channels before it known."""
        return self.model.read(self.g, take(self.flat, 1, pixel).clamp(min=0), channel)


def _neighbours(config: BlocksConfig) -> Int[Tensor, "p t"]:
    """The places before each place of a slice that the masked convolution sees; -1 if outside."""
    axes = config.slice_axes
    grid = torch.cartesian_prod(*(torch.arange(n) for n in axes)).view(-1, 1, len(axes))
    at = grid + torch.tensor(config.taps)
    inside = ((at >= 0) & (at < torch.tensor(axes))).all(-1)
    strides = torch.tensor([1, *reversed(axes)][:-1]).cumprod(0).flip(0)
    return torch.where(inside, (at * strides).sum(-1), -1)


def _slots(config: BlocksConfig, layer: int) -> list[tuple[int, int]]:
    """Which of the open blocks of a layer each place of a slice belongs to, and where in it."""
    size, room = math.prod(config.block(layer)), config.open_places(layer)
    places = torch.arange(config.positions).view(1, *config.slice_axes)
    blocks = split_axes(places, config.block(layer)).reshape(-1, size).tolist()
    found = {
        at: (number % (room // size), place)
        for number, block in enumerate(blocks)
        for place, at in enumerate(block)
    }
    return [found[at] for at in range(config.positions)]
