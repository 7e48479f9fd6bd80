"""What it takes for a file to be there for good, and to be one process's alone."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from axial.errors import DataError

UNFINISHED = ".*-unfinished-*"
"""Names of what `replacing` writes to, to clean up after a process that died."""
LOCK = ".lock"
"""The file in a folder that whoever works there holds."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What some disks of clusters answer who asks for a lock."""


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """What is to become `path` is called so until then, beside it."""
    return path.parent / f".{path.name}-unfinished"  # even of /, which has no name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; what is written there takes its name whole or never.

    It may become a file, or a folder in place of none or an empty one. Another who writes to
    `path` meanwhile has a place of its own.
    """
    scratch = _own_place(path)
    try:
        yield scratch
        for part in (*(scratch.iterdir() if scratch.is_dir() else ()), scratch):
            give_usual_mode(part)
            flush(part)
        scratch.replace(path)
        flush(path.parent)
    finally:
        remove(scratch)


def _own_place(path: Path) -> Path:
    return unfinished(path).with_name(f"{unfinished(path).name}-{secrets.token_hex(4)}")


@contextmanager
def folders_above(path: Path) -> Iterator[None]:
    """Make the folders that a path needs; those in which nothing has come to lie go in the end."""
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file, made if need be, against others; BlockingIOError where another holds it.

    The lock dies with its process. Its holder may move the file, or remove it: whoever opened
    it before that, and finds it free, looks again. Where the disk knows no locks, nobody holds any.
    """
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            if _is_at(file.fileno(), path):
                yield
                return


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """A folder of our own, empty but for its lock, until we move it away, or leave and it goes.

    What a process that died has left in it is removed; BlockingIOError if that one lives.
    """
    folder.mkdir(exist_ok=True)
    with locked(folder / LOCK):
        lock = (folder / LOCK).stat()
        for left in folder.iterdir():
            if left.name != LOCK:
                remove(left)
        try:
            yield
        finally:
            # Once it was moved, a folder of this name is another's.
            with suppress(FileNotFoundError):
                if os.path.samestat(lock, (folder / LOCK).stat()):
                    shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Take away a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    with replacing(path) as scratch:
        scratch.write_text(text)


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a place where nothing can be written, by trying to."""
    scratch = _own_place(path)
    with errors_of(path):
        scratch.touch()
        scratch.unlink()


def check_apart(path: Path, source: str) -> None:
    """Refuse, before any work is done, to replace a file that is read, or one in a folder that is.

    Even what axial made may be a source.
    """
    with errors_of(path):  # a name too long to be one
        own = path.resolve()
        if path.is_file() and Path(source).resolve() in (own, *own.parents):
            raise DataError(f"{path}: is part of what is read; name another")


def check_place(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, to replace a file unasked, and as above."""
    with errors_of(path):  # a name too long to be one
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: exists, and is no file; choose another name")
        if path.exists() and not overwrite:
            raise DataError(f"{path}: exists already; choose another name, or add --overwrite")
    check_writable(path)


def record_path(path: Path) -> Path:
    """Where it stands how a file was drawn."""
    return path.with_name(f"{path.name}.json")


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
