"""What is answered when something cannot be done: a status, a kind, and one line."""

from typing import Any

from axial.errors import AxialError, is_out_of_memory
from axial.system.terminal import printable

RETRY_SECONDS = 5


class RequestError(Exception):
    """An error of a request; docs/studio.md lists the kinds."""

    def __init__(self, status: int, kind: str, message: str, *, retry: int | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry = status, kind, retry
        self.message = printable(" ".join(message.split()))

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"status": self.status, "kind": self.kind, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        """What goes with it."""
        return {} if self.retry is None else {"Retry-After": str(self.retry)}


def not_found(what: str) -> RequestError:
    """There is no such thing."""
    return RequestError(404, "not_found", what)


def bad_request(error: AxialError | str) -> RequestError:
    """A setting that cannot be met."""
    return RequestError(400, "bad_request", str(error))


def bad_upload(error: AxialError | str) -> RequestError:
    """A file that is not what it should be."""
    return RequestError(400, "bad_upload", str(error))


def failed(error: Exception) -> RequestError:
    """A model that failed at its work."""
    if is_out_of_memory(error):
        text = "not enough memory for this; ask for fewer or smaller ones"
    elif isinstance(error, AxialError):
        text = str(error)
    else:
        lines = str(error).splitlines() or [""]
        text = f"the model failed ({type(error).__name__}: {lines[0][:200]})"
    return RequestError(500, "failed", text)
