"""Models that score all elements of an example in one pass, and can predict them one by one.

b batch, *axes the data axes (slowest first), c channels, d width, v values.
"""

import math
from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from axial.models.causal import given, order
from axial.models.protocol import Model


@runtime_checkable
class Steps(Protocol):
    """A batch on its way: what the layers remember of the elements so far."""

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        """Logits of the element of this rank in the order of prediction.

        To be asked for 0, 1, 2 ... in turn; by then all elements of lower rank are known.
        """


class OnePassModel(Model):
    """A model whose one slice is the whole example."""

    @abstractmethod
    def steps(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Int[Tensor, " b"] | None = None,
        context: Float[Tensor, "b *axes d"] | None = None,
    ) -> Steps:
        """Predict element after element of `x`, which the caller fills in the meantime."""

    @abstractmethod
    def all_logits(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Int[Tensor, " b"] | None,
        context: Float[Tensor, "b *axes d"] | None,
        *,
        checkpointing: bool,
    ) -> Float[Tensor, "b *axes c v"]:
        """Logits of every element, those of given ones too; the input was checked."""

    def forward(
        self,
        x: Shaped[Tensor, "b *axes c"],
        label: Shaped[Tensor, " n"] | None = None,
        context: Shaped[Tensor, "m *grid d"] | None = None,
        *,
        checkpointing: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes c v"]:
        if not checked:
            self.check(x, label, context)
        label = None if label is None else label.long()
        logits = self.all_logits(x.long(), label, context, checkpointing=checkpointing)
        if self.config.elements == logits[0, ..., 0].numel():
            return logits
        return logits.masked_fill(self.given(x.device).unsqueeze(-1), 0.0)

    def order(self) -> Int[Tensor, " n"]:
        return order(self.config)

    def given(self, device: torch.device | None = None) -> Bool[Tensor, "*axes c"]:
        return given(self.config, device)

    @property
    def slices(self) -> range:
        """One slice is everything."""
        return range(1)

    def slice_of(self, x: Shaped[Tensor, "b *axes c"], number: Int[Tensor, " b"]) -> Tensor:
        return x

    def slice_logits(
        self,
        x: Shaped[Tensor, "b *axes c"],
        number: Int[Tensor, " b"],
        label: Shaped[Tensor, " n"] | None = None,
        context: Shaped[Tensor, "m *grid d"] | None = None,
        *,
        checkpointing: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes c v"]:
        return self(x, label, context, checkpointing=checkpointing, checked=checked)

    def slice_bits(
        self,
        x: Shaped[Tensor, "b *axes c"],
        number: Int[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, ""]:
        logits = self(x, label, checkpointing=checkpointing, checked=True)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        x = x.long()[:, self.config.given_steps :, ..., self.config.given_channels :]
        exact = exact[:, self.config.given_steps :, ..., self.config.given_channels :, :]
        return F.cross_entropy(exact.flatten(0, -2), x.flatten()) / math.log(2)
