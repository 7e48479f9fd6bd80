"""The model of photographs that comes with the package: kept, measured on whole pictures, shown.

    axial data photographs/train --any-size --out train.npy
    axial train photos --data train.npy --init cifar10 --crop 32 ... --out RUN
    python tools/ship_photos.py keep RUN                          its weights, in the package
    python benchmarks/codec.py bits photographs/valid --model photos --json valid.json
    python benchmarks/codec.py bits kodak --model photos --json kodak.json
    python tools/ship_photos.py card RUN --valid valid.json --test kodak.json
    python tools/ship.py show photos --out docs/figures           samples, completions, bits

`card` writes what was measured into the model's folder: result.json, and the card made of it.
"""

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import torch
from ship import MOST_BYTES, SAMPLED, SAMPLES, probe_bits, recipe

import axial
from axial.checkpoints import shipped
from axial.checkpoints.run_folder import Run
from axial.data.classical import FORMATS
from axial.training.config import TrainConfig

NAME = "photos"
CARD = """# photos

An Axial Transformer of photographs, for the codec: {parameters:,} parameters, tiles of {shape}
integers below {values}, exact bits/dim. Weights are kept in bfloat16; `axial.load("photos")` gives
them in float32.

    axial compress photos holiday/ --out holiday.axl
    axial decompress holiday.axl --out restored
    axial sample photos --count 64 --out samples.png

![{sampled} samples, not chosen]({samples})

*{sampled} samples, not chosen: tiles as they occur in photographs.*

| whole photographs, bits/dim | {columns} |
|---|{lines}|
| {valid_count} of `valid` | {valid} |
| **Kodak, {test_count} pictures of 768 x 512** | {test} |

| | |
|---|---|
| held-out tiles at the end of training | {held_out:.4f} bits/dim |
| seen in training | {seen:,} crops: {steps:,} steps of {batch} |
| time | {minutes:.0f} minutes on {device} (torch {torch}), after those of `{init}` |
| fingerprint, as loaded by name | `{fingerprint}` |

Bits of `photos` are those of its tiles in float32, overlapping by {overlap} pixels, with a palette
where it pays, as in a file: an `.axl` file takes about 0.1 % more. Others take a file for each
picture, JPEG XL at effort 9.

Kodak, picture by picture, in bytes:

{kodak}

## Data

{pictures:,} natural photographs, reduced to half their size by averaging 2 x 2 pixels, at most
320 x 320; a twentieth of them was held out. Random crops, mirrored at random. Choices were made on
other photographs of the same kind (`valid`). Kodak's pictures, which are larger and smoother, were
scored once for each result reported: an earlier model without palettes and with them, and this one.

## Recipe

Started from the weights of `{init}`.
{recipe}. This run was

{command}

## Limits

It sees a tile of {side} x {side} pixels, never a whole picture. Scans, screenshots, drawings and
photographs with traces of JPEG are not what it was trained on, and may take more than other formats
need. On a CPU it is slow: a Kodak picture takes minutes.
"""


def keep(args: argparse.Namespace) -> None:
    """Put the weights of a run into the package."""
    model = axial.load(args.run).bfloat16()
    size = 2 * sum(p.numel() for p in model.parameters())
    if size > MOST_BYTES:
        raise SystemExit(f"{args.run}: {size / 1e6:.1f} MB are more than {MOST_BYTES / 1e6:.0f}")
    axial.save(model, shipped.MODELS / NAME)
    print(f"{shipped.MODELS / NAME}: {size / 1e6:.1f} MB, {axial.fingerprint(axial.load(NAME))}")


def figures(run: Run, valid: dict[str, Any], test: dict[str, Any], device: str) -> dict[str, Any]:
    """What the card says: the run's own figures, and those of whole pictures."""
    model, found = axial.load(NAME), run.newest()
    assert found is not None  # a run with a model has a checkpoint
    training = TrainConfig.from_json(run.about["training"])
    mark = axial.fingerprint(model)
    for measured in (valid, test):
        if measured["fingerprint"] != mark:
            raise SystemExit(f"{measured['fingerprint']} was measured, but {NAME} is {mark}")
    init = run.about["init"]["folder"]
    flags = {"init": init, "crop": model.config.axes[0], "batch": training.batch}
    flags |= {"learning-rate": training.learning_rate, "warmup": training.warmup}
    flags |= {"precision": training.precision}
    if training.max_minutes is not None:
        flags["max-minutes"] = f"{training.max_minutes:g}"
    told = [f"--{flag} {value}" for flag, value in flags.items() if value is not None]
    return {
        "command": " ".join(["axial train photos --data train.npy", *told, "--out RUN"]),
        "init": init,
        "model": model.config.to_json(),
        "parameters": model.config.parameters(),
        "training": training.to_json() | {"steps": found[0]["step"]},
        "pictures": run.about["data"]["examples"],
        "held_out": found[0]["best"],
        "steps": found[0]["step"],
        "examples": found[0]["step"] * training.batch,
        "seconds": found[0]["seconds"],
        "fingerprint": mark,
        "valid": valid["pictures"],
        "test": test["pictures"],
        "probe": probe_bits(model),
        "device": device,
        "torch": torch.__version__,
    }


def bits_of(pictures: list[dict[str, Any]], way: str) -> float:
    """Bits/dim of some pictures together."""
    return 8 * sum(one[way] for one in pictures) / sum(one["elements"] for one in pictures)


def overlap_of(pictures: list[dict[str, Any]]) -> str:
    """The way that the model itself was measured by."""
    (found,) = [name for name in pictures[0] if name.startswith("overlap")]
    return found


def card(result: dict[str, Any]) -> str:
    """What the model card says, all figures as they were measured."""
    test, valid = result["test"], result["valid"]
    way = overlap_of(test)
    ways = [way, *(name for name in FORMATS if name in test[0])]
    cells = {
        part: " | ".join(
            f"**{bits_of(found, name):.4f}**" if name == way else f"{bits_of(found, name):.4f}"
            for name in ways
        )
        for part, found in (("valid", valid), ("test", test))
    }
    shape = [*result["model"]["axes"], result["model"]["channels"]]
    rows = [["picture", f"`{NAME}`", *ways[1:]], ["---"] * (1 + len(ways))]
    rows += [[one["name"], *(f"{one[name]:,.0f}" for name in ways)] for one in test]
    return CARD.format(
        **cells,
        kodak="\n".join("| " + " | ".join(row) + " |" for row in rows),
        columns=" | ".join([f"`{NAME}`", *ways[1:]]),
        lines="|".join(["---"] * len(ways)),
        parameters=result["parameters"],
        shape=" x ".join(map(str, shape)),
        side=shape[0],
        values=result["model"]["values"],
        sampled=SAMPLED,
        samples=SAMPLES,
        valid_count=len(valid),
        test_count=len(test),
        held_out=result["held_out"],
        seen=result["examples"],
        steps=result["steps"],
        batch=result["training"]["batch"],
        minutes=result["seconds"] / 60,
        device=result["device"],
        torch=result["torch"],
        init=result["init"],
        fingerprint=result["fingerprint"],
        overlap=way.removeprefix("overlap "),
        pictures=result["pictures"],
        recipe=recipe(result["model"], result["training"] | {"embeddings": "random"}),
        command=textwrap.indent(result["command"], " " * 4),
    )


def write_card(args: argparse.Namespace) -> None:
    """Write what was measured, and the card."""
    valid, test = (json.loads(path.read_text()) for path in (args.valid, args.test))
    result = figures(Run(args.run), valid, test, args.trained_on)
    folder = shipped.MODELS / NAME
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "README.md").write_text(card(result))
    print(f"{folder}: {bits_of(result['test'], overlap_of(result['test'])):.4f} bits/dim")


def main() -> None:
    """Do one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("keep", help="put the weights of a run into the package")
    step.add_argument("run", type=Path)
    step.set_defaults(do=keep)
    step = steps.add_parser("card", help="write what was measured")
    step.add_argument("run", type=Path)
    step.add_argument("--valid", type=Path, required=True)
    step.add_argument("--test", type=Path, required=True)
    step.add_argument("--trained-on", default="two CPU cores", help='default: "two CPU cores"')
    step.set_defaults(do=write_card)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
