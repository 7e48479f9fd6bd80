"""A model in words: what it models, its sizes and cost, and its levels drawn as text."""

from axial.models.config import ModelConfig
from axial.models.cost import forward_flops, training_flops
from axial.models.family_config import FamilyConfig
from axial.validation import counted


def describe(config: FamilyConfig) -> str:
    """Everything `axial info` says of a model that can be said without its weights."""
    facts = {
        "data": _data(config),
        "sizes": _sizes(config),
        "parameters": f"{config.parameters():,} ({config.parameters() / 1e6:.1f} M)",
        "FLOPs": f"{_amount(forward_flops(config))} to score one example, "
        f"{_amount(training_flops(config))} to train on one (forward and backward"
        f"{f', one {config.slice_name}' if len(config.slices) > 1 else ''})",
    }
    lines = [f"{name:<12}{fact}" for name, fact in facts.items()]
    outline = _levels(config) if isinstance(config, ModelConfig) else config.outline()
    return "\n".join([*lines, "", outline])


def _sizes(config: FamilyConfig) -> str:
    if not isinstance(config, ModelConfig):
        return config.sizes()
    encoder = f" ({config.encoder_dropout:g} in the encoder)" if config.encoder_dropout else ""
    depth = f", stochastic depth {config.stochastic_depth:g}" if config.stochastic_depth else ""
    return (
        f"width {config.width}, {config.heads} heads of {config.width // config.heads}, "
        f"mlp_ratio {config.mlp_ratio}, dropout {config.dropout:g}{encoder}{depth}"
    )


def _amount(operations: int) -> str:
    unit, size = next(pair for pair in _UNITS if operations >= pair[1] or pair[1] == 1)
    return f"{operations / size:,.4g} {unit}".rstrip()


_UNITS = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("", 1))


def _data(config: FamilyConfig) -> str:
    parts = [
        f"{' x '.join(map(str, config.axes))}",
        counted(config.channels, "channel"),
        f"{config.values} values",
    ]
    if config.frames:
        parts[1] += f" ({config.frames} frames)"
    if config.classes:
        parts.append(f"{config.classes} classes")
    if isinstance(config, ModelConfig) and config.augment:
        parts.append(f"{config.variants} variants ({', '.join(config.augment)})")
    if config.given_channels:
        parts.append(f"the first {config.given_channels} channels given")
    if config.given_steps:
        parts.append(f"the first {config.given_steps} steps of axis 0 given")
    return ", ".join(parts)


def _levels(config: ModelConfig) -> str:
    """The levels from input to logits, each with the axes its blocks attend along."""
    last = len(config.axes) - 1
    shape = ", ".join(map(str, (*config.axes, config.channels)))
    rows = [f"x (b, {shape})"]
    if config.channel_mode != "encode":
        grid = " x ".join(map(str, config.plane_axes))
        rows.append(f" |  channels stacked as {config.channel_mode}: {grid}")
    elif config.channels > 1:
        rows.append(" |  one channel at a time")
    if config.encoder_layers:
        rows.append(_row("channel encoder", config.encoder_axes))
        rows.append(" |    added to every level below")
    for level in range(last):
        rows.append(_row(f"outer decoder, axis {level}", config.decoder_axes(level), masked=level))
        rows.append(f" |    shifted along axis {level}, added to every level below")
    rows.append(f" |    the input itself, shifted along axis {last}")
    if config.inner == "lstm":
        rows.append(f" |- inner decoder, an LSTM along axis {last}")
    else:
        rows.append(_row(f"inner decoder, axis {last}", config.decoder_axes(last), masked=last))
    rows.append(f"logits (b, {shape}, {config.values})")
    legend = "Numbers are the axes attended along, block by block; * is masked."
    return "\n".join([*rows, "", legend])


def _row(name: str, axes: tuple[int, ...], *, masked: int | None = None) -> str:
    names = " ".join(f"{axis}{'*' * (axis == masked)}" for axis in axes)
    return f" |- {name:<26}{counted(len(axes), 'block')}: {names}"
