"""The authors' released models -> ours: what their variables are called and how they lie.

Their files are read by tensor_bundle.py, so TensorFlow is not needed.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from axial.checkpoints.tensor_bundle import find_bundle, printable, read_index, read_tensor
from axial.errors import CheckpointError, ConfigError
from axial.models.axial_transformer import AxialTransformer
from axial.models.config import ModelConfig
from axial.validation import as_integer

_AVERAGE = "/ExponentialMovingAverage"
_BOOKKEEPING = {"global_step", "beta1_power", "beta2_power"}
_PLANE_SCALE = 255.0
"""The authors divide the encoder's planes by 255 whatever the number of values."""


def load_tensorflow(
    folder: Path | str, *, heads: int, channels: int | None = None, ema: bool = True
) -> AxialTransformer:
    """Read a released checkpoint: a folder, or the path of its files without their endings.

    Takes the averaged weights unless `ema=False`. Only the variables of the model itself are
    read, and each is checked against its checksum.
    """
    prefix = find_bundle(Path(folder))
    entries = read_index(prefix.with_name(prefix.name + ".index"))
    if ema:
        chosen = {n.removesuffix(_AVERAGE): n for n in entries if n.endswith(_AVERAGE)}
    else:
        chosen = {name: name for name in _without_training_state(entries)}
    if not chosen:
        raise CheckpointError(f"{prefix}.index: holds no averaged weights; import the raw ones")
    variables = {ours: read_tensor(prefix, name, entries[name]) for ours, name in chosen.items()}
    try:
        return from_tensorflow(variables, heads=heads, channels=channels)
    except CheckpointError as error:
        kind = "averaged" if ema else "raw"
        raise CheckpointError(f"{prefix}.index ({kind} weights): {error}") from error


def from_tensorflow(
    variables: Mapping[str, NDArray[np.generic]], *, heads: int, channels: int | None = None
) -> AxialTransformer:
    """Build the model whose weights the authors' code calls by these names.

    Names may stand below a root scope or not; optimizer slots are ignored. Every size is read
    off the shapes but for `heads`, and `channels` of a stacked-rows model.
    """
    kept = _without_training_state(variables)
    names = _Variables({name: np.asarray(variables[name]) for name in kept})
    config = _config(names, heads=heads, channels=channels)
    weights = _weights(names, config)
    names.check_all_used()
    return AxialTransformer.from_weights(config, weights)


def _without_training_state(names: Iterable[str]) -> set[str]:
    """Leave out step counters, and copies, which are named below the variable they belong to."""
    known = set(names)
    return {
        name
        for name in known
        if name.rpartition("/")[0] not in known and name.rpartition("/")[2] not in _BOOKKEEPING
    }


class _Variables:
    """The authors' variables without their root scope, and which of them were taken."""

    def __init__(self, variables: Mapping[str, NDArray[np.generic]]) -> None:
        tables = [name for name in variables if name == "embs" or name.endswith("/embs")]
        if len(tables) != 1:
            raise CheckpointError(
                f"expected one variable 'embs', found {len(tables)}: not one of the authors' models"
            )
        self.stacked = tables[0].removesuffix("embs").endswith("transformer2d/")
        self.decoder = "transformer2d/" if self.stacked else ""
        self.root = tables[0].removesuffix(self.decoder + "embs")
        below = {n: v for n, v in variables.items() if n.startswith(self.root)}
        self.values = {name.removeprefix(self.root): value for name, value in below.items()}
        self.taken: set[str] = set()

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """The shape of a variable that has `rank` dimensions."""
        if name not in self.values:
            raise CheckpointError(f"variable {self.root}{name} is missing")
        shape = self.values[name].shape
        if len(shape) != rank:
            raise CheckpointError(f"variable {self.root}{name} has shape {shape}, not {rank}-D")
        return shape

    def take(self, name: str, *shape: int) -> Tensor:
        """The variable as a tensor, if it has this shape."""
        found = self.shape(name, len(shape))
        if found != shape:
            raise CheckpointError(
                f"variable {self.root}{name} has shape {found} instead of {shape}"
            )
        self.taken.add(name)
        if not np.can_cast(kind := self.values[name].dtype, np.float32, "same_kind"):
            raise CheckpointError(f"variable {self.root}{name} is {kind}: give real numbers")
        with np.errstate(over="ignore"):
            values = np.array(self.values[name], np.float32)
        if not np.isfinite(values).all():
            raise CheckpointError(f"variable {self.root}{name} holds numbers that are not finite")
        return torch.from_numpy(values)

    def count(self, prefix: str) -> int:
        """How many blocks `prefix0`, `prefix1`, ... there are."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,4})/")
        found = [int(match[1]) for name in self.values if (match := pattern.match(name))]
        return 1 + max(found, default=-1)

    def check_all_used(self) -> None:
        """Refuse a model that has more to it than we know of."""
        if rest := sorted(self.values.keys() - self.taken):
            name = printable(self.root + rest[0])
            raise CheckpointError(f"variable {name} is none of the authors' released models'")


def _config(names: _Variables, *, heads: int, channels: int | None) -> ModelConfig:
    """Every size, read off the shapes; a shape that disagrees is found when it is taken."""
    encoded = any(name.startswith("exterior_") for name in names.values)
    values, width = names.shape(names.decoder + "embs", 2)
    height, _ = names.shape(names.decoder + "pos_embs_h", 2)
    columns, _ = names.shape(names.decoder + "pos_embs_w", 2)
    _, hidden = names.shape(names.decoder + "inner_row_0/mlp/proj_in/w", 2)
    if not width or hidden % width:
        raise CheckpointError(f"feed-forward layers are {hidden} wide, no multiple of {width}")
    if channels is not None:
        channels = as_integer("channels", channels, at_least=1)
    read = names.shape("exterior_input_conv/w", 4)[2] // 2 if encoded else 1
    if names.stacked and not encoded:
        if channels is None:
            raise ConfigError(
                f"a stacked-rows model of {height} rows: the channels cannot be read off its "
                f"shapes; give --channels"
            )
        if height % channels:
            raise ConfigError(f"{height} stacked rows do not split into {channels} channels")
        height, read = height // channels, channels
    if channels not in (None, read):
        raise ConfigError(f"this model has {read} channels, not {channels}: leave channels out")
    outer = [names.count(f"{names.decoder}outer_{kind}_") for kind in ("row", "col")]
    exterior = [names.count(f"exterior_{kind}_") for kind in ("row", "col")]
    return ModelConfig(
        axes=(height, columns),
        channels=read,
        values=values,
        width=width,
        heads=heads,
        encoder_layers=2 * max(exterior),
        decoder_layers=(2 * max(outer), names.count(names.decoder + "inner_row_")),
        mlp_ratio=hidden // width,
        channel_mode="rows" if names.stacked and not encoded else "encode",
        plane_scale=_PLANE_SCALE,
    )


def _weights(names: _Variables, config: ModelConfig) -> dict[str, Tensor]:
    """Our names and layouts for all of the authors' variables."""
    width, decoder = config.width, names.decoder
    (outer, inner), encoder = config.decoder_layers, config.encoder_layers
    turns = [f"{('row', 'col')[i % 2]}_{i // 2}" for i in range(max(outer, encoder))]
    blocks = {f"{decoder}outer_{turns[i]}": f"outer_decoders.0.{i}" for i in range(outer)}
    blocks |= {f"{decoder}inner_row_{i}": f"inner_decoder.{i}" for i in range(inner)}
    blocks |= {f"exterior_{turns[i]}": f"encoder.blocks.{i}" for i in range(encoder)}
    weights = {"embedding.weight": names.take(decoder + "embs", config.values, width)}
    for theirs, ours in [(decoder, ""), ("", "encoder.")][: 1 + bool(encoder)]:
        for axis, (letter, length) in enumerate(zip("hw", config.plane_axes, strict=True)):
            table = names.take(f"{theirs}pos_embs_{letter}", length, width)
            weights[f"{ours}positions.tables.{axis}"] = table
    for theirs, ours in blocks.items():
        weights |= _block(names, config, theirs, ours)
    weights |= _norm(names, decoder + "final_ln", "norm", width)
    weights |= _dense(names, decoder + "final_dense", "to_logits", width, config.values)
    if encoder:
        kernel = names.take("exterior_input_conv/w", 3, 3, 2 * config.channels, width)
        weights["encoder.convolution.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
        weights["encoder.convolution.bias"] = names.take("exterior_input_conv/b", width)
    return weights


def _block(names: _Variables, config: ModelConfig, theirs: str, ours: str) -> dict[str, Tensor]:
    width, hidden = config.width, config.mlp_ratio * config.width
    # Ours is one layer with its features ordered (heads, q k v, head width).
    kernels = [names.take(f"{theirs}/attn/{part}/w", width, width) for part in "qkv"]
    biases = [names.take(f"{theirs}/attn/{part}/b", width) for part in "qkv"]
    by_head = torch.stack([kernel.T.reshape(config.heads, -1, width) for kernel in kernels], 1)
    bias_by_head = torch.stack([bias.reshape(config.heads, -1) for bias in biases], 1)
    return (
        {
            f"{ours}.attention.to_qkv.weight": by_head.reshape(3 * width, width),
            f"{ours}.attention.to_qkv.bias": bias_by_head.reshape(3 * width),
        }
        | _dense(names, f"{theirs}/attn/proj_out", f"{ours}.attention.to_out", width, width)
        | _dense(names, f"{theirs}/mlp/proj_in", f"{ours}.mlp_in", width, hidden)
        | _dense(names, f"{theirs}/mlp/proj_out", f"{ours}.mlp_out", hidden, width)
        | _norm(names, f"{theirs}/layernorm_attn", f"{ours}.attention_norm", width)
        | _norm(names, f"{theirs}/layernorm_mlp", f"{ours}.mlp_norm", width)
    )


def _dense(
    names: _Variables, theirs: str, ours: str, inputs: int, outputs: int
) -> dict[str, Tensor]:
    return {
        f"{ours}.weight": names.take(f"{theirs}/w", inputs, outputs).T.contiguous(),
        f"{ours}.bias": names.take(f"{theirs}/b", outputs),
    }


def _norm(names: _Variables, theirs: str, ours: str, width: int) -> dict[str, Tensor]:
    return {
        f"{ours}.weight": names.take(f"{theirs}/g", width),
        f"{ours}.bias": names.take(f"{theirs}/b", width),
    }
