"""A call on a CUDA device, recorded once and replayed without the host looking at it again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Recording:
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
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                run(*self.buffers)
            here.wait_stream(aside)
        with torch.cuda.graph(self.graph):
            self.result = run(*self.buffers)

    def takes(self, *inputs: Tensor) -> bool:
        """Whether the call was recorded with inputs of these shapes."""
        return [t.shape for t in inputs] == [t.shape for t in self.buffers]

    def replay(self, *inputs: Tensor) -> Any:
        """The same call on other inputs; the result stays until the next one."""
        for buffer, value in zip(self.buffers, inputs, strict=True):
            buffer.copy_(value)
        self.graph.replay()
        return self.result
