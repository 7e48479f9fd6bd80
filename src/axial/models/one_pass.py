"""Models that score all elements of an example in one pass, by one stack of layers."""

from collections.abc import Iterator

from torch import nn

from axial.models.protocol import SteppedModel


class OnePassModel(SteppedModel):
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
