"""A model in words: what it models, its sizes and cost, and its levels drawn as text."""

import torch

from axial.config import ModelConfig
from axial.cost import forward_flops, training_flops
from axial.layers import Blocks
from axial.model import AxialTransformer


def describe(config: ModelConfig) -> str:
    """Everything `axial info` says of a model that can be said without its weights."""
    with torch.device("meta"):
        model = AxialTransformer(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "data": _data(config),
        "sizes": f"width {config.width}, {config.heads} heads of {config.width // config.heads}, "
        f"mlp_ratio {config.mlp_ratio}, dropout {config.dropout:g}",
        "parameters": f"{parameters:,} ({parameters / 1e6:.1f} M)",
        "FLOPs": f"{forward_flops(config) / 1e9:,.1f} G to score one example, "
        f"{training_flops(config) / 1e9:,.1f} G to train on one (forward and backward"
        f"{', one channel' if config.planes > 1 else ''})",
    }
    lines = [f"{name:<12}{fact}" for name, fact in facts.items()]
    return "\n".join([*lines, "", _levels(model)])


def _data(config: ModelConfig) -> str:
    parts = [
        f"{' x '.join(map(str, config.axes))}",
        f"{config.channels} channel{'s' * (config.channels > 1)}",
        f"{config.values} values",
    ]
    if config.classes:
        parts.append(f"{config.classes} classes")
    if config.given_channels:
        parts.append(f"the first {config.given_channels} channels given")
    if config.given_steps:
        parts.append(f"the first {config.given_steps} steps of axis 0 given")
    return ", ".join(parts)


def _levels(model: AxialTransformer) -> str:
    """The levels from input to logits, each with the axes its blocks attend along."""
    config = model.config
    last = len(config.axes) - 1
    shape = ", ".join(map(str, (*config.axes, config.channels)))
    rows = [(f"x (b, {shape})", "")]
    if config.channel_mode != "encode":
        grid = " x ".join(map(str, config.plane_axes))
        rows.append((f" |  channels stacked as {config.channel_mode}: {grid}", ""))
    elif config.channels > 1:
        rows.append((" |  one channel at a time", ""))
    if model.encoder is not None:
        rows.append((" |- channel encoder", _axes(model.encoder.blocks)))
        rows.append((" |    added to every level below", ""))
    for axis, blocks in enumerate(model.outer_decoders):
        assert isinstance(blocks, Blocks)
        rows.append((f" |- outer decoder, axis {axis}", _axes(blocks)))
        rows.append((f" |    shifted along axis {axis}, added to every level below", ""))
    inner = model.inner_decoder
    rows.append((f" |    the input itself, shifted along axis {last}", ""))
    axes = _axes(inner) if isinstance(inner, Blocks) else f"LSTM along {last}"
    rows.append((f" |- inner decoder, axis {last}", axes))
    rows.append((f"logits (b, {shape}, {config.values})", ""))
    body = [f"{left:<30}{right}".rstrip() if right else left for left, right in rows]
    return "\n".join(
        [*body, "", "Numbers are the axes attended along, block by block; * is masked."]
    )


def _axes(blocks: Blocks) -> str:
    names = [f"{block.attention.axis}{'*' * block.attention.causal}" for block in blocks]
    return f"{len(names)} block{'s' * (len(names) > 1)}: {' '.join(names)}"
