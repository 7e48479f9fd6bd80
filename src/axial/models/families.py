"""Every family of models by its name: how config.json is read, and which model it is."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from axial.errors import ConfigError
from axial.models.axial_transformer import AxialTransformer
from axial.models.config import ModelConfig
from axial.models.protocol import Model

FAMILIES: dict[str, type[Model]] = {family.family: family for family in (AxialTransformer,)}
_CONFIGS: dict[str, type[ModelConfig]] = {"axial": ModelConfig}


def family_of(config: ModelConfig) -> type[Model]:
    """The kind of model that a configuration describes."""
    return next(FAMILIES[name] for name, kind in _CONFIGS.items() if isinstance(config, kind))


def read_config(about: Mapping[str, Any]) -> ModelConfig:
    """The configuration in what `config.json` or `run.json` says; old files name no family."""
    name = about.get("family", "axial")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(
            f"family {name!r} is none this version knows ({', '.join(FAMILIES)}); upgrade "
            f"axial-transformers"
        )
    return _CONFIGS[name].from_json(about["model"])


def new_model(config: ModelConfig) -> Model:
    """A model with new random weights."""
    return family_of(config)(config)


def model_of_shapes(config: ModelConfig) -> Model:
    """A model without its numbers: tensors that have no memory."""
    return family_of(config).of_shapes(config)


def model_from_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Model:
    """The model that holds exactly these tensors."""
    return family_of(config).from_weights(config, weights)
