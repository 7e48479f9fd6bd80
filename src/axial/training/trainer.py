"""One step of training: forward, backward, update, EMA; and the state that a checkpoint keeps."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from axial.data.batches import Batch, channels, dropout_seed
from axial.errors import CheckpointError, DataError
from axial.models.families import model_from_weights
from axial.models.protocol import Model
from axial.system.cuda_graph import CudaGraph, kinds
from axial.system.ranks import Ranks
from axial.training.config import TrainConfig
from axial.training.ema import ema_decay, update_ema
from axial.training.loss import SliceBits
from axial.training.optimizer import optimizers
from axial.training.parallel import (
    Parallel,
    exchanging,
    local,
    local_part,
    replicate_module,
    shard_module,
    whole,
)
from axial.training.schedule import learning_rate
from axial.validation import Precision

_BEFORE_RECORDING = 3
"""Steps of a GPU that are taken one kernel after another, before one is recorded."""
_RECORDED_SHARE = 0.3
"""What a recorded step may keep of a GPU's memory: scoring and drawing cannot use it."""
State = dict[str, Tensor]


class Trainer:
    """A model, its EMA weights and its optimizer, on any number of ranks.

    Nothing random is kept from step to step: order, flips, variants, channels and dropout all
    follow from the seed and the number of the step.
    """

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        ranks: Ranks,
        *,
        parallel: Parallel = "ddp",
    ) -> None:
        on_gpu = ranks.device.type == "cuda"
        self.config, self.ranks, self.model_config = config, ranks, model.config
        self.slices = model.slices
        self.precision: Precision = config.precision or ("bfloat16" if on_gpu else "float32")
        self.autocast = self.precision == "bfloat16"
        model = model.to(ranks.device).train()
        loss: nn.Module = SliceBits(model, checkpointing=config.activation_checkpointing)
        self.sharded = parallel == "fsdp" and ranks.count > 1
        if self.sharded:
            shard_module(loss, list(model.blocks()), ranks)
        elif ranks.count > 1:
            loss = replicate_module(loss, ranks)
        self.parameters = dict(model.named_parameters())
        self.local = {name: local(p) for name, p in self.parameters.items()}
        self.ema = {name: value.detach().clone() for name, value in self.local.items()}
        self.optimizers = optimizers(self.local, self.parameters, config, model.matrices())
        made = {value: own for each in self.optimizers for value, own in each.state.items()}
        self.moments = {name: made[value] for name, value in self.local.items()}
        self.updates = [own["step"] for own in self.moments.values() if "step" in own]
        zeros = torch.zeros(2, device=ranks.device, dtype=torch.float32)
        self.rate, self.ema_weight = zeros.unbind()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate
        self.cuda_graph: CudaGraph | None = None
        self.graphable = config.cuda_graph and on_gpu and ranks.count == 1
        self.graphable &= model.graphable
        self.alike, self.before = 0, kinds([])
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.module = loss
        if on_gpu if config.compile is None else config.compile:
            self._compile(model)

    def _compile(self, model: Model) -> None:
        """Shards are gathered block by block, so blocks are compiled one by one."""
        # What is compiled draws what is drawn uncompiled, the keys of the same masks. But draws of
        # independent layers may change their order: two of PixelCNN++'s do on a GPU.
        options = {"fallback_random": True}
        if self.sharded:
            for block in model.blocks():
                block.compile(options=options)
        else:
            self.module.compile(options=options)

    def step(self, number: int, batch: Batch) -> Float[Tensor, " 2"]:
        """Update the weights on this rank's share of a batch.

        Returns the loss on that share, in bits/dim, and the gradient norm, still on
        the device. An update that is not finite leaves the weights as they are. On one GPU the
        host soon only replays what it launched before: a step is some thousand kernels, and small
        models would wait for it. From then on only what follows from the number changes.
        """
        torch.manual_seed(dropout_seed(self.config.seed, number, self.ranks.rank))
        self.rate.fill_(learning_rate(self.config, number))
        self.ema_weight.fill_(1 - ema_decay(self.config, number))
        inputs = self.inputs(batch)
        if self.cuda_graph is None and self._may_capture(inputs):
            self.cuda_graph = CudaGraph(self._learn, *inputs, ready=True)
        if self.cuda_graph is not None and self.cuda_graph.takes(*inputs):
            return self.cuda_graph.replay(*inputs).clone()
        return self._learn(*inputs)

    def _may_capture(self, inputs: list[Tensor]) -> bool:
        """Whether enough steps were taken on such inputs that nothing is done for the first time.

        What a recording keeps of the memory, nothing else can use.
        """
        if not self.graphable:
            return False
        self.alike = self.alike + 1 if kinds(inputs) == self.before else 0
        self.before = kinds(inputs)
        if self.alike < _BEFORE_RECORDING:
            return False
        device = self.ranks.device
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        needed = torch.cuda.max_memory_allocated(device)
        self.graphable = needed < min(free, _RECORDED_SHARE * total)  # asked once
        return self.graphable

    def _learn(
        self, x: Tensor, channel: Tensor, label: Tensor | None = None
    ) -> Float[Tensor, " 2"]:
        """A step, on a batch that is there, without asking the host for anything."""
        total, count = torch.zeros((), device=x.device), min(self.config.grad_accum, len(x))
        for i in range(count):
            part = slice(i * len(x) // count, (i + 1) * len(x) // count)
            with exchanging(self.module, gradients=i + 1 == count):
                loss = self.loss(x[part], channel[part], None if label is None else label[part])
                loss = loss * (len(x[part]) / len(x))
                torch.autograd.backward(loss)
            total += loss.detach()
        norm = self.update()
        weights = [value.detach() for value in self.local.values()]
        update_ema([*self.ema.values()], weights, self.ema_weight)
        return torch.stack([total, norm])

    def loss(self, x: Tensor, channel: Tensor, label: Tensor | None) -> Float[Tensor, ""]:
        """Bits/dim of one part of a batch, in the precision of the run."""
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.autocast):
            return self.module(x, channel, label)

    def inputs(self, batch: Batch) -> list[Tensor]:
        """What `_learn` takes, on the device: the batch, a channel for each, perhaps labels."""
        config, device = self.model_config, self.ranks.device
        if (most := int(batch.x.numpy().max())) >= config.values:
            raise DataError(f"the data holds {most}, but the model has {config.values} values")
        slices = self.slices
        number = channels(self.config.seed, batch.epoch, batch.index, slices.start, slices.stop)
        found = [batch.x, torch.from_numpy(number)]
        label = batch.label if config.classes else None
        if batch.variant is not None:
            first = torch.from_numpy(batch.variant * max(config.classes, 1))
            label = first if label is None else first + label
        if label is not None:
            found.append(label)
        return [value.to(device, non_blocking=True) for value in found]

    def update(self) -> Float[Tensor, ""]:
        """Clip and step, without waiting for the device; return the gradient norm."""
        for name, value in self.local.items():
            gradient = self.parameters[name].grad
            value.grad = None if gradient is None else local(gradient)
        norm = torch.nn.utils.get_total_norm(
            [value.grad for value in self.local.values() if value.grad is not None]
        )
        if self.sharded:
            norm = self.ranks.sum(norm.square()).sqrt()
        scale = (norm / self.config.grad_clip).clamp(min=1.0).float()
        bad = (~norm.isfinite()).float()
        recording = self.ranks.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        optimizer: Any
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["capturable"] = recording
            # They divide gradients by the one and do nothing where the other is 1.
            optimizer.grad_scale, optimizer.found_inf = scale, bad
            optimizer.step()
        for name, parameter in self.parameters.items():
            parameter.grad = self.local[name].grad = None
        return norm

    def ema_model(self) -> Model:
        """The model with the EMA weights, whole on every rank; it shares their memory."""
        weights = {name: whole(value, self.parameters[name]) for name, value in self.ema.items()}
        return model_from_weights(self.model_config, weights)

    def state(self) -> State:
        """Weights, averages and moments as whole tensors, copied to the memory of rank 0.

        Every rank must ask; the others get nothing.
        """
        found: State = {}
        for name, like in self.parameters.items():
            for kind, part in self._kept(name).items():
                full = whole(part, like)
                if self.ranks.is_rank0:
                    found[f"{kind}/{name}"] = full.to("cpu", copy=True)
        if self.ranks.is_rank0:
            found["updates"] = self.updates[0].to("cpu", copy=True)
        return found

    def _kept(self, name: str) -> State:
        """What a checkpoint holds of a parameter, by kind."""
        moments = {kind: moment for kind, moment in self.moments[name].items() if kind != "step"}
        return {"weights": self.local[name], "ema": self.ema[name], **moments}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from what `state` gave, on any number of ranks."""
        wanted = {f"{kind}/{name}" for name in self.local for kind in self._kept(name)}
        if wrong := sorted((wanted | {"updates"}) ^ state.keys()):
            raise CheckpointError(
                f"tensor {wrong[0]!r} is missing or does not belong to a run of this model with "
                f"{self.config.optimizer}"
            )
        _check_tensor("updates", state["updates"], torch.zeros(()))
        with torch.no_grad():
            for count in self.updates:
                count.copy_(state["updates"])
            for name, like in self.parameters.items():
                for kind, target in self._kept(name).items():
                    found = state[f"{kind}/{name}"]
                    _check_tensor(f"{kind}/{name}", found, like)
                    target.copy_(local_part(found, like))


def _check_tensor(name: str, found: Tensor, like: Tensor) -> None:
    if found.shape != like.shape:
        raise CheckpointError(
            f"tensor {name!r} has shape {tuple(found.shape)} instead of {tuple(like.shape)}"
        )
    if not found.isfinite().all():
        raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")
