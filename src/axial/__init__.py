"""Axial Transformers: exact-likelihood models of images, video and any N-D integer array.

Names are imported on first use, so that `axial --help` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axial.models.attention import AxialAttention
    from axial.data.batches import EvaluationBatches, TrainingBatches
    from axial.checkpoints.model_folder import fingerprint, load, save
    from axial.sampling.complete import complete
    from axial.models.config import DataShape, ModelConfig, TrainConfig
    from axial.data.packed import open_packed
    from axial.errors import AxialError, CheckpointError, ConfigError, DataError, InputError
    from axial.evaluation.scoring import Evaluation, evaluate
    from axial.models.likelihood import bits, bits_per_dim, element_bits
    from axial.models.axial_transformer import AxialTransformer
    from axial.data.packing import pack
    from axial.sampling.draw import draw
    from axial.sampling.extend import prolong
    from axial.data.sources.options import ReadOptions
    from axial.checkpoints.tensorflow import from_tensorflow, load_tensorflow

__version__ = "0.1.0"

_HOMES = {
    "attention": ["AxialAttention"],
    "batches": ["EvaluationBatches", "TrainingBatches"],
    "checkpoint": ["fingerprint", "load", "save"],
    "completion": ["complete"],
    "config": ["DataShape", "ModelConfig", "TrainConfig"],
    "data": ["open_packed"],
    "errors": ["AxialError", "CheckpointError", "ConfigError", "DataError", "InputError"],
    "evaluation": ["Evaluation", "evaluate"],
    "likelihood": ["bits", "bits_per_dim", "element_bits"],
    "model": ["AxialTransformer"],
    "packing": ["pack"],
    "sample": ["draw"],
    "sliding": ["prolong"],
    "sources.options": ["ReadOptions"],
    "tensorflow": ["from_tensorflow", "load_tensorflow"],
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
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'axial' has no attribute {name!r}")
    return getattr(importlib.import_module(f"axial.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
