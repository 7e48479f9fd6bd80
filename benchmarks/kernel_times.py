"""Which kernels a GPU spends its time in."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Kernel:
    """All launches of one kernel."""

    name: str
    launches: int
    seconds: float


def kernel_times(run: Callable[[], object]) -> list[Kernel]:
    """The kernels that a call launches, those that take the most time first."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    kernels = [
        Kernel(event.key, event.count, event.self_device_time_total / 1e6)
        for event in found.key_averages()
        if event.self_device_time_total
    ]
    return sorted(kernels, key=lambda kernel: -kernel.seconds)
