"""Whole numbers and names as bytes, and a cursor that reads them and never past the end."""

from axial.errors import StreamError

_LONGEST = 10


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(words: str) -> bytes:
    """A length and UTF-8."""
    data = words.encode()
    return varint(len(data)) + data


class Cursor:
    """A place in some bytes; what is not there is refused."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.left:
            raise StreamError(f"{count} bytes are wanted where {self.left} are left")
        self._place += count
        return self._data[self._place - count : self._place]

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self._place

    def rest(self) -> bytes:
        """All that follows."""
        return self.take(self.left)

    def varint(self) -> int:
        """The next number."""
        number = 0
        for i in range(_LONGEST):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                return number
        raise StreamError("a number is longer than any that is written")

    def count(self, what: str) -> int:
        """How many things follow, of which each takes at least a byte."""
        if (number := self.varint()) > self.left:
            raise StreamError(f"{number:,} {what} are promised in {self.left:,} bytes")
        return number

    def text(self) -> str:
        """The next words."""
        try:
            return self.take(self.count("bytes of a name")).decode()
        except UnicodeDecodeError as error:
            raise StreamError("a name is not UTF-8") from error
