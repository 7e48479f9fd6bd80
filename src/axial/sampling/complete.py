"""Completing what is partly known: what to keep, when that is exact, what needs particles.

b examples, *axes the data axes, c channels.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from axial.errors import ConfigError
from axial.models.attention import check_tensors
from axial.models.causal import given as always_given
from axial.models.causal import order
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model, check_model
from axial.sampling.draw import draw, for_all, initial
from axial.sampling.particle_filter import filtered
from axial.validation import as_integer, as_temperature


def kept_part(
    config: FamilyConfig, *, keep: int | None, keep_channels: int | None
) -> Bool[Tensor, "*axes c"]:
    """Leading rows, or frames of a video, leading channels, and what the model itself is given."""
    mask = always_given(config)
    if keep is not None:
        shape = config.data
        length = config.axes[0] if shape.window is None else shape.window
        keep = as_integer("keep", keep, at_least=0, below=length + 1)
        if shape.window is None:
            mask[:keep] = True
        else:
            mask[None][shape.frames_at(0, keep)] = True
    if keep_channels is not None:
        most = config.channels + 1
        mask[..., : as_integer("keep_channels", keep_channels, at_least=0, below=most)] = True
    if not mask.any():
        raise ConfigError("nothing is kept: say how much by --keep or --keep-channels")
    if mask.all():
        raise ConfigError("everything is kept: leave something to draw")
    return mask


def is_exact(config: FamilyConfig, mask: Bool[Tensor, "*axes c"]) -> bool:
    """Whether the kept part is a prefix of the order of prediction, the given part aside."""
    free = ~always_given(config).flatten()[order(config)]
    kept = mask.flatten()[order(config)][free].long()
    return bool((kept.cumprod(0) == kept).all())


def complete(
    model: Model,
    given: Shaped[Tensor, "..."],
    *,
    particles: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
    label: Shaped[Tensor, "..."] | None = None,
    context: Shaped[Tensor, "..."] | None = None,
    first: int = 0,
    **how: Any,
) -> Int[Tensor, "b *axes c"]:
    """Draw what is -1 in each of `given`, from the conditional where `draw` alone would not.

    Where a particle filter is needed, its result is the exact conditional as `particles` grow.
    What is kept of a channel must then be a prefix of it. `label` and `context` may be one for
    all. `how` goes to `draw`.
    """
    check_model(model)
    check_tensors(given=given)
    config = model.config
    count = as_integer("count", len(given) if given.ndim else 0, at_least=1)
    particles = as_integer("particles", particles, at_least=1)
    how |= {"seed": seed, "temperature": as_temperature(temperature)}
    x = initial(model, count, given)
    known = (x >= 0).cpu()
    masks = known[:1] if (known == known[0]).all() else torch.unique(known, dim=0)
    if not needs_particle_filter(config, masks, particles, temperature):
        return draw(model, count, given=x, label=label, context=context, first=first, **how)
    first = as_integer("first", first, at_least=0, below=(1 << 63) // particles - count)
    conditions = for_all(label, count), for_all(context, count)
    model.check(x.clamp(min=0), *conditions)
    return filtered(model, x, masks[0], particles, conditions, first=first, **how)


def needs_particle_filter(
    config: FamilyConfig,
    masks: Bool[Tensor, "m *axes c"],
    particles: int,
    temperature: float,
) -> bool:
    """Whether keeping such parts takes a particle filter; refused where there is none."""
    if particles == 1 or all(is_exact(config, mask) for mask in masks):
        return False
    if not temperature > 0:
        raise ConfigError("temperature is 0: particles are weighted at a positive temperature only")
    planes = masks[0].movedim(-1, 0).flatten(1).long()
    prefixes = len(masks) == 1 and bool((planes.cumprod(1) == planes).all())
    if not config.channels_in_turn or not prefixes:
        raise ConfigError(
            "particles need the same leading part of each channel kept in every example, and "
            "channels that are predicted one after another"
        )
    return True
