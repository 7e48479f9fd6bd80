"""Where Triton kernels are tested: on a GPU, or by Triton's interpreter.

Triton reads its setting when it is imported, so this comes before anything that may do so.
"""

import os

import torch

KERNEL_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if KERNEL_DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


def on_a_gpu(cases):
    """Cases that an interpreter of kernels is too slow for, or has no instructions for."""
    return cases if KERNEL_DEVICE == "cuda" else []


def as_on_a_gpu(layer):
    """A folded layer as it lies in memory there."""
    return layer._replace(weight=layer.weight.t().contiguous().t())


def moments_of(x, parts=1):
    """The sums (b, parts, 2) of parts of each row, and of their squares."""
    pieces = x.float().chunk(parts, 1)
    return torch.stack([torch.stack([p.sum(1), p.square().sum(1)], 1) for p in pieces], 1)
