"""What a device can run."""

import importlib.util

import torch


def runs_triton(device: torch.device) -> bool:
    """Whether our Triton kernels run there: an NVIDIA from 8.0 on, and Triton is installed."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )
