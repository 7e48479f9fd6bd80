"""A module over several ranks: whole on each (DDP) or in shards (FSDP2), and shards made whole.

Everything after the backward pass works on what lies on this rank: a parameter itself, or its
shard. A whole tensor is what a checkpoint holds, so that any number of ranks can resume from it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from axial.system.ranks import Ranks

Parallel = Literal["ddp", "fsdp"]


def shard_module(module: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks) -> None:
    """Cut the parameters of each block, and those of none, into one shard for each rank.

    They are gathered in float32 and cast where autocast says so: shards compute what whole
    weights compute.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.count,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def replicate_module(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The module with its gradients averaged over all ranks."""
    place = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=place, gradient_as_bucket_view=True)


@contextmanager
def exchanging(module: nn.Module, *, gradients: bool) -> Iterator[None]:
    """Whether the backward pass inside averages gradients, or only adds to this rank's own."""
    if isinstance(module, DistributedDataParallel) and not gradients:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(gradients)
    yield


def local(tensor: Tensor) -> Tensor:
    """What lies on this rank; shares memory with the tensor."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def local_part(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank keeps of a whole tensor, or of each in a stack, if placed as `like` is.

    Every rank has the whole, so nothing is exchanged.
    """
    if isinstance(like, DTensor):
        places = _placements(whole, like)
        placed = distribute_tensor(
            whole.to(like.device), like.device_mesh, places, src_data_rank=None
        )
        return placed.to_local()
    return whole


def whole(part: Tensor, like: Tensor) -> Tensor:
    """The tensor that all ranks' parts make up, placed as `like` is; every rank must ask.

    Of a stack of parts, each is made whole, in one exchange.
    """
    if isinstance(like, DTensor):
        shape = torch.Size((*part.shape[: part.ndim - like.ndim], *like.shape))
        stride = torch.empty(shape, device="meta").stride()
        places = _placements(part, like)
        placed = DTensor.from_local(part, like.device_mesh, places, shape=shape, stride=stride)
        return placed.full_tensor()
    return part.detach()


def _placements(tensor: Tensor, like: DTensor) -> list[Placement]:
    """Those of `like`, counted past the axes that a stack has before it."""
    more = tensor.ndim - like.ndim
    return [Shard(p.dim + more) if isinstance(p, Shard) else p for p in like.placements]
