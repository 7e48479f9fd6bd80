"""What was refused among many, counted by reason: any number of refusals in a few lines."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from axial.errors import AxialError

_MOST_REASONS, _MOST_OTHERS = 512, 7
"""How many are kept, and how many names for each."""
_TOLD, _IN_LINE = 5, 4
"""How many reasons are told, and told in one line."""
_LONGEST = 500
"""Letters of a reason."""
_PARTICULAR = re.compile(r"\(.*\)|\d[\d,.]*")


@dataclass
class Reason:
    """Why something was refused, and how often."""

    where: str
    """What it happened to first."""
    why: str
    """What was said then."""
    count: int = 1
    others: list[str] = field(default_factory=list)
    """The next few that it happened to."""


class Refusals:
    """Counts refusals by what they say but for names, numbers and what is in brackets.

    In bounded memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""
        """What was said of the very first."""
        self._reasons: dict[str, Reason] = {}

    def add(self, error: AxialError, where: str = "") -> None:
        """Count a refusal of `where`, by which the message begins; else of all before a colon."""
        text = error.as_written
        if not where or not text.startswith(where):
            where = text.partition(": ")[0]
        self.count += 1
        self.first = self.first or text
        why = text.removeprefix(where)[:_LONGEST]
        key = _PARTICULAR.sub("#", why)
        if (reason := self._reasons.get(key)) is not None:
            reason.count += 1
            reason.others += [where] if len(reason.others) < _MOST_OTHERS else []
        elif len(self._reasons) < _MOST_REASONS:
            self._reasons[key] = Reason(where, why)

    def by_count(self) -> list[Reason]:
        """The reasons, the most frequent first; of hundreds only those that came up first."""
        return sorted(self._reasons.values(), key=lambda reason: -reason.count)

    def notes(self, source: str) -> list[str]:
        """A line for each of the most frequent reasons that records of a source were skipped for.

        They stay with the data: places are told from the source on.
        """
        told, left = [], self.count
        for reason in self.by_count()[:_TOLD]:
            left -= reason.count
            first = ", the first" * (reason.count > 1)
            text = _from(Path(source), f"{reason.where}{reason.why}")
            told.append(f"{reason.count:,} skipped{first}: {text}")
        return [*told, f"{left:,} skipped for other reasons"] if left else told

    def in_one_line(self) -> str:
        """The most frequent reasons, and some names of those that each of them is true of."""
        told, left = [], self.count
        for reason in self.by_count()[:_IN_LINE]:
            left -= reason.count
            more = reason.count - 1 - len(reason.others)
            names = ", ".join(reason.others) + f" and {more:,} more" * (more > 0)
            also = f" (also {names})" if names else ""
            told.append(reason.where + reason.why.replace("; ", ", ") + also)
        return "; ".join([*told, f"and {left:,} more"] if left else told)


def _from(source: Path, text: str) -> str:
    """A text without the folders that lead to a source, or into it if it is one."""
    for folder in (source, source.parent):
        if folder.name:  # neither where we are nor the root
            text = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}/", "", text)
    return text
