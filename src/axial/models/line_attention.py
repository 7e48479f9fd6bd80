"""Attention along short lines on a GPU, as operators that torch differentiates and compiles.

They have a gradient but no second one, and none under `torch.func`.

r lines, l length of a line, f faster axes folded, n heads, e width of a head.
"""

from typing import Any

import torch
from torch import Tensor

from axial.system.devices import runs_triton

_LONGEST, _WIDEST = 64, 128
"""A line of a head that a program can hold."""


def is_supported(x: Tensor, length: int, size: int) -> bool:
    """Whether `attend_lines` takes lines of this length and heads of this size, made of `x`."""
    return (
        x.device.type == "cuda"
        and length <= _LONGEST
        and size <= _WIDEST
        and dense_dtype(x) in (torch.bfloat16, torch.float16)
        and _usable_on(x.device.index)
    )


def dense_dtype(x: Tensor) -> torch.dtype:
    """What a dense layer makes of it: autocast leaves float64 alone."""
    kind = x.device.type
    if x.dtype != torch.float64 and kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _usable_on(index: int) -> bool:
    return runs_triton(torch.device("cuda", index))


# What is compiled takes the answer over. This is all that `torch.compiler.assume_constant_result`
# does, but that imports the compiler, which takes longer than drawing sixteen pictures.
setattr(_usable_on, "_dynamo_marked_constant", True)  # noqa: B010


def attend_at_once(qkv: Tensor, causal: bool) -> Tensor:
    """What `attend_lines` gives, where nobody differentiates or compiles.

    The first call of an operator imports the compiler, too.
    """
    from axial.models import line_attention_triton as line_kernels

    return line_kernels.attend(qkv, causal)


@torch.library.custom_op("axial::attend_lines", mutates_args=(), device_types="cuda")
def attend_lines(qkv: Tensor, bias: Tensor, causal: bool) -> Tensor:
    """What queries, keys and values (r, l, f, n, 3, e) give: (r, l, f, n, e).

    `bias` is the one they have in them already, detached: its gradient is a sum over theirs, and
    leaves here, where that costs nothing.
    """
    return attend_at_once(qkv, causal)


@torch.library.custom_op("axial::attend_lines_gradient", mutates_args=(), device_types="cuda")
def _attend_lines_gradient(
    given: Tensor, qkv: Tensor, bias: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    from axial.models import line_attention_triton as line_kernels

    gradient, total = line_kernels.attend_gradient(given, qkv, causal)
    return gradient, total.to(bias.dtype)


@attend_lines.register_fake
def _(qkv: Tensor, bias: Tensor, causal: bool) -> Tensor:
    return qkv.new_empty(*qkv.shape[:4], qkv.shape[5])


@_attend_lines_gradient.register_fake
def _(given: Tensor, qkv: Tensor, bias: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    like = torch.contiguous_format
    return torch.empty_like(qkv, memory_format=like), torch.empty_like(bias, memory_format=like)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.causal = inputs[2]


def _differentiate(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_attend_lines_gradient(given, *ctx.saved_tensors, ctx.causal), None


attend_lines.register_autograd(_differentiate, setup_context=_keep)
