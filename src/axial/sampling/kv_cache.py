"""The KV caches of a decoder, and which arithmetic advances each of its levels.

Of an outer level they are `KVCache`s of models/attention.py, of the inner one an `InnerKVCache`.

b batch, *plane the grid of the decoder, d width.
"""

import functools
import math
from typing import TypeGuard, cast

from jaxtyping import Float
from torch import Tensor, nn

from axial.errors import InputError
from axial.models.config import ModelConfig
from axial.models.dense import is_plain
from axial.models.families import model_of_shapes
from axial.models.layers import LSTM, Blocks
from axial.models.protocol import LevelModel, Model, SteppedModel, plain_name
from axial.sampling.levels import InnerLevel, OuterStep
from axial.sampling.levels_triton import TritonInnerLevel, TritonOuterStep, fast_kernels

_FOLDED = ("embedding", "outer_decoders", "inner_decoder", "norm", "to_logits")
"""Parts of a model whose weights are taken here, past their layers."""


class DecoderState:
    """The KV cache of every level along the axis it is masked along, for one batch size.

    Outer levels take several steps by their own layers, and one step on folded weights: on a CPU
    in plain torch, on a GPU by Triton kernels where they are supported. The same holds for the
    inner level, which on any GPU is replayed as a CUDA graph. The weights are folded here, so a
    state belongs to the model as it is now; it can be used for any number of batches.
    """

    def __init__(self, model: LevelModel, batch: int) -> None:
        self.outer_decoders, kernels = outer_decoders(model), fast_kernels(model)
        axes = model.config.plane_axes
        self.outer_caches = [level.caches(batch, axes) for level in self.outer_decoders]
        levels = zip(self.outer_decoders, self.outer_caches, strict=True)
        self.outer_steps: list[OuterStep] | list[TritonOuterStep] = []
        if kernels is not None:
            self.outer_steps = [TritonOuterStep(*level, kernels) for level in levels]
        elif model.embedding.weight.device.type == "cpu":
            rows = [batch * math.prod(axes[1 + place :]) for place in range(len(axes) - 1)]
            self.outer_steps = [OuterStep(*of, n) for of, n in zip(levels, rows, strict=True)]
        self.inner: InnerLevel | TritonInnerLevel
        if kernels is None or isinstance(model.inner_decoder, LSTM):
            self.inner = InnerLevel(model, batch)
        else:
            self.inner = TritonInnerLevel(model, batch, kernels)

    def advance(
        self, level: int, x: Float[Tensor, "b *plane d"], start: int
    ) -> Float[Tensor, "b *plane d"]:
        """Let an outer level read steps of its axis from `start` on."""
        if self.outer_steps and x.shape[1 + level] == 1:
            return self.outer_steps[level].advance(x, start)
        return self.outer_decoders[level].advance(x, self.outer_caches[level], start)


def outer_decoders(model: LevelModel) -> list[Blocks]:
    """The outer levels of a model, the slowest axis first."""
    return cast(list[Blocks], list(model.outer_decoders))


def cache_bytes(model: LevelModel) -> int:
    """Memory of the KV caches for one example.

    A masked block keeps a key and a value for each place of its grid; one of the inner level
    also the query, unless it runs on Triton kernels.
    """
    config = model.config
    axes, last = config.plane_axes, len(config.axes) - 1
    kept = sum(
        2 * math.prod(axes[level:]) * config.decoder_axes(level).count(level)
        for level in range(last)
    )
    if config.inner == "attention":
        kinds = 3 if fast_kernels(model) is None else 2
        kept += kinds * axes[last] * config.decoder_layers[last]
    return kept * config.width * model.embedding.weight.element_size()


def level_model(model: Model) -> LevelModel:
    """The same model, refused if its decoder is not made of levels."""
    if not has_levels(model):
        raise InputError(f'{model.family} models have no levels to cache: use method="naive"')
    return cast(LevelModel, model)


def has_levels(model: Model) -> bool:
    """Whether it is a `LevelModel`, or what `torch.compile` wraps around one."""
    return hasattr(model, "outer_decoders")


def has_steps(model: Model) -> TypeGuard[SteppedModel]:
    """Whether it is a `SteppedModel`, or what `torch.compile` wraps around one."""
    return hasattr(model, "steps")


def check_plain(model: Model) -> LevelModel:
    """The same model, refused if it computes by other layers than its configuration says."""
    model = level_model(model)
    found = model.named_modules(remove_duplicate=False)
    # Of what is compiled the wrapper comes first, and what it wraps, which counts, after it.
    layers = {plain_name(name): layer for name, layer in found}
    for name, kind, settings in _plain_layers(model.config):
        layer = layers.get(name)
        plain = layer is not None and is_plain(layer, kind)
        if layer is None or not plain or (settings and layer.extra_repr() != settings):
            raise InputError(
                f"{name} of this model was exchanged or has hooks, which drawing by caches does "
                'not run: use method="semi-parallel"'
            )
    return model


@functools.lru_cache(maxsize=8)
def _plain_layers(config: ModelConfig) -> list[tuple[str, type[nn.Module], str]]:
    """Name, kind and settings of every layer that is folded; dropout's are of training alone."""
    return [
        (name, type(layer), "" if isinstance(layer, nn.Dropout) else layer.extra_repr())
        for name, layer in model_of_shapes(config).named_modules()
        if name.partition(".")[0] in _FOLDED
    ]
