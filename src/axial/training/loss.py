"""The loss as a module, so that DDP, FSDP and the compiler can wrap it.

b batch, *axes the data axes, c channels.
"""

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from axial.models.protocol import Model


class SliceBits(nn.Module):
    """Bits per dimension of one slice of each example, averaged over the batch: `slice_bits`."""

    def __init__(self, model: Model, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.model = model
        self.checkpointing = checkpointing

    def forward(
        self,
        x: Shaped[Tensor, "b *axes c"],
        number: Int[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, ""]:
        return self.model.slice_bits(x, number, label, checkpointing=self.checkpointing)
