"""TensorBoard's event files, written without TensorBoard: records of protocol buffer messages."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from axial.system.crc32c import masked_crc32c
from axial.system.protobuf import write_field


class EventFile:
    """A file that `tensorboard --logdir FOLDER` shows."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._write(write_field(3, b"brain.Event:2"))

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """One value for each curve."""
        values = b""
        for name, number in numbers.items():
            tag = write_field(1, name.encode())
            values += write_field(1, tag + write_field(2, struct.pack("<f", number), kind=5))
        self._write(write_field(2, step) + write_field(5, values))

    def picture(self, step: int, name: str, path: Path) -> None:
        """A PNG file."""
        with Image.open(path) as image_file:
            width, height = image_file.size
        image = write_field(1, height) + write_field(2, width) + write_field(3, 3)
        image += write_field(4, path.read_bytes())
        value = write_field(1, write_field(1, name.encode()) + write_field(4, image))
        self._write(write_field(2, step) + write_field(5, value))

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _write(self, message: bytes) -> None:
        data = write_field(1, struct.pack("<d", time.time()), kind=1) + message
        size = struct.pack("<Q", len(data))
        for part in (size, data):
            self._file.write(part + struct.pack("<I", masked_crc32c(part)))
        self._file.flush()
