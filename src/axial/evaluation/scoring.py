"""A model on a data set: every element of every example, nothing dropped, in bits.

Beyond rounding, the figures of an example depend on neither its place in a batch nor the number of
ranks. All batches have one shape, the last being filled up. What is reported are sums over examples
in the order of the file.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from axial.checkpoints.model_folder import fingerprint
from axial.checkpoints.tensors import hash_tensors, is_there, read_tensors
from axial.data.batches import Batch, EvaluationBatches, Indices, examples_of
from axial.data.compatibility import conform, tiles_for
from axial.data.crops import Tiles
from axial.data.packed import Examples, Packed
from axial.errors import ConfigError, DataError
from axial.evaluation.result import Evaluation, Tiling
from axial.models.family_config import FamilyConfig
from axial.models.likelihood import element_bits, planes_at_once, summed_bits
from axial.models.protocol import Model
from axial.shape import DataShape
from axial.system.files import errors_of, replacing
from axial.system.ranks import Ranks
from axial.validation import Precision, as_integer, check_choice, counted

_SAVE_SECONDS = 20.0


def score(
    model: Model,
    packed: Examples,
    *,
    ranks: Ranks | None = None,
    batch: int | None = None,
    subset: Indices | None = None,
    precision: Precision = "float32",
    resume: Path | None = None,
    progress: Callable[[int], None] | None = None,
    identify: bool = True,
    label: int | None = None,
) -> Evaluation:
    """Score a data set, or a subset of it, with a model that is on the device of `ranks`.

    Every rank calls this and gets the same result. A model that is kept in 16 bits is computed
    with in float32, one in float64 as it is. `batch` counts examples on all ranks; as many as
    memory allows by default. `resume` names a file that keeps what is done, and from which an
    interrupted call resumes; whoever has put the result in safety removes it. `progress` is called
    with how many are done. `identify` hashes the weights and holds the data to its own hash, which
    costs a second or so per gigabyte. Kept in memory are 8 bytes for each example, times its
    channels and steps of axis 0.

    A class-conditional model is scored given the labels of the data; given `label` for all, if that
    is a class; and by the exact sum over classes where there are no labels or `label` is -1.

    Of pictures of different sizes all disjoint tiles of the model's size are scored.
    """
    labels = model.config.classes > 0 and packed.labels is not None and label is None
    if isinstance(packed, Packed):
        wanted = wanted_data(model.config, labels=labels)
        whole = conform if packed.sizes is None else tiles_for
        packed = whole(packed, wanted)
    if label is not None:
        label = as_integer("label", label, at_least=-1, below=model.config.classes)
    summed = model.config.classes > 0 and not labels and label in (None, -1)
    ranks = ranks or Ranks(rank=0, count=1, device=next(model.parameters()).device)
    index = examples_of(packed, subset)
    check_choice("precision", precision, get_args(Precision))
    if batch is not None:
        batch = as_integer("batch", batch, at_least=1)
    mark = fingerprint(model) if identify or resume else None
    if identify:
        packed.check()
    double = next(model.parameters()).dtype == torch.float64
    if double and precision == "bfloat16":
        raise ConfigError("this model is kept in float64, not to be computed in bfloat16")
    computed = "float64" if double else precision
    if next(model.parameters()).dtype in (torch.float16, torch.bfloat16):
        model = copy.deepcopy(model).float()
    condition = -1 if summed else label
    work = _Work(packed, index, model.config, ranks, batch, condition)
    key = _key(str(mark), packed, index, computed, condition)
    file = _Partial(Path(resume), key) if resume else None
    with torch.autocast(ranks.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        table = work.score(model, progress or (lambda done: None), file)
    return Evaluation(
        data=packed.description,
        index=index,
        elements=model.config.elements,
        kind=_kind(packed, model.config),
        labels=labels,
        label=None if summed else label,
        summed=model.config.classes * summed,
        given=_given(model.config, packed),
        precision=computed,
        batch=work.batch,
        fingerprint=mark,
        tiling=_tiling(packed),
        **_figures(table, model.config),
    )


class _Work:
    """The examples to score and what is done of them: a table with a line for each.

    A line holds the example's bits by channel, then by step of axis 0. Each rank fills its
    own lines and leaves the others zero, so that their sum over ranks is exact.
    """

    def __init__(
        self,
        packed: Examples,
        index: Indices,
        config: FamilyConfig,
        ranks: Ranks,
        batch: int | None,
        condition: int | None,
    ) -> None:
        self.packed, self.index, self.config, self.ranks = packed, index, config, ranks
        self.condition = condition
        """The class of all, -1 for the sum over classes; None for the labels, if there are any."""
        # Rank 0 decides, so that all pass through the model equally often.
        planes = torch.tensor(planes_at_once(config, ranks.device), device=ranks.device)
        self.planes = int(ranks.broadcast(planes))
        share = -(-len(index) // ranks.count)
        rounds = max(1, -(-share // self.planes))  # of equal size: the last is not half empty
        even = -(-share // rounds) * ranks.count
        self.batch = even if batch is None else min(batch, share * ranks.count)

    def score(
        self, model: Model, progress: Callable[[int], None], file: "_Partial | None"
    ) -> NDArray[Any]:
        """Fill the table; every rank gets the whole of it."""
        shape, ranks = (len(self.index), self.config.channels + self.config.axes[0]), self.ranks
        table = torch.zeros(shape, dtype=torch.float64, device=ranks.device)
        begun = torch.zeros((), dtype=torch.int64, device=ranks.device)
        before = ranks.on_rank0(partial(file.read, shape)) if file else None
        if before is not None:
            table[: len(before)] = before
            begun += len(before)
        done = int(ranks.broadcast(begun))  # rank 0 alone knew
        saved = time.monotonic()
        for batch in self._batches(done):
            self._score_batch(model, batch, table, done)
            done = min(done + self.batch, len(self.index))
            if file and ranks.any(time.monotonic() - saved >= _SAVE_SECONDS):
                whole = ranks.sum(table.clone())[:done].cpu()
                ranks.on_rank0(partial(file.write, whole))
                saved = time.monotonic()
            progress(done)
        return ranks.sum(table).cpu().numpy()

    def _batches(self, done: int) -> Iterable[Batch]:
        if done == len(self.index):
            return ()
        share, rest = (self.ranks.rank, self.ranks.count), self.index[done:]
        return EvaluationBatches(
            self.packed, self.batch, rank=share[0], ranks=share[1], subset=rest
        )

    def _score_batch(self, model: Model, batch: Batch, table: Tensor, done: int) -> None:
        """Score this rank's share of a global batch that begins at example `done`."""
        mine = self.ranks.share(self.batch)
        own = slice(done + mine.start, done + mine.start + len(batch.x))
        share = mine.stop - mine.start
        x = _filled(batch.x, share, self.ranks.device)
        label = None
        if self.config.classes and batch.label is not None:
            label = _filled(batch.label, share, self.ranks.device)
        found = conditioned_bits(model, x, label, self.condition, planes=self.planes)
        found = found[: len(batch.x)]
        table[own, : self.config.channels] = found.flatten(1, -2).sum(1)
        table[own, self.config.channels :] = found.flatten(2).sum(2)


def wanted_data(config: FamilyConfig, *, labels: bool) -> DataShape:
    """What data must look like, with the labels of the model's classes or without any."""
    return config.data if labels else replace(config.data, classes=0)


def conditioned_bits(
    model: Model, x: Tensor, label: Tensor | None, condition: int | None, **how: Any
) -> Tensor:
    """`element_bits` given the labels, or one class for all, or (-1) by the sum over classes."""
    if condition == -1:
        return summed_bits(model, x, **how)
    if condition is not None:
        label = torch.full((len(x),), condition, device=x.device)
    return element_bits(model, x, label, **how)


class _Partial:
    """The lines done so far in one file, whose they are, and a checksum of both."""

    def __init__(self, path: Path, key: dict[str, str]) -> None:
        self.path, self.key = path, key

    def read(self, shape: tuple[int, int]) -> Tensor:
        """What was done before of a table; nothing without a file, refused if another's."""
        if not is_there(self.path):
            return torch.zeros(0, shape[1], dtype=torch.float64)
        undo = "remove it or use another file"
        tensors, found = read_tensors(self.path, undo=undo)
        for name, wanted in self.key.items():
            if found.get(name, wanted) != wanted:
                raise DataError(
                    f"{self.path}: is part of an evaluation with {name} {found[name][:8]}, "
                    f"not {wanted[:8]}; {undo}"
                )
        table = tensors.get("table", torch.zeros(0))
        fits = table.shape[1:] == shape[1:] and len(table) <= shape[0]
        if found != self._about(table) or not fits or table.dtype != torch.float64:
            raise DataError(f"{self.path}: is no part of an evaluation, or was changed; {undo}")
        return table

    def write(self, table: Tensor) -> None:
        """Put a new file in the place of the old one, whole."""
        with errors_of(self.path), replacing(self.path) as scratch:
            scratch.write_bytes(save({"table": table}, metadata=self._about(table)))

    def _about(self, table: Tensor) -> dict[str, str]:
        checksum = hash_tensors({"table": table}, json.dumps(self.key, sort_keys=True))
        return self.key | {"checksum": checksum}


def _key(
    mark: str, packed: Examples, index: Indices, precision: str, condition: int | None
) -> dict[str, str]:
    labels, sizes = packed.description.labels, packed.description.sizes
    said = labels.sha256 if labels else "none"
    return {
        "model": mark,
        "data": packed.description.sha256,
        **({"sizes": sizes.sha256} if sizes else {}),
        "labels": said if condition is None else f"class {condition}",
        "subset": hashlib.sha256(index.astype("<i8").tobytes()).hexdigest(),
        "precision": precision,
    }


def _filled(x: Tensor, count: int, device: torch.device) -> Tensor:
    """The examples on the device, zeros behind them up to `count`."""
    out = torch.zeros((count, *x.shape[1:]), dtype=torch.int64, device=device)
    out[: len(x)] = x.to(device, non_blocking=True)
    return out


def _figures(table: NDArray[np.float64], config: FamilyConfig) -> dict[str, Any]:
    """The bits of each example, and bits/dim by channel and by step of axis 0."""
    by_channel, by_row = table[:, : config.channels], table[:, config.channels :]
    scored = (config.channels - config.given_channels, config.axes[0] - config.given_steps)
    each = [len(table) * config.elements / count for count in scored]
    channel, row = (
        tuple(map(float, part.sum(0) / size))
        for part, size in zip((by_channel, by_row), each, strict=True)
    )
    return {
        "bits": by_channel.sum(1),
        "per_channel": (None,) * config.given_channels + channel[config.given_channels :],
        "per_row": (None,) * config.given_steps + row[config.given_steps :],
    }


def _tiling(packed: Examples) -> Tiling | None:
    if not isinstance(packed, Tiles):
        return None
    return Tiling(packed.size, len(packed), int((packed.counts > 0).sum()), packed.left_out)


def _kind(packed: Examples, config: FamilyConfig) -> str:
    if isinstance(packed, Tiles):
        return "tile"
    if packed.stack_frames or config.frames:
        return "clip"
    return "image" if len(packed.shape.axes) == 2 else "example"


def _given(config: FamilyConfig, packed: Examples) -> str | None:
    """What is scored given what, as in: 15 frames given 1."""
    parts = []
    if known := config.given_channels:
        frames = packed.shape.frames or config.frames
        unit, size = ("frame", config.channels // frames) if frames else ("", 1)
        if not unit or known % size:
            unit, size = "channel", 1
        parts.append((config.channels // size - known // size, unit, known // size))
    if known := config.given_steps:
        parts.append((config.axes[0] - known, "step", known))
    said = [f"{counted(rest, unit)} given {known}" for rest, unit, known in parts]
    return ", ".join(said) or None
