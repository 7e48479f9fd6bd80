"""The model that comes with the package: made of a run, checked on this machine, shown.

    axial train cifar10 --data train.npy --validation 5000 --max-minutes 20 --out RUN
    python tools/ship.py make RUN --name cifar10 --data test.npy   the model's folder, with its card
    python tools/ship.py check cifar10 --data test.npy             a CPU's figures beside the GPU's
    python tools/ship.py show cifar10 --out docs/figures           samples, completions, bits

What is shown are the model's own samples: the data it learned from is not ours to publish.
"""

import argparse
import json
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import axial
from axial.checkpoints import shipped
from axial.checkpoints.run_folder import Run
from axial.cli.main import main as axial_command
from axial.data.classical import codec_bits
from axial.data.packed import Packed
from axial.models.family_config import FamilyConfig
from axial.models.protocol import Model
from axial.training.config import TrainConfig
from axial.training.hold_out import split
from axial.training.start import open_again

MOST_BYTES = 30e6
LEARNED, FEW = 5000, 500
"""Images trained on that are scored; test images that a CPU scores in minutes."""
DRAWN, DRAWING_SECONDS = 16, 60
SAMPLES, SAMPLED = "samples.png", 36
"""The picture in the card, and how many it shows."""
OFF = 0.002
"""Bits/dim by which two machines may differ."""
CARD = """# {name}

An Axial Transformer of {title}, unconditional: {parameters:,} parameters, arrays of {shape}
integers below {values}, exact bits/dim. Weights are kept in bfloat16; `axial.load("{name}")` gives
them in float32.

    axial sample {name} --count 64 --out samples.png
    axial complete {name} mine.jpg --size {size} --keep 16 --particles 16 --out completed.png
    axial evaluate {name} --data test.npy --map bits.png

![{sampled} samples, not chosen]({samples})

*{sampled} samples, not chosen.*

| | |
|---|---|
| test, all {examples:,} images, float32, as kept | **{bits:.4f} bits/dim** +- {error:.4f} |
| red, green given red, blue given both | {channels} bits/dim |
| held out, the last {held_out:,} training images | {validation:.4f} bits/dim |
| the first {learned_from:,} that it was trained on | {learned:.4f} bits/dim |
| seen in training | {seen:,} images: {steps:,} steps of {batch}, {epochs:.1f} times each |
| time | {minutes:.1f} minutes on one {device} after the first step (torch {torch}) |
| fingerprint, as loaded by name | `{fingerprint}` |

## Data

The first {trained_on:,} of the {available:,} training images of CIFAR-10 (Krizhevsky, 2009),
mirrored at random; labels were not used. On the last {held_out:,} recipes were compared. The test
images were scored once, after training.

## Recipe

{recipe}.

`experiments/results/recipes_h200.md` has what else was tried. This run was

{command}

and the preset of the same name is its recipe for data of your own, `axial train {name} --data ...`.

## Limits

It knows pictures of its own size and nothing of larger ones. Minutes of training are not days:
the Sparse Transformer, for one, reached 2.80 bits/dim on this data in days. Samples have colours,
edges and textures of photographs, and now and then show something one could name. A likelihood does
not measure what a picture shows, and a low one does not prove that a picture is out of place.
CIFAR-10 was gathered from the web, with the biases of such a collection. The model saw each
training image {epochs:.0f} times: that a sample comes close to one of them cannot be ruled out.
"""


def make(args: argparse.Namespace) -> None:
    """Score a run as it will be kept; write weights, configuration, figures and card."""
    run = Run(args.run)
    training = TrainConfig.from_json(run.about["training"])
    model = axial.load(args.run, device=args.device).bfloat16()
    if model.config.classes or not training.flip or training.hold_out != "last":
        raise SystemExit(f"{args.run}: is not what the card says; train the preset as it is")
    size = 2 * sum(p.numel() for p in model.parameters())
    if size > MOST_BYTES:
        raise SystemExit(f"{args.run}: {size / 1e6:.1f} MB are more than {MOST_BYTES / 1e6:.0f}")
    folder = shipped.MODELS / args.name
    axial.save(model, folder)
    model = axial.load(args.name, device=args.device)  # in float32, as whoever uses it has it
    result = figures(run, training, model, axial.open_packed(args.data))
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "README.md").write_text(card(args.name, result, axial.fingerprint(model)))
    print(f"{folder}: {size / 1e6:.1f} MB, {result['test']['bits_per_dim']:.4f} bits/dim")


def figures(run: Run, training: TrainConfig, model: Model, test: Packed) -> dict[str, Any]:
    """What the card says: the run's own figures, and scores of the model as it is kept."""
    packed, found = open_again(run), run.newest()
    assert found is not None  # a run with a model has a checkpoint
    state, _ = found
    used, held_out = split(len(packed), training.held_out(len(packed)), training.hold_out)
    tested = axial.evaluate(model, test)
    first = float(tested.bits[tested.index < FEW].mean()) / tested.elements
    device = next(model.parameters()).device
    of = ["--data train.npy", f"--validation {len(held_out)} --seed {training.seed}"]
    of += [f"--max-minutes {training.max_minutes:g}" if training.max_minutes else ""]
    return {
        "command": " ".join(["axial train", run.about["preset"], *filter(None, of), "--out RUN"]),
        "model": model.config.to_json(),
        "parameters": model.config.parameters(),
        "training": training.to_json() | {"steps": state["step"]},
        "steps": state["step"],
        "examples": state["step"] * training.batch,
        "seconds": state["seconds"],
        "validation": axial.evaluate(model, packed, subset=held_out).to_json(),
        "learned": axial.evaluate(model, packed, subset=used[:LEARNED]).to_json(),
        "test": tested.to_json() | {"first": FEW, "bits_per_dim_of_first": first},
        "probe": probe_bits(model),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
    }


def card(name: str, result: dict[str, Any], fingerprint: str) -> str:
    """What a model card says, all figures as the run found them."""
    test, held_out = result["test"], result["validation"]
    trained_on = held_out["data"]["examples"] - held_out["examples"]
    return CARD.format(
        name=name,
        samples=SAMPLES,
        sampled=SAMPLED,
        title=test["data"]["title"].removesuffix(f" {test['data']['split']}"),
        shape=" x ".join(map(str, [*result["model"]["axes"], result["model"]["channels"]])),
        values=result["model"]["values"],
        size=result["model"]["axes"][-1],
        available=held_out["data"]["examples"],
        parameters=result["parameters"],
        examples=test["examples"],
        bits=test["bits_per_dim"],
        error=test["standard_error"],
        channels=", ".join(f"{bits:.3f}" for bits in test["per_channel"]),
        validation=held_out["bits_per_dim"],
        held_out=held_out["examples"],
        learned=result["learned"]["bits_per_dim"],
        learned_from=result["learned"]["examples"],
        trained_on=trained_on,
        seen=result["examples"],
        epochs=result["examples"] / trained_on,
        steps=result["steps"],
        batch=result["training"]["batch"],
        minutes=result["seconds"] / 60,
        device=result["device"],
        torch=result["torch"],
        fingerprint=fingerprint,
        command=textwrap.indent(result["command"], " " * 4),
        recipe=recipe(result["model"], result["training"]),
    )


def recipe(model: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """Sizes and settings in words."""
    outer, inner = model["decoder_layers"]
    start = ", embeddings and positions that start as waves" * (training["embeddings"] == "smooth")
    share = training.get("ema_horizon")
    if training["ema"] is not None:
        share = 1 / (1 - training["ema"]) / training["steps"]
    words = (
        f"Width {model['width']}, {model['heads']} heads, {model['encoder_layers']} encoder, "
        f"{outer} outer and {inner} inner layers, mlp ratio {model['mlp_ratio']}, dropout "
        f"{model['dropout']}{start}. {training['optimizer'].title()}, rate "
        f"{training['learning_rate']} after {training['warmup']} steps of warm-up, then a "
        f"{training['schedule']} schedule, weight decay {training['weight_decay']}, batches of "
        f"{training['batch']}, bfloat16; the weights are an exponential average over {share:.0%} "
        f"of the steps"
    )
    return textwrap.fill(words, 99)


def probe_bits(model: Model) -> float:
    """Bits/dim of a picture of waves: they tell, without any data, whether it is the same model."""
    x = waves(model.config).to(next(model.parameters()).device)
    return float(axial.bits_per_dim(model, x).mean())


def waves(config: FamilyConfig) -> torch.Tensor:
    """A picture that every machine draws alike."""
    grids = np.meshgrid(*(np.arange(n) / n for n in config.axes), indexing="ij")
    tones = [
        sum(np.sin(2 * np.pi * (at * (axis + 1) + channel / 7)) for axis, at in enumerate(grids))
        for channel in range(config.channels)
    ]
    x = np.stack(tones, -1) / (2 * len(grids)) + 0.5
    return torch.from_numpy(x * (config.values - 1)).round().long()[None]


def check(args: argparse.Namespace) -> None:
    """Score and draw on a CPU, beside what codecs need; fail if it is another model, or slow."""
    recorded = json.loads((shipped.MODELS / args.name / "result.json").read_text())
    model, packed = axial.load(args.name), axial.open_packed(args.data)
    first = recorded["test"]["first"]
    if abs(probe_bits(model) - recorded["probe"]) > OFF:
        raise SystemExit(f"{args.name}: waves have other bits than when it was made")
    print(f"{args.name}: {axial.fingerprint(model)}, torch {torch.__version__}")
    codecs = codec_bits(packed).items()
    needed = ", ".join(f"{name} {bits:.4f}" for name, bits in codecs)
    print(f"all {len(packed):,} {packed.description.title} images, a file each: {needed} bits/dim")
    begun = time.perf_counter()
    here = axial.evaluate(model, packed, subset=np.arange(first)).bits_per_dim
    off = here - recorded["test"]["bits_per_dim_of_first"]
    print(
        f"the first {first} test images: {here:.4f} bits/dim on this CPU, {off:+.5f} to "
        f"{recorded['device']}, in {time.perf_counter() - begun:.0f} s"
    )
    begun = time.perf_counter()
    axial.draw(model, DRAWN, seed=0)
    drawing = time.perf_counter() - begun
    print(f"{DRAWN} pictures drawn in {drawing:.1f} s on {torch.get_num_threads()} cores")
    if abs(off) > OFF or drawing > DRAWING_SECONDS:
        raise SystemExit(f"more than {OFF} bits/dim apart, or above {DRAWING_SECONDS} s")


def show(args: argparse.Namespace) -> None:
    """Draw what the README and the card show, by the commands of a user."""
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / args.name
    drawn = args.scratch / "samples.npy"
    args.scratch.mkdir(parents=True, exist_ok=True)
    for out in (drawn, shipped.MODELS / args.name / SAMPLES):
        how = ["--count", str(SAMPLED), "--batch", "16", "--out", str(out)]
        axial_command(["sample", args.name, *how, "--overwrite"])
    few = args.scratch / "few.npy"
    np.save(few, np.load(drawn)[:8])
    keep = ["--keep", "16", "--particles", "16", "--count", "4", "--seed", "1"]
    out = f"{stem}_completions.png"
    axial_command(["complete", args.name, str(few), *keep, "--out", out, "--overwrite"])
    drawn = ["--map", f"{stem}_bits.png", "--overwrite"]
    axial_command(["evaluate", args.name, "--data", str(few), *drawn])


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("make", help="put the model's folder together")
    step.add_argument("run", type=Path)
    step.add_argument("--name", required=True)
    step.add_argument("--data", required=True, help="the packed test images")
    step.add_argument("--device", default="cpu", help="where to score; default: cpu")
    step.set_defaults(do=make)
    step = steps.add_parser("check", help="score and draw on this CPU")
    step.add_argument("name")
    step.add_argument("--data", required=True, help="the packed test images")
    step.set_defaults(do=check)
    step = steps.add_parser("show", help="draw the pictures of the README")
    step.add_argument("name")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--scratch", type=Path, default=Path("build"), help="for arrays between")
    step.set_defaults(do=show)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
