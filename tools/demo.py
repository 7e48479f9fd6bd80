"""The whole tool in two minutes on a laptop: train on digits, score, draw, say what came out.

Then draw from the model of CIFAR-10 that comes with the package.

    python tools/demo.py --out runs/digits

Nothing is downloaded: scikit-learn carries the digits. A second call goes on where the first
one stopped, or only shows its results.
"""

import argparse
import contextlib
import io
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import axial
from axial.checkpoints.run_folder import Run
from axial.cli.main import main as axial_command
from axial.data.classical import codec_bits, codec_bytes

SHIPPED = "cifar10"
COMPRESSED = 100


def sheet_bits(x: np.ndarray) -> float:
    """Bits per dimension of all examples (n, h, w, 1) below each other in one PNG file."""
    stream = io.BytesIO()
    Image.fromarray(x.reshape(-1, x.shape[2])).save(stream, format="PNG", optimize=True)
    return 8 * len(stream.getvalue()) / x.size


def compressed_sizes(folder: Path) -> dict[str, int]:
    """Bytes of drawn digits as one .axl file, and in other formats; each must come back equal."""
    model = axial.load(folder)
    label = torch.arange(COMPRESSED) % model.config.classes
    x = axial.draw(model, COMPRESSED, seed=1, label=label)
    data = axial.compress(model, x, label=label)
    if not torch.equal(axial.decompress(model, data), x):
        raise SystemExit("what was compressed did not come back")
    (folder / "drawn.axl").write_bytes(data)
    shades = (x[..., 0] * 255 // (model.config.values - 1)).numpy().astype(np.uint8)
    return {"axial.compress": len(data), **codec_bytes(shades)}


def demo(folder: Path) -> str:
    """Run the commands a user would, and gather what they leave."""
    if Run.exists(folder):
        axial_command(["train", "--resume", str(folder)])
    else:
        axial_command(["train", "digits", "--out", str(folder)])
    result, bits_map = folder / "evaluation.json", folder / "bits.png"
    with contextlib.redirect_stdout(io.StringIO()):  # its one line is in the table
        written = ["--json", str(result), "--map", str(bits_map), "--overwrite"]
        axial_command(["evaluate", str(folder), *written])
    found = json.loads(result.read_text())
    test = folder / "test.npy"
    packed = axial.pack("digits", test, axial.ReadOptions(split="test"), overwrite=True).packed
    rows = {
        "this model": found["bits_per_dim"],
        "every value alike": math.log2(packed.shape.values),
        "PNG, all in one file": sheet_bits(packed.rows(range(len(packed)))),
        "PNG, a file each": codec_bits(packed)["PNG"],
    }
    drawn = folder / f"{SHIPPED}.png"
    axial_command(["sample", SHIPPED, "--count", "16", "--out", str(drawn), "--overwrite"])
    sizes = compressed_sizes(folder)
    lines = [f"bits/dim on {found['examples']} held-out digits"]
    lines += [f"  {name:<22}{bits:7.4f}" for name, bits in rows.items()]
    lines[1] += f" +- {found['standard_error']:.4f}, given the label"
    pictures = {
        "samples.png": "drawn by the model, one column for each digit",
        "bits.png": "held-out digits, and where their bits go",
        "curve.png": "bits/dim while it learned",
        drawn.name: "drawn by the model of CIFAR-10 that comes with axial",
    }
    lines += [f"bytes of {COMPRESSED} drawn digits, compressed, restored and compared"]
    lines += [f"  {name:<22}{count:7,}" for name, count in sizes.items()]
    lines += ["pictures"]
    lines += [f"  {folder / name!s:<24}  {what}" for name, what in pictures.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    started = time.monotonic()
    print(demo(parser.parse_args().out))
    print(f"{time.monotonic() - started:.0f} seconds")
