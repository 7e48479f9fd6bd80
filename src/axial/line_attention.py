"""Attention along short lines on a GPU, as operators that torch differentiates and compiles.

They have a gradient but no second one, and none under `torch.func`.

r lines, l length of a line, f faster axes folded, n heads, e width of a head.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LONGEST, _WIDEST = 64, 128
"""A line of a head that a program can hold."""


def serves(qkv: Tensor) -> bool:
    """Whether `attend_lines` takes this projection (r, l, f, n, 3, e)."""
    return (
        qkv.device.type == "cuda"
        and qkv.dtype in (torch.bfloat16, torch.float16)
        and qkv.shape[1] <= _LONGEST
        and qkv.shape[5] <= _WIDEST
        and _usable_on(qkv.device.index)
    )


def _usable(device: int) -> bool:
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return nvidia and importlib.util.find_spec("triton") is not None


# What is compiled takes the answer over.
_usable_on: Callable[[int], bool]
_usable_on = torch.compiler.assume_constant_result(_usable)  # type: ignore[no-untyped-call]


@torch.library.custom_op("axial::attend_lines", mutates_args=(), device_types="cuda")
def attend_lines(qkv: Tensor, causal: bool) -> Tensor:
    """What queries, keys and values (r, l, f, n, 3, e) give: (r, l, f, n, e)."""
    from axial import line_kernels

    return line_kernels.attend(qkv, causal)


@torch.library.custom_op("axial::attend_lines_gradient", mutates_args=(), device_types="cuda")
def _attend_lines_gradient(given: Tensor, qkv: Tensor, causal: bool) -> Tensor:
    from axial import line_kernels

    return line_kernels.attend_gradient(given, qkv, causal)


@attend_lines.register_fake
def _(qkv: Tensor, causal: bool) -> Tensor:
    return qkv.new_empty(*qkv.shape[:4], qkv.shape[5])


@_attend_lines_gradient.register_fake
def _(given: Tensor, qkv: Tensor, causal: bool) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.causal = inputs[1]


def _differentiate(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
    (qkv,) = ctx.saved_tensors
    return _attend_lines_gradient(given, qkv, ctx.causal), None


attend_lines.register_autograd(_differentiate, setup_context=_keep)
