"""The Sparse Transformer's authors' weights -> our model: every size is read off the shapes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from axial.errors import CheckpointError
from axial.models.sequence_config import FullConfig, Pattern, StridedConfig
from axial.models.sequence_transformer import FullTransformer, StridedTransformer

_DENSE = {
    "q_proj": "attention.to_queries",
    "k_proj": "attention.to_keys",
    "v_proj": "attention.to_values",
    "post_proj": "attention.to_out",
    "mlp_proj1": "mlp_in",
    "mlp_proj2": "mlp_out",
}
_NORMS = {"attn_input": "attention_norm", "mlp": "mlp_norm"}
_PATTERNS: dict[str, Pattern] = {"a": "full", "b": "local", "bT": "strided"}


def from_sparse_transformer(
    variables: Mapping[str, NDArray[Any]],
    *,
    heads: int,
    modes: Sequence[str] = ("bT", "b", "b", "b"),
    stride: int | None = None,
) -> FullTransformer:
    """The model that holds variables by the names of openai/distribution_augmentation.

    `modes` is the cycle of attention kinds in their words: a full, b local, bT strided. Heads,
    modes and the stride cannot be read off the shapes.
    """
    try:
        lengths = [len(variables[f"pos_emb_{axis}"]) for axis in range(3)]
        values, width = variables["we"].shape
        layers = 1 + max(int(m[1]) for m in (re.match(r"h(\d+)/", name) for name in variables) if m)
        sizes = {
            "axes": tuple(lengths[:2]),
            "channels": lengths[2],
            "values": values,
            "width": width,
            "heads": heads,
            "layers": layers,
            "qk_ratio": variables["h0/q_proj/w"].shape[1] / width,
            "mlp_ratio": variables["h0/mlp_proj1/w"].shape[1] // width,
        }
        cycle = tuple(_PATTERNS[mode] for mode in modes)
        weights = {
            "embedding.weight": variables["we"],
            "start": variables["sos_token/sos"].reshape(width),
            "norm.weight": variables["final_norm/g"],
            "norm.bias": variables["final_norm/b"],
            "to_logits.weight": variables["gen_logits/logits_proj"].T,
        }
        weights |= {f"positions.tables.{axis}": variables[f"pos_emb_{axis}"] for axis in range(3)}
        for layer in range(layers):
            for theirs, ours in _DENSE.items():
                name = f"layers.{layer}.{ours}"
                weights[f"{name}.weight"] = variables[f"h{layer}/{theirs}/w"].T
                weights[f"{name}.bias"] = variables[f"h{layer}/{theirs}/b"]
            for theirs, ours in _NORMS.items():
                weights[f"layers.{layer}.{ours}.weight"] = variables[f"h{layer}/{theirs}/g"]
                weights[f"layers.{layer}.{ours}.bias"] = variables[f"h{layer}/{theirs}/b"]
    except KeyError as error:
        raise CheckpointError(
            f"{error.args[0]!r} is missing: give all variables of a Sparse Transformer by their "
            f"names, and modes of {', '.join(_PATTERNS)}"
        ) from None
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    if set(cycle) == {"full"}:
        return FullTransformer.from_weights(FullConfig(**sizes), tensors)
    return StridedTransformer.from_weights(
        StridedConfig(**sizes, stride=stride, cycle=cycle), tensors
    )
