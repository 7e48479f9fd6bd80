"""The noise of a drawing: it depends on seed, image index and element, and on nothing else.

Threefry-2x32 with 20 rounds, a counter-based generator, keyed twice: the seed turns an image's
index into a key, and that key turns (element, value) into 64 bits, of which 52 become a uniform
number in the open interval. All in integers below 2 ** 62, so every device agrees to the bit.
"""

from jaxtyping import Float64, Int64
from torch import Tensor, arange, float64

_WORD = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def gumbel(
    seed: int, image: Int64[Tensor, " b"], element: Int64[Tensor, " e"], values: int
) -> Float64[Tensor, "b e v"]:
    """Standard Gumbel noise for each value of each element of each image.

    `argmax(logits + noise)` is then a draw from the softmax of the logits. The seed has 64 bits.
    """
    image = image.view(-1, 1, 1)
    key = threefry(seed & _WORD, seed >> 32, image & _WORD, image >> 32)
    value = arange(values, device=image.device)
    high, low = threefry(*key, element.view(1, -1, 1), value)
    bits = (high << 20) | (low >> 12)
    # Half a step up: neither 0 nor, with 52 bits, a number that rounds to 1.
    uniform = (bits.to(float64) + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def threefry(
    key0: int | Tensor, key1: int | Tensor, x0: Tensor, x1: Tensor
) -> tuple[Tensor, Tensor]:
    """Two 32-bit words scrambled under a key of two, all held in int64 and broadcast."""
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x0, x1 = (x0 + keys[0]) & _WORD, (x1 + keys[1]) & _WORD
    for turn in range(20):
        rotation = _ROTATIONS[turn % 8]
        x0 = (x0 + x1) & _WORD
        x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) & _WORD
        x1 = x1 ^ x0
        if turn % 4 == 3:
            step = turn // 4 + 1
            x0 = (x0 + keys[step % 3]) & _WORD
            x1 = (x1 + keys[(step + 1) % 3] + step) & _WORD
    return x0, x1
