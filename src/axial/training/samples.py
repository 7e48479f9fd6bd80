"""Sheets of samples that a run draws on its way and at its end."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from axial.data.batches import Indices
from axial.data.packed import Examples
from axial.media.sheets import write_sheet
from axial.models.causal import given as always_given
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model
from axial.sampling.draw import draw
from axial.system.ranks import Ranks

_PICTURES = 16
"""Pictures of a sheet; where there are classes, up to four of each."""


def draw_sheet(path: Path, model: Model, packed: Examples, examples: Indices, ranks: Ranks) -> None:
    """Draw a sheet on all ranks and write it on rank 0; a column for each class, which it names."""
    label = _labels(model.config, packed, examples)
    x = draw_some(model, packed, examples, ranks)
    if not ranks.is_rank0:
        return
    captions = None
    if label is not None:
        about = packed.description.labels
        names = about.names if about and about.names else range(model.config.classes)
        captions = [str(names[number]) for number in label.tolist()]
    path.parent.mkdir(exist_ok=True)
    config, known = model.config, always_given(model.config).numpy()
    write_sheet(
        path,
        x.cpu().numpy(),
        columns=config.classes if 1 < config.classes <= _PICTURES else None,
        kept=known if known.any() else None,
        values=config.values,
        frames=config.data.stacked_frames,
        captions=captions,
    )


def _chosen(config: FamilyConfig, packed: Examples, examples: Indices) -> Indices:
    """The examples whose given parts a sheet continues."""
    return np.resize(examples if len(examples) else np.arange(len(packed)), _count(config))


def _count(config: FamilyConfig) -> int:
    return max(_PICTURES, min(4 * config.classes, 4 * _PICTURES))


def _labels(config: FamilyConfig, packed: Examples, examples: Indices) -> Tensor | None:
    """The class of each picture of a sheet: each in turn, or that of the example it continues."""
    if not config.classes:
        return None
    if (config.given_channels or config.given_steps) and packed.labels is not None:
        return torch.from_numpy(packed.labels[_chosen(config, packed, examples)])
    return torch.arange(_count(config)) % config.classes


def draw_some(model: Model, packed: Examples, examples: Indices, ranks: Ranks) -> Tensor:
    """Draw a sheet's worth, each rank its share; parts that are given come from the examples."""
    config = model.config
    count = _count(config)
    mine = ranks.share(count)
    out = torch.zeros(count, *config.axes, config.channels, dtype=torch.long, device=ranks.device)
    label = _labels(config, packed, examples)
    known = None
    if config.given_channels or config.given_steps:
        chosen = _chosen(config, packed, examples)
        known = torch.from_numpy(packed.rows(chosen).astype(np.int64))
        known[:, ~always_given(config)] = -1
    if mine.start < mine.stop:  # there may be more ranks than pictures
        out[mine] = draw(
            model,
            mine.stop - mine.start,
            first=mine.start,
            given=None if known is None else known[mine],
            label=None if label is None else label[mine],
        )
    return ranks.sum(out)
