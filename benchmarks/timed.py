"""Training that ends on time, and its weights in files small enough to be sent."""

import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import axial
from axial.data.batches import Batch, Indices, TrainingBatches
from axial.models.config import ModelConfig, TrainConfig
from axial.data.packed import Packed
from axial.evaluation.scoring import Evaluation, evaluate
from axial.models.axial_transformer import AxialTransformer
from axial.training.trainer import State, Trainer

UNKNOWN_STEPS = 1 << 30
"""Planned for until a step was timed."""
SCORES = 10
"""How often the held-out examples are scored in a run, if time allows."""
LOOK_SECONDS, LEAST_LOOKS, MOST_STEPS = 2.0, 40, 50
"""From one look at the clock to the next; in between, nothing waits for the device."""
PART_BYTES = 14 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """What a run is scored on."""

    packed: Packed
    """Where the examples lie."""
    along: Indices
    """Those scored along the way."""
    at_end: Indices
    """Those scored at the end."""
    keep: Literal["best", "last"]
    """Which averaged weights the run gives; the best are known only of one set of examples."""
    share: float = 0.05
    """Of the time, what scoring along the way may take."""


class Timed:
    """Training that ends on time: its number of steps is estimated anew at every look.

    So the learning rate, if it falls over the steps, comes to zero as the time does. The first
    step, which compiles, does not count: what an earlier run left compiled would favour the next.
    `plan` gives the configuration for a number of steps, or for fewer, which then end the run;
    `vary` changes a batch before it is trained on.
    """

    def __init__(
        self,
        trainer: Trainer,
        held_out: HeldOut,
        log: Path,
        *,
        seconds: float,
        plan: Callable[[int], TrainConfig],
        vary: Callable[[int, Batch], None] | None = None,
    ) -> None:
        self.trainer, self.held_out, self.log = trainer, held_out, log
        self.seconds, self.plan, self.vary = seconds, plan, vary
        self.log.write_text("")
        self.began = time.monotonic()
        self.weights = State()
        self.scores: list[Evaluation] = []
        self.compiling = self.scoring = 0.0
        self.due = self.seconds / SCORES
        self.step = self.memory = 0
        self.pace: list[float] = []

    def run(self, batches: TrainingBatches) -> None:
        """Train and score until the time is over; `weights` and `scores` are what it gave."""
        self.began = seen = time.monotonic()
        first, look = 0, 1
        with closing(batches.stream()) as stream:
            while self.step < self.trainer.config.steps:
                batch = next(stream)
                if self.vary:
                    self.vary(self.step, batch)
                reading = self.trainer.step(self.step, batch)
                self.step += 1
                if self.step < look:
                    continue
                loss, norm = reading.tolist()  # waits for the device
                each = (time.monotonic() - seen) / (self.step - first)
                if self.step == 1:
                    self.compiling = each
                    self.began = time.monotonic()
                else:
                    self.pace.append(each)
                rate = self.trainer.config.rate_at(self.step - 1)
                self.write(loss=loss, norm=norm, rate=rate, seconds_each=each)
                look = self.step + self._plan()
                over = look == self.step
                if over or self.elapsed >= self.due:
                    self._score(over=over)
                first, seen = self.step, time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the first step."""
        return time.monotonic() - self.began

    @property
    def looks(self) -> list[float]:
        """Bits/dim of each scoring, all on the examples of those along the way."""
        along = self.held_out.along
        same = ((found, np.isin(found.index, along)) for found in self.scores)
        return [float(found.bits[which].mean()) / found.elements for found, which in same]

    @property
    def best(self) -> float:
        """The fewest bits/dim on them."""
        return min(self.looks, default=math.inf)

    @property
    def _interval(self) -> float:
        """Seconds from one scoring to the next."""
        return max(self.seconds / SCORES, self.scoring / self.held_out.share)

    def _plan(self) -> int:
        """Set the number of steps; return how many to do until the next look."""
        if not self.pace:
            return 1
        each = statistics.median(self.pace[-9:])
        along = max(0.0, self.seconds - self.due) // self._interval
        at_end = len(self.held_out.at_end) / len(self.held_out.along)
        free = self.seconds - self.elapsed - (along + at_end) * self.scoring
        self.trainer.config = self.plan(self.step + max(0, int(free / each)))
        left = self.trainer.config.steps - self.step
        seconds = min(LOOK_SECONDS, self.seconds / LEAST_LOOKS)
        return min(left, max(1, min(int(seconds / each), MOST_STEPS)))

    def _score(self, *, over: bool) -> None:
        begun = time.monotonic()
        if self.trainer.ranks.device.type == "cuda":  # of the steps: scoring takes what is free
            self.memory = self.memory or torch.cuda.max_memory_allocated()
        model = self.trainer.averaged()
        found = evaluate(
            model,
            self.held_out.packed,
            ranks=self.trainer.ranks,
            subset=self.held_out.at_end if over else self.held_out.along,
            precision=self.trainer.precision,
            identify=False,
        )
        if self.held_out.keep == "last" and over:
            self.weights = model.state_dict()  # nothing changes them any more
        elif self.held_out.keep == "best" and found.bits_per_dim < self.best:
            self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.scores.append(found)
        self.scoring = time.monotonic() - begun
        self.due = self.elapsed + self._interval
        facts = {"at_end": found.bits_per_dim} if over else {}
        self.write(validation=self.looks[-1], standard_error=found.standard_error, **facts)
        print(f"{self.elapsed:6.0f} s, step {self.step:,}: {found}", flush=True)

    def write(self, **facts: Any) -> None:
        """Add a line to the log."""
        record = {"step": self.step, "seconds": round(self.elapsed, 3), **facts}
        with self.log.open("a") as file:
            file.write(json.dumps(record) + "\n")


def write_parts(folder: Path, model: AxialTransformer) -> None:
    """Weights in bfloat16, in files small enough to be sent."""
    parts: list[State] = [{}]
    size = 0
    for name, value in model.state_dict().items():
        kept = value.to("cpu", torch.bfloat16).contiguous()
        size += kept.nbytes
        if size > PART_BYTES:
            parts.append({})
            size = kept.nbytes
        parts[-1][name] = kept
    for number, part in enumerate(parts, 1):
        save_file(part, folder / f"weights-{number}.safetensors")


def joined(run: Path) -> AxialTransformer:
    """The model of a run, from the parts of its weights."""
    result = json.loads((run / "result.json").read_text())
    if result.get("setting", {}).get("norm", "layer") != "layer":
        raise SystemExit(f"{run}: {result['row']} is no model that `axial.load` knows")
    weights: State = {}
    for path in sorted(run.glob("weights-*.safetensors")):
        weights |= {name: value.float() for name, value in load_file(path).items()}
    if not weights:
        raise SystemExit(f"{run}: kept no weights")
    return AxialTransformer.from_weights(ModelConfig.from_json(result["model"]), weights)


def join_parts(run: Path, out: Path) -> None:
    """Put the parts of a run's weights together, as a model that `axial.load` takes."""
    axial.save(joined(run), out)
    print(f"{out}: {run}'s weights, rounded to bfloat16")
