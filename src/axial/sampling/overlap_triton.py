"""Kernels that are set up, and read their weights, while the one before them still runs.

GPUs from Hopper on can: `let_next_begin` allows the next kernel to begin, and `wait_for_previous`
is where a kernel needs the results of the one before it.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda


@functools.cache
def shared_memory() -> int:
    """Bytes that the threads of a program may share: least on GPUs that are made for games."""
    properties: Any = torch.cuda.get_device_properties()
    return int(properties.shared_memory_per_block_optin)


@functools.cache
def overlapping() -> bool:
    """Whether this GPU can set up a kernel while the one before it runs."""
    there = torch.cuda.is_available() and hasattr(cuda, "gdc_wait")
    return there and torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def let_next_begin(OVERLAPPING: tl.constexpr):
    """Allow the next kernel to be set up from here on."""
    if OVERLAPPING:
        cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAPPING: tl.constexpr):
    """Wait until all that the kernel before this one writes is there."""
    if OVERLAPPING:
        cuda.gdc_wait()
