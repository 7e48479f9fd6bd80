"""Axial Transformers: exact-likelihood models of images, video and any N-D integer array.

Names are imported on first use, so that `axial --help` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axial.api import train
    from axial.checkpoints.model_folder import fingerprint, load, save
    from axial.checkpoints.tensorflow import from_tensorflow, load_tensorflow
    from axial.data.batches import EvaluationBatches, TrainingBatches
    from axial.data.packed import open_packed
    from axial.data.packing import pack
    from axial.data.sources.options import ReadOptions
    from axial.errors import AxialError, CheckpointError, ConfigError, DataError, InputError
    from axial.evaluation.evaluate import evaluate
    from axial.evaluation.scoring import Evaluation
    from axial.media.sheets import sheet
    from axial.models.attention import AxialAttention
    from axial.models.axial_transformer import AxialTransformer
    from axial.models.config import ModelConfig
    from axial.models.likelihood import bits, bits_per_dim, element_bits
    from axial.sampling.complete import complete
    from axial.sampling.draw import draw
    from axial.sampling.extend import prolong
    from axial.sampling.stream import stream
    from axial.shape import DataShape
    from axial.training.config import TrainConfig

__version__ = "0.1.0"

_HOMES = {
    "api": ["train"],
    "models.attention": ["AxialAttention"],
    "data.batches": ["EvaluationBatches", "TrainingBatches"],
    "checkpoints.model_folder": ["fingerprint", "load", "save"],
    "sampling.complete": ["complete"],
    "models.config": ["ModelConfig"],
    "shape": ["DataShape"],
    "training.config": ["Recipe", "TrainConfig"],
    "data.packed": ["open_packed"],
    "media.sheets": ["sheet"],
    "errors": ["AxialError", "CheckpointError", "ConfigError", "DataError", "InputError"],
    "evaluation.evaluate": ["evaluate"],
    "evaluation.scoring": ["Evaluation"],
    "models.likelihood": ["bits", "bits_per_dim", "element_bits"],
    "models.axial_transformer": ["AxialTransformer"],
    "data.packing": ["pack"],
    "sampling.draw": ["draw"],
    "sampling.extend": ["prolong"],
    "sampling.stream": ["stream"],
    "data.sources.options": ["ReadOptions"],
    "checkpoints.tensorflow": ["from_tensorflow", "load_tensorflow"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AxialAttention",
    "AxialError",
    "AxialTransformer",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DataShape",
    "Evaluation",
    "EvaluationBatches",
    "InputError",
    "ModelConfig",
    "ReadOptions",
    "Recipe",
    "TrainConfig",
    "TrainingBatches",
    "bits",
    "bits_per_dim",
    "complete",
    "draw",
    "element_bits",
    "evaluate",
    "fingerprint",
    "from_tensorflow",
    "load",
    "load_tensorflow",
    "open_packed",
    "pack",
    "prolong",
    "save",
    "sheet",
    "stream",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("axial.presets")
    if name not in _HOME:
        raise AttributeError(f"module 'axial' has no attribute {name!r}")
    return getattr(importlib.import_module(f"axial.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "presets", "__version__"]
