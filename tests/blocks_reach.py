"""Small Block Transformers, and what each of their predictions must depend on, by sets."""

import itertools

import numpy as np

from axial.models.blocks_config import BlocksConfig

SMALL = {"channels": 2, "values": 3, "width": 12, "heads": 2, "head_width": 4}
SMALL |= {"embedding_width": 6, "encoder_layers": 2, "layers": 2}
BLOCKS = [
    BlocksConfig(axes=(8,), subscale=(2,), block_shapes=((2,), (4,)), **SMALL),
    BlocksConfig(axes=(4, 6), subscale=(1, 2), block_shapes=((2, 3), (4, 1)), **SMALL),
    BlocksConfig(axes=(4, 2, 2), subscale=(2, 1, 1), block_shapes=((2, 1, 2), (1, 2, 1)), **SMALL),
    BlocksConfig(
        axes=(4, 4), subscale=(1, 1), block_shapes=((2, 4), (4, 1)), **SMALL | {"encoder_layers": 0}
    ),
    BlocksConfig(axes=(2, 4), subscale=(2, 4), kernel=(1, 3), **SMALL | {"channels": 3}),
]
"""One axis; a picture; a clip; a single slice, without an encoder; slices of one pixel."""


def blocks_reach(config, given=frozenset()):
    """Which element each logit depends on, both in the order of prediction.

    Pixels are tuples of coordinates. `given` are elements, pixel and channel, that all slices see.
    """
    pixels = list(itertools.product(*map(range, config.axes)))
    channels = range(config.channels)
    number = {
        pixel: [at % s for at, s in zip(pixel, config.subscale, strict=True)] for pixel in pixels
    }
    found = {}
    for first in itertools.product(*map(range, config.subscale)):
        grid = [
            (
                place,
                tuple(s * at + a for s, at, a in zip(config.subscale, place, first, strict=True)),
            )
            for place in itertools.product(*map(range, config.slice_axes))
        ]
        places = dict(grid)
        z = {place: set() for place in places}
        if config.encoder_layers:
            for place, pixel in grid:
                sides = zip(pixel, config.kernel, strict=True)
                window = (range(at - k // 2, at + k // 2 + 1) for at, k in sides)
                for seen in set(itertools.product(*window)) & set(pixels):
                    earlier = number[seen] < list(first)
                    z[place] |= {(seen, c) for c in channels if earlier or (seen, c) in given}
            for layer in range(config.encoder_layers):
                z = inside_blocks(z, config.block(layer), masked=False)
        y = dict(z)
        for place in places:
            near = itertools.product(*(range(at - 1, at + 2) for at in place))
            for seen in near:
                if seen < place and seen in places:
                    y[place] = y[place] | {(places[seen], c) for c in channels}
        for layer in range(config.layers):
            y = inside_blocks(y, config.block(layer), masked=True)
        for place, pixel in grid:
            for c in channels:
                found[pixel, c] = y[place] | {(pixel, k) for k in range(c)}
    return as_matrix(config, found)


def inside_blocks(sets, shape, *, masked):
    """What places know after those of a block have seen each other, or the ones before alone."""
    block = {place: [at // side for at, side in zip(place, shape, strict=True)] for place in sets}
    return {
        place: set().union(
            *(
                known
                for other, known in sets.items()
                if block[other] == block[place] and (other <= place or not masked)
            )
        )
        for place in sets
    }


def as_matrix(config, found):
    order = config.order()
    at = {
        (pixel, c): np.ravel_multi_index((*pixel, c), (*config.axes, config.channels))
        for pixel, c in found
    }
    matrix = np.zeros((len(order), len(order)), bool)
    for element, seen in found.items():
        matrix[at[element], [at[one] for one in seen]] = True
    return matrix[np.ix_(order, order)]
