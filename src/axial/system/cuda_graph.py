"""A call on a CUDA device, recorded once and replayed without the host looking at it again."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_capturing = threading.Lock()
"""One thread at a time: to begin waits for the whole device, which no capture survives."""


class CudaGraph:
    """A CUDA graph of a call, between buffers that stay where they are.

    The call is made once before it is recorded, on the inputs given here: what is compiled, loaded
    or set up at first use must not be while recording. `ready` says that it has been made already.
    """

    def __init__(
        self, run: Callable[..., Tensor | None], *inputs: Tensor, ready: bool = False
    ) -> None:
        self.buffers = [t.clone(memory_format=torch.contiguous_format) for t in inputs]
        self.graph = torch.cuda.CUDAGraph()
        if not ready:
            here, aside = torch.cuda.current_stream(), _aside(torch.cuda.current_device())
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                run(*self.buffers)
            here.wait_stream(aside)
        # Other threads may go on using the device: one reads batches into pinned memory.
        with _capturing, torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = run(*self.buffers)

    def takes(self, *inputs: Tensor) -> bool:
        """Whether the call was recorded with inputs like these."""
        return kinds(inputs) == kinds(self.buffers)

    def replay(self, *inputs: Tensor) -> Any:
        """The same call on other inputs; the result stays until the next one."""
        for buffer, value in zip(self.buffers, inputs, strict=True):
            buffer.copy_(value)
        self.graph.replay()
        return self.result


@functools.cache
def _aside(device: int) -> torch.cuda.Stream:
    """Where calls are made before they are recorded: cuBLAS keeps 32 MiB for each stream it saw."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def kinds(tensors: Iterable[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    """What must not change from call to call."""
    return [(t.shape, t.dtype) for t in tensors]
