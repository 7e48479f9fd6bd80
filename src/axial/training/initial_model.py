"""Which model a new run trains, and the data as that model takes it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from axial.checkpoints.hub_name import is_on_hub
from axial.checkpoints.model_folder import config_of, fingerprint, load
from axial.checkpoints.shipped import shipped_folder
from axial.data.compatibility import conform, conform_pictures, picture_size
from axial.data.crops import picture_sizes, words
from axial.data.packed import Packed
from axial.errors import ConfigError
from axial.models.families import family_of
from axial.models.family_config import FamilyConfig
from axial.shape import ClassNames
from axial.system.devices import memory_bytes
from axial.system.files import resolved
from axial.system.ranks import Ranks
from axial.training.config import Recipe, TrainConfig
from axial.training.plan import Plan

_CROP = (64, 64)
"""Crops of pictures of different sizes, unless another size is asked for."""


def with_crop(plan: Plan, packed: Packed) -> Plan:
    """The plan with a size of crops, which pictures of different sizes need."""
    if packed.sizes is None or plan.training.crop is not None:
        return plan
    crop = _CROP
    if isinstance(plan.preset, Recipe):
        crop = picture_size(packed, plan.preset.model.data)
    if plan.init is not None:
        crop = picture_size(packed, config_of(plan.init).data)
    return replace(plan, training=replace(plan.training, crop=crop))


def initial_model(plan: Plan, packed: Packed) -> tuple[FamilyConfig, Packed, dict[str, Any] | None]:
    """What is trained, the data as it takes it, and what it starts from."""
    if plan.init is not None:
        return _model_to_tune(plan, plan.init, packed)
    if isinstance(plan.preset, Recipe):
        config = plan.sizes.applied(plan.preset.model)
        return config, _conform(plan, packed, config, "the recipe"), None
    assert plan.preset is not None  # that of a new run
    shape = packed.shape if plan.training.labels else replace(packed.shape, classes=0)
    if plan.training.crop is not None:
        picture_sizes(packed)  # or they are no pictures
        shape = replace(shape, axes=plan.training.crop)
    return plan.sizes.applied(plan.preset(shape).model), packed, None


def _conform(
    plan: Plan, packed: Packed, config: FamilyConfig, model: Path | str, names: ClassNames = None
) -> Packed:
    """The data as the model takes it, or as crops of it are."""
    if (crop := plan.training.crop) is None:
        return conform(packed, config.data, names)
    if config.axes != crop:
        axes = " ".join(map(str, dict.fromkeys(config.axes)))
        raise ConfigError(
            f"{model}: takes examples of {words(config.axes)}, not crops of {words(crop)}; use "
            f"--crop {axes}"
        )
    picture_sizes(packed)
    return conform_pictures(packed, config.data, names)


def _model_to_tune(
    plan: Plan, init: Path | str, packed: Packed
) -> tuple[FamilyConfig, Packed, dict[str, Any]]:
    """As above, of a run that starts from a checkpoint: its sizes are the run's.

    But for rates such as dropout, which only training has, and for variants that it is to learn.
    """
    model = load(init)
    config, labels = model.config, plan.training.labels
    if config.classes and not labels:
        raise ConfigError(
            f"{init}: is conditioned on labels, and this training goes without; give --labels, or "
            f"leave --init out"
        )
    if labels and packed.shape.classes and not config.classes:
        raise ConfigError(
            f"{init}: is not conditioned on labels, and this training would be; give --no-labels, "
            f"or leave --init out"
        )
    if (own := family_of(config)) is not (other := family_of(plan.usual.model)):
        raise ConfigError(
            f"{init}: is a model of the family {own.family}, but {plan.name} is of {other.family}; "
            f"train a preset of that family"
        )
    wanted = asdict(plan.preset.model) if isinstance(plan.preset, Recipe) else {}
    wanted |= plan.sizes.given
    new = {name: value for name, value in wanted.items() if name in config.rates}
    if wanted.get("augment") and not getattr(config, "augment", True):
        new["augment"] = wanted["augment"]
    for name, value in wanted.items():
        if name not in new and value != (has := getattr(config, name, None)):
            raise ConfigError(
                f"{init}: has {name} {has}, not {value}; with --init the sizes "
                f"are those of the model to start from: leave --{name.replace('_', '-')} out"
            )
    start = {"folder": lasting_name(init), "fingerprint": fingerprint(model)}
    if "augment" in new:
        start["new"] = "variant_embedding"
    packed = _conform(plan, packed, config, init, model.class_names)
    return replace(config, **new), packed, start


def lasting_name(checkpoint: Path | str) -> str:
    """Where a checkpoint is found again from anywhere: its whole path, or its name."""
    named = shipped_folder(checkpoint) or is_on_hub(checkpoint)
    return str(checkpoint if named else resolved(checkpoint))


def check_memory(model: FamilyConfig, training: TrainConfig, ranks: Ranks) -> None:
    """Refuse what cannot fit, by the least that it takes.

    That is one rank's shards of weights, gradients, EMA weights and a moment in float32, and one
    layer of features of a micro-batch in bfloat16.
    """
    batch = -(-training.batch // (ranks.count * training.grad_accum))
    needed = 16 * model.parameters() // ranks.count + 2 * batch * model.positions * model.width
    if needed > (has := memory_bytes(ranks.device)):
        raise ConfigError(
            f"training {model.parameters():,} parameters on batches of {training.batch:,} takes "
            f"{needed / 1e9:,.0f} GB or more, and {ranks.device} has {has / 1e9:,.0f} GB; use a "
            f"smaller --width, fewer layers, a smaller --batch or a larger --grad-accum"
        )
