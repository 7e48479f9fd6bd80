"""Models of the Hugging Face Hub by name: which files are fetched, and what is refused.

Of a repository only config.json and model.safetensors are read, at one commit, into the cache of
their library. How large the weights may be follows from the configuration; nothing is unpickled.
"""

import hashlib
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axial.checkpoints.hub_name import parse_name
from axial.checkpoints.tensors import MOST_HEADER, MOST_TEXT, read_json
from axial.errors import AxialError, CheckpointError, ConfigError
from axial.models.families import read_config
from axial.system.files import open_file
from axial.validation import shown

_COMMIT, _CONTENT = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_LARGE = 1 << 24
"""Bytes of a download that takes a while."""
_WIDEST = 8
"""Bytes of one weight, at most."""


def fetch(name: str) -> Path:
    """The folder in the library's cache that holds a model's two files, of one commit.

    Without a network, what was fetched before.
    """
    repository, revision = parse_name(name)
    hub = library(name)
    with errors_of_hub(name):
        config = _file(hub, repository, revision, "config.json", MOST_TEXT)
        most = _WIDEST * _parameters(config) + MOST_HEADER
        commit = config.parent.name  # the branch may have moved since
        return _file(hub, repository, commit, "model.safetensors", most).parent


def _parameters(config: Path) -> int:
    """How many weights the model has that a configuration describes."""
    try:
        found = read_json(config)
        if not isinstance(found.get("model"), dict):
            raise CheckpointError("it describes none")
        return read_config(found).parameters()
    except AxialError as error:
        raise CheckpointError(f"config.json is no model of axial ({error})") from error


def _metadata(hub: Any, url: str) -> Any:
    """What the Hub says of a file; None where it cannot be reached."""
    try:
        about = hub.get_hf_file_metadata(url)
    except (hub.errors.HfHubHTTPError, hub.errors.FileMetadataError):
        raise
    except (OSError, hub.errors.OfflineModeIsEnabled, *_unreachable()):
        return None
    if not _COMMIT.fullmatch(str(about.commit_hash)):
        raise CheckpointError(
            f"the Hub names {shown(about.commit_hash)} as the commit; do not trust it"
        )
    return about


def _unreachable() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError,)


def _file(hub: Any, repository: str, revision: str | None, file: str, most: int) -> Path:
    """One file in the cache, of no more bytes than `most` and with the content the Hub names."""
    url = hub.hf_hub_url(repository, file, revision=revision)
    about = _metadata(hub, url)
    if about is None:
        return Path(hub.hf_hub_download(repository, file, revision=revision, local_files_only=True))
    if not _CONTENT.fullmatch(str(about.etag)):
        raise CheckpointError(f"{file} has no hash as its ETag, but {shown(about.etag)}")
    if about.size is None or about.size > most:
        size = "of unknown size" if about.size is None else f"{about.size:,} bytes"
        raise CheckpointError(f"{file} is {size}, and may have {most:,}; do not trust it")
    here, there = urlsplit(url), urlsplit(about.location)
    if there.scheme != "https" and (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise CheckpointError(f"{file} leads to {shown(about.location)}; do not trust it")

    class Limit(hub.utils.tqdm):  # type: ignore[misc]
        """Ends a download that is longer than it was said to be; the library tells each part."""

        received = 0.0

        def update(self, n: float | None = 1) -> bool | None:
            self.received += n or 0
            if self.received > about.size:
                raise CheckpointError(f"{file} is longer than {about.size:,} bytes; try again")
            return None

    if about.size > _LARGE and not isinstance(
        hub.try_to_load_from_cache(repository, file, revision=about.commit_hash), str
    ):
        size = f"{about.size / 1e6:,.0f} MB"
        print(f"{repository}: fetching {file}, {size} ...", file=sys.stderr)
    path = Path(hub.hf_hub_download(repository, file, revision=revision, tqdm_class=Limit))
    if _hash(path, len(about.etag)) != about.etag:
        raise CheckpointError(f"{file} is not what the Hub names by {about.etag}; remove {path}")
    return path


def _hash(path: Path, length: int) -> str:
    """The name of a content: SHA-256 of large files, git's SHA-1 of others."""
    with open_file(path) as file:
        if length == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        data = file.read()
    head = f"blob {len(data)}\0".encode()
    return hashlib.sha1(head + data, usedforsecurity=False).hexdigest()


def library(name: str) -> Any:
    """huggingface_hub, quiet; or how to get it."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise CheckpointError(
            f"{name}: models on the Hub need a library; pip install axial-transformers[hf]"
        ) from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # not each new attempt
    hub: Any = huggingface_hub
    hub.utils.disable_progress_bars()
    return hub


@contextmanager
def errors_of_hub(name: str) -> Iterator[None]:
    """Say in one line what a library over a network, which can raise anything, gave up on."""
    try:
        yield
    except ConfigError:
        raise
    except CheckpointError as error:
        told = error.as_written
        raise CheckpointError(told if told.startswith(name) else f"{name}: {told}") from error
    except Exception as error:
        raise CheckpointError(f"{name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such model on the Hub, or it is private; `hf auth login` if it is yours"
    if isinstance(error, errors.RevisionNotFoundError):
        return "the Hub has this model, but not this revision"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the Hub cannot be reached, and the model was not fetched before"
    if isinstance(error, errors.EntryNotFoundError):
        return (
            "has no config.json and model.safetensors as `axial push` writes them; other weights, "
            "such as pickles, are never read"
        )
    text = shown(" ".join(str(error).split())[:200])
    return f"the Hub could not be used ({type(error).__name__}: {text}); try again"
