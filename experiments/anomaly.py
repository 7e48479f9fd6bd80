"""Does the likelihood tell what does not belong: digits against what is none, as AUROC.

    axial train digits --out runs/digits
    python experiments/anomaly.py runs/digits [--fashion FILE] [--json FILE]

The model is conditioned on the digit, which a stranger does not have, so every picture is scored by
the exact sum over the ten classes. AUROC is the probability that something strange has the higher
score of the two, ties counting half: 1 separates perfectly, 0.5 not at all. A second score
subtracts the bits that PNG needs, for what is merely simple is likely, too.

Strangers are patches of the two photographs that come with scikit-learn, shrunk to digits' size and
17 shades; digits turned by 180 degrees, digits as negatives, and digits whose pixels are shuffled.
With its file of test images, t10k-images-idx3-ubyte.gz, also Fashion-MNIST, the usual counterpart.
"""

import argparse
import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import axial
from axial.data.classical import picture_encoders
from axial.data.packed import Array

SIDE, SHADES = 8, 17
SHRINK = 4
"""Photographs are made so many times smaller, or patches of them would be flat."""


def photographs(count: int) -> Array:
    """Patches (count, 8, 8, 1) spread over the photographs, in the shades of digits."""
    from sklearn.datasets import load_sample_images

    found = []
    for picture in load_sample_images().images:
        grey = picture.mean(-1)
        high, wide = (size // (SHRINK * SIDE) for size in grey.shape)
        grey = grey[: high * SHRINK * SIDE, : wide * SHRINK * SIDE]
        small = grey.reshape(high * SIDE, SHRINK, wide * SIDE, SHRINK).mean((1, 3))
        tiles = small.reshape(high, SIDE, wide, SIDE).transpose(0, 2, 1, 3)
        found.append(tiles.reshape(-1, SIDE, SIDE, 1))
    every = np.concatenate(found)
    chosen = every[np.linspace(0, len(every) - 1, count).astype(int)]
    return (chosen * (SHADES - 1) / 255).round().astype(np.int64)


def fashion(path: Path, count: int) -> Array:
    """Pictures of Fashion-MNIST, shrunk from 28 x 28 pixels to the shape and shades of digits."""
    data = gzip.decompress(path.read_bytes())
    found = np.frombuffer(data, np.uint8, offset=16).reshape(-1, 28, 28)[:count]
    framed = np.pad(found, ((0, 0), (2, 2), (2, 2))).astype(float)
    small = framed.reshape(-1, SIDE, SHRINK, SIDE, SHRINK).mean((2, 4))[..., None]
    return (small * (SHADES - 1) / 255).round().astype(np.int64)


def strangers(digits: Array) -> dict[str, Array]:
    """What is no digit, as many of each kind."""
    order = np.random.default_rng(0).permutation(SIDE * SIDE)
    shuffled = digits.reshape(len(digits), -1)[:, order].reshape(digits.shape)
    return {
        "patches of photographs": photographs(len(digits)),
        "digits as negatives": SHADES - 1 - digits,
        "digits turned by 180 degrees": digits[:, ::-1, ::-1].copy(),
        "digits with shuffled pixels": shuffled,
    }


def png_bits(x: Array) -> NDArray[np.float64]:
    """Bits that PNG needs for each picture."""
    encode = picture_encoders()["PNG"]
    return np.array([8.0 * encode(one[..., 0].astype(np.uint8)) for one in x])


def auroc(usual: NDArray[np.float64], strange: NDArray[np.float64]) -> float:
    """The probability that a strange score is above a usual one; ties count half."""
    above = (strange[:, None] > usual).mean()
    return float(above + (strange[:, None] == usual).mean() / 2)


def measure(run: Path, clothes: Path | None = None) -> dict[str, dict[str, float]]:
    """AUROC of each kind of stranger, by bits and by bits less those of PNG."""
    with tempfile.TemporaryDirectory() as folder:
        test = axial.pack("digits", Path(folder) / "test.npy", axial.ReadOptions(split="test"))
        digits = test.packed.rows(range(len(test.packed))).astype(np.int64)
    kinds = strangers(digits)
    if clothes is not None:
        kinds["Fashion-MNIST"] = fashion(clothes, len(digits))
    score = {
        name: axial.evaluate(run, x, label="all").bits
        for name, x in ({"digits": digits} | kinds).items()
    }
    usual, simple = score.pop("digits"), png_bits(digits)
    found = {"digits": {"bits_per_dim": float(usual.mean()) / SIDE**2}}
    for name, x in kinds.items():
        found[name] = {
            "bits_per_dim": float(score[name].mean()) / SIDE**2,
            "auroc": auroc(usual, score[name]),
            "auroc_less_png": auroc(usual - simple, score[name] - png_bits(x)),
        }
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of the preset digits")
    parser.add_argument("--fashion", type=Path, help="test images of Fashion-MNIST, gzipped IDX")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args.run, args.fashion)
    print(f"{'':<30}bits/dim  AUROC   less PNG")
    for name, row in found.items():
        shown = f"{row['auroc']:.4f}  {row['auroc_less_png']:.4f}" if "auroc" in row else ""
        print(f"{name:<30}{row['bits_per_dim']:<10.4f}{shown}".rstrip())
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
