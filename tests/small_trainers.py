"""A tiny model in colour, how to train it, and batches for it."""

import numpy as np
import torch
from conftest import config, random_input

from axial import TrainConfig
from axial.data.batches import Batch
from axial.system.ranks import Ranks

ALONE = Ranks(rank=0, count=1, device=torch.device("cpu"))
TRAINING = TrainConfig(steps=20, batch=6, learning_rate=0.01, warmup=4)
COLOUR = config((3, 4), channels=3, classes=2)


def batch_of(model_config, count, *, seed=1):
    x, label, _ = random_input(model_config, count, seed=seed)
    index, variant, classes = np.arange(count), None, model_config.classes
    if model_config.variants > 1:
        variant = label.numpy() // max(classes, 1)
        label = label % classes if classes else None
    found = {"index": index, "epoch": np.zeros_like(index), "variant": variant}
    return Batch(x=x.to(torch.uint8), label=label, **found)
