import numpy as np
import pytest

import axial.system.crc32c
from axial.system.crc32c import crc32c, masked_crc32c


def crc32c_by_bits(data):
    """The definition: a register that reads one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "checksum"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_checksums(data, checksum):
    assert crc32c(data) == checksum


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 127, 128, 1000, 4097, 70_001])
def test_any_length_agrees_with_the_definition(length):
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == crc32c_by_bits(data)


def test_data_longer_than_a_chunk_agrees_too(monkeypatch):
    data = np.random.default_rng(0).bytes(10_007)
    for chunk in (1, 256, 1000, 10_006, 10_007):
        monkeypatch.setattr(axial.system.crc32c, "_CHUNK", chunk if chunk > 1 else 64)
        assert crc32c(data) == crc32c_by_bits(data)


def test_any_flipped_bit_is_noticed():
    data = bytearray(np.random.default_rng(0).bytes(300))
    whole = crc32c(bytes(data))
    for bit in range(0, 2400, 7):
        data[bit // 8] ^= 1 << bit % 8
        assert crc32c(bytes(data)) != whole
        data[bit // 8] ^= 1 << bit % 8


def test_masking_rotates_by_fifteen_and_adds():
    value = crc32c(b"axial")
    rotated = (value >> 15 | value << 17) & 0xFFFFFFFF
    assert masked_crc32c(b"axial") == (rotated + 0xA282EAD8) % (1 << 32)
