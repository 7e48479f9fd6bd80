"""What dropout does to a model: scored with it on and off, part by part, after some training.

    python benchmarks/dropout.py --data train.npy [--encoder-dropout 0.1 --steps 3000 --plain]

The preset `cifar10` with dropout, trained as `axial train` trains it; or, with --plain, in float32
without TF32, nothing compiled, no CUDA graph: as on a CPU. Then the averaged weights are
scored on held-out pictures, one channel of each: with dropout off, on, on in one part alone, and
off with the branches of a part scaled, to find the scale that the rest of the model expects.
Dropout is well placed where a model scores better without it than with it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from axial.data.batches import TrainingBatches, channels
from axial.data.packed import Packed
from axial.data.packing import open_data
from axial.models.config import Sizes
from axial.models.families import new_model
from axial.models.layers import Block
from axial.models.protocol import Model
from axial.presets import cifar10
from axial.system.devices import exact_float32
from axial.system.ranks import Ranks, ranks
from axial.training.hold_out import split
from axial.training.loss import SliceBits
from axial.training.trainer import Trainer

PARTS = ("encoder", "outer_decoders", "inner_decoder")
SCALES = (0.9, 0.95, 1.05, 1 / 0.9, 1.2)
HELD_OUT, LAST = 1000, 300
"""Examples scored; steps whose training loss is averaged."""


class Scores:
    """Bits/dim of one channel of each held-out example, in bfloat16 as in training."""

    def __init__(self, model: Model, packed: Packed, held_out: Any, team: Ranks) -> None:
        self.model, self.device = model, team.device
        x = torch.from_numpy(packed.rows(held_out)).to(team.device).long()
        channel = channels(0, 0 * held_out, held_out, 0, packed.shape.channels)
        self.inputs = x, torch.from_numpy(channel).to(team.device)

    def __call__(self, *dropping: str) -> float:
        """With dropout on in these parts of the model; "" is all of it."""
        self.model.eval()
        for part in dropping:
            self.model.get_submodule(part).train()
        loss = SliceBits(self.model)
        torch.manual_seed(0)
        parts = zip(*(torch.split(t, 100) for t in self.inputs), strict=True)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            return statistics.fmean(loss(*part).item() for part in parts)


@contextmanager
def scaled(part: nn.Module, scale: float) -> Iterator[None]:
    """Every residual branch of a part times a number."""

    def times(layer: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        return out * scale

    layers = [block.dropout for block in part.modules() if isinstance(block, Block)]
    hooks = [layer.register_forward_hook(times) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def train(args: argparse.Namespace, packed: Packed, team: Ranks) -> Model:
    """The averaged weights after some steps."""
    recipe = cifar10(replace(packed.shape, classes=0))
    sizes = Sizes(dropout=args.dropout, encoder_dropout=args.encoder_dropout)
    training = replace(recipe.training, steps=args.steps)
    if args.plain:
        plain: dict[str, Any] = {"precision": "float32", "compile": False, "cuda_graph": False}
        training = replace(training, **plain)
    torch.manual_seed(training.seed)
    model = new_model(sizes.applied(recipe.model))
    model.smooth_embeddings()
    trainer = Trainer(model, training, team)
    used, _ = split(len(packed), HELD_OUT, "last")
    batches = TrainingBatches(packed, training.batch, seed=0, flip=True, subset=used)
    losses: list[Tensor] = []
    exact = exact_float32() if args.plain else nullcontext()
    begun, timed = time.perf_counter(), args.steps // 3
    with exact, closing(batches.stream()) as stream:
        for step in range(args.steps):
            losses.append(trainer.step(step, next(stream))[0])
            if step == timed:
                losses[-1].item()  # waits for the device
                begun = time.perf_counter()
    last = torch.stack(losses[-LAST:]).mean().item()
    pace = (args.steps - timed - 1) / (time.perf_counter() - begun)
    print(f"training {last:.4f} (mean of the last {LAST} steps), {pace:.2f} steps/s", flush=True)
    return trainer.ema_model()


def main() -> None:
    """Train, then take the score apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="pictures, as `axial data` takes them")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--encoder-dropout", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true", help="train as a CPU does")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ranks(None) as team:
        packed = open_data(args.data, Path(scratch))
        device = torch.cuda.get_device_name() if team.device.type == "cuda" else "CPU"
        print(f"{device}, torch {torch.__version__}; {len(packed):,} pictures, {args}", flush=True)
        model = train(args, packed, team)
        _, held_out = split(len(packed), HELD_OUT, "last")
        score = Scores(model, packed, held_out, team)
        print(f"held out: dropout off {score():.4f}, on {score(''):.4f}")
        for part in PARTS:
            print(f"  on in {part} alone {score(part):.4f}")
        for block, kind in model.named_modules():
            if isinstance(kind, Block):
                print(f"  on in {block} alone {score(block):.4f}")
        for part in PARTS:
            found = []
            for scale in SCALES:
                with scaled(model.get_submodule(part), scale):
                    found.append(f"{scale:.3f}: {score():.4f}")
            print(f"  off, branches of {part} times {', '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
