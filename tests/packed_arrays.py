"""Packed arrays for tests, written by hand."""

import numpy as np
import torch

from axial import open_packed
from axial.data.packed_writer import PackedWriter

FACTS = dict(
    source="toy", version=None, split="train", values=256, skipped=0, notes=(), command="by hand"
)


def write(path, x, labels=None, classes=0, names=None, **facts):
    """A packed array written in two pieces, over another if there is one."""
    with PackedWriter(path, overwrite=True) as writer:
        for piece in np.array_split(x, 2):
            writer.append(piece)
        writer.finish(labels, classes, names, **(FACTS | facts))
    return path


def write_test_set(path, x, labels=None, classes=0, **facts):
    """A packed test set, opened."""
    return open_packed(write(path, x, labels, classes, **({"split": "test"} | facts)))


def whole(packed):
    """Everything in a packed array as tensors."""
    x = torch.from_numpy(packed.rows(range(len(packed))).astype(np.int64))
    return x, None if packed.labels is None else torch.from_numpy(packed.labels)


def write_pictures(path, x, labels=None, classes=0, names=None, **facts):
    """Pictures (h, w, c) of different sizes in one packed file."""
    with PackedWriter(path, overwrite=True) as writer:
        for picture in x:
            writer.append_picture(picture)
        writer.finish(labels, classes, names, **(FACTS | facts))
    return path
