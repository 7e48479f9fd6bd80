"""What a log line says of the pace of a run."""

import time

import pytest
import torch
from small_trainers import COLOUR, TRAINING

from axial.system.ranks import Ranks
from axial.training.metrics import Metrics


class SlowSum(Ranks):
    """A device that has still to do what it was given: reading from it takes a while."""

    def sum(self, tensor):
        time.sleep(0.2)
        return super().sum(tensor)


def test_throughput_counts_the_wait_for_what_is_still_to_be_done():
    metrics = Metrics(0, COLOUR, TRAINING, SlowSum(rank=0, count=1, device=torch.device("cpu")))
    for _ in range(4):
        metrics.add(torch.ones(2))
    facts, _ = metrics.read()
    assert facts["examples_per_second"] < 4 * TRAINING.batch / 0.2


@pytest.mark.gpu
def test_throughput_counts_what_a_gpu_has_still_to_do():
    ranks = Ranks(rank=0, count=1, device=torch.device("cuda"))
    metrics = Metrics(0, COLOUR, TRAINING, ranks)
    torch.cuda.synchronize()
    begun = time.monotonic()
    metrics.restart()
    torch.cuda._sleep(1_000_000_000)  # cycles: half a second
    metrics.add(torch.ones(2, device="cuda"))
    facts, _ = metrics.read()
    seconds = time.monotonic() - begun
    assert seconds > 0.2
    assert facts["examples_per_second"] == pytest.approx(TRAINING.batch / seconds, rel=0.1)
