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


def print_kernels(kernels: list[Kernel], whole: float, *, calls: int = 1, most: int = 12) -> None:
    """The first of some kernels: the time of one of so many calls, its share of a whole."""
    for kernel in kernels[:most]:
        print(
            f"    {1e3 * kernel.seconds / calls:9.2f} ms {kernel.seconds / whole:4.0%}: "
            f"{kernel.launches // calls:,} of {1e6 * kernel.seconds / kernel.launches:.2f} us, "
            f"{kernel.name[:90]}"
        )
