"""Logits -> exact bits: of an element, of an example, per dimension.

b batch, *axes the data axes, c channels, v values. A plane is what one pass of the decoder
scores: one channel of one example, or all its channels where they are stacked.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from axial.models.family_config import FamilyConfig
from axial.models.protocol import Context, Examples, Label, Model, check_model, evaluating
from axial.validation import as_integer

_WORKING_BYTES = 1 << 27
"""On a CPU: what is worked on then mostly stays in its caches, and more takes longer."""
_STEADY_BYTES = 1 << 30
"""On a GPU, where it may not depend on what is free."""


def bits(
    model: Model, x: Examples, label: Label = None, context: Context = None
) -> Float64[Tensor, " b"]:
    """Minus log2 of the probability of each example; given elements count nothing.

    Any number of examples: they pass through the model a few at a time, on its device, without
    dropout or gradients, and whatever its precision are summed in float64.
    """
    check_model(model)
    model.check(x, label, context)
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for rows, _, surprise in _score(model, x, label, context):
        total.index_add_(0, rows, surprise.flatten(1).sum(1))
    return total


def bits_per_dim(
    model: Model, x: Examples, label: Label = None, context: Context = None
) -> Float64[Tensor, " b"]:
    """The bits of each example over the number of its elements that are not given."""
    return bits(model, x, label, context) / model.config.elements


def element_bits(
    model: Model,
    x: Examples,
    label: Label = None,
    context: Context = None,
    *,
    planes: int | None = None,
) -> Float64[Tensor, "b *axes c"]:
    """Where the bits go: those of each element; their sum is `bits`.

    `planes` are scored together; as many as memory allows by default.
    """
    check_model(model)
    model.check(x, label, context)
    if planes is not None:
        planes = as_integer("planes", planes, at_least=1)
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    places = torch.arange(out[0].numel(), device=x.device).view(x.shape[1:])
    for rows, number, surprise in _score(model, x, label, context, planes):
        place = model.slice_of(places.expand(len(rows), *places.shape), number).flatten(1)
        out.view(len(x), -1)[rows.unsqueeze(1), place] = surprise.flatten(1)
    return out


def summed_bits(
    model: Model, x: Examples, context: Context = None, *, planes: int | None = None
) -> Float64[Tensor, "b *axes c"]:
    """`element_bits` of a class-conditional model where the class is not known.

    p(x) is the mean of p(x | class): every class is as likely as any other. The bits of an element
    are those of the mixture given all elements before it, so that their sum is exact.
    """
    classes, order = model.config.classes, model.order().to(x.device)
    nats = torch.full((len(x), len(order)), -math.inf, dtype=torch.float64, device=x.device)
    for number in range(classes):
        label = torch.full((len(x),), number, device=x.device)
        so_far = element_bits(model, x, label, context, planes=planes).flatten(1)[:, order]
        nats = torch.logaddexp(nats, so_far.cumsum(1).mul_(-math.log(2)))
    total = (math.log(classes) - nats).div_(math.log(2))
    out = torch.empty_like(total)
    out[:, order] = total.diff(dim=1, prepend=torch.zeros_like(total[:, :1]))
    return out.view(x.shape)


def planes_at_once(
    config: FamilyConfig, device: torch.device | None = None, *, steady: bool = False
) -> int:
    """How many planes to score together so that memory stays bounded.

    On a GPU that depends on what is free, unless it is to be `steady`: sums of other batches may
    round otherwise.
    """
    logits = 8 * config.values * 4
    each = config.positions * (4 * config.position_floats + logits) + config.input_bytes
    return max(1, _working_bytes(device, steady) // each)


def _working_bytes(device: torch.device | None, steady: bool) -> int:
    """What scoring may take: on a GPU a quarter of what is free, for its kernels want much."""
    if device is None or device.type != "cuda":
        return _WORKING_BYTES
    if steady:
        return _STEADY_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + kept) // 4


def _score(
    model: Model, x: Tensor, label: Label, context: Context, at_once: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (examples, their slices, bits of each element of these) some slices at a time."""
    predicted = ~model.given(next(model.parameters()).device)
    for rows, number, part, logits in slices_of_logits(model, x, label, context, at_once):
        on_device = number.to(part.device)
        wanted = model.slice_of(part, on_device)
        counted = model.slice_of(predicted.expand(part.shape), on_device)
        yield rows, number, (surprise_bits(logits, wanted) * counted).to(x.device)


def slices_of_logits(
    model: Model,
    x: Tensor,
    label: Label = None,
    context: Context = None,
    at_once: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield (rows of x, their slices, these rows on the model's device, logits of the slices).

    Some slices at a time; the input was checked.
    """
    device = next(model.parameters()).device
    at_once = at_once or planes_at_once(model.config, device)
    for number in model.slices:
        scorer = model.slice_scorer(number)
        for rows in torch.split(torch.arange(len(x), device=x.device), at_once):
            part = x[rows].to(device).long()
            conditions = [
                None if t is None else t[rows.to(t.device)].to(device) for t in (label, context)
            ]
            with evaluating(model):
                logits = scorer(part, *conditions)
            yield rows, torch.full((len(rows),), number, device=x.device), part, logits


def surprise_bits(
    logits: Float[Tensor, "*grid v"], x: Int[Tensor, "*grid"]
) -> Float64[Tensor, "*grid"]:
    """Minus log2 of the probability that the logits give to `x`, normalised in float64."""
    exact = logits.double()
    chosen = exact.gather(-1, x.unsqueeze(-1)).squeeze(-1)
    return (exact.logsumexp(-1) - chosen) / math.log(2)
