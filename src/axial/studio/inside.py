"""Looking inside: where the bits of a picture go, and what a model expects of one pixel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from axial.data.packed import Array, dtype_for
from axial.models.likelihood import element_bits
from axial.models.protocol import Model, evaluating
from axial.studio.attention import attention_at, has_attention
from axial.studio.errors import RequestError
from axial.studio.jobs import Job
from axial.studio.other_formats import sizes
from axial.studio.wire import packed
from axial.studio.worker import Alone, Pause


@dataclass(frozen=True, kw_only=True)
class BitsTask(Alone):
    """Where the bits of one example go."""

    x: Array
    """(*axes, c)"""
    label: int | None
    quick: bool = field(default=True, init=False)

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Score the picture, and weigh it in other formats."""
        config, (job,) = model.config, jobs
        if job.start({"lines": 0, "batch": 1}):
            x, label = _on_device(model, self.x, self.label)
            each = element_bits(model, x, label)[0].cpu().numpy()
            total = float(each.sum())
            if not math.isfinite(total):
                raise RequestError(500, "failed", "the model's logits are not finite numbers")
            elements = config.elements // (config.channels - config.given_channels)
            job.finish(
                {
                    "bits": total,
                    "bits_per_dim": total / config.elements,
                    "elements": config.elements,
                    "channels": [
                        {
                            "channel": channel,
                            "bits": float(each[..., channel].sum()),
                            "bits_per_dim": float(each[..., channel].sum()) / elements,
                        }
                        for channel in range(config.given_channels, config.channels)
                    ],
                    "original": packed(self.x, dtype_for(config.values)),
                    "map": packed(each, np.float32),
                    "sizes": sizes([self.x], math.ceil(total / 8), values=config.values),
                }
            )


@dataclass(frozen=True, kw_only=True)
class PixelTask(Alone):
    """What a model expects of one pixel, and what it looks at for that."""

    x: Array
    """(*axes, c)"""
    label: int | None
    place: tuple[int, ...]
    quick: bool = field(default=True, init=False)

    def run(self, model: Model, jobs: Sequence[Job], pause: Pause) -> None:
        """Predict the pixel from all that comes before it."""
        (job,) = jobs
        if not job.start({"lines": 0, "batch": 1}):
            return
        config = model.config
        x, label = _on_device(model, self.x, self.label)
        with evaluating(model):
            logits = model(x, label)[0][self.place].double()
        if not logits.isfinite().all():
            raise RequestError(500, "failed", "the model's logits are not finite numbers")
        probabilities = logits.softmax(-1).cpu().numpy()
        given = model.given().numpy()[self.place]
        channels: list[dict[str, Any]] = []
        for channel in np.flatnonzero(~given).tolist():
            value = int(self.x[self.place][channel])
            channels.append(
                {
                    "channel": channel,
                    "value": value,
                    "bits": -math.log2(max(probabilities[channel, value], 1e-300)),
                    "probabilities": packed(probabilities[channel], np.float32),
                }
            )
        note, attention = None, []
        if not channels:
            note = "This pixel is given to the model: nothing is predicted."
        elif has_attention(model):
            attention = attention_at(model, x, label, self.place)
            predicted = {entry["channel"] for entry in channels}
            attention = [layer for layer in attention if layer["channel"] in predicted]
        else:
            note = f"Models of the family {model.family} have no attention along rows and columns."
        job.finish(
            {
                "place": list(self.place),
                "values": config.values,
                "channels": channels,
                "attention": attention,
                "note": note,
            }
        )


def _on_device(model: Model, x: Array, label: int | None) -> tuple[Tensor, Tensor | None]:
    device = next(model.parameters()).device
    example = torch.from_numpy(x.astype(np.int64))[None].to(device)
    return example, None if label is None else torch.tensor([label], device=device)
