"""Training: the loss on a random channel, the update, the averaged weights; state in and out.

b batch, *axes the data axes, c channels.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from axial.data.batches import Batch, channels, dropout_seed
from axial.models.config import Precision, TrainConfig
from axial.errors import CheckpointError, DataError
from axial.models.layers import Block
from axial.models.axial_transformer import AxialTransformer, plane_of
from axial.training.muon import Muon, is_hidden
from axial.training.parallel import (
    Parallel,
    exchanging,
    local,
    local_part,
    replicate_module,
    shard_module,
    whole,
)
from axial.system.ranks import Ranks
from axial.system.cuda_graph import Recording, kinds

_BEFORE_RECORDING = 3
"""Steps of a GPU that are taken one kernel after another, before one is recorded."""
_RECORDED_SHARE = 0.3
"""What a recorded step may keep of a GPU's memory: scoring and drawing cannot use it."""
State = dict[str, Tensor]


class SliceBits(nn.Module):
    """Bits per dimension of one channel of each example, averaged over the batch.

    With channels drawn uniformly from those that are not given, an unbiased estimate of the bits
    per dimension of whole examples, at the cost of one channel (paper 3.2.2). Where channels are
    stacked, the whole grid is scored and `channel` has no effect. Values are not checked.
    """

    def __init__(self, model: AxialTransformer, *, recompute: bool = False) -> None:
        super().__init__()
        self.model = model
        self.recompute = recompute

    def forward(
        self,
        x: Shaped[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"],
        label: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, ""]:
        config = self.model.config
        x = x.long()
        if config.channel_mode == "encode":
            logits = self.model.channel_logits(
                x, channel, label, recompute=self.recompute, checked=True
            )
            wanted = plane_of(x, channel)
        else:
            logits = self.model(x, label, recompute=self.recompute, checked=True)
            logits, wanted = (t[..., config.given_channels :, :] for t in (logits, x.unsqueeze(-1)))
            wanted = wanted.squeeze(-1)
        logits, wanted = (t[:, config.given_steps :] for t in (logits, wanted))
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nats = F.cross_entropy(exact.flatten(0, -2), wanted.flatten())
        return nats / math.log(2)


class Trainer:
    """A model, its averaged weights and its optimizer, on any number of ranks.

    Nothing random is kept from step to step: order, flips, channels and dropout all follow from
    the seed and the number of the step.
    """

    def __init__(
        self,
        model: AxialTransformer,
        config: TrainConfig,
        ranks: Ranks,
        *,
        parallel: Parallel = "ddp",
    ) -> None:
        on_gpu = ranks.device.type == "cuda"
        self.config, self.ranks, self.model_config = config, ranks, model.config
        self.precision: Precision = config.precision or ("bfloat16" if on_gpu else "float32")
        self.autocast = self.precision == "bfloat16"
        model = model.to(ranks.device).train()
        loss: nn.Module = SliceBits(model, recompute=config.recompute)
        self.sharded = parallel == "fsdp" and ranks.count > 1
        if self.sharded:
            shard_module(loss, ranks)
        elif ranks.count > 1:
            loss = replicate_module(loss, ranks)
        self.parameters = dict(model.named_parameters())
        self.local = {name: local(p) for name, p in self.parameters.items()}
        self.averages = {name: value.detach().clone() for name, value in self.local.items()}
        self.optimizers = _optimizers(self.local, self.parameters, config, model.config.heads)
        made = {value: own for each in self.optimizers for value, own in each.state.items()}
        self.moments = {name: made[value] for name, value in self.local.items()}
        self.updates = [own["step"] for own in self.moments.values() if "step" in own]
        self.rate, self.pull = torch.zeros(2, device=ranks.device, dtype=torch.float32).unbind()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate
        self.recording: Recording | None = None
        self.recordable = config.record and on_gpu and ranks.count == 1
        self.recordable &= model.config.inner != "lstm"  # not known whether torch's can be
        self.alike, self.before = 0, kinds([])
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(ranks.device)
        self.module = loss
        if on_gpu if config.compile is None else config.compile:
            self._compile(model)

    def _compile(self, model: AxialTransformer) -> None:
        """Shards are gathered block by block, so blocks are compiled one by one."""
        # Torch's own dropout: it uses all four numbers of a draw, what is compiled of it one.
        options = {"fallback_random": True}
        if self.sharded:
            for part in model.modules():
                if isinstance(part, Block):
                    part.compile(options=options)
        else:
            self.module.compile(options=options)

    def step(self, number: int, batch: Batch) -> Float[Tensor, " 2"]:
        """Update the weights on this rank's share of a batch.

        Returns the loss on that share, in bits/dim, and the length of the gradient, still on
        the device. An update that is not finite leaves the weights as they are. On one GPU the
        host soon only replays what it launched before: a step is some thousand kernels, and small
        models would wait for it. From then on only what follows from the number changes.
        """
        torch.manual_seed(dropout_seed(self.config.seed, number, self.ranks.rank))
        self.rate.fill_(self.config.rate_at(number))
        self.pull.fill_(1 - self.config.ema_at(number))
        inputs = self.inputs(batch)
        if self.recording is None and self._may_record(inputs):
            self.recording = Recording(self._learn, *inputs, ready=True)
        if self.recording is not None and self.recording.takes(*inputs):
            return self.recording.replay(*inputs).clone()
        return self._learn(*inputs)

    def _may_record(self, inputs: list[Tensor]) -> bool:
        """Whether enough steps were taken on such inputs that nothing is done for the first time.

        What a recording keeps of the memory, nothing else can use.
        """
        if not self.recordable:
            return False
        self.alike = self.alike + 1 if kinds(inputs) == self.before else 0
        self.before = kinds(inputs)
        if self.alike < _BEFORE_RECORDING:
            return False
        device = self.ranks.device
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        needed = torch.cuda.max_memory_allocated(device)
        self.recordable = needed < min(free, _RECORDED_SHARE * total)  # asked once
        return self.recordable

    def _learn(
        self, x: Tensor, channel: Tensor, label: Tensor | None = None
    ) -> Float[Tensor, " 2"]:
        """A step, on a batch that is there, without asking the host for anything."""
        total, count = torch.zeros((), device=x.device), min(self.config.accumulate, len(x))
        for i in range(count):
            part = slice(i * len(x) // count, (i + 1) * len(x) // count)
            with exchanging(self.module, gradients=i + 1 == count):
                loss = self.loss(x[part], channel[part], None if label is None else label[part])
                loss = loss * (len(x[part]) / len(x))
                torch.autograd.backward(loss)
            total += loss.detach()
        norm = self.update()
        self.average()
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
        channel = channels(
            self.config.seed, batch.epoch, batch.index, config.given_channels, config.channels
        )
        found = [batch.x, torch.from_numpy(channel)]
        if config.classes and batch.label is not None:
            found.append(batch.label)
        return [value.to(device, non_blocking=True) for value in found]

    def update(self) -> Float[Tensor, ""]:
        """Clip and step, without waiting for the device; return the gradient's length."""
        for name, value in self.local.items():
            gradient = self.parameters[name].grad
            value.grad = None if gradient is None else local(gradient)
        norm = torch.nn.utils.get_total_norm(
            [value.grad for value in self.local.values() if value.grad is not None]
        )
        if self.sharded:
            norm = self.ranks.sum(norm.square()).sqrt()
        scale, bad = (norm / self.config.clip).clamp(min=1.0).float(), (~norm.isfinite()).float()
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

    def average(self) -> None:
        """Move the averaged weights towards the weights."""
        averages = list(self.averages.values())
        apart = torch._foreach_sub([value.detach() for value in self.local.values()], averages)
        torch._foreach_mul_(apart, self.pull)
        torch._foreach_add_(averages, apart)

    def averaged(self) -> AxialTransformer:
        """The model with the averaged weights, whole on every rank; it shares their memory."""
        weights = {
            name: whole(value, self.parameters[name]) for name, value in self.averages.items()
        }
        return AxialTransformer.from_weights(self.model_config, weights)

    def state(self) -> State:
        """Weights, averages and moments as whole tensors, copied to the main rank's memory.

        Every rank must ask; the others get nothing.
        """
        found: State = {}
        for name, like in self.parameters.items():
            for kind, part in self._kept(name).items():
                full = whole(part, like)
                if self.ranks.main:
                    found[f"{kind}/{name}"] = full.to("cpu", copy=True)
        if self.ranks.main:
            found["updates"] = self.updates[0].to("cpu", copy=True)
        return found

    def _kept(self, name: str) -> State:
        """What a checkpoint holds of a parameter, by kind."""
        moments = {kind: moment for kind, moment in self.moments[name].items() if kind != "step"}
        return {"weights": self.local[name], "average": self.averages[name], **moments}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave, on any number of ranks."""
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


def _optimizers(
    values: Mapping[str, Tensor], parameters: Mapping[str, Tensor], config: TrainConfig, heads: int
) -> list[torch.optim.Optimizer]:
    """Adam or AdamW for all, or Muon for the matrices of the blocks and AdamW for the rest."""
    hidden = {n: v for n, v in values.items() if config.optimizer == "muon" and is_hidden(n)}
    found = [_adam({n: v for n, v in values.items() if n not in hidden}, config)]
    if hidden:
        found.append(Muon(hidden, parameters, heads=heads, weight_decay=config.weight_decay))
    return found


def _adam(values: Mapping[str, Tensor], config: TrainConfig) -> torch.optim.Optimizer:
    """Matrices decay; biases, norms, embeddings and positions do not."""
    matrices = [value for name, value in values.items() if _decays(name, value)]
    others = [value for name, value in values.items() if not _decays(name, value)]
    betas = (0.9, config.beta2)
    found: torch.optim.Optimizer
    if config.optimizer == "adam":
        found = torch.optim.Adam([*values.values()], betas=betas, fused=True)
    else:
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        found = torch.optim.AdamW(groups, betas=betas, fused=True)
    for value in values.values():
        # What the optimizer itself would make at its first step; a checkpoint wants it before.
        found.state[value] = {
            "step": torch.zeros((), device=value.device),
            "exp_avg": torch.zeros_like(value),
            "exp_avg_sq": torch.zeros_like(value),
        }
    return found


def _decays(name: str, parameter: Tensor) -> bool:
    return parameter.ndim > 1 and "embedding" not in name and "positions" not in name


def _check_tensor(name: str, found: Tensor, like: Tensor) -> None:
    if found.shape != like.shape:
        raise CheckpointError(
            f"tensor {name!r} has shape {tuple(found.shape)} instead of {tuple(like.shape)}"
        )
    if not found.isfinite().all():
        raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")
