"""What it takes for a file to be there for good, and for others to be able to read it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axial.errors import DataError


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; what is written there takes its name whole or never.

    It may become a file, or a folder in place of none or an empty one.
    """
    scratch = path.with_name(f".{path.name}-unfinished")
    _remove(scratch)
    try:
        yield scratch
        flush(scratch)
        scratch.replace(path)
    finally:
        _remove(scratch)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    with replacing(path) as scratch:
        scratch.write_text(text)


@contextmanager
def errors_of(path: Path | str) -> Iterator[None]:
    """Say in one line what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def give_usual_mode(path: Path) -> None:
    """The permissions a new file or folder would have; temporary ones are their owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
