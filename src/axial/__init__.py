"""Axial Transformers: exact-likelihood models of images, video and any N-D integer array.

Names are imported on first use, so that `axial --help` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "api": ["train"],
    "models.attention": ["AxialAttention"],
    "data.batches": ["EvaluationBatches", "TrainingBatches"],
    "checkpoints.model_folder": ["fingerprint", "load", "save"],
    "checkpoints.push": ["push"],
    "codec.compress": ["compress", "decompress"],
    "sampling.complete": ["complete"],
    "models.config": ["ModelConfig"],
    "shape": ["DataShape"],
    "training.config": ["Recipe", "TrainConfig"],
    "data.packed": ["open_packed"],
    "media.sheets": ["sheet"],
    "errors": [
        "AxialError",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "InputError",
        "StreamError",
    ],
    "evaluation.evaluate": ["evaluate"],
    "evaluation.result": ["Evaluation"],
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

if TYPE_CHECKING:  # the same for type checkers, which do not run the code
    from axial.api import train as train
    from axial.checkpoints.model_folder import fingerprint as fingerprint
    from axial.checkpoints.model_folder import load as load
    from axial.checkpoints.model_folder import save as save
    from axial.checkpoints.push import push as push
    from axial.checkpoints.tensorflow import from_tensorflow as from_tensorflow
    from axial.checkpoints.tensorflow import load_tensorflow as load_tensorflow
    from axial.codec.compress import compress as compress
    from axial.codec.compress import decompress as decompress
    from axial.data.batches import EvaluationBatches as EvaluationBatches
    from axial.data.batches import TrainingBatches as TrainingBatches
    from axial.data.packed import open_packed as open_packed
    from axial.data.packing import pack as pack
    from axial.data.sources.options import ReadOptions as ReadOptions
    from axial.errors import AxialError as AxialError
    from axial.errors import CheckpointError as CheckpointError
    from axial.errors import ConfigError as ConfigError
    from axial.errors import DataError as DataError
    from axial.errors import InputError as InputError
    from axial.errors import StreamError as StreamError
    from axial.evaluation.evaluate import evaluate as evaluate
    from axial.evaluation.result import Evaluation as Evaluation
    from axial.media.sheets import sheet as sheet
    from axial.models.attention import AxialAttention as AxialAttention
    from axial.models.axial_transformer import AxialTransformer as AxialTransformer
    from axial.models.config import ModelConfig as ModelConfig
    from axial.models.likelihood import bits as bits
    from axial.models.likelihood import bits_per_dim as bits_per_dim
    from axial.models.likelihood import element_bits as element_bits
    from axial.sampling.complete import complete as complete
    from axial.sampling.draw import draw as draw
    from axial.sampling.extend import prolong as prolong
    from axial.sampling.stream import stream as stream
    from axial.shape import DataShape as DataShape
    from axial.training.config import Recipe as Recipe
    from axial.training.config import TrainConfig as TrainConfig
else:
    __all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "presets":
        return importlib.import_module("axial.presets")
    if name not in _HOME:
        raise AttributeError(f"module 'axial' has no attribute {name!r}")
    return getattr(importlib.import_module(f"axial.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOME, "presets", "__version__"]
