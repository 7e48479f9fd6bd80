"""The entropy coder: what goes in comes out, and takes its information in bits."""

import math

import numpy as np
import pytest

from axial import StreamError
from axial.codec import rans

VALUES, STEPS, STREAMS = 7, 500, 3


def tables(seed=0):
    """Bounds (l, g, v + 1) of random shares, some of them certain, all but impossible or none."""
    random = np.random.default_rng(seed)
    values = random.integers(VALUES, size=(STEPS, STREAMS))
    none = random.random((STEPS, STREAMS, VALUES)) < 0.3
    np.put_along_axis(none, values[..., None], False, -1)
    parts = np.where(none, 0, random.gamma(0.1, size=none.shape) + 1e-9)
    shares = ~none + np.floor(parts / parts.sum(-1, keepdims=True) * (rans.WHOLE - VALUES))
    bounds = np.concatenate([np.zeros((STEPS, STREAMS, 1)), shares.cumsum(-1)], -1)
    bounds[bounds == bounds[..., -1:]] = rans.WHOLE
    return bounds.astype(np.uint64), values


def shares_of(bounds, values):
    begin = np.take_along_axis(bounds, values[..., None], -1)[..., 0]
    end = np.take_along_axis(bounds, values[..., None] + 1, -1)[..., 0]
    return begin, end - begin


def written(bounds, values, wanted, seals=(1, 2, 2**31 - 1)):
    start, frequency = shares_of(bounds, values)
    start = np.where(wanted, start, 0).astype(np.uint64)
    frequency = np.where(wanted, frequency, rans.WHOLE).astype(np.uint64)
    return rans.encode(start, frequency, seals), frequency


def test_streams_give_back_their_values_and_their_seals():
    bounds, values = tables()
    wanted = np.random.default_rng(1).random((STEPS, STREAMS)) < 0.8
    streams, _ = written(bounds, values, wanted)
    reader = rans.Reader(streams)
    for i in range(STEPS):
        found = reader.read(bounds[i], wanted[i])
        assert np.array_equal(found[wanted[i]], values[i][wanted[i]]), i
    assert reader.seals() == [1, 2, 2**31 - 1]


def test_a_stream_takes_its_information_and_at_most_eight_bytes():
    bounds, values = tables()
    streams, frequency = written(bounds, values, np.ones(values.shape, bool))
    information = -np.log2(frequency / rans.WHOLE).sum(0)
    for stream, bits in zip(streams, information, strict=True):
        assert bits + rans.SEAL_BITS - 1 < 8 * len(stream) < bits + 64 + 0.01 * bits / 100
        assert 8 * len(stream) >= math.floor(bits)


def test_what_is_certain_takes_no_bits():
    bounds, values = tables()
    streams, _ = written(bounds, values, np.zeros(values.shape, bool))
    assert [len(stream) for stream in streams] == [8] * STREAMS


@pytest.mark.parametrize(
    "damage",
    [lambda s: s[:-4], lambda s: s + bytes(4), lambda s: s[:-1], lambda s: s[:4], lambda s: b"",
     lambda s: bytes(8) + s[8:], lambda s: b"\xff" * 8 + s[8:]],
)  # fmt: skip
def test_streams_of_another_length_and_impossible_states_are_refused(damage):
    bounds, values = tables()
    whole = np.ones(values.shape, bool)
    (stream, *_), _ = written(bounds, values, whole)
    with pytest.raises(StreamError):
        reader = rans.Reader([damage(stream)])
        for i in range(STEPS):
            reader.read(bounds[i, :1], whole[i, :1])
        reader.seals()
