"""What can go wrong through a user's hand; anything else that is raised is a bug of ours."""

import re

_FLAG = re.compile(
    r"(?<![\w/.=-])--(no-)?([a-z][a-z0-9-]*)(?=( is )?)(?: (?=\d|/|[A-Z]\b|rgb\b|grey\b))?"
)


class AxialError(Exception):
    """Every error a user can cause: one line that says what, where, and what to do.

    Messages are written with the flags of the command line. As text, which is what a Python user
    sees, they name the arguments instead; in an f-string they stay as they are written.
    """

    def __str__(self) -> str:
        parts = self.as_written.split("`")  # what stands in backquotes is a command
        parts[::2] = [_FLAG.sub(_argument, part) for part in parts[::2]]
        return "`".join(parts)

    def __format__(self, spec: str) -> str:
        return format(self.as_written, spec)

    @property
    def as_written(self) -> str:
        """The message with flags, as the command line prints it."""
        return super().__str__()


def _argument(flag: re.Match[str]) -> str:
    """A flag as the argument of a call: --max-minutes is max_minutes=, --no-flip is flip=False."""
    name = flag[2].replace("-", "_")
    return name if flag[3] else f"{name}={'False' if flag[1] else ''}"


class ConfigError(AxialError):
    """A model or a request that cannot work, refused before anything is computed."""


class InputError(AxialError):
    """An array, label or context that does not fit the model it was given to."""


class CheckpointError(AxialError):
    """A folder of weights that is missing, damaged, or not what it claims to be."""


class DataError(AxialError):
    """A source, or a packed array, that is missing, damaged, or not what it claims to be."""


class StreamError(AxialError):
    """A compressed file that is damaged, of another model, or does not decode to its pixels."""


class TrainingError(AxialError):
    """A training run that cannot go on."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory gave out: numpy says so by a type, torch in words."""
    words = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(part in str(error) for part in words)
