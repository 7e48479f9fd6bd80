"""The folder of a training run: what it is, its checkpoints, its log; nothing in it is pickled.

    run.json                    what is trained, on what, how: written before the first step, and
                                again only where the run is lengthened
    log.jsonl                   one JSON object a line
    checkpoints/step-00000500/  everything needed to resume: training.safetensors, state.json
    model.safetensors, config.json   the best EMA weights so far, as `axial.save` writes them

A checkpoint appears in one step, complete and on the disk, or not at all.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from axial.checkpoints.tensors import (
    COPY,
    check_format,
    hash_tensors,
    is_there,
    is_utf8,
    open_part,
    read_json,
    read_tensors,
)
from axial.errors import CheckpointError, ConfigError
from axial.system.files import LOCK, locked, remove, remove_all_dead, replacing, write_text
from axial.validation import shown

FORMAT = 1
"""The newest layout of the folder this version reads, and the one it writes."""
_RUN, _LOG = "run.json", "log.jsonl"
_LONGEST_LINE, _MOST_STEPS = 1 << 20, 1 << 31
_TENSORS, _STATE = "training.safetensors", "state.json"
_LIMITS = {"steps", "max_minutes"}
_NONE = type(None)
_PARTS: dict[str, dict[str, tuple[type, ...]]] = {
    "": {"preset": (str,), "model": (dict,), "training": (dict,), "data": (dict,)},
    "training": {"save_every": (int,)},
    "data": {"title": (str,), "file": (str,), "examples": (int,), "reading": (dict,)},
}
_PARTS[""]["init"] = (dict, _NONE)
_PARTS["data"] |= {"stack_frames": (bool,), "sha256": (str,), "labels": (str, _NONE)}
"""What run.json must say, and of which type; parts that came later are checked where they are."""
_CROPS = ("trained", "held_out", "held_out_pictures", "too_small")
"""What run.json says of crops, if the run is trained on some."""


class Run:
    """An opened run folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.exists(folder):
            raise CheckpointError(
                f"{folder}: holds no training run; `axial train PRESET --out {folder}` starts one"
            )
        self.about = read_json(self.folder / _RUN)
        check_format(self.folder / _RUN, self.about.get("format"), FORMAT)
        if (wrong := self._wrong()) is not None:
            raise CheckpointError(f"{self.folder / _RUN}: damaged, {wrong}; {COPY}")
        self._started_with = self.about["training"]
        for longer in self.about.get("lengthened", []):
            limits = {name: longer[name] for name in longer.keys() & _LIMITS}
            self.about["training"] = self.about["training"] | limits

    def _wrong(self) -> str | None:
        """What no run says of itself, if this one does."""
        mark = self.about.pop("checksum", None)  # older runs have none
        for part, kinds in _PARTS.items():
            values = self.about[part] if part else self.about
            for name, kind in kinds.items():
                if name not in values or type(values[name]) not in kind:
                    return f"for {name!r} is {shown(values.get(name, 'missing'))}"
        source, names = (self.about["data"].get(name) for name in ("source", "names"))
        if type(source) not in (str, _NONE):
            return f"for its source is {shown(source)}"
        if names is not None:
            text = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not text or len(set(names)) < len(names):
                return "for the names of its classes are not texts that all differ"
        crop, crops = self.about["training"].get("crop"), self.about["data"].get("crops")
        if (crop is None) != (crops is None) or not isinstance(crop, list | _NONE):
            return f"for the size of its crops is {shown(crop)}"
        if crops is not None and not (
            isinstance(crops, dict)
            and all(type(crops.get(name)) is int for name in _CROPS)
            and crops["trained"] > 0
        ):
            return f"for its crops is {shown(crops)}"
        longer = self.about.get("lengthened", [])
        if not isinstance(longer, list) or not all(isinstance(one, dict) for one in longer):
            return f"for how it was lengthened is {shown(longer)}"
        return None if mark in (None, _checksum(self.about)) else "as its checksum is wrong"

    def lengthen(self, step: int, **limits: float) -> None:
        """Set the end of the run anew, `steps` or `max_minutes`, when so many steps were done.

        Checkpoints go by what the run was started with, so that those that are there stay its own.
        """
        self.about.setdefault("lengthened", []).append({"at": step, **limits})
        write_run(self.folder, self.about | {"training": self._started_with})
        self.about["training"] = self.about["training"] | limits

    @staticmethod
    def exists(folder: Path | str) -> bool:
        """Whether there is a run in the folder."""
        return is_there(Path(folder) / _RUN)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from training in this folder; the lock dies with its process."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder / LOCK))
            except BlockingIOError as error:
                raise ConfigError(
                    f"{self.folder}: another process is training here; wait for it, or stop it"
                ) from error
            yield

    def checkpoints(self) -> list[Path]:
        """All checkpoints, the oldest first."""
        place = self.folder / "checkpoints"
        try:
            found = [path for path in place.iterdir() if path.name.startswith("step-")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{place}: cannot be read ({error.strerror})") from error
        steps = {int(number): path for path in found if (number := path.name[5:]).isdecimal()}
        return [steps[step] for step in sorted(steps)]

    def save(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, keep: int
    ) -> None:
        """Write a checkpoint whole or not at all, then drop all but the last `keep`."""
        self.check_there()
        place = self.folder / "checkpoints"
        final = place / f"step-{step:08d}"
        about = {"format": FORMAT, "run": self._identity, "step": step, **state}
        about["hash"] = hash_tensors(tensors, json.dumps(about, sort_keys=True))
        try:
            place.mkdir(exist_ok=True)  # and no more: the run's own folder must be there
            with replacing(final) as scratch:
                scratch.mkdir()
                save_file(dict(tensors), scratch / _TENSORS)
                (scratch / _STATE).write_text(json.dumps(about, indent=2) + "\n")
                if final.exists():
                    _remove(final)
            for old in self.checkpoints()[:-keep]:
                _remove(old)
        except (OSError, SafetensorError) as error:
            raise self.unwritable(final, error) from error

    def unwritable(self, path: Path, error: BaseException) -> CheckpointError:
        """What to say where the disk refuses: which file, and what is left to resume from."""
        self.check_there()
        kept = self.checkpoints()
        left = f"{kept[-1].name} is whole" if kept else "there is no checkpoint before it"
        reason = getattr(error, "strerror", None) or error
        return CheckpointError(
            f"{path}: cannot be written ({reason}); {left}, `axial train --resume {self.folder}` "
            f"resumes from there"
        )

    def check_there(self) -> None:
        """Refuse to write to a run that someone has moved or removed."""
        if not self.exists(self.folder):
            raise CheckpointError(
                f"{self.folder}: was moved or removed while it was trained; resume it with "
                f"`axial train --resume` where it is now"
            )

    @property
    def _identity(self) -> str:
        """What a checkpoint must belong to: the model, its training, its start and its data."""
        parts = [self.about["model"], self._started_with, self.about["init"]]
        data = self.about["data"]
        parts += [data[name] for name in ("sha256", "labels", "stack_frames")]
        parts += [data["sizes"]] if data.get("sizes") else []
        return _checksum(parts)

    def newest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """State and tensors of the last checkpoint, checked; None if there is none yet."""
        folders = self.checkpoints()
        if folders:
            return self.read(folders[-1])
        done = max((record["step"] for record in self.log()), default=0)
        # Where a second one was started, the first had been written.
        if done > 2 * self.about["training"]["save_every"] or is_there(self.folder / "samples.png"):
            raise CheckpointError(
                f"{self.folder / 'checkpoints'}: holds none, after {done:,} steps; put them back, "
                f"or start a new run with --init {self.folder}"
            )
        return None

    def read(self, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """State and tensors of one checkpoint; refused unless they are as they were written."""
        undo = f"start a new run, with --init {self.folder} if it has a model"
        if folder != self.checkpoints()[0]:
            undo = f"remove {folder} to resume from the checkpoint before it"
        state = read_json(folder / _STATE, undo=undo)
        check_format(folder / _STATE, state.get("format"), FORMAT, undo=undo)
        tensors, _ = read_tensors(folder / _TENSORS, undo=undo)
        kept = {name: value for name, value in state.items() if name != "hash"}
        if state.get("hash") != hash_tensors(tensors, json.dumps(kept, sort_keys=True)):
            raise CheckpointError(f"{folder}: was changed since it was written; {undo}")
        if state.get("run") != self._identity:
            raise CheckpointError(
                f"{folder}: belongs to another run, or {_RUN} was changed since; {undo}"
            )
        # Runs that were started before the EMA was called so.
        tensors = {re.sub("^average/", "ema/", name): value for name, value in tensors.items()}
        return state, tensors

    def clean(self) -> None:
        """Remove what a process that died has left half done."""
        for place in (self.folder, self.folder / "checkpoints"):
            remove_all_dead(place)
            for left in place.glob(".removing-*"):
                with suppress(OSError):
                    remove(left)

    def remove(self) -> None:
        """Take the whole run away; a folder that cannot go, as a mount, is left empty."""
        with suppress(OSError):
            for part in self.folder.iterdir():
                remove(part)
            self.folder.rmdir()

    @property
    def log_path(self) -> Path:
        """Where the log lies."""
        return self.folder / _LOG

    def log(self) -> list[dict[str, Any]]:
        """All complete lines of the log."""
        return self.log_after(0, most=_MOST_STEPS)[0]

    def log_after(self, start: int, *, most: int) -> tuple[list[dict[str, Any]], int]:
        """The lines of the log from a byte on, up to so many, and the byte after the last.

        A line that is still being written is left for the next time; a crash may have cut it.
        """
        if not is_there(self.log_path):
            return [], 0
        found: list[dict[str, Any]] = []
        with open_part(self.log_path) as file:
            file.seek(start)
            while len(found) < most and (line := file.readline(_LONGEST_LINE)):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                    break
                start = file.tell()
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
                    step = record.get("step") if isinstance(record, dict) else None
                    if type(step) is int and 0 <= step < _MOST_STEPS:
                        found.append(record)
        return found, start

    def rewind_log(self, step: int) -> None:
        """Forget the lines of steps that will be done again."""
        kept = [json.dumps(record) + "\n" for record in self.log() if record["step"] <= step]
        write_text(self.log_path, "".join(kept))


class Writer(ThreadPoolExecutor):
    """Writes files in a thread of its own, one after another, while training continues.

    Leaving it waits until all is on the disk.
    """

    def __init__(self) -> None:
        super().__init__(1, "axial-writer")
        self._last: Future[None] | None = None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self.wait()

    def do(self, write: Callable[..., None], *args: Any, **how: Any) -> None:
        """Write as soon as what came before is written; not if that failed, which `wait` tells."""
        if self._last is None or self._last.exception() is None:
            self._last = self.submit(write, *args, **how)

    @property
    def failed(self) -> bool:
        """Whether what was last to be written could not be; `wait` raises its error."""
        return bool(self._last and self._last.done() and self._last.exception())

    def wait(self) -> None:
        """Come back when all is on the disk."""
        last, self._last = self._last, None
        if last:
            last.result()


def write_run(folder: Path, about: Mapping[str, Any]) -> None:
    """Make a folder that of a run."""
    about = {"format": FORMAT, **about}
    about["checksum"] = _checksum(about)
    write_text(folder / _RUN, json.dumps(about, indent=2) + "\n")


def _checksum(about: Any) -> str:
    """SHA-256 of what JSON holds."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def check_free(folder: Path) -> None:
    """Refuse a place for a new run that holds anything."""
    why = None
    try:
        if not is_utf8(folder):
            why = "is no name in UTF-8;"
        elif Run.exists(folder):
            why = f"holds a run already; `axial train --resume {folder}` resumes it, or"
        elif is_there(folder) and (not folder.is_dir() or any(folder.iterdir())):
            why = "is there already and not empty; remove it, or"
    except OSError as error:
        why = f"cannot be made ({error.strerror});"
    if why is not None:
        raise ConfigError(f"{folder}: {why} choose another --out")


def _remove(folder: Path) -> None:
    """Take a checkpoint away; should the process die half way, none is left cut short."""
    hidden = folder.with_name(f".removing-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)
