"""Text that goes to a terminal: what it would obey is shown instead."""


def printable(text: object) -> str:
    """The text with control characters escaped: names of files and classes may hold any."""
    shown = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(text))
    return "".join(shown)
