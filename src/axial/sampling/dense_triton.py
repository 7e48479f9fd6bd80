"""Dense layers of a step with what comes before and after them: norm, silu, sum.

The norm of a few narrow rows is no kernel: who makes rows notes their moments, and the next product
takes them. Everything is accumulated in float32.

b rows, d width, i inputs, o outputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from axial.models.layers import NORM_EPS
from axial.sampling import overlap_triton as overlap
from axial.sampling.folded import Folded
from axial.sampling.norm_triton import normalize
from axial.sampling.overlap_triton import let_next_begin, wait_for_previous

SMALLEST_STEP = 16
"""Inputs of a dense layer must be a multiple of this."""
FEW = 4
"""Up to so many rows a dense layer is a sum over its weights rather than a matrix product."""
SEVERAL, NARROW = 256, 384
"""Up to so many rows of this width their norm costs less where they are made than as a kernel."""
_ROOMY = 160 << 10
"""Bytes of shared memory that the larger tiles fit into."""


@dataclass(frozen=True)
class Tile:
    """How a matrix product is cut: outputs `rows` x `columns` a program, `depth` inputs a time.

    With `fetching` the weights are brought into the GPU's cache before the inputs are there.
    """

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 4
    fetching: bool = False


def tile(x: Tensor) -> Tile:
    """The fastest for (b, i) of those that benchmarks/kernels.py tries."""
    (rows, inputs), size = x.shape, x.element_size()
    most = (256 if overlap.overlapping() and overlap.shared_memory() >= _ROOMY else 128) // size
    if rows <= 32:
        return Tile(16 if rows <= 16 else 32, 32, _depth(inputs, 2 * most))
    if rows <= 64:
        return Tile(64, 16, _depth(inputs, most), fetching=True)
    if rows <= 128:
        return Tile(128, 16, _depth(inputs, most), fetching=True)
    return Tile(64, 64, _depth(inputs, most))


def _depth(inputs: int, most: int) -> int:
    """The largest power of two up to `most` that divides the inputs."""
    return min(most, inputs & -inputs)


class Rows(NamedTuple):
    """The elements (b, d) of a step, and what their norm asks for, unless a kernel finds it."""

    x: Tensor
    moments: Tensor | None
    """(b, parts, 2): the sum of each part of a row, and that of its squares."""


def measures(rows: int, width: int) -> bool:
    """Whether whoever makes so many rows notes their moments, so that their norm is no kernel."""
    return FEW < rows <= SEVERAL and width <= NARROW


def normed_dense(
    rows: Rows, layer: Folded, *, activated: bool = False, out: Tensor | None = None
) -> Tensor:
    """A dense layer (b, o) of normed rows, then silu if asked."""
    x = rows.x
    out = x.new_empty(len(x), len(layer.bias)) if out is None else out
    if len(x) <= FEW:
        return weighted_sums(x, layer, out, normed=True, activated=activated)
    if rows.moments is not None:
        return product(x, layer, out, moments=rows.moments, activated=activated)
    x = normalize(x)
    if activated or out.dtype != x.dtype:
        return product(x, layer, out, activated=activated)
    return torch.addmm(layer.bias, x, layer.weight, out=out)


def added_dense(rows: Rows, branch: Tensor, layer: Folded) -> Rows:
    """The rows and a dense layer of (b, i) on top of them."""
    count, width = rows.x.shape
    out = torch.empty_like(rows.x)
    if count <= FEW:
        return Rows(weighted_sums(branch, layer, out, added=rows.x), None)
    cut, measured = tile(branch), None
    if measures(count, width):
        parts = triton.cdiv(width, cut.columns)
        measured = out.new_empty(count, parts, 2, dtype=torch.float32)
    return Rows(product(branch, layer, out, added=rows.x, measured=measured, cut=cut), measured)


def product(
    x: Tensor,
    layer: Folded,
    out: Tensor,
    *,
    moments: Tensor | None = None,
    activated: bool = False,
    added: Tensor | None = None,
    measured: Tensor | None = None,
    cut: Tile | None = None,
) -> Tensor:
    """A matrix product with what comes before and after it.

    With the `moments` of its inputs their norm comes before it; those of its outputs, a part for
    each tile of them, go to `measured`.
    """
    rows, (inputs, outputs) = len(x), layer.weight.shape
    cut = cut or tile(x)
    parts = 1 if moments is None else moments.shape[1]
    _product[(triton.cdiv(outputs, cut.columns), triton.cdiv(rows, cut.rows))](
        x,
        layer.weight,
        layer.bias,
        layer.sums,
        out if moments is None else moments,
        x if added is None else added,
        out,
        out if measured is None else measured,
        rows,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PARTS=parts,
        P=triton.next_power_of_2(parts),
        NORMED=moments is not None,
        ACTIVATED=activated,
        ADDED=added is not None,
        MEASURED=measured is not None,
        EPS=NORM_EPS,
        M=cut.rows,
        N=cut.columns,
        K=cut.depth,
        FETCHING=cut.fetching and overlap.overlapping(),
        OVERLAPPING=overlap.overlapping(),
        launch_pdl=overlap.overlapping(),
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


@triton.jit
def _fetch(columns, LENGTH: tl.constexpr):
    """Bring 16-bit numbers into the GPU's cache: LENGTH from each of these places (1, n) on."""
    lines: tl.constexpr = triton.cdiv(LENGTH, 64)
    line = tl.minimum(tl.arange(0, triton.next_power_of_2(lines)), lines - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [columns + line[:, None] * 64],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _product(
    x,
    weight,
    bias,
    sums,
    moments,
    added,
    out,
    measured,
    rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    NORMED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ADDED: tl.constexpr,
    MEASURED: tl.constexpr,
    EPS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FETCHING: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    let_next_begin(OVERLAPPING)
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    # What lies beyond the last row or column repeats earlier ones, and is not written.
    column = n % OUTPUTS
    x_at = x + (m % rows)[:, None] * INPUTS + k[None, :]
    weight_at = weight + column[None, :] * INPUTS + k[:, None]
    total = tl.zeros((M, N), tl.float32)
    if FETCHING:
        _fetch(weight + column[None, :] * INPUTS, INPUTS)
    wait_for_previous(OVERLAPPING)
    if NORMED:
        part = tl.arange(0, P)
        at = moments + ((m % rows)[:, None] * PARTS + part[None, :]) * 2
        first = tl.sum(tl.load(at, mask=(part < PARTS)[None, :], other=0.0), 1)
        second = tl.sum(tl.load(at + 1, mask=(part < PARTS)[None, :], other=0.0), 1)
    for _ in range(0, INPUTS, K):
        total = tl.dot(tl.load(x_at), tl.load(weight_at), total, input_precision="ieee")
        x_at += K
        weight_at += K
    if NORMED:
        # The norm commutes with the sum: w (x - mean) / std = (w x - mean sum(w)) / std.
        mean = first / INPUTS
        variance = tl.maximum(second / INPUTS - mean * mean, 0.0)
        total -= mean[:, None] * tl.load(sums + column)[None, :]
        total *= tl.rsqrt(variance + EPS)[:, None]
    total += tl.load(bias + column).to(tl.float32)[None, :]
    if ACTIVATED:
        total *= tl.sigmoid(total)
    place = m[:, None] * OUTPUTS + n[None, :]
    inside = (m < rows)[:, None] & (n < OUTPUTS)[None, :]
    if ADDED:
        total += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
    found = total.to(out.dtype.element_ty)
    tl.store(out + place, found, mask=inside)
    if MEASURED:
        exact = tl.where(inside, found.to(tl.float32), 0.0)
        at = measured + (m * tl.num_programs(0) + tl.program_id(0)) * 2
        tl.store(at, tl.sum(exact, 1), mask=m < rows)
        tl.store(at + 1, tl.sum(exact * exact, 1), mask=m < rows)


def weighted_sums(
    x: Tensor,
    layer: Folded,
    out: Tensor,
    *,
    normed: bool = False,
    activated: bool = False,
    added: Tensor | None = None,
    columns: int = 4,
    warps: int = 4,
    depth: int = 2048,
) -> Tensor:
    """The same for few rows: each program reads the whole of some columns of the weights."""
    rows, (inputs, outputs) = len(x), layer.weight.shape
    _weighted_sums[(triton.cdiv(outputs, columns), rows)](
        x,
        layer.weight,
        layer.bias,
        layer.sums,
        x if added is None else added,
        out,
        INPUTS=inputs,
        OUTPUTS=outputs,
        NORMED=normed,
        ACTIVATED=activated,
        ADDED=added is not None,
        EPS=NORM_EPS,
        N=columns,
        K=min(depth, triton.next_power_of_2(inputs)),
        OVERLAPPING=overlap.overlapping(),
        launch_pdl=overlap.overlapping(),
        num_warps=warps,
    )
    return out


@triton.jit
def _weighted_sums(
    x,
    weight,
    bias,
    sums,
    added,
    out,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NORMED: tl.constexpr,
    ACTIVATED: tl.constexpr,
    ADDED: tl.constexpr,
    EPS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    OVERLAPPING: tl.constexpr,
):
    let_next_begin(OVERLAPPING)
    row = tl.program_id(1)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    column = n % OUTPUTS
    weight_at = weight + column[:, None] * INPUTS + k[None, :]
    weights = tl.load(weight_at, mask=(k < INPUTS)[None, :], other=0.0)
    offset = tl.load(bias + column).to(tl.float32)
    wait_for_previous(OVERLAPPING)
    total = tl.zeros((N, K), tl.float32)
    first = tl.zeros((K,), tl.float32)
    second = tl.zeros((K,), tl.float32)
    for start in tl.static_range(0, INPUTS, K):
        inside = start + k < INPUTS
        if start > 0:
            weights = tl.load(weight_at + start, mask=inside[None, :], other=0.0)
        part = tl.load(x + row * INPUTS + start + k, mask=inside, other=0.0).to(tl.float32)
        total += weights.to(tl.float32) * part[None, :]
        first += part
        second += part * part
    result = tl.sum(total, 1)
    if NORMED:
        mean = tl.sum(first, 0) / INPUTS  # as in _product
        variance = tl.maximum(tl.sum(second, 0) / INPUTS - mean * mean, 0.0)
        result = (result - mean * tl.load(sums + column)) * tl.rsqrt(variance + EPS)
    result += offset
    if ACTIVATED:
        result *= tl.sigmoid(result)
    place = row * OUTPUTS + n
    if ADDED:
        result += tl.load(added + place, mask=n < OUTPUTS, other=0.0).to(tl.float32)
    tl.store(out + place, result, mask=n < OUTPUTS)
