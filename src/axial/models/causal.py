"""Who may see whom: the shift, how channels are stacked, the order of prediction.

Together with the `causal=` flag of AxialAttention this is all that makes the model
autoregressive; docs/order.md draws it. b batch, *axes the data axes, c channels, d width.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from axial.models.config import ModelConfig
from axial.models.family_config import FamilyConfig


def shift(x: Float[Tensor, "b *axes d"], axis: int) -> Float[Tensor, "b *axes d"]:
    """Move everything one step along `axis`: zeros enter, the last step falls out.

    What an element receives is what its predecessor had, so it no longer sees itself.
    """
    kept = x.narrow(1 + axis, 0, x.shape[1 + axis] - 1)
    after = 2 * (x.ndim - 2 - axis)
    return F.pad(kept, (0,) * after + (1, 0))


def stack(x: Shaped[Tensor, "b *axes c"], config: ModelConfig) -> Shaped[Tensor, " b *plane"]:
    """Lay the channels out as one larger grid (paper 3.2.2): rows or columns."""
    if config.channel_mode == "rows":
        return rearrange(x, "b a ... c -> b (c a) ...")
    return x.flatten(-2)


def unstack(y: Shaped[Tensor, "b *plane v"], config: ModelConfig) -> Shaped[Tensor, "b *axes c v"]:
    """Undo `stack` for a grid whose elements carry `v` features each."""
    if config.channel_mode == "rows":
        y = rearrange(y, "b (c a) ... v -> b c a ... v", c=config.channels)
        return y.movedim(1, -2)
    return rearrange(y, "b ... (a c) v -> b ... a c v", c=config.channels)


def stack_context(
    context: Float[Tensor, "b *axes d"], config: ModelConfig
) -> Float[Tensor, "b *plane d"]:
    """Repeat a context once per channel, so that it lies beside the stacked grid."""
    if config.channel_mode == "rows":
        return repeat(context, "b a ... d -> b (c a) ... d", c=config.channels)
    return repeat(context, "b ... a d -> b ... (a c) d", c=config.channels)


def order(config: FamilyConfig) -> Int[Tensor, " n"]:
    """Flat indices into (*axes, c) in the order of prediction, given elements included."""
    return torch.from_numpy(config.order())


def lines(config: FamilyConfig) -> Int[Tensor, "n l"]:
    """The same, cut into lines: what is drawn from one glance at a picture to the next."""
    return order(config).view(-1, config.line)


def given(config: FamilyConfig, device: torch.device | None = None) -> Bool[Tensor, "*axes c"]:
    """Which elements are always known: never predicted, and visible to every prediction."""
    mask = torch.zeros(*config.axes, config.channels, dtype=torch.bool, device=device)
    mask[..., : config.given_channels] = True
    mask[: config.given_steps] = True
    return mask


def visible(channel: Int[Tensor, " b"], config: ModelConfig) -> Bool[Tensor, "b *ones_or_axes c"]:
    """What the channel encoder may show while `channel` is predicted: earlier and given ones."""
    planes = torch.arange(config.channels, device=channel.device)
    earlier = planes < channel.view(-1, *(1,) * (len(config.axes) + 1))
    if config.given_channels or config.given_steps:
        return earlier | given(config, channel.device)
    return earlier
