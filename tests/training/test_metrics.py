"""What a log line says of the pace of a run."""

import time

import pytest
import torch
from small_trainers import COLOUR, TRAINING

from axial.system.ranks import Ranks
from axial.training.metrics import Metrics


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
