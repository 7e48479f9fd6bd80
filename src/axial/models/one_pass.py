"""Models that score all elements of an example in one pass, and can predict them one by one.

b batch, *axes the data axes (slowest first), c channels, d width, v values.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from axial.models.protocol import Context, Label, Model


@runtime_checkable
class Steps(Protocol):
    """A batch on its way: what the layers remember of the elements so far."""

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        """Logits of the element of this rank in the order of prediction.

        To be asked for 0, 1, 2 ... in turn; by then all elements of lower rank are known.
        """


class OnePassModel(Model):
    """A model whose one slice is the whole example, and whose blocks are its `layers`."""

    layers: nn.ModuleList

    def blocks(self) -> Iterator[nn.Module]:
        return iter(self.layers)

    def matrices(self) -> dict[str, int | None]:
        """Those of the blocks: maps between features at one place."""
        return {
            name: None
            for name, weight in self.named_parameters()
            if name.startswith("layers.") and weight.ndim == 2
        }

    @abstractmethod
    def steps(
        self, x: Int[Tensor, "b *axes c"], label: Label = None, context: Context = None
    ) -> Steps:
        """Predict element after element of `x`, which the caller fills in the meantime."""
