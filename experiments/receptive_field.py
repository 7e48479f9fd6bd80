"""Which elements a prediction depends on after each layer, by the masks of each family.

A row of bits for each place says what the place has seen; a layer joins rows as its mask says. Only
the configuration is used, no model: the tests compare every family with a model whose inputs are
changed one by one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.family_config import FamilyConfig
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig

Bits = NDArray[np.uint64]
"""(*places, words): the elements or pixels that each place has seen, 64 of them in a word."""


def shares(config: FamilyConfig) -> list[float]:
    """After each layer, the share of earlier elements that predictions depend on, over all pairs.

    Layers at the end that add nothing are left out: the last number is that of the whole model.
    """
    count = int(np.prod(config.axes)) * config.channels
    found = [reached / (count * (count - 1) // 2) for reached in reached_pairs(config)]
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return found


def share_within_slice(config: BlocksConfig) -> list[float]:
    """The same for the pixels of one slice alone, by the decoder: what blocks themselves reach."""
    places = config.positions
    counts = [_ones(seen) for seen in _slice_decoder(config, _nothing(places, places))]
    return [count / (places * (places - 1) // 2) for count in counts]


def reached_pairs(config: FamilyConfig) -> Iterator[int]:
    """After each layer, how many pairs (element, earlier element) are connected."""
    if isinstance(config, ModelConfig):
        return _axial(config)
    if isinstance(config, BlocksConfig):
        return (_of_pixels(config, count) for count in _blocks(config))
    if isinstance(config, GatedPixelCnnConfig):
        return (_of_pixels(config, _ones(seen)) for seen in _gated(config))
    if isinstance(config, PixelCnnPpConfig):
        return (_of_pixels(config, _ones(seen)) for seen in [_pixelcnnpp(config)])
    return (_ones(seen) for seen in _sequence(config))


def _of_pixels(config: FamilyConfig, count: int) -> int:
    """Pairs of elements from pairs of pixels; channels before a pixel's own are always seen."""
    channels, pixels = config.channels, int(np.prod(config.axes))
    return count * channels**2 + pixels * channels * (channels - 1) // 2


def _eye(count: int) -> Bits:
    """Every place has seen itself."""
    place = np.arange(count)
    seen = _nothing(count, count)
    seen[place, place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
    return seen


def _nothing(places: int, elements: int) -> Bits:
    return np.zeros((places, -(-elements // 64)), np.uint64)


def _ones(seen: Bits) -> int:
    return int(np.bitwise_count(seen).sum())


def _up_to(seen: Bits, axis: int = 0) -> Bits:
    """Each place together with all before it along an axis."""
    return np.bitwise_or.accumulate(seen, axis)


def _all(seen: Bits, axis: int) -> Bits:
    """What all places along an axis have seen together, given to each of them."""
    together = np.bitwise_or.reduce(seen, axis, keepdims=True)
    return np.broadcast_to(together, seen.shape)


def _moved(seen: Bits, down: int, right: int) -> Bits:
    """Each place of a grid (rows, columns, words) has what another place had."""
    rows, columns = seen.shape[:2]
    out = np.zeros_like(seen)
    if abs(right) < columns and abs(down) < rows:
        to, source = [], []
        for step, length in ((down, rows), (right, columns)):
            to.append(slice(max(step, 0), length + min(step, 0)))
            source.append(slice(max(-step, 0), length - max(step, 0)))
        out[tuple(to)] = seen[tuple(source)]
    return out


def _taps(seen: Bits, down: Sequence[int], right: Sequence[int]) -> Bits:
    """A convolution: each place with those so many rows above it and columns to its left."""
    across = np.bitwise_or.reduce([_moved(seen, 0, step) for step in right])
    found: Bits = np.bitwise_or.reduce([_moved(across, step, 0) for step in down])
    return found


def _axial(config: ModelConfig) -> Iterator[int]:
    """The encoder on pixels of an earlier channel, then the levels on those of the same channel.

    A level that has not been computed yet adds nothing; the inner one always has its own shift.
    """
    assert len(config.axes) == 2 and config.channel_mode == "encode"
    (rows, columns), channels = config.axes, config.channels
    pixels = rows * columns
    pairs, planes = channels * (channels - 1) // 2, channels
    eye = _eye(pixels).reshape(rows, columns, -1)
    encoded = _taps(eye, (-1, 0, 1), (-1, 0, 1)) if channels > 1 else eye
    inner = _moved(eye, 0, 1)

    def connected(encoded: Bits, own: Bits) -> int:
        return pairs * _ones(encoded) + planes * _ones(own)

    for axis in config.encoder_axes:
        encoded = _all(encoded, axis)
        yield connected(encoded, inner)
    outer = eye
    for axis in config.decoder_axes(0):
        outer = _up_to(outer) if axis == 0 else _all(outer, axis)
        yield connected(encoded, inner | _moved(outer, 1, 0))
    inner = inner | _moved(outer, 1, 0)
    for _ in config.decoder_axes(1):
        inner = _up_to(inner, 1)
        yield connected(encoded, inner)


def _sequence(config: FamilyConfig) -> Iterator[Bits]:
    """Position i carries the element before it; then layer by layer."""
    layers: int = getattr(config, "layers", 0)
    length = int(np.prod(config.axes)) * config.channels
    seen, last = np.roll(_eye(length), 1, axis=0), -1
    seen[0] = 0
    for layer in range(layers):
        seen = _attended(config, layer, seen)
        yield seen
        if layer % 4 == 3 and last == (last := _ones(seen)):  # a whole cycle added nothing
            return


def _attended(config: Any, layer: int, seen: Bits) -> Bits:
    if isinstance(config, Local2dConfig):
        return _rectangles(config, seen)
    if isinstance(config, Local1dConfig):
        out = np.empty_like(seen)
        before = _nothing(1, 64 * seen.shape[1])[0]
        for start in range(0, len(seen), config.query):
            block = _up_to(seen[start : start + config.query])
            out[start : start + config.query] = block | before
            before = block[-1]
        return out
    assert isinstance(config, FullConfig)
    if config.pattern(layer) == "full":
        return _up_to(seen)
    assert isinstance(config, StridedConfig)
    grid = seen.reshape(-1, config.stride or config.line, seen.shape[1])
    if config.pattern(layer) == "strided":
        return _up_to(grid).reshape(seen.shape)
    out = _up_to(grid, 1)  # the places of a line so far, and of the line before those not yet left
    ends = _up_to(grid[:-1, :0:-1], 1)[:, ::-1]
    out[1:, :-1] |= ends
    return out.reshape(seen.shape)


def _rectangles(config: Local2dConfig, seen: Bits) -> Bits:
    """A rectangle up to the place itself, and the flange around it."""
    (rows, columns), (high, wide), (above, beside) = config.grid, config.block, config.flange
    grid = np.empty_like(seen)
    grid[config.order()] = seen
    grid = grid.reshape(rows, columns, -1)
    out, query = np.empty_like(seen), config.query
    corners = [(top, left) for top in range(0, rows, high) for left in range(0, columns, wide)]
    for number, (top, left) in enumerate(corners):
        own = np.s_[number * query : (number + 1) * query]
        first = max(0, left - beside)
        over = grid[max(0, top - above) : top, first : left + wide + beside]
        aside = grid[top : top + high, first:left]
        around = [np.bitwise_or.reduce(part, (0, 1)) for part in (over, aside)]
        out[own] = _up_to(seen[own]) | around[0] | around[1]
    return out


def _gated(config: GatedPixelCnnConfig) -> Iterator[Bits]:
    """The vertical stack, moved down, and the horizontal one; pixels, not channels."""
    v = _eye(int(np.prod(config.axes))).reshape(*config.axes, -1)
    h = None
    for layer in range(config.layers):
        reach = (config.kernel if layer else config.first_kernel) // 2
        v = _taps(v, range(reach + 1), range(-reach, reach + 1))
        own = _eye(v.shape[0] * v.shape[1]).reshape(v.shape) if h is None else h
        left = _taps(own, (0,), range(1 if h is None else 0, reach + 1))
        h = left | _moved(v, 1, 0)
        yield h


def _pixelcnnpp(config: PixelCnnPpConfig) -> Bits:
    """The U-net as a whole: its layers keep to three resolutions."""
    eye = _eye(int(np.prod(config.axes))).reshape(*config.axes, -1)
    u = _moved(_taps(eye, (0, 1), (-1, 0, 1)), 1, 0)
    ul = _moved(_taps(eye, (0,), (-1, 0, 1)), 1, 0) | _moved(_taps(eye, (0, 1), (0,)), 0, 1)
    both, around, left = (0, 1), (-1, 0, 1), (0, 1)
    kept: list[tuple[Bits, Bits]] = []
    for kind, _ in config.plan:
        if kind in ("pair", "halve"):
            kept.append((u, ul))
        if kind == "halve":
            u, ul = (_taps(s, both, t)[::2, ::2] for s, t in ((u, around), (ul, left)))
        elif kind == "double":
            u, ul = (_doubled(stream, sides) for stream, sides in ((u, (-1, 0, 1)), (ul, (0, 1))))
        else:
            more = kept.pop() if kind == "joined" else (np.zeros_like(u), np.zeros_like(ul))
            u = u | _taps(_taps(u, both, around) | more[0], both, around)
            ul = ul | _taps(_taps(ul, both, left) | u | more[1], both, left)
    return ul


def _doubled(seen: Bits, right: Sequence[int]) -> Bits:
    """A transposed convolution with stride 2: what a place says to two rows and some columns."""
    fine = np.zeros((2 * seen.shape[0], 2 * seen.shape[1], seen.shape[2]), np.uint64)
    fine[::2, ::2] = seen
    return _taps(fine, (0, 1), right)


def _blocks(config: BlocksConfig) -> Iterator[int]:
    """Pairs of pixels after each layer of the encoder, then of the decoder; all slices together."""
    assert len(config.axes) == 2
    pixels = int(np.prod(config.axes))
    eye, places = _eye(pixels), config.pixels()
    totals: list[list[int]] = []
    for number in range(config.slice_count):
        known = eye.copy()
        known[places[number:].ravel()] = 0
        grid = known.reshape(*config.axes, -1)
        assert config.kernel is not None
        high, wide = (range(-(side // 2), side // 2 + 1) for side in config.kernel)
        own = _taps(grid, high, wide).reshape(pixels, -1)[places[number]]
        first = eye[places[number]]
        states, taps = [], _before(config, first)
        for layer in range(config.encoder_layers):
            own = _in_blocks(config, layer, own, masked=False)
            states.append(own | taps)
        states += list(_slice_decoder(config, own, first))
        totals.append([_ones(state) for state in states])
    yield from map(sum, zip(*totals, strict=True))


def _before(config: BlocksConfig, own: Bits) -> Bits:
    """The masked convolution: the neighbours of a place that come before it."""
    grid = own.reshape(*config.slice_axes, -1)
    steps = [_moved(grid, -down, -right) for down, right in config.taps]
    return np.bitwise_or.reduce(steps).reshape(own.shape)


def _slice_decoder(config: BlocksConfig, told: Bits, own: Bits | None = None) -> Iterator[Bits]:
    """What a slice's places have seen after each masked layer; `told` is what the encoder saw."""
    seen = told | _before(config, _eye(config.positions) if own is None else own)
    for layer in range(config.layers):
        seen = _in_blocks(config, layer, seen, masked=True)
        yield seen


def _in_blocks(config: BlocksConfig, layer: int, seen: Bits, *, masked: bool) -> Bits:
    (rows, columns), (high, wide) = config.slice_axes, config.block(layer)
    cut = seen.reshape(rows // high, high, columns // wide, wide, -1).swapaxes(1, 2)
    blocks = cut.reshape(-1, high * wide, cut.shape[-1])
    blocks = _up_to(blocks, 1) if masked else _all(blocks, 1)
    return blocks.reshape(cut.shape).swapaxes(1, 2).reshape(seen.shape)


def settled(found: Sequence[float]) -> int:
    """The first layer from which on nothing is added, counted from 1."""
    steps = [after > before for before, after in pairwise(found)]
    return 1 + max((at + 1 for at, more in enumerate(steps) if more), default=0)
