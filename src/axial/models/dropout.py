"""Which numbers dropout leaves out: a hash of each number's place, under keys that torch draws.

A mask is integer arithmetic on places, which a compiler puts into the kernel that adds the branch:
nothing is read for it but two words an example. So a mask is the same compiled or not, on any
device that has the same keys, in any memory layout.
"""

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor, nn

_WORD = 1 << 32


class Dropout(nn.Dropout):
    """Dropout as torch's: the same scale and rate, which is below 1, but other masks.

    What is left out is 0, whatever it was.
    """

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        """In training, zero with probability `p`, else `x / (1 - p)`."""
        if not (self.training and self.p):
            return x
        keys = torch.randint(
            -_WORD // 2, _WORD // 2, (2, len(x)), dtype=torch.int32, device=x.device
        )
        return torch.where(kept(keys, x.shape[1:], self.p), x * (1 / (1 - self.p)), 0)


def kept(keys: Int32[Tensor, "2 b"], shape: torch.Size, rate: float) -> Bool[Tensor, "b ..."]:
    """Whether each number of `b` examples of this shape stays; the keys are uniform words."""
    first, second = keys.view(2, -1, *(1,) * len(shape))
    place = torch.arange(shape.numel(), dtype=torch.int32, device=keys.device).view(shape)
    # "triple32" of C. Wellons, a mixing of 32 bits, with a key before it and one inside.
    word = place + first
    word = (word ^ _fallen(word, 17)) * _signed(0xED5AD4BB) + second
    word = (word ^ _fallen(word, 11)) * _signed(0xAC4C1B51)
    word = (word ^ _fallen(word, 15)) * _signed(0x31848BAB)
    word = word ^ _fallen(word, 14)
    return (word & 0x7FFFFFFF) >= min(round(rate * (1 << 31)), 0x7FFFFFFF)


def _fallen(word: Int32[Tensor, "..."], by: int) -> Int32[Tensor, "..."]:
    """The word shifted to the right, zeros entering."""
    return (word >> by) & ((1 << (32 - by)) - 1)


def _signed(word: int) -> int:
    """The integer of int32 with these 32 bits."""
    return word - _WORD if word >= _WORD // 2 else word
