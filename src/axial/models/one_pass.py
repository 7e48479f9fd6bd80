"""Models that score all elements of an example in one pass, and can predict them one by one.

b batch, *axes the data axes (slowest first), c channels, d width, v values.
"""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from axial.models.protocol import Context, Examples, Label, Model


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
        label: Label = None,
        context: Context = None,
    ) -> Steps:
        """Predict element after element of `x`, which the caller fills in the meantime."""

    @abstractmethod
    def all_logits(
        self,
        x: Int[Tensor, "b *axes c"],
        label: Label,
        context: Context,
        *,
        checkpointing: bool,
    ) -> Float[Tensor, "b *axes c v"]:
        """Logits of every element, those of given ones too; the input was checked."""

    def forward(
        self,
        x: Examples,
        label: Label = None,
        context: Context = None,
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
