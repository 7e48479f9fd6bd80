"""The shell commands of README and docs: found, and made small enough to be replayed.

Every indented block of a page is a shell block: a command on each line, which a backslash continues
and `#` comments; where commands begin with `$`, the lines between them are what they print.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("src/axial/checkpoints/shipped/*/*.md")),
]

SMALLER = {
    "--size": {"32": "4", "64": "2"},
    "--keep": {"16": "2"},
    "--count": {"64": "2", "1024": "2"},
    "--particles": {"16": "2"},
    "--frames": {"60": "20"},
    "--port": {"8000": "0"},
    "--crop": {"32": "4"},
}
"""Values for pictures of 4 x 4 and clips of 2 x 2, by flag and the value on the page."""
_MINUTES = "0.002"
"""However long a page trains."""
_TINY = "--batch 4 --width 16 --heads 2 --validate-every 2 --device cpu"
APPENDED = {
    "train": f"--steps 2 {_TINY}",
    "train photos": f"--steps 2 --crop 4 {_TINY}",
    "train --resume": "--steps 3 --device cpu",
    "studio": "--port 0 --device cpu",
} | dict.fromkeys(("sample", "complete", "evaluate", "compress", "decompress"), "--device cpu")
"""What is added to a command of axial."""


@dataclass(frozen=True)
class Command:
    """A command of a page, and the lines that the page shows as its output."""

    text: str
    output: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def axial(self) -> list[str] | None:
        """The small arguments of axial, also of a command that would run it on many ranks."""
        words = self.words
        if words[0] == "torchrun":
            words = words[words.index("-m") + 1 :]
        if words[0] != "axial":
            return None
        pairs = zip(["", *words], words, strict=False)
        small = [smaller(flag, word) for flag, word in pairs][1:]
        kind = " ".join(small[:2]) if " ".join(small[:2]) in APPENDED else small[0]
        added = APPENDED.get(kind, "").split()
        return [*small, *(added[2:] if "--max-minutes" in small else added)]  # which have no steps


def smaller(flag: str, word: str) -> str:
    """The word that stands for one of a page, after a flag."""
    return _MINUTES if flag == "--max-minutes" else SMALLER.get(flag, {}).get(word, word)


def blocks(text: str) -> list[list[Command]]:
    """The shell blocks of a page."""
    plain = re.sub(r"(?ms)^```.*?^```$", "", text)
    found = re.findall(r"(?m)(?:^\n)((?:^    .*\n(?:\n(?=    ))?)+)", plain)
    return [commands(block) for block in found]


def commands(block: str) -> list[Command]:
    """The commands of a block."""
    text = re.sub(r"(?m)^    ", "", block).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    if not any(line.startswith("$ ") for line in lines):
        return [Command(line) for line in lines]
    found: list[Command] = []
    for line in lines:
        if line.startswith("$ "):
            found.append(Command(line.removeprefix("$ ")))
        else:
            found[-1] = Command(found[-1].text, (*found[-1].output, line))
    return found


def unknown_flags(script: str, arguments: str) -> list[str]:
    """The flags among some arguments that a script of this repository does not name."""
    flags = re.findall(r"--([a-z][a-z-]*)", arguments)
    text = (ROOT / script).read_text()
    return [flag for flag in flags if not re.search(rf"\b{flag.replace('-', '_')}\b", text)]
