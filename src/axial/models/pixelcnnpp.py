"""PixelCNN++ (Salimans et al. 2017): a U-net of gated residual blocks, and a mixture of logistics.

b batch, h height, w width, c channels, i channels and a plane of ones, f features, v values.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from axial.models.logistic_mixture import LogisticMixture, scaled_values
from axial.models.one_pass import OnePassModel
from axial.models.pixelcnn_config import PixelCnnPpConfig
from axial.models.pixelcnnpp_layers import NormedConv, Stem, Streams, new_layer
from axial.models.pixelcnnpp_steps import PixelCnnPpSteps
from axial.models.protocol import Context, Examples, Label

_LEAST_VARIANCE = 1e-6
"""Below it a feature counts as constant."""


class PixelCnnPp(OnePassModel):
    """Every pixel is a mixture of logistics, told by the pixels above and to the left."""

    family = "pixelcnn++"
    config: PixelCnnPpConfig
    first_examples = 16

    def __init__(self, config: PixelCnnPpConfig) -> None:
        super().__init__(config)
        width = config.width
        self.label_embedding = nn.Embedding(config.classes, width) if config.classes else None
        self.stem = Stem(config)
        self.layers = nn.ModuleList(new_layer(config, kind) for kind, _ in config.plan)
        self.to_mixture = NormedConv(width, config.mixture_numbers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for conv in self.convolutions():
            conv.reset_parameters()
        if self.label_embedding is not None:
            nn.init.normal_(self.label_embedding.weight, std=self.config.width**-0.5)

    def convolutions(self) -> Iterator[NormedConv]:
        """All of them."""
        return (module for module in self.modules() if isinstance(module, NormedConv))

    @torch.no_grad()
    def start_from(self, x: Examples, label: Label = None) -> None:
        """Scale every convolution so that what comes out of it on these examples is standard.

        Of mean 0 and variance 1, or as large as its `start`; in turn, from the picture onwards,
        and with dropout if the model is in training.
        """

        def standardise(conv: NormedConv, _: object, out: Tensor) -> Tensor:
            variance, mean = torch.var_mean(out, dim=(0, 2, 3), correction=0)
            # What these examples leave constant is centred alone: the rest of it is rounding.
            varies = variance > _LEAST_VARIANCE * conv.start**2
            factor = torch.where(varies, conv.start * variance.rsqrt(), 1.0)
            conv.g.mul_(factor)
            conv.b.copy_((conv.b - mean) * factor)
            return (out - mean.view(-1, 1, 1)) * factor.view(-1, 1, 1)

        label = None if label is None else label.long()
        hooks = [conv.register_forward_hook(standardise) for conv in self.convolutions()]
        try:
            self.mixture_of(x.long(), label, None, checkpointing=False)
        finally:
            for hook in hooks:
                hook.remove()

    def smooth_embeddings(self) -> None:
        """Values enter as numbers, so near ones are alike already."""

    def all_logits(
        self, x: Int[Tensor, "b h w c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b h w c v"]:
        return self.mixture_of(x, label, context, checkpointing=checkpointing).logits()

    def slice_bits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, ""]:
        """As for any model, but without the 255 values of each element that are not there."""
        label = None if label is None else label.long()
        mixture = self.mixture_of(x.long(), label, None, checkpointing=checkpointing)
        nats = mixture.nats()[:, self.config.given_steps :]
        return nats.mean() / (self.config.channels * math.log(2))

    def mixture_of(
        self, x: Int[Tensor, "b h w c"], label: Label, context: Context, *, checkpointing: bool
    ) -> LogisticMixture:
        """The mixture of each pixel, in float32 at least: bfloat16 cannot tell 256 means apart."""
        u, ul = self.stem(self.scaled(x).movedim(-1, 1))
        added = self.added(label, context)
        if added is not None:
            u, ul = (stream + added.movedim(-1, 1) for stream in (u, ul))
        kept: list[Streams] = []
        for (kind, _), layer in zip(self.config.plan, self.layers, strict=True):
            if kind in ("pair", "halve"):
                kept.append((u, ul))
            more = kept.pop() if kind == "joined" else ()
            if checkpointing:
                u, ul = checkpoint(layer, u, ul, *more, use_reentrant=False)
            else:
                u, ul = layer(u, ul, *more)
        with torch.autocast(ul.device.type, enabled=False):
            numbers = self.to_mixture(F.elu(ul)).movedim(1, -1)
            return LogisticMixture(numbers.to(torch.promote_types(ul.dtype, torch.float32)), x)

    def scaled(self, x: Int[Tensor, "*grid c"]) -> Float[Tensor, "*grid i"]:
        """The picture, and a plane of ones, by which padding is told from black."""
        values = scaled_values(x, self.to_mixture.g.dtype)
        return torch.cat([values, torch.ones_like(values[..., :1])], -1)

    def added(self, label: Label, context: Context) -> Float[Tensor, "b hh ww f"] | None:
        """What a class and a context add to both streams at their start."""
        found = None if context is None else context.to(self.to_mixture.g.dtype)
        if label is not None and self.label_embedding is not None:
            embedded = self.label_embedding(label)[:, None, None]
            found = embedded if found is None else embedded + found
        return found

    def steps(
        self, x: Int[Tensor, "b h w c"], label: Label = None, context: Context = None
    ) -> PixelCnnPpSteps:
        return PixelCnnPpSteps(self, x, self.added(label, context))
