"""The Castagnoli checksum that TensorFlow's files carry, fast in numpy alone.

A checksum register is linear over GF(2) in what it has read. So many stretches of the data
are read side by side, one byte of each at a time, and joined afterwards: to put a stretch
behind another is to multiply the first register by a power of x, a 32 x 32 bit matrix.
"""

import functools

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LANES = 1 << 13
_CHUNK = 1 << 23

_Words = NDArray[np.uint32]


def crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """Checksum of all bytes of `data`."""
    values = np.frombuffer(data, np.uint8)
    register = np.array([0xFFFFFFFF], np.uint32)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        register = _apply(_shift_by(len(chunk)), register) ^ _read(chunk)
    return int(register[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """The checksum as TensorFlow stores it beside the data it covers: rotated and offset."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _read(values: NDArray[np.uint8]) -> _Words:
    """The register, one word, that starts at zero and has read `values`."""
    lanes = min(_LANES, 1 << max(0, (len(values) // 64).bit_length() - 1))
    length = 2 * -(-len(values) // (2 * lanes))
    # Zeros in front leave a zero register as it is, so all stretches can be equally long.
    padded = np.zeros(lanes * length, np.uint8)
    padded[lanes * length - len(values) :] = values
    pairs = np.ascontiguousarray(padded.view("<u2").reshape(lanes, length // 2).T)
    register = np.zeros(lanes, np.uint32)
    for pair in pairs:
        register = _PAIR_TABLE[(register ^ pair) & 0xFFFF] ^ (register >> 16)

    shift = _shift_by(length)
    while len(register) > 1:
        register = _apply(shift, register[0::2]) ^ register[1::2]
        shift = _apply(shift, shift)
    return register


def _apply(matrix: _Words, registers: _Words) -> _Words:
    """Multiply each register by a matrix of 32 columns."""
    out = np.zeros_like(registers)
    for bit, column in enumerate(matrix):
        out ^= np.where((registers >> bit) & 1, column, np.uint32(0))
    return out


@functools.lru_cache(maxsize=64)
def _shift_by(length: int) -> _Words:
    """The matrix that reads `length` zero bytes."""
    power, matrix = _ONE_BYTE, _IDENTITY
    while length:
        if length & 1:
            matrix = _apply(power, matrix)
        power = _apply(power, power)
        length >>= 1
    return matrix


def _read_bits(registers: _Words, bits: int) -> _Words:
    for _ in range(bits):
        odd = np.where(registers & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
        registers = (registers >> np.uint32(1)) ^ odd
    return registers


_IDENTITY: _Words = np.left_shift(1, np.arange(32)).astype(np.uint32)
_ONE_BYTE = _read_bits(_IDENTITY, 8)
_PAIR_TABLE = _read_bits(np.arange(1 << 16, dtype=np.uint32), 16)
