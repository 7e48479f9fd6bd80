"""What rows of the comparison change of a model that its configuration does not tell.

None of it is part of the package unless it helps.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from recipe_rows import Setting
from torch import Tensor, nn

from axial.models.config import ModelConfig, TrainConfig
from axial.models.axial_transformer import AxialTransformer
from axial.system.ranks import Ranks
from axial.training.trainer import Trainer


def begun(
    setting: Setting, config: ModelConfig, seed: int, device: torch.device
) -> AxialTransformer:
    """The model that a row trains, before its first step."""
    model = shaped(setting, start(config, seed, device))
    if setting.embeddings == "smooth":
        model.smooth_embeddings()
    return model


def shaped(setting: Setting, model: AxialTransformer) -> AxialTransformer:
    """The same weights with the norms of a row."""
    if setting.norm == "rms":
        with_rms_norms(model)
    return model


class RMSNorm(nn.LayerNorm):
    """No mean is taken off and no bias added.

    The bias stays, unused, so that the weights keep the names that the model gives them.
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


def with_rms_norms(model: AxialTransformer) -> AxialTransformer:
    """Put RMSNorm in the place of every LayerNorm, on the same weights."""
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if isinstance(norm, nn.LayerNorm):
                with torch.device("meta"):
                    other = RMSNorm(norm.normalized_shape, eps=norm.eps)
                other.weight, other.bias = norm.weight, norm.bias
                setattr(parent, name, other)
    return model


class RowTrainer(Trainer):
    """Training of a row, whose averaged weights are scored in a model like the one that learns."""

    def __init__(
        self, setting: Setting, model: AxialTransformer, config: TrainConfig, team: Ranks
    ) -> None:
        super().__init__(model, config, team)
        self.setting = setting

    def averaged(self) -> AxialTransformer:
        """The model with the averaged weights."""
        return shaped(self.setting, super().averaged())


def start(config: ModelConfig, seed: int, device: torch.device) -> AxialTransformer:
    """A new model: from one seed the same in every row of its sizes, told labels or not."""
    torch.manual_seed(seed)
    with device:
        model = AxialTransformer(replace(config, classes=0))
        if not config.classes:
            return model
        told = AxialTransformer(config)
    told.load_state_dict(model.state_dict(), strict=False)  # labels are drawn, all else is equal
    return told
