"""Every family of models by its name: how config.json is read, and which model it is."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from axial.errors import ConfigError
from axial.models.axial_transformer import AxialTransformer
from axial.models.block_transformer import BlockTransformer
from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.family_config import FamilyConfig
from axial.models.gated_pixelcnn import GatedPixelCnn
from axial.models.image_transformer import ImageTransformer1d, ImageTransformer2d
from axial.models.local_config import Local1dConfig, Local2dConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.pixelcnnpp import PixelCnnPp
from axial.models.protocol import Model
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.models.sequence_transformer import FullTransformer, StridedTransformer
from axial.validation import shown

_KINDS: tuple[tuple[type[Model], type[FamilyConfig]], ...] = (
    (AxialTransformer, ModelConfig),
    (FullTransformer, FullConfig),
    (StridedTransformer, StridedConfig),
    (ImageTransformer1d, Local1dConfig),
    (ImageTransformer2d, Local2dConfig),
    (GatedPixelCnn, GatedPixelCnnConfig),
    (BlockTransformer, BlocksConfig),
    (PixelCnnPp, PixelCnnPpConfig),
)
FAMILIES: dict[str, type[Model]] = {model.family: model for model, _ in _KINDS}
_CONFIGS: dict[str, type[FamilyConfig]] = {model.family: config for model, config in _KINDS}


def family_of(config: FamilyConfig) -> type[Model]:
    """The kind of model that a configuration describes."""
    return next(FAMILIES[name] for name, kind in _CONFIGS.items() if type(config) is kind)


def read_config(about: Mapping[str, Any]) -> FamilyConfig:
    """The configuration in what `config.json` or `run.json` says; old files name no family."""
    name = about.get("family", "axial")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(
            f"family {shown(name)} is none this version knows ({', '.join(FAMILIES)}); upgrade "
            f"axial-transformers"
        )
    return _CONFIGS[name].from_json(about["model"])


def new_model(config: FamilyConfig) -> Model:
    """A model with new random weights."""
    return family_of(config)(config)


def model_of_shapes(config: FamilyConfig) -> Model:
    """A model without its numbers: tensors that have no memory."""
    return family_of(config).of_shapes(config)


def model_from_weights(config: FamilyConfig, weights: Mapping[str, Tensor]) -> Model:
    """The model that holds exactly these tensors."""
    return family_of(config).from_weights(config, weights)
