"""The LSTM inner decoder beside attention: a step of training, and drawing, at 32 and at 64.

    python benchmarks/lstm.py [--device cuda]

The paper's sizes (width 2048, 8 encoder and 8 outer layers, inside 4 attention layers or one LSTM)
in bf16 on random pictures, each pair in turn in one run. What they learn in as many steps:
experiments/recipes.py, rows `trapezoid` and `lstm`, with the same --steps.
"""

import argparse
import time
from dataclasses import replace

import torch
from bair import measure

from axial import AxialTransformer, ModelConfig, draw
from axial.presets import PRESETS
from axial.system.ranks import Ranks, ranks

BATCHES = {32: 32, 64: 8}
DRAWN = 16


def drawing_seconds(model: ModelConfig, team: Ranks) -> float:
    """Of the faster of two drawings, after one that does not count."""
    torch.manual_seed(0)
    with team.device:
        made = AxialTransformer(model)
        made.reset_parameters(final_scale=1.0)
    made = made.to(torch.bfloat16 if team.device.type == "cuda" else torch.float32).eval()
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        draw(made, DRAWN, batch=DRAWN).cpu()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device")
    parser.add_argument("--width", type=int, help="the paper's unless told")
    args = parser.parse_args()
    with ranks(args.device) as team:
        gpu = team.device.type == "cuda"
        print(torch.cuda.get_device_name() if gpu else "CPU", f"torch {torch.__version__}")
        for side, batch in BATCHES.items():
            found = {}
            for kind in ("", "-lstm"):
                preset = f"imagenet{side}{kind}"
                model = PRESETS[preset]().model
                assert isinstance(model, ModelConfig)
                model = replace(model, width=args.width or model.width)
                taken = measure(model, batch, team, activation_checkpointing=False)
                if taken is None:
                    raise SystemExit(f"{preset}: a step of {batch} does not fit memory")
                step = taken.seconds
                found[kind] = step, drawing_seconds(model, team)
                print(
                    f"{preset}: {model.parameters():,} parameters; a step of {batch} "
                    f"{1e3 * step:.1f} ms, {DRAWN} drawn in {found[kind][1]:.2f} s",
                    flush=True,
                )
            step, drawing = (b / a for a, b in zip(found[""], found["-lstm"], strict=True))
            print(f"  the LSTM takes {step:.2f} of a step's time and {drawing:.2f} of a drawing's")


if __name__ == "__main__":
    main()
