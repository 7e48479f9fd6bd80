"""The .axl file: what is damaged, promised in vain or leads out of its folder is refused."""

import io
import time
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from conftest import config, random_input, tiny_model

from axial import InputError, StreamError, compress, decompress
from axial.codec import codec as codec_module
from axial.codec.codec import Codec, Example
from axial.codec.container import MARK, VERSION, Contents, Entry, Group, read_contents
from axial.codec.group_reader import _read_near
from axial.codec.numbers import Cursor, varint

COLOUR = config((3, 4), channels=3, values=4)
CONTENTS = Contents(
    model="m",
    fingerprint=bytes(16),
    axes=(3, 4),
    channels=3,
    values=4,
    classes=0,
    lanes=2,
    entries=[Entry(name="a.png", grid=(3, 4))],
    groups=[Group(20, 1, 0)],
)


@pytest.fixture(scope="module")
def model():
    return tiny_model(COLOUR)


@pytest.fixture(scope="module")
def data(model):
    return compress(model, random_input(COLOUR, 5)[0].flatten(0, 1), lanes=2, overlap=1)


def file_of(contents, groups=b"\0" * 20):
    return io.BytesIO(MARK + bytes([VERSION]) + groups + contents.to_bytes())


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**40])
def test_numbers_come_back(number):
    cursor = Cursor(varint(number) + b"rest")
    assert cursor.varint() == number and cursor.rest() == b"rest"


def test_contents_come_back():
    many = replace(
        CONTENTS,
        classes=7,
        entries=[
            Entry(name="a/b ü.png", grid=(5, 9), one_plane=True, palette=b"\x80\0\x05\x80"),
            Entry(name="c.png", grid=(3, 4), palette=bytes(range(12))),
            Entry(name="x.npy", grid=(3, 4), count=9, array=True, about='{"a": 1}'),
            Entry(name="", grid=(1, 1), array=True, alone=True),
        ],
        groups=[Group(20, 2, 2**32 - 1), *[Group(9, 2, 5)] * 5, Group(9, 1, 5)],
        overlap=1,
        span=2,
    )
    assert read_contents(file_of(many, bytes(20 + 6 * 9))) == many


def test_names_of_letters_that_are_newer_than_this_python_are_names():
    """A file would else be read by one version of Python and not by another."""
    newer, joined = "\U000e1000.png", "\U0001f468\u200d\U0001f469.png"
    found = replace(CONTENTS, entries=[Entry(name=n, grid=(1, 1)) for n in (newer, joined)])
    found.groups = [Group(20, 2, 0)]
    assert read_contents(file_of(found)) == found


def test_what_no_reader_takes_is_not_written():
    names = [Entry(name=f"{i:01000000}", grid=(3, 4)) for i in range(70)]
    with pytest.raises(InputError, match="several files"):
        replace(CONTENTS, entries=names).to_bytes()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"groups": [Group(10, 1, 0)] * 2}, "1 regions in 2 groups"),
        ({"groups": [Group(20, 0, 0)]}, "1 regions in 1 groups"),
        ({"groups": [Group(21, 1, 0)]}, "do not fill"),
        ({"span": 0}, "regions of 0 tiles"),
        ({"span": 9}, "regions of 9 tiles"),
        ({"overlap": 3, "span": 2}, "overlap by 3"),
        ({"overlap": 1}, "regions of 1 tiles that overlap by 1"),
        ({"span": 2}, "regions of 2 tiles that overlap by 0"),
        ({"lanes": 2732}, "groups of 2,732"),
        ({"entries": [Entry(name="a", grid=(3, 4), count=2, array=True, alone=True)]}, "2 exam"),
        ({"entries": [], "groups": []}, "no entries"),
        ({"entries": [Entry(name="a", grid=(3, 4), count=0, array=True)], "groups": []}, "0 exam"),
        ({"lanes": 0}, "groups of 0"),
        ({"lanes": 10**9}, "groups of 1,000,000,000"),
        ({"axes": (10**9, 1)}, "tiles of 1000000000"),
        ({"axes": (0, 4)}, "tiles of 0"),
        ({"values": 1}, "1 values"),
        ({"values": 10**6}, "1,000,000 values"),
        ({"classes": 10**9}, "classes"),
        ({"entries": [Entry(name="a", grid=(0, 4))]}, "0 x 4"),
        ({"entries": [Entry(name="a", grid=(10**9, 10**9))]}, "1000000000 x"),
        ({"entries": [Entry(name="a", grid=(3, 4), count=10**12, array=True)]}, "1,000,000"),
        ({"entries": [Entry(name="a", grid=(3, 4), count=2)]}, "2 examples"),
        ({"entries": [Entry(name="a", grid=(3, 4))] * 2}, "two entries"),
        ({"entries": [Entry(name="a", grid=(3, 4), palette=b"\0" * 8 + b"\x80" * 4)]}, "no value"),
        ({"entries": [Entry(name="a", grid=(3, 4), palette=b"x")]}, "12 bytes are wanted"),
        ({"values": 257, "entries": [Entry(name="a", grid=(3, 4), palette=b"x" * 771)]}, "of 257"),
        ({"channels": 2**60, "entries": [Entry(name="a", grid=(3, 4), palette=b"x")]}, "wanted"),
        ({"values": 1, "entries": [Entry(name="a", grid=(3, 4), palette=b"x")]}, "palette of 1 v"),
        ({"values": 0, "entries": [Entry(name="a", grid=(3, 4), palette=b"x")]}, "palette of 0 v"),
        ({"entries": [Entry(name=n, grid=(3, 4)) for n in ("a", "a/b")]}, "no folder"),
        *(
            ({"entries": [Entry(name=name, grid=(3, 4))]}, "no path inside")
            for name in (
                "../a", "/a", ".", "a/../../b", "a//b", "./a", "a\0b", "a\nb", "a\\b", "\x1b[J",
            )
        ),
    ],
)  # fmt: skip
def test_what_a_file_cannot_hold_is_refused_before_anything_is_made(change, words):
    with pytest.raises(StreamError, match=words):
        read_contents(file_of(replace(CONTENTS, **change)))


def test_a_promise_of_more_entries_or_groups_than_bytes_is_refused():
    plain = zlib.decompress(CONTENTS.to_bytes()[1:-8]) if CONTENTS.to_bytes()[0] else None
    plain = plain or CONTENTS.to_bytes()[1:-8]
    before = plain.index(b"\x05a.png") - 2
    for wrong in (
        plain[:before] + varint(10**12) + plain[before + 1 :],
        plain[:-6] + varint(10**12) + plain[-5:],
        plain + b"\0",
        plain[:-1],
    ):
        contents = b"\0" + wrong
        tail = len(contents).to_bytes(4, "little") + zlib.crc32(contents).to_bytes(4, "little")
        with pytest.raises(StreamError, match="damaged"):
            read_contents(io.BytesIO(MARK + bytes([VERSION]) + bytes(20) + contents + tail))


def deflated(contents, groups=b""):
    """A file whose contents are a zlib stream, well-formed or not."""
    contents = b"\x01" + zlib.compress(contents)
    tail = len(contents).to_bytes(4, "little") + zlib.crc32(contents).to_bytes(4, "little")
    return io.BytesIO(MARK + bytes([VERSION]) + groups + contents + tail)


def test_contents_that_inflate_without_end_are_refused():
    with pytest.raises(StreamError, match="do not inflate"):
        read_contents(deflated(bytes(1 << 29)))


@pytest.mark.parametrize("what", ["entries", "groups"])
def test_a_few_bytes_do_not_inflate_to_millions_of_entries_or_groups(what):
    """Refused at the first that cannot be, not when all of them are there."""
    many = 1 << 20
    head = b"\1m" + bytes(16) + bytes([2, 3, 4, 3, 4, 0, 2, 0, 1])
    entry = b"\1\0\1\3\4\0"
    if what == "entries":
        plain = head + varint(many) + entry * many + varint(0)
    else:
        plain = head + varint(1) + entry + varint(many) + bytes(6 * many)
    file = deflated(plain, bytes(20))
    tracemalloc.start()
    with pytest.raises(StreamError, match=r"two entries|groups"):
        read_contents(file)
    assert tracemalloc.get_traced_memory()[1] < 8 * len(plain)
    tracemalloc.stop()


def test_another_version_and_another_kind_of_file_are_told_apart(data):
    for other in (VERSION - 1, VERSION + 1):
        with pytest.raises(StreamError, match=f"has version {other}, .* reads {VERSION}"):
            read_contents(io.BytesIO(MARK + bytes([other]) + data[5:]))
    for other in (b"", b"AX", b"\x89PNG\r\n\x1a\n" + bytes(40)):
        with pytest.raises(StreamError, match=r"is no \.axl file"):
            read_contents(io.BytesIO(other))


def damaged(data, random):
    """A bit that is flipped, bytes that are gone, or others that have come."""
    place, count = int(random.integers(len(data))), int(random.integers(1, 9))
    kind = random.integers(4)
    if kind == 0:
        return (
            data[:place] + bytes([data[place] ^ 1 << int(random.integers(8))]) + data[place + 1 :]
        )
    if kind == 1:
        return data[:place] + data[place + count :]
    if kind == 2:
        return data[:place] + random.bytes(count) + data[place:]
    return data[:place]


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_file_is_refused_in_one_line_or_decodes_to_the_same(model, data, seed):
    random, x = np.random.default_rng(seed), decompress(model, data)
    codec = Codec(model)
    for _ in range(200):
        file, start = io.BytesIO(damaged(data, random)), time.process_time()
        try:
            found = [e.x for _, e in codec.read(file, read_contents(file))]
            assert np.array_equal(np.stack(found), x.numpy())
        except StreamError as error:
            assert "\n" not in str(error)
        assert time.process_time() - start < 5


def test_damage_within_right_checksums_is_caught_by_the_seal_of_the_pixels(model, data):
    """As a decoder would be that computes other logits."""
    contents, random, codec = (
        read_contents(io.BytesIO(data)),
        np.random.default_rng(0),
        Codec(model),
    )
    first = data[5 : 5 + contents.groups[0][0]]
    refused = 0
    places = range(1, len(first), 3)
    for place in places:
        group = bytearray(first)
        group[place] ^= 1 << int(random.integers(8))
        checksum = zlib.crc32(bytes(group))
        changed = [contents.groups[0]._replace(checksum=checksum), *contents.groups[1:]]
        rest = data[5 + len(group) : 5 + sum(found.length for found in contents.groups)]
        file = file_of(replace(contents, groups=changed), bytes(group) + rest)
        with pytest.raises(StreamError, match=r"stream|pixels|border"):
            list(codec.read(file, read_contents(file)))
        refused += 1
    assert refused == len(places)


def test_a_group_of_several_regions_holds_no_more_tiles_than_lanes(model):
    entries = [Entry(name=f"{i}", grid=(7, 13)) for i in range(2)]  # of 3 x 4 tiles each
    found = replace(CONTENTS, overlap=1, span=8, entries=entries, groups=[Group(20, 2, 0)])
    found.fingerprint = Codec(model).fingerprint
    for lanes, words in ((23, "too many tiles"), (24, "stream")):
        file = file_of(replace(found, lanes=lanes, groups=[Group(20, 2, zlib.crc32(bytes(20)))]))
        with pytest.raises(StreamError, match=words):
            list(Codec(model).read(file, read_contents(file)))
    many = [Entry(name=f"{i}", grid=(7, 13)) for i in range(6)]  # 72 tiles, where 64 may be
    with pytest.raises(StreamError, match="72 tiles in 1 groups"):
        read_contents(file_of(replace(found, entries=many, lanes=6, groups=[Group(20, 6, 0)])))


def test_notes_out_of_order_are_refused():
    whole = varint(2) + varint(5) + varint(2) + varint(0) + varint(4)
    assert _read_near(Cursor(whole), 9, 4) == {5: [(1, 0), (2, 0)]}
    for wrong in (varint(2), varint(3), varint(0)):  # the same, the other way, one before
        with pytest.raises(StreamError, match="out of order"):
            _read_near(Cursor(whole[:-1] + wrong), 9, 4)


def test_what_does_not_fit_memory_is_refused(model, monkeypatch):
    def full(*_):
        raise MemoryError

    x = random_input(COLOUR, 1)[0]
    data = compress(model, x)
    monkeypatch.setattr(codec_module.np, "empty", full)
    with pytest.raises(StreamError, match="3 x 4 x 3, too large for memory"):
        decompress(model, data)


def test_one_entry_is_read_without_the_others(model):
    codec, file = Codec(model, lanes=2), io.BytesIO()
    random = np.random.default_rng(0)
    pictures = {f"{i}.png": random.integers(4, size=(2 + i, 5, 3)) for i in range(6)}
    codec.write(
        file,
        codec.contents(),
        ((Entry(name=n, grid=x.shape[:2]), [Example(x)]) for n, x in pictures.items()),
    )
    contents, done = read_contents(file), []
    for i, x in enumerate(pictures.values()):
        ((_, example),) = codec.read(file, contents, [i], progress=done.append)
        assert np.array_equal(example.x, x)
    assert max(done) <= 6 < sum(map(contents.tiles_of, contents.entries))
    broken = bytearray(file.getvalue())
    broken[5] ^= 255  # in the first group, which the last entry has no part in
    damaged = io.BytesIO(bytes(broken))
    ((_, example),) = codec.read(damaged, read_contents(damaged), [5])
    assert np.array_equal(example.x, pictures["5.png"])
