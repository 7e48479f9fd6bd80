"""Damage files of every kind that axial reads, and sort what becomes of them.

    python tools/fuzz.py --seed 0 --count 10000
    python tools/fuzz.py --kinds png tar.gz --count 500 --json table.json
    python tools/fuzz.py --case png:17 --keep /tmp/case        # one case again; its files are kept

Case n of a kind is the same on every machine: `png:17` names it. A case is read in a process of its
own, which may take 10 seconds of CPU time and 1 GB of memory more than before. Fails on tracebacks,
hangs and memory, and on other data where the format has a checksum. The kinds are those of
fuzz_kinds.py and fuzz_sources.py.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fuzz_sources  # noqa: F401 - adds its kinds
from fuzz_damage import damaged
from fuzz_kinds import KINDS

from axial.errors import AxialError

OUTCOMES = ("refused", "same", "other data", "traceback", "hang", "memory")
NEVER = ("traceback", "hang", "memory")
CPU_SECONDS, WALL_SECONDS, MEMORY = 10, 120, 1 << 30
_TOGETHER = 250
"""Cases that one process reads, should none of them end it."""

_LEGEND = "* has a checksum: other data is a failure, unless the damage is within right checksums"
_NO_MEMORY = re.compile("not enough memory|allocate", re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    """A kind of file and the number of the damage that is done to it; -1 is none."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def inside(self) -> bool:
        """Whether the damage is within right checksums, so that readers come to see it."""
        return self.number % 2 == 1 and KINDS[self.kind].inside is not None

    def damage(self, data: bytes) -> bytes:
        """The file that this case reads, of the valid one."""
        if self.number < 0:
            return data
        rng = random.Random(str(self))
        inside = KINDS[self.kind].inside
        if self.inside and inside is not None:
            return inside(data, lambda part: damaged(part, rng) if rng.random() < 0.5 else part)
        return damaged(data, rng)


@dataclass(frozen=True)
class Found:
    """What became of a case."""

    case: Case
    outcome: str
    detail: str = ""

    @property
    def fails(self) -> bool:
        """Whether this must not be."""
        protected = KINDS[self.case.kind].checksum and not self.case.inside
        return (self.outcome == "other data" and protected) or self.outcome in NEVER


class Corpus:
    """A valid file of each kind, and what is read from it."""

    def __init__(self, folder: Path, kinds: list[str]) -> None:
        os.environ["TZ"] = "UTC"
        time.tzset()
        self.folder, self.kinds = folder, kinds
        self.files: dict[str, Path] = {}
        self.data: dict[str, Any] = {}
        with patch("time.time", lambda: 1.6e9):  # which archives note: a case is always the same
            for kind in kinds:
                place = folder / "valid" / kind
                place.mkdir(parents=True)
                self.files[kind] = KINDS[kind].write(place).relative_to(place)

    def wanted(self, kind: str) -> Any:
        """What the valid file holds; read once in each process."""
        if kind not in self.data:
            self.data[kind] = self._read(kind, self.folder / "valid" / kind)
        return self.data[kind]

    def read(self, case: Case) -> Found:
        """Damage a copy of the valid file, and read it."""
        wanted = self.wanted(case.kind)
        place = self.folder / "cases" / str(case.number) / case.kind
        shutil.copytree(self.folder / "valid" / case.kind, place)
        file = place / self.files[case.kind]
        file.write_bytes(case.damage(file.read_bytes()))
        outcome, detail = self._sorted(case.kind, place, wanted, MEMORY)
        if outcome == "memory" and "Cannot allocate memory" in detail:
            # FFmpeg says so of sizes that it does not even try, however much there is.
            again = self._sorted(case.kind, place, wanted, 8 * MEMORY)
            outcome = "refused" if again == (outcome, detail) else outcome
        shutil.rmtree(place.parent)
        return Found(case, outcome, detail)

    def _sorted(self, kind: str, place: Path, wanted: Any, memory: int) -> tuple[str, str]:
        """Read a file within its limits: the outcome, and why."""
        before = sorted(place.rglob("*"))
        try:
            with _limits(memory):
                found = self._read(kind, place)
        except AxialError as error:
            if sorted(place.rglob("*")) != before:
                return "traceback", f"refused, but left files behind: {error}"
            if "\n" in str(error):
                return "traceback", f"more than one line: {error}"
            return ("memory" if _lacked_memory(error) else "refused"), str(error)
        except BaseException as error:
            return ("memory" if _lacked_memory(error) else "traceback"), _last_line(error)
        if found == wanted:
            return "same", ""
        return "other data", f"{_brief(found)} instead of {_brief(wanted)}"

    def _read(self, kind: str, place: Path) -> Any:
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            return KINDS[kind].read(place / self.files[kind], Path(scratch))


@contextmanager
def _limits(memory: int) -> Iterator[None]:
    """So much more memory than there is now; and CPU time, whose end is that of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether anything on the way to an error was a want of memory."""
    while error is not None:
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "axial" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:150]} ({where})"


def _brief(data: Any) -> str:
    text = repr(data)
    return text if len(text) < 60 else f"{text[:40]}...{abs(hash(text)) % 10**6:06}"


def _work(corpus: Corpus, cases: list[Case], pipe: Any) -> None:
    """Read cases one after another, and tell of each."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    for case in cases:
        try:
            corpus.wanted(case.kind)
        except Exception as error:
            pipe.send(Found(case, "traceback", f"the valid file: {_last_line(error)}"))
            continue
        pipe.send(None)  # the time of this case begins
        pipe.send(corpus.read(case))


def explore(corpus: Corpus, cases: list[Case]) -> Iterator[Found]:
    """What becomes of each case, in order; whatever it does to the process that reads it."""
    context = multiprocessing.get_context("fork")
    done = 0
    while done < len(cases):
        ours, theirs = context.Pipe(duplex=False)
        part = cases[done : done + _TOGETHER]
        process = context.Process(target=_work, args=(corpus, part, theirs), daemon=True)
        process.start()
        theirs.close()
        for case in part:
            found, ended = _next(case, ours, process)
            done += 1
            yield found
            if ended:
                break
        process.kill()
        process.join()
        ours.close()


def _next(case: Case, pipe: Any, process: Any) -> tuple[Found, bool]:
    """What becomes of a case, and whether that is the end of the process that reads it."""
    try:
        while pipe.poll(WALL_SECONDS):
            if (found := pipe.recv()) is not None:
                return found, False
        return Found(case, "hang", f"more than {WALL_SECONDS} s"), True
    except EOFError:
        process.join()
        return _ended(case, process.exitcode), True


def _ended(case: Case, code: int | None) -> Found:
    """What it means that a process ended while it read a case."""
    if code == -signal.SIGPROF:
        return Found(case, "hang", f"more than {CPU_SECONDS} s of CPU time")
    if code == -signal.SIGKILL:
        return Found(case, "memory", "killed")
    return Found(case, "traceback", f"the process ended with status {code}")


def table(found: list[Found]) -> dict[str, dict[str, int]]:
    """How many cases of each kind had each outcome."""
    counts: dict[str, dict[str, int]] = {}
    for one in found:
        row = counts.setdefault(one.case.kind, dict.fromkeys(OUTCOMES, 0))
        row[one.outcome] += 1
    return counts


def show(counts: dict[str, dict[str, int]]) -> str:
    """The table as text; a star marks kinds that have a checksum."""
    total = {name: sum(row[name] for row in counts.values()) for name in OUTCOMES}
    rows = [(f"{kind}{'*' * KINDS[kind].checksum}", row) for kind, row in counts.items()]
    lines = [f"{'kind':<20}" + "".join(f"{name:>12}" for name in OUTCOMES)]
    for name, row in [*rows, ("all", total)]:
        lines.append(f"{name:<20}" + "".join(f"{row[outcome]:>12,}" for outcome in OUTCOMES))
    return "\n".join(
        [
            *lines,
            _LEGEND,
        ]
    )


def main() -> None:
    """Run the cases that were asked for; exit status 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000, help="number of cases, over all kinds")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), help="default: all")
    parser.add_argument("--case", help="one case, as in png:17")
    parser.add_argument("--keep", type=Path, help="with --case: a folder for its files")
    parser.add_argument("--json", type=Path, help="write the table, and what failed, as JSON")
    parser.add_argument("--most", type=int, default=40, help="failures to name (default: 40)")
    parser.add_argument("--verbose", action="store_true", help="name every case")
    args = parser.parse_args()
    cases = [
        Case(kind, number)
        for number in range(args.seed, args.seed + args.count)
        for kind in (args.kinds or KINDS)
    ][: args.count]
    if args.case:
        kind, _, number = args.case.rpartition(":")
        cases = [Case(kind, int(number))]
    with tempfile.TemporaryDirectory(prefix="axial-fuzz-") as folder:
        corpus = Corpus(Path(folder), list(dict.fromkeys(case.kind for case in cases)))
        if args.keep:
            shutil.copytree(corpus.folder / "valid" / cases[0].kind, args.keep)
            file = args.keep / corpus.files[cases[0].kind]
            file.write_bytes(cases[0].damage(file.read_bytes()))
        found = list(explore(corpus, cases))
    failed = [one for one in found if one.fails]
    for one in found if args.case or args.verbose else failed[: args.most]:
        print(f"{one.case}  {one.outcome}: {one.detail}")
    print(show(table(found)))
    if args.json:
        told = [
            {"case": str(one.case), "outcome": one.outcome, "detail": one.detail} for one in failed
        ]
        args.json.write_text(json.dumps({"table": table(found), "failed": told}, indent=2) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
