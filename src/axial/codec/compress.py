"""`axial.compress` and `axial.decompress`: integers in memory to the bytes of a file, and back."""

import io

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.errors import InputError, StreamError
from axial.models.attention import check_tensors
from axial.models.protocol import Model, check_integers, check_model


def compress(
    model: Model,
    x: Shaped[Tensor, "..."],
    *,
    label: Shaped[Tensor, "..."] | None = None,
    lanes: int | None = None,
    overlap: int | None = None,
) -> bytes:
    """Integers (n, *grid, c), or one example (*grid, c), as the bytes of an .axl file.

    A grid of another size than the model's is cut into tiles. Where the model has several channels
    and `x` has one, the others follow from it. `label` is one for each example. `lanes` is how many
    tiles are coded side by side; by default as many as keep what a group has beside its stream
    below 0.1 %. `overlap` is by how many steps tiles overlap, by default a sixteenth of their
    shortest axis: more of it takes fewer bits, and more time.
    """
    check_model(model)
    config = model.config
    check_tensors(x=x, label=label)
    ndim = len(config.axes) + 1
    if x.ndim not in (ndim, ndim + 1) or x.shape[-1] not in (1, config.channels) or not x.numel():
        raise InputError(
            f"x has shape {tuple(x.shape)}, but this model takes {len(config.axes)} axes of any "
            f"lengths and {config.channels} channels, (n, *grid, c) or (*grid, c)"
        )
    check_integers("x", x, at_least=0, below=config.values)
    alone = x.ndim == ndim
    found = (x.unsqueeze(0) if alone else x).cpu().numpy()
    labels = _labels(label, len(found), config.classes)
    entry = Entry(
        name="",
        grid=found.shape[1:-1],
        count=len(found),
        array=True,
        one_plane=found.shape[-1] < config.channels,
        alone=alone,
    )
    codec, file = Codec(model, lanes=lanes, overlap=overlap), io.BytesIO()
    examples = (
        Example(part, None if labels is None else int(labels[i])) for i, part in enumerate(found)
    )
    codec.write(file, codec.contents(classes=config.classes), [(entry, examples)])
    return file.getvalue()


def _labels(label: Tensor | None, count: int, classes: int) -> NDArray[np.int64] | None:
    if (label is None) != (classes == 0):
        wanted = f"is conditioned on {classes} classes: give label="
        raise InputError(f"this model {wanted if classes else 'is unconditional: leave label out'}")
    if label is None:
        return None
    if label.shape not in ((count,), (1,)):
        raise InputError(f"label has shape {tuple(label.shape)}: give ({count},), one each")
    check_integers("label", label, at_least=0, below=classes)
    return label.long().cpu().expand(count).numpy()


def decompress(model: Model, data: bytes, *, batch: int | None = None) -> Int[Tensor, "..."]:
    """What `compress` was given; a StreamError for anything but its exact integers.

    Several entries of one shape come one after another.
    """
    check_model(model)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"data is {type(data).__name__}: give the bytes of an .axl file")
    file = io.BytesIO(data)
    contents = read_contents(file)
    kinds = {(entry.grid, entry.one_plane) for entry in contents.entries}
    if len(kinds) != 1:
        raise StreamError(f"holds pictures of {len(kinds)} sizes; use `axial decompress`")
    found = [example.x for _, example in Codec(model).read(file, contents, batch=batch)]
    x = torch.from_numpy(np.stack(found).astype(np.int64))
    return x[0] if len(contents.entries) == 1 and contents.entries[0].alone else x
