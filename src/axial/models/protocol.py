"""What training, scoring, drawing and checkpoints ask of a model; each family answers.

b batch, *axes the data axes (slowest first), c channels, v values, *part the grid of one slice:
what a single pass of the model predicts, such as one channel of each example.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from axial.errors import CheckpointError, ConfigError, InputError
from axial.models.attention import check_tensors
from axial.models.causal import given, order
from axial.models.config import ModelConfig
from axial.models.family_config import FamilyConfig
from axial.models.kernel_choice import kernels_allowed
from axial.models.layers import LSTM, Blocks, Positions
from axial.shape import ClassNames
from axial.system.devices import exact_float32

# Types for which torch has no minimum.
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)

_Model = TypeVar("_Model", bound="Model")

Examples = Shaped[Tensor, "b *axes c"]
Label = Shaped[Tensor, " n"] | None
Context = Shaped[Tensor, "m *grid d"] | None
"""What a caller can get wrong is Shaped: the mistake is to reach our own check and its message."""
SliceScorer = Callable[[Examples, Label, Context], Tensor]
"""Examples, labels, context -> logits (b, *part, v) of one slice."""


class _Undrawn(TorchFunctionMode):
    """Leaves tensors without memory alone: to draw normals for them torch loads its compiler."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


class Model(nn.Module):
    """An exact-likelihood autoregressive model of integer arrays (b, *axes, c).

    It takes tensors and returns tensors, and keeps nothing between calls.
    """

    family: ClassVar[str]
    """What config.json calls the kind of model."""
    config: FamilyConfig
    class_names: ClassNames = None
    """`save` and `load` keep them."""
    graphable: bool = True
    """Whether a step of training can be captured as a CUDA graph."""
    first_examples: ClassVar[int] = 0
    """How many examples of the data `start_from` asks for before training."""

    def __init__(self, config: FamilyConfig) -> None:
        if not isinstance(config, FamilyConfig):
            raise ConfigError(f"config is a {type(config).__name__}: give a configuration")
        super().__init__()
        self.config = config

    @classmethod
    def from_weights(
        cls: type[_Model], config: FamilyConfig, weights: Mapping[str, Tensor]
    ) -> _Model:
        """The model that holds exactly these tensors; no random weights are drawn first."""
        model = cls.of_shapes(config)
        model.check_weights(weights)
        model.load_state_dict(dict(weights), assign=True)
        return model.eval()

    @classmethod
    def of_shapes(cls: type[_Model], config: FamilyConfig) -> _Model:
        """The model without its numbers: all its layers, and tensors that have no memory."""
        with torch.device("meta"), _Undrawn():
            return cls(config)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are not those of this model, by name, shape and type."""
        wanted = self.state_dict()
        for name in sorted(wanted.keys() | weights.keys()):
            if name not in weights:
                raise CheckpointError(f"weight {name!r} is missing")
            if name not in wanted:
                raise CheckpointError(f"weight {name!r} does not belong to this configuration")
            if weights[name].shape != wanted[name].shape:
                raise CheckpointError(
                    f"weight {name!r} has shape {tuple(weights[name].shape)} instead of "
                    f"{tuple(wanted[name].shape)}"
                )
        usual = next(iter(weights.values())).dtype
        for name, dtype in ((name, value.dtype) for name, value in weights.items()):
            if dtype != usual or not dtype.is_floating_point:
                raise CheckpointError(
                    f"weight {name!r} is {dtype}: weights are floating point numbers of one type"
                )

    @abstractmethod
    def all_logits(
        self, x: Int[Tensor, "b *axes c"], label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes c v"]:
        """Logits of every element, whatever they are for given ones; the input was checked."""

    def forward(
        self,
        x: Examples,
        label: Label = None,
        context: Context = None,
        *,
        checkpointing: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes c v"]:
        """Logits of every element; those of given ones are zero.

        `checkpointing` trades time for memory: activations are computed again in the backward
        pass. `checked` says that the input fits; to look at its values makes a GPU wait.
        """
        if not checked:
            self.check(x, label, context)
        label = None if label is None else label.long()
        logits = self.all_logits(x.long(), label, context, checkpointing=checkpointing)
        if self.config.given_channels or self.config.given_steps:
            logits = logits.masked_fill(self.given(x.device).unsqueeze(-1), 0.0)
        return logits

    def channel_logits(
        self,
        x: Examples,
        channel: Shaped[Tensor, " k"],
        label: Label = None,
        context: Context = None,
        *,
        checkpointing: bool = False,
        checked: bool = False,
    ) -> Float[Tensor, "b *axes v"]:
        """Logits of one channel of each example; `checkpointing` and `checked` as in `forward`."""
        config = self.config
        if not checked:
            self.check(x, label, context)
            check_tensors(channel=channel)
            check_one_each("channel", channel, x)
            check_integers(
                "channel", channel, at_least=config.given_channels, below=config.channels
            )
        x, channel, label = x.long(), channel.long(), None if label is None else label.long()
        return self._one_channel(x, channel, label, context, checkpointing=checkpointing)

    def _one_channel(
        self, x: Tensor, channel: Tensor, label: Label, context: Context, *, checkpointing: bool
    ) -> Float[Tensor, "b *axes v"]:
        logits = self(x, label, context, checkpointing=checkpointing, checked=True)
        return logits[torch.arange(x.shape[0], device=x.device), ..., channel, :]

    def order(self) -> Int[Tensor, " n"]:
        """Flat indices into (*axes, c) in the order of prediction, given elements included."""
        return order(self.config)

    def given(self, device: torch.device | None = None) -> Bool[Tensor, "*axes c"]:
        """Which elements are always known: never predicted, and visible to every prediction."""
        return given(self.config, device)

    @property
    def slices(self) -> range:
        """The numbers of the slices that make up an example, but for those that are given."""
        return self.config.slices

    def slice_of(self, x: Examples, number: Int[Tensor, " b"]) -> Tensor:
        """The elements (b, *part) of one slice of each example: here of the only one."""
        return x

    def slice_logits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        context: Context = None,
        **how: bool,
    ) -> Float[Tensor, "b *part v"]:
        """Logits of one slice of each example, at the cost of one pass."""
        return self(x, label, context, **how)

    def slice_scorer(self, number: int) -> SliceScorer:
        """What gives the logits of this slice of examples that were checked, some at a time.

        It may keep what is alike for all examples: it is for one set of weights.
        """

        def logits(x: Examples, label: Label, context: Context) -> Tensor:
            every = torch.full((len(x),), number, device=x.device)
            return self.slice_logits(x, every, label, context, checked=True)

        return logits

    def slice_bits(
        self,
        x: Examples,
        number: Int[Tensor, " b"],
        label: Label = None,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, ""]:
        """Bits per predicted element of one slice of each example, averaged: what is trained on.

        With slices drawn uniformly, an unbiased estimate of the bits per dimension of whole
        examples. Values are not checked.
        """
        x, config = x.long(), self.config
        logits = self.slice_logits(x, number, label, checkpointing=checkpointing, checked=True)
        wanted = self.slice_of(x, number)
        if wanted.ndim == x.ndim:  # every channel, the given ones too
            logits = logits[..., config.given_channels :, :]
            wanted = wanted[..., config.given_channels :]
        logits, wanted = (t[:, config.given_steps :] for t in (logits, wanted))
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(exact.flatten(0, -2), wanted.flatten()) / math.log(2)

    @abstractmethod
    def smooth_embeddings(self) -> None:
        """Let embeddings of values and positions start as waves, by which near ones look alike."""

    def start_from(self, x: Examples, label: Label = None) -> None:
        """Scale new weights by examples of the data; only some families start so."""

    @abstractmethod
    def blocks(self) -> Iterator[nn.Module]:
        """The layers that FSDP shards, and compiles, one by one."""

    @abstractmethod
    def matrices(self) -> Mapping[str, int | None]:
        """The parameters that Muon is for, by name.

        With the number of heads where one holds queries, keys and values of all of them.
        """

    def check(
        self,
        x: Shaped[Tensor, "..."],
        label: Shaped[Tensor, "..."] | None = None,
        context: Shaped[Tensor, "..."] | None = None,
    ) -> None:
        """Refuse what does not fit this model.

        Ranges are not checked inside `torch.compile`, where looking at values would break it.
        """
        config = self.config
        shape = (*config.axes, config.channels)
        check_tensors(x=x, label=label, context=context)
        if x.shape[1:] != shape:
            raise InputError(
                f"x has shape {tuple(x.shape)}, but this model takes (batch, "
                f"{', '.join(map(str, shape))}): its axes, then {config.channels} channels"
            )
        check_integers("x", x, at_least=0, below=config.values)
        if label is None and config.classes:
            raise InputError(f"this model is conditioned on {config.classes} classes: give label=")
        if label is not None:
            if not config.classes and config.variants == 1:
                raise InputError("this model is unconditional: leave label out")
            check_one_each("label", label, x)
            labels = max(config.classes, 1) * config.variants
            check_integers("label", label, at_least=0, below=labels)
        wide = (x.shape[0], *config.axes, config.width)
        if context is not None and (context.shape != wide or not context.is_floating_point()):
            raise InputError(
                f"context has shape {tuple(context.shape)} and type {context.dtype}, but this "
                f"model takes floating point numbers of shape {wide}"
            )


@runtime_checkable
class Steps(Protocol):
    """A batch on its way: what the layers remember of the elements so far."""

    def logits(self, rank: int) -> Float[Tensor, "b v"]:
        """Logits of the element of this rank in the order of prediction.

        To be asked for 0, 1, 2 ... in turn; by then all elements of lower rank are known.
        """


class SteppedModel(Model):
    """A model that can predict element after element, by what its own layers remember."""

    @abstractmethod
    def steps(
        self, x: Int[Tensor, "b *axes c"], label: Label = None, context: Context = None
    ) -> Steps:
        """Predict element after element of `x`, which the caller fills in the meantime."""


class LevelModel(Model):
    """A model whose decoder has one level per axis: what its KV caches are made of."""

    config: ModelConfig
    embedding: nn.Embedding
    positions: Positions
    outer_decoders: nn.ModuleList
    inner_decoder: Blocks | LSTM
    norm: nn.LayerNorm
    to_logits: nn.Linear

    @abstractmethod
    def condition(
        self,
        x: Int[Tensor, "b *axes c"],
        channel: Int[Tensor, " b"] | None,
        label: Label,
        context: Context,
        *,
        checkpointing: bool = False,
    ) -> Float[Tensor, "b *ones_or_plane d"] | None:
        """What every level is conditioned on beside the plane itself; None if nothing.

        `channel` is the one to be predicted, None where channels are stacked.
        """

    def starts_alike(self, channel: int, label: Label, context: Context) -> bool:
        """Whether `condition` is the same for all examples: nothing is known before `channel`."""
        given = self.config.given_channels or self.config.given_steps
        return not (channel or given) and label is None and context is None


def plain_name(name: str) -> str:
    """That of a layer or a weight, without the wrappers that `torch.compile` puts around layers."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, gradients or TF32, whatever mode the model is in and returns to."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), exact_float32(), kernels_allowed():
            yield
    finally:
        for module in training:
            module.training = True


def check_model(model: object) -> None:
    """Refuse what is no model, such as the name of one."""
    if not isinstance(model, nn.Module) or not hasattr(model, "check"):
        named = isinstance(model, str | Path)
        hint = f"load it first, by axial.load({str(model)!r})" if named else "axial.load reads one"
        raise InputError(f"model is a {type(model).__name__}: {hint}")


def check_integers(name: str, x: Tensor, *, at_least: int, below: int) -> None:
    """Refuse anything but integers of the range [at_least, below)."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise InputError(f"{name} is {x.dtype}: give integers from {at_least} to {below - 1}")
    if torch.compiler.is_compiling() or not x.numel():
        return
    low, high = map(int, (x.long() if x.dtype in _WIDE_UNSIGNED else x).aminmax())
    if x.dtype == torch.uint64 and low < 0:  # what int64 cannot hold comes out negative
        high = max(high, low + (1 << 64))
        low = 0
    wrong = low if low < at_least else high
    if not at_least <= wrong < below:
        raise InputError(f"{name} holds {wrong}: its values must be {at_least} to {below - 1}")


def check_one_each(name: str, values: Tensor, x: Tensor) -> None:
    """Refuse anything but one value for each example."""
    if values.shape != x.shape[:1]:
        raise InputError(f"{name} has shape {tuple(values.shape)}: give ({len(x)},), one each")
