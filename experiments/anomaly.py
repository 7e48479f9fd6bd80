"""How well bits tell what does not belong: AUROC of a model's bits/dim against other pictures.

    axial train digits --no-labels --max-minutes 2.5 --out runs/digits
    python experiments/anomaly.py --run runs/digits --fashion t10k-images-idx3-ubyte.gz

The model knows scikit-learn's digits. Strangers are Fashion-MNIST, averaged down to the same 8 x 8
pixels and 17 values, the same digits upside down, and the same digits with their rows in a random
order.
"""

import argparse
import gzip
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import axial

Array = NDArray[np.int64]
Scores = NDArray[np.float64]


def auroc(inside: Scores, outside: Scores) -> float:
    """The probability that a stranger has a higher score than one that belongs; ties count half."""
    below, upto = (np.searchsorted(np.sort(inside), outside, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(inside))


def fashion(path: Path, count: int) -> Array:
    """Pictures of an IDX file, 28 x 28, as 8 x 8 pixels with 17 values."""
    data = gzip.decompress(path.read_bytes())
    pictures = np.frombuffer(data, np.uint8, offset=16).reshape(-1, 28, 28)[:count].astype(float)
    blocks = np.pad(pictures, ((0, 0), (2, 2), (2, 2))).reshape(-1, 8, 4, 8, 4).mean((2, 4))
    return np.rint(blocks * 16 / 255).astype(np.int64)[..., None]


def digits(split: str) -> Array:
    """The digits of one split."""
    with tempfile.TemporaryDirectory() as folder:
        axial.pack("digits", f"{folder}/digits.npy", axial.ReadOptions(split=split))
        return np.array(axial.open_packed(f"{folder}/digits.npy").array, np.int64)


def main() -> None:
    """Print one row for each kind of stranger."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", required=True, help="a run of the preset digits, unconditional")
    parser.add_argument("--fashion", required=True, type=Path, help="an IDX file of pictures")
    parser.add_argument("--count", type=int, default=1000, help="pictures of Fashion-MNIST")
    args = parser.parse_args()
    model = axial.load(args.run)

    def score(x: Array) -> Scores:
        return axial.bits_per_dim(model, torch.from_numpy(x.copy())).numpy()

    test = digits("test")
    usual = float(score(digits("train")).mean())
    inside = score(test)
    rng = np.random.default_rng(0)
    shuffled = np.stack([picture[rng.permutation(len(picture))] for picture in test])
    strangers = {
        "Fashion-MNIST": fashion(args.fashion, args.count),
        "digits upside down": test[:, ::-1, ::-1],
        "digits, rows in a random order": shuffled,
        "blank": np.zeros_like(test),
    }
    print(f"{'':<32}{'pictures':>9}{'bits/dim':>10}{'AUROC':>8}{'typical':>9}")
    print(f"{'digits, test split':<32}{len(inside):>9}{inside.mean():>10.3f}")
    for name, x in strangers.items():
        found = score(x)
        typical = auroc(abs(inside - usual), abs(found - usual))
        plain = auroc(inside, found)
        print(f"{name:<32}{len(x):>9}{found.mean():>10.3f}{plain:>8.3f}{typical:>9.3f}")


if __name__ == "__main__":
    main()
