"""Metrics of training: losses left on the device until read, throughput and MFU."""

import math
import statistics
import time

import torch
from torch import Tensor

from axial.errors import TrainingError
from axial.models.cost import training_flops
from axial.models.family_config import FamilyConfig
from axial.system.ranks import Ranks
from axial.training.config import TrainConfig

_MATRIX, _REPEATS = 8192, 4


class Metrics:
    """Losses and gradient norms of the last steps, read all at once: waiting costs time."""

    def __init__(
        self,
        first: int,
        model: FamilyConfig,
        config: TrainConfig,
        ranks: Ranks,
        bad_in_a_row: int = 0,
    ) -> None:
        self._done, self._config, self._ranks = first, config, ranks
        self._waiting: list[Tensor] = []
        self._flops = training_flops(model) * config.batch / ranks.count
        self._peak = matrix_peak(ranks.device)
        self.bad_in_a_row = bad_in_a_row
        self.restart()

    def add(self, reading: Tensor) -> None:
        """Keep the loss and the gradient norm of one more step."""
        self._waiting.append(reading)

    def restart(self) -> None:
        """Time the steps from now on."""
        self._since = time.monotonic()

    def read(self) -> tuple[dict[str, float], list[int]]:
        """Means over ranks and steps since the last reading, for the log; and the steps left out.

        Those were not finite; too many in a row end the run. The throughput is that since
        `restart`, on a GPU with MFU, of the measured matrix peak.
        """
        found = (self._ranks.sum(torch.stack(self._waiting)) / self._ranks.count).tolist()
        # Only now has a GPU done what it was given.
        each = (time.monotonic() - self._since) / len(self._waiting)
        first, self._done = self._done, self._done + len(self._waiting)
        self._waiting = []
        good, skipped = [], []
        for step, (loss, norm) in enumerate(found, first + 1):
            if math.isfinite(norm):  # what the update itself goes by
                good.append((loss, norm))
                self.bad_in_a_row = 0
                continue
            skipped.append(step)
            self.bad_in_a_row += 1
            if self.bad_in_a_row > self._config.bad_steps:
                raise TrainingError(
                    f"the loss or its gradient is not finite at step {step:,}, "
                    f"{self.bad_in_a_row} in a row; they changed no weights: start anew with a "
                    f"lower --learning-rate, or look at the data"
                )
        loss, norm = map(statistics.fmean, zip(*(good or [(math.nan, math.nan)]), strict=True))
        facts = {"loss": loss, "grad_norm": norm, "examples_per_second": self._config.batch / each}
        if self._peak:
            facts["teraflops"] = self._flops / each / 1e12
            facts["mfu"] = self._flops / each / self._peak
        return facts, skipped


def matrix_peak(device: torch.device) -> float | None:
    """Operations a second of a large bfloat16 product, the most that training could use."""
    if device.type != "cuda":
        return None
    a, b = torch.randn(2, _MATRIX, _MATRIX, device=device, dtype=torch.bfloat16)
    times = []
    for _ in range(5):
        torch.cuda.synchronize(device)
        start = time.monotonic()
        for _ in range(_REPEATS):
            a @ b
        torch.cuda.synchronize(device)
        times.append((time.monotonic() - start) / _REPEATS)
    return 2 * _MATRIX**3 / sorted(times)[len(times) // 2]
