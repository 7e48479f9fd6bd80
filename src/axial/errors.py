"""What can go wrong through a user's hand; anything else that is raised is a bug of ours."""


class AxialError(Exception):
    """Every error a user can cause: one line that says what, where, and what to do."""


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
