"""Files that appear whole or not at all, and folders that one process has to itself.

What is to take a name is made in a scratch folder beside it: a new one each time, locked for as
long as its process lives. Who next writes to the same name removes what the dead have left.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from axial.errors import DataError

UNFINISHED = ".*-unfinished-*"
"""Names of scratch folders."""
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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; what is written there takes its name whole or never.

    It may become a file, or a folder in place of none or an empty one. Another who writes to
    `path` meanwhile has a place of its own.
    """
    with scratch_folder(path) as folder:
        scratch = folder / "new"
        yield scratch
        settle(scratch)
        scratch.replace(path)
        flush(path.parent)


def settle(scratch: Path) -> None:
    """Bring a file, or a folder of files, to the disk, with the permissions that new ones have.

    Libraries that write through temporary files of their own keep them for their owner alone.
    """
    mask = os.umask(0)
    os.umask(mask)
    for part in (*(scratch.rglob("*") if scratch.is_dir() else ()), scratch):
        part.chmod((0o777 if part.is_dir() else 0o666) & ~mask)
        flush(part)


def commit(folder: Path, path: Path, *beside: Path, gone: Iterable[Path] = ()) -> None:
    """Give the files of a scratch folder their names: `path`, and with it those `beside` it.

    The coming of `path` is the one step. The others are pending before it, and in their places
    after it; old ones without a successor are then `gone`. They must tell whether they belong to
    a `path`, so that whoever comes after a process that died here takes the pending ones for
    those in place (`complete`), or forgets them, as the case is. The last one decides.
    """
    settle(folder)
    for other in beside:
        (folder / other.name).replace(pending(other))
    flush(path.parent)
    (folder / path.name).replace(path)
    flush(path.parent)
    complete(*beside, gone=gone)


def complete(*beside: Path, gone: Iterable[Path] = ()) -> None:
    """Put what is pending in its place."""
    for old in gone:
        old.unlink(missing_ok=True)
    for other in beside:
        with suppress(FileNotFoundError):
            pending(other).replace(other)
        flush(other.parent)


def pending(path: Path) -> Path:
    """What a file is called until the one that it belongs to is there."""
    return path.with_name(f"{path.name}.pending")


@contextmanager
def scratch_folder(
    path: Path, *, within: Path | None = None, alone: bool = False
) -> Iterator[Path]:
    """A new folder beside `path`, or `within` a folder, that goes in the end.

    With `alone` it is a BlockingIOError if another process has one for this path. Of two that
    come in the same instant, both may give way.
    """
    place = within or path.parent
    with ExitStack() as stack:
        while True:
            folder = place / f"{_mark(path)}{secrets.token_hex(4)}"
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            with suppress(FileNotFoundError, BlockingIOError):  # another took it for a dead one's
                stack.enter_context(locked(folder / LOCK))
                break
        if remove_dead(path, within=within, but=folder) and alone:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        yield folder


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for as long as a command runs; one that was killed loses its own to the next."""
    with scratch_folder(Path(tempfile.gettempdir()) / "axial") as folder:
        folder.chmod(0o700)
        yield folder


def remove_dead(path: Path, *, within: Path | None = None, but: Path | None = None) -> bool:
    """Remove the scratch folders of dead processes; whether a living one, not ours, has one."""
    place = within or path.parent
    every = place.iterdir() if place.is_dir() else ()
    ours = (folder for folder in every if folder.name.startswith(_mark(path)) and folder != but)
    return any([_lives(folder) for folder in ours])


def remove_all_dead(place: Path) -> None:
    """Remove the scratch folders of dead processes in a folder, whatever they were for."""
    for folder in place.glob(UNFINISHED):
        _lives(folder)


def _lives(folder: Path) -> bool:
    """Whether the process of a scratch folder lives; if not, the folder goes."""
    if not _is_folder(folder):
        return False
    try:
        with locked(folder / LOCK) as held:
            if held:
                shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return True
    except OSError:  # it is gone, or not ours to remove
        pass
    return False


def _mark(path: Path) -> str:
    """How the names of scratch folders begin."""
    return f".{path.name}-unfinished-"


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


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
def locked(path: Path) -> Iterator[bool]:
    """Hold a file, made if need be, against others; BlockingIOError where another holds it.

    The lock dies with its process. Its holder may move the file, or remove it: whoever opened
    it before that, and finds it free, looks again. False where the disk knows no locks.
    """
    while True:
        held = True
        # A link is refused: what it points to is not ours to make or to hold.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                held = False
            if _is_at(file.fileno(), path):
                yield held
                return


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Take away a file, a link or a whole folder, if it is there."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    with replacing(path) as scratch:
        scratch.write_text(text)


def resolved(path: Path | str) -> Path:
    """The path without links; one that leads round in a circle stays, for whoever opens it."""
    return Path(os.path.realpath(path))


def check_apart(path: Path, source: str) -> None:
    """Refuse, before any work is done, to replace a file that is read, or one in a folder that is.

    Even what axial made may be a source.
    """
    with errors_of(path):  # a name too long to be one
        own = resolved(path)
        if path.is_file() and resolved(source) in (own, *own.parents):
            raise DataError(f"{path}: is part of what is read; name another")


def check_place(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, to replace a file unasked, and as below."""
    with errors_of(path):  # a name too long to be one
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: exists, and is no file; choose another name")
        if path.exists() and not overwrite:
            raise DataError(f"{path}: exists already; choose another name, or add --overwrite")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a place where nothing can be written, by trying to."""
    with errors_of(path), scratch_folder(path):
        pass


def open_file(path: Path) -> BufferedReader:
    """Open a file to read; a pipe or a device is refused, and not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no file")
    return os.fdopen(descriptor, "rb")


def sha256(path: Path) -> str:
    """The hash of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def errors_of(path: Path | str) -> Iterator[None]:
    """Say in one line what the disk refuses."""
    try:
        yield
    except BlockingIOError as error:
        raise DataError(
            f"{path}: another process is writing it; wait for it, or choose another name"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
