"""Pictures while they are drawn: what is shown after each line, and that nothing stays behind."""

import traceback
from collections.abc import Generator, Iterator

from jaxtyping import Int, Shaped
from torch import Tensor

from axial.models.protocol import Model
from axial.sampling.decoder import decoding
from axial.sampling.draw import Request
from axial.sampling.kv_cache import check_plain, has_steps


def stream(
    model: Model,
    count: int,
    *,
    seed: int | Shaped[Tensor, "..."] = 0,
    temperature: float = 1.0,
    method: str = "cached",
    given: Shaped[Tensor, "..."] | None = None,
    noise: Shaped[Tensor, "..."] | None = None,
    label: Shaped[Tensor, "..."] | None = None,
    context: Shaped[Tensor, "..."] | None = None,
    first: int | Shaped[Tensor, "..."] = 0,
    batch: int | None = None,
) -> Generator[Int[Tensor, "count *axes c"], None, None]:
    """Draw as `draw` does, and yield the pictures so far after each line; -1 is still missing.

    The arguments are those of `draw`, checked at once; the last item is what `draw` returns. Each
    item is a copy of its own. There is one for every line of every batch that was not wholly
    given; where nothing is missing, there is one. Nothing is computed before an item is asked for,
    and while the caller holds one, the model's mode and torch's settings are the caller's. To
    close it, or to drop it, cancels the drawing and frees its KV caches, and so does an error.
    Until then neither the model nor a tensor given here may change.
    """
    request = Request(
        model, count, seed, temperature, method, given, noise, label, context, first, batch
    )
    if method == "cached" and not has_steps(model):
        check_plain(model)
    return _items(request)


def _items(request: Request) -> Generator[Tensor, None, None]:
    lines, item = request.lines(careful=True), None
    try:
        while (item := _advance(lines, request.model)) is not None:
            yield item
    except BaseException as error:
        # Whoever keeps the error, as a notebook does, would keep the KV caches by its frames.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        del lines, item, request


def _advance(lines: Iterator[Tensor], model: Model) -> Tensor | None:
    """A copy of what there is after the next line; the settings change for as long as it takes."""
    with decoding(model):
        seen = next(lines, None)
        return None if seen is None else seen.clone()
