"""Attention along short lines on a GPU: our kernels beside torch's fused ones.

    python benchmarks/lines.py

Forward, and the gradient of the projection, in bf16, masked. Torch's gradient comes as three
tensors, which a dense layer's own gradient needs as one: joining them is counted. GB/s are of what
must be read and written once.
"""

import argparse
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from axial.models import line_attention_triton as line_kernels

SIZES = {  # lines, length, faster axes, heads, width of a head
    "25M parameters, batch 256, rows": (8192, 32, 1, 8, 64),
    "25M parameters, batch 256, columns": (256, 32, 32, 8, 64),
    "authors' ImageNet32, batch 64, rows": (2048, 32, 1, 16, 96),
    "authors' ImageNet32, batch 64, columns": (64, 32, 32, 16, 96),
    "authors' ImageNet64, batch 16, rows": (1024, 64, 1, 16, 128),
    "authors' ImageNet64, batch 16, columns": (16, 64, 64, 16, 128),
    "20 frames of 64 x 64, time": (1, 20, 4096, 4, 64),
}
REPEATS = 20


def milliseconds(run: Callable[[], object]) -> float:
    """The mean of some calls, after one that does not count."""
    run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(REPEATS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPEATS


def attend(qkv: Tensor) -> Tensor:
    """What torch gives for queries, keys and values (r, l, f, n, 3, e)."""
    q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in qkv.unbind(-2))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return seen.transpose(1, 2).reshape(*qkv.shape[:4], -1)


def main() -> None:
    """Print one line for each size."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    if not torch.cuda.is_available():
        sys.exit("lines.py: needs an NVIDIA GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, (lines, length, faster, heads, size) in SIZES.items():
        qkv = torch.randn(lines, length, faster, heads, 3, size, device="cuda").bfloat16()
        given = torch.randn(lines, length, faster, heads, size, device="cuda").bfloat16()
        qkv.requires_grad_()
        out, kept = attend(qkv), qkv.detach()
        theirs = (
            milliseconds(lambda: attend(kept)),  # noqa: B023
            milliseconds(lambda: torch.autograd.grad(out, qkv, given, retain_graph=True)),  # noqa: B023
        )
        ours = (
            milliseconds(lambda: line_kernels.attend(kept, True)),  # noqa: B023
            milliseconds(lambda: line_kernels.attend_gradient(given, kept, True)),  # noqa: B023
        )
        rates = [(b * given.nbytes) / t / 1e6 for b, t in zip((4, 7), ours, strict=True)]
        print(
            f"{name}: torch {theirs[0]:.3f} and {theirs[1]:.3f} ms, ours {ours[0]:.3f} and "
            f"{ours[1]:.3f} ms ({rates[0]:.0f} and {rates[1]:.0f} GB/s): "
            f"{theirs[0] / ours[0]:.1f} and {theirs[1] / ours[1]:.1f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
