"""The training loop: when to step, log, validate, draw and save; how to start, resume and stop."""

import math
import signal
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from axial.checkpoints.model_folder import fingerprint, is_model, load, save
from axial.checkpoints.run_folder import Run, Writer
from axial.data.batches import TrainingBatches
from axial.data.packed import Packed
from axial.errors import CheckpointError, TrainingError, is_out_of_memory
from axial.evaluation.scoring import score
from axial.media.curves import write_curve
from axial.models.families import model_from_weights, model_of_shapes, new_model, read_config
from axial.models.protocol import Model
from axial.system.ranks import Ranks, stopping
from axial.training.config import TrainConfig
from axial.training.hold_out import divide
from axial.training.metrics import Metrics
from axial.training.parallel import Parallel
from axial.training.run_logger import RunLogger
from axial.training.samples import draw_sheet
from axial.training.schedule import doubts, learning_rate
from axial.training.tensorboard import EventFile
from axial.training.time_limit import UNKNOWN_STEPS, Clock
from axial.training.trainer import Trainer

_FAILED = 1000  # beyond every signal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates done."""
    best: float | None
    """Fewest bits/dim on the held-out examples; None if none were scored."""
    best_step: int | None
    """The update after which that was found; its EMA weights are the run's model."""
    skipped: int
    """Updates that were not finite, and left the weights as they were."""
    signal: int | None
    """The signal that stopped the run before its end."""

    def line(self, folder: Path) -> str:
        """The result in one line."""
        scored = "" if self.best is None else f"{self.best:.4f} bits/dim held out "
        at = "" if self.best_step is None else f"(best, at step {self.best_step:,}), "
        bad = f", {self.skipped} skipped" if self.skipped else ""
        stopped = f"; `axial train --resume {folder}` resumes it" if self.signal else ""
        return f"{folder}: {scored}{at}{self.step:,} steps{bad}{stopped}"


def train(
    run: Run,
    packed: Packed,
    ranks: Ranks,
    *,
    parallel: Parallel = "ddp",
    tensorboard: bool = False,
    fresh: bool = False,
) -> Outcome:
    """Train from the last checkpoint of a run, or from its start, to its end.

    Every rank calls it. A `fresh` run that does not fit memory leaves no folder. A signal that
    asks to end saves and returns; a second one does not wait.
    """
    try:
        with ExitStack() as stack:
            ranks.on_rank0(lambda: stack.enter_context(run.locked()))
            ranks.on_rank0(run.clean)
            loop = _Loop(run, packed, ranks, parallel)
            loop.watch = stack.enter_context(loop.logger(tensorboard=tensorboard))
            loop.writer = stack.enter_context(Writer())
            for doubt in doubts(loop.config):
                loop.watch.say(doubt)
            if 0 < loop.step == loop.config.steps:
                what = "--steps N" if loop.config.max_minutes is None else "--max-minutes N"
                loop.watch.say(f"all steps are done; --resume {run.folder} {what} adds some")
            with stopping() as asked:
                loop.steps(asked)
            if loop.signal is None:
                loop.finish()
            else:
                loop.leave()
            return loop.outcome
    except OSError as error:
        raise run.unwritable(run.folder, error) from error
    except (MemoryError, RuntimeError) as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = str(error).splitlines()[0]
            raise TrainingError(
                f"{run.folder}: the model cannot be compiled here ({reason}); start anew with "
                f"--no-compile"
            ) from error
        if not is_out_of_memory(error):
            raise
        if fresh and ranks.is_rank0 and not run.checkpoints():
            run.remove()
        raise TrainingError(
            f"{run.folder}: does not fit memory; start anew with a smaller --batch or --width, or "
            f"with --grad-accum, --activation-checkpointing or --no-cuda-graph"
        ) from error


class _Loop:
    """One call of `train`; `state` is what a checkpoint keeps beside tensors and step."""

    watch: RunLogger
    writer: Writer

    def __init__(self, run: Run, packed: Packed, ranks: Ranks, parallel: Parallel) -> None:
        self.run, self.ranks = run, ranks
        self.config = TrainConfig.from_json(run.about["training"])
        self.model_config = read_config(run.about)
        self.parts = divide(packed, self.config)
        self.step = 0
        self.signal: int | None = None
        self.state: dict[str, Any] = {"best": None, "best_step": None, "seconds": 0.0}
        self.state |= {"skipped": 0, "bad_in_a_row": 0, "plan": None}
        found = run.newest()
        model = self._new_model() if found is None else self._empty_model()
        self.trainer = Trainer(model, self.config, ranks, parallel=parallel)
        if found is not None:
            self._resume(*found)
        minutes = self.config.max_minutes
        longer = run.about.get("lengthened", [])
        if self.state["plan"] and longer and longer[-1]["at"] >= self.step:
            self.state["plan"] |= {"steps": UNKNOWN_STEPS}  # those of the time it had before
        self.clock = Clock(
            None if minutes is None else 60 * minutes,
            used=self.state["seconds"],
            kept=self.state["plan"],
            validation=len(self.parts.held_out) * len(model.slices) / self.config.batch,
        )
        if minutes is not None:
            self._set_steps(self.clock.steps)
        bad = self.state["bad_in_a_row"]
        self.metrics = Metrics(self.step, self.model_config, self.config, ranks, bad)

    @property
    def planned(self) -> int | None:
        """Steps of the whole run; None while a limit in time has not told yet."""
        return self.config.steps if self.config.steps < UNKNOWN_STEPS else None

    def _set_steps(self, steps: int) -> None:
        if steps != self.config.steps:
            self.config = self.trainer.config = replace(self.config, steps=steps)

    @property
    def outcome(self) -> Outcome:
        """How it stands."""
        kept = {name: self.state[name] for name in ("best", "best_step", "skipped")}
        return Outcome(step=self.step, signal=self.signal, **kept)

    def logger(self, *, tensorboard: bool) -> RunLogger:
        """What watches the run; only rank 0 writes and prints."""

        def create() -> RunLogger:
            self.run.rewind_log(self.step)
            folder = self.run.folder / "tensorboard"
            events = EventFile(folder) if tensorboard or folder.is_dir() else None
            log = self.run.log_path
            return RunLogger(log, steps=self.planned, first=self.step, events=events)

        quiet = RunLogger(None, steps=self.planned, first=self.step)
        return self.ranks.on_rank0(create) or quiet

    def _new_model(self) -> Model:
        """Weights of the run's seed, or those of the model it starts from."""
        start = self.run.about["init"]
        if start is None:
            torch.manual_seed(self.config.seed)
            model = new_model(self.model_config)
            if self.config.embeddings == "smooth":
                model.smooth_embeddings()
            if model.first_examples:
                self._start_from_data(model)
            return model
        model = load(start["folder"])
        if fingerprint(model) != start["fingerprint"]:
            raise CheckpointError(
                f"{start['folder']}: is no longer the model that this run starts from; "
                f"start a new run"
            )
        weights = model.float().state_dict()
        for name, like in model_of_shapes(self.model_config).state_dict().items():
            # Variants it did not know of start alike: as the example itself.
            weights.setdefault(name, torch.zeros(like.shape))
        return model_from_weights(self.model_config, weights)

    def _start_from_data(self, model: Model) -> None:
        """Let new weights fit some examples: on every rank the same, however many there are."""
        batches = TrainingBatches(
            self.parts.trained,
            model.first_examples,
            seed=self.config.seed,
            flip=self.config.flip,
            subset=self.parts.kept,
        )
        batch, device = batches.at(0), self.ranks.device
        label = batch.label if self.model_config.classes else None
        model.to(device).start_from(batch.x.to(device), None if label is None else label.to(device))

    def _empty_model(self) -> Model:
        """One whose weights are about to be read."""
        return model_of_shapes(self.model_config).to_empty(device="cpu")

    def _resume(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        folder = self.run.checkpoints()[-1]
        try:
            self.trainer.load_state(tensors)
            self.step = state["step"]
            self.state |= {name: state[name] for name in self.state.keys() & state.keys()}
        except (CheckpointError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: {error}; remove it to resume from the one before"
            ) from error

    def steps(self, asked: list[int]) -> None:
        """Do what is left of the run, until a signal is `asked`."""
        config = self.config
        batches = TrainingBatches(
            self.parts.trained,
            config.batch,
            seed=config.seed,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
            flip=config.flip,
            augment=getattr(self.model_config, "augment", ()),
            untransformed=config.untransformed,
            subset=self.parts.kept,
        )
        sheet = self._sheet()  # what ended the run may have come before it
        if sheet and self.ranks.any(self.ranks.is_rank0 and not (self.run.folder / sheet).exists()):
            self._sample(self.trainer.ema_model(), sheet)
        self.metrics.restart()
        first = self.step
        with closing(batches.stream(first)) as stream:
            while self.step < self.config.steps and self.signal is None:
                self.metrics.add(self.trainer.step(self.step, next(stream)))
                self.step += 1
                if self.step == first + 1:
                    self._wait_for_device()
                    self.clock.start()
                self.signal = self._agreed(asked)
                self._plan()
                if self._look():
                    self.metrics.restart()
                    self.clock.restart(self.step)
        self.ranks.on_rank0(self.writer.wait)

    def _plan(self) -> None:
        """Estimate anew how many steps the time allows; rank 0 decides for all."""
        clock, step = self.clock, self.step
        if clock.limit is None or (step < clock.due and step % self.config.log_every):
            return
        self._wait_for_device()
        clock.plan(self.config, step)
        decided = self.ranks.broadcast(torch.tensor([clock.steps, clock.due]))
        clock.steps, clock.due = decided.tolist()
        self._set_steps(clock.steps)
        self.watch.steps = self.planned

    def _wait_for_device(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def _agreed(self, asked: list[int]) -> int | None:
        """The signal that any rank was sent; if nothing more can be saved, all end."""
        found = self.ranks.all_reduce_max(
            _FAILED if self.writer.failed else asked[0] if asked else 0
        )
        if found == _FAILED:
            self.writer.wait()  # where it failed, this says why
            sys.exit(1)
        return found or None

    def _look(self) -> bool:
        """Log, score, draw and save where it is time to; tell whether anything was."""
        config, step = self.config, self.step
        end = step == config.steps
        saves = step % config.save_every == 0 or end or self.signal is not None
        validates = (step % config.validate_every == 0 or end) and len(self.parts.held_out) > 0
        sheet = self._sheet()
        if not (saves or validates or sheet or step % config.log_every == 0):
            return False
        self._log()
        if validates:
            with self.clock.measuring("validate_every"):
                self._validate()
        if saves:
            with self.clock.measuring("save_every"):
                self._save()
        if sheet and self.signal is None:
            with self.clock.stopped():  # drawing is not training
                self._sample(self.trainer.ema_model(), sheet)
        return True

    def _sheet(self) -> Path | None:
        """Which sheet of samples is due after this step."""
        every, step = self.config.sample_every, self.step
        due = every > 0 and step % every == 0 and 0 < step < self.config.steps
        return Path("samples") / f"step-{step:08d}.png" if due else None

    def _log(self) -> None:
        facts, skipped = self.metrics.read()
        for step in skipped:
            self.watch.record(step, skipped=True)
            self.watch.say(f"step {step:,}: the loss or its gradient is not finite; skipped")
        self.state["skipped"] += len(skipped)
        self.state["bad_in_a_row"] = self.metrics.bad_in_a_row
        self.state["seconds"] = round(self.clock.elapsed, 3)
        facts["learning_rate"] = learning_rate(self.config, self.step - 1)
        self.watch.record(self.step, **facts, seconds=self.state["seconds"])
        text = f"{facts['loss']:.4f} bits/dim  {facts['examples_per_second']:,.1f} examples/s"
        if "mfu" in facts:
            text += f"  {facts['teraflops']:.0f} TFLOP/s ({facts['mfu']:.0%} of peak)"
        self.watch.progress(self.step, text)

    def _validate(self) -> None:
        model = self.trainer.ema_model()
        found = score(
            model,
            self.parts.scored,
            ranks=self.ranks,
            subset=self.parts.held_out,
            precision=self.trainer.precision,
            identify=False,
        )
        value, best = found.bits_per_dim, self.state["best"]
        better = math.isfinite(value) and (best is None or value < best)
        self.watch.record(self.step, validation=value, standard_error=found.standard_error)
        self.watch.say(f"step {self.step:,}: {found}, held out{', the best' * better}")
        if better:
            self.state |= {"best": value, "best_step": self.step}
            self._export(model)

    def _export(self, model: Model) -> None:
        """Make these the weights that `load` gives for the run."""
        if self.ranks.is_rank0:
            weights = {name: w.to("cpu", copy=True) for name, w in model.state_dict().items()}
            snapshot = model_from_weights(self.model_config, weights)
            labels = self.parts.scored.description.labels
            snapshot.class_names = labels.names if self.model_config.classes and labels else None
            self.writer.do(_write_model, self.run, snapshot)

    def _save(self) -> None:
        tensors = self.trainer.state()
        self.state["seconds"] = round(self.clock.elapsed, 3)  # scoring since the last line counts
        self.state["plan"] = self.clock.kept
        if self.ranks.is_rank0:
            self.writer.do(
                self.run.save,
                self.step,
                tensors,
                dict(self.state),
                keep=self.config.keep_checkpoints,
            )

    def _sample(self, model: Model, name: Path) -> None:
        path = self.run.folder / name
        draw_sheet(path, model, self.parts.scored, self.parts.held_out, self.ranks)
        if self.ranks.is_rank0:
            self.watch.picture(self.step, path)

    def finish(self) -> None:
        """Leave a model, its samples and its curve."""
        best = self.state["best_step"]
        missing = best is None or not is_model(self.run.folder)
        if self.ranks.any(self.ranks.is_rank0 and missing):  # others may see the disk otherwise
            if best is not None:
                self.watch.say(f"the best weights, of step {best:,}, are gone; the last ones stay")
                self.state |= {"best": None, "best_step": None}
            self._export(self.trainer.ema_model())
        self.ranks.on_rank0(self.writer.wait)
        self._sample(load(self.run.folder, device=self.ranks.device), Path("samples.png"))
        self._curve()

    def _curve(self) -> None:
        if self.ranks.is_rank0 and not write_curve(self.run.folder / "curve.png", self.run.log()):
            self.watch.say("no curve.png: pip install axial-transformers[plots]")

    def leave(self) -> None:
        """Leave what is there of an interrupted run: a curve, and after Ctrl-C samples too.

        A scheduler that asks to end does not wait for samples, nor do other ranks.
        """
        self._curve()
        if self.signal != signal.SIGINT or self.ranks.count > 1:
            return
        self.watch.say(f"step {self.step:,} is saved; drawing samples, which Ctrl-C leaves out")
        with suppress(KeyboardInterrupt):
            self._sample(load(self.run.folder, device=self.ranks.device), Path("samples.png"))


def _write_model(run: Run, model: Model) -> None:
    run.check_there()
    try:
        save(model, run.folder)
    except CheckpointError as error:
        raise run.unwritable(run.folder, error.__cause__ or error) from error
