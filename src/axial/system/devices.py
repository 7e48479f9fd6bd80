"""What a device can run, and how exactly it computes."""

import functools
import importlib.util
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import backends

_FLOAT32_OPERATORS: tuple[Any, ...] = tuple(
    getattr(library, operator)
    for library, operator in (
        (backends.cuda, "matmul"),
        (backends.cudnn, "conv"),
        (backends.cudnn, "rnn"),
        (backends.mkldnn, "matmul"),
        (backends.mkldnn, "conv"),
        (backends.mkldnn, "rnn"),
    )
)
"""Where torch may compute float32 in TF32 or bfloat16; cuDNN's convolutions do by default."""


def runs_triton(device: torch.device) -> bool:
    """Whether our Triton kernels run there: an NVIDIA from 8.0 on, and Triton is installed."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and _has_triton()
    )


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def launching_on(device: torch.device) -> AbstractContextManager[None]:
    """Make a CUDA device the current one: graphs and kernels go there. Others are left alone."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


@functools.cache
def prefers_onednn() -> bool:
    """Whether oneDNN multiplies float32 faster than MKL here: AMD processors with AVX-512.

    Torch's products are MKL's, which makes no use of AVX-512 there: half of oneDNN's rate.
    """
    available: bool = backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or backends.cpu.get_cpu_capability() != "AVX512":
        return False
    listed = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (listed.read_text() if listed.exists() else platform.processor())


def memory_bytes(device: torch.device) -> int:
    """All the memory there is."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Exact:
    """Who computes exactly just now, over all threads, and what the settings were before."""

    lock = threading.Lock()
    users = 0
    before: tuple[Any, ...] = ()


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute float32 in float32, whatever the process allows, and leave its settings as found.

    The settings are the process's: other threads compute exactly for as long. The first of
    several that overlap sets them, the last restores them.
    """
    with _Exact.lock:
        if not _Exact.users:
            _Exact.before = matmul, cudnn, *operators = _float32_settings()
            _set_float32(
                None if matmul is None else "highest",
                None if cudnn is None else False,
                *("ieee" for _ in operators),
            )
        _Exact.users += 1
    try:
        yield
    finally:
        with _Exact.lock:
            _Exact.users -= 1
            if not _Exact.users:
                _set_float32(*_Exact.before)


def _float32_settings() -> tuple[Any, ...]:
    """Torch has them twice, and the older ones, first here, cannot be read if the two differ."""
    older: list[Any] = [None, None]
    with suppress(RuntimeError):
        older[0] = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        older[1] = backends.cudnn.allow_tf32
    return (*older, *(operator.fp32_precision for operator in _FLOAT32_OPERATORS))


def _set_float32(matmul: str | None, cudnn: bool | None, *operators: str) -> None:
    if matmul is not None:
        torch.set_float32_matmul_precision(matmul)
    if cudnn is not None:
        backends.cudnn.allow_tf32 = cudnn
    for operator, precision in zip(_FLOAT32_OPERATORS, operators, strict=True):
        operator.fp32_precision = precision
