"""CIFAR-10 in eight minutes on one GPU: train, score all 10,000 test images, draw.

    python benchmarks/cifar10.py --train train.npy --test test.npy --out runs/cifar10

Both arrays are written by `axial data cifar-10-batches-bin --out ...` (and `--split test`). With
`--only-show` nothing is trained: the table is printed again from what the folder holds.
"""

import argparse
import json
import statistics
from pathlib import Path

import axial
from axial.cli import main as axial_command
from axial.pictures import write_curve
from axial.survey import codec_bits

STEPS = 10_500
TRAIN = ["--steps", str(STEPS), "--validation", "1000", "--validate-every", "1500"]
TRAIN += ["--save-every", "1500", "--sample-every", "0"]
# The preset as it was then.
TRAIN += ["--width", "512", "--heads", "8", "--optimizer", "adamw", "--learning-rate", "0.001"]


def show(folder: Path) -> str:
    """What the run and its evaluation left, as a table."""
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    found = json.loads((folder / "test.json").read_text())
    steps = [record for record in log if "loss" in record]
    scored = [record for record in log if "validation" in record]
    last = steps[-1]
    each = statistics.median(record["examples_per_second"] for record in steps)
    lines = [
        f"axial train cifar10 --data train.npy --out {folder.name} {' '.join(TRAIN)}",
        f"{found['device']}, torch {found['versions']['torch']}",
        f"{last['step']:,} steps in {last['seconds'] / 60:.2f} minutes, compiling, validating and "
        f"saving counted; median {each:,.0f} images/s",
    ]
    if "peak_share" in last:
        flops = statistics.median(record["teraflops"] for record in steps)
        share = statistics.median(record["peak_share"] for record in steps)
        lines.append(
            f"model FLOP/s used: {flops:.0f} TFLOP/s, {share:.1%} of a large bf16 product's"
        )
    lines += ["", "  step  minutes  bits/dim on the last 1,000 training images"]
    for record in scored:
        at = next(r["seconds"] for r in steps if r["step"] == record["step"]) / 60
        spread = record["standard_error"]
        lines.append(f"{record['step']:>6,} {at:>8.2f}  {record['validation']:.4f} +- {spread:.4f}")
    lines += [
        "",
        f"test: {found['bits_per_dim']:.4f} bits/dim +- {found['standard_error']:.4f} on "
        f"{found['examples']:,} images ({found['data']['title']}), {found['precision']}, averaged "
        f"weights, {found['seconds']:.0f} s",
        "by channel: " + ", ".join(f"{bits:.3f}" for bits in found["per_channel"]),
    ]
    return "\n".join(lines)


def codecs(test: str) -> str:
    """What lossless codecs need for the same images, each a file with its header."""
    packed = axial.open_packed(test)
    found = codec_bits(packed, len(packed))
    return "codecs: " + ", ".join(f"{name} {bits:.4f}" for name, bits in found.items())


def main() -> None:
    """Train, evaluate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train")
    parser.add_argument("--test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only-show", action="store_true")
    args = parser.parse_args()
    folder = args.out
    if not args.only_show:
        axial_command(["train", "cifar10", "--data", args.train, "--out", str(folder), *TRAIN])
        where = ["--json", str(folder / "test.json"), "--map", str(folder / "bits.png")]
        axial_command(["evaluate", str(folder), "--data", args.test, *where])
    table = show(folder)
    if args.test:
        table += f"\n{codecs(args.test)}"
    (folder / "table.txt").write_text(table + "\n")
    lines = (folder / "log.jsonl").read_text().splitlines()
    write_curve(folder / "curve.png", [json.loads(line) for line in lines])
    print(table)


if __name__ == "__main__":
    main()
