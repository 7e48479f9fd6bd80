"""Files of the codec written on some machines and read on others: every pixel is to come back.

    python benchmarks/codec_across.py write test.npy --out FOLDER [--device cuda]
    python benchmarks/codec_across.py read test.npy FOLDER ... [--device cuda]

`write` compresses the first examples in groups of 1, 7 and 32 tiles, with 1 and with 2 threads.
Carry FOLDER to another machine, another version of torch, and `read` it there: every file that
differs from those before it is decoded 1, 7 and 64 tiles at a time, with 1 and with 2 threads. One
tile at a time is slow, so then the first three are decoded. Exit status 1 if a pixel differs.
"""

import argparse
import hashlib
import io
import sys
import time
from pathlib import Path

import numpy as np
import torch

import axial
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.data.packed import Array

GROUPS, BATCHES, THREADS = (1, 7, 32), (1, 7, 64), (1, 2)
ALONE = 3
"""Tiles that are decoded one at a time."""


def write(args: argparse.Namespace, x: Array) -> None:
    """A file for each size of the groups and number of threads."""
    args.out.mkdir(parents=True, exist_ok=True)
    model = axial.load(args.model, device=args.device)
    for lanes in GROUPS:
        for threads in THREADS:
            torch.set_num_threads(threads)
            codec, file = Codec(model, name=args.model, lanes=lanes), io.BytesIO()
            entries = [Entry(name=f"{i}", grid=one.shape[:-1]) for i, one in enumerate(x)]
            items = [(e, [Example(one)]) for e, one in zip(entries, x, strict=True)]
            codec.write(file, codec.contents(), items)
            where = torch.device(args.device).type
            path = args.out / f"{where}-{torch.__version__}-groups{lanes}-threads{threads}.axl"
            path.write_bytes(file.getvalue())
            print(f"{path.name}: {len(file.getvalue()):,} bytes, {digest(path)}", flush=True)


def digest(path: Path) -> str:
    """Of a file's bytes, in short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def read(args: argparse.Namespace, x: Array) -> bool:
    """Decode every file in every way; tell whether all pixels came back."""
    model, seen, right = axial.load(args.model, device=args.device), dict[str, str](), True
    for path in sorted(path for folder in args.folders for path in folder.glob("*.axl")):
        if (known := seen.setdefault(digest(path), path.name)) != path.name:
            print(f"{path.name}: the bytes of {known}")
            continue
        for batch in BATCHES:
            for threads in THREADS:
                torch.set_num_threads(threads)
                begun, file = time.perf_counter(), io.BytesIO(path.read_bytes())
                wanted = range(ALONE if batch == 1 else len(x))
                found = Codec(model).read(file, read_contents(file), wanted, batch=batch)
                back = np.stack([example.x for _, example in found])
                equal = np.array_equal(back, x[: len(wanted)])
                right &= equal
                print(
                    f"{path.name}: {len(wanted)} tiles, {batch} at a time, {threads} threads: "
                    f"{'equal' if equal else 'CHANGED'}, {time.perf_counter() - begun:.1f} s",
                    flush=True,
                )
    return right


def main() -> None:
    """Write or read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["write", "read"])
    parser.add_argument("data", help="a packed array of pictures of the model's size")
    parser.add_argument("folders", type=Path, nargs="*", help="of `write`, to read")
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=28)
    args = parser.parse_args()
    if (args.what == "write") == (args.out is None):
        parser.error("give --out to write, and folders to read")
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    print(f"{args.what}: {name}, torch {torch.__version__}, {args.count} examples of {args.data}")
    x = np.asarray(axial.open_packed(args.data).rows(range(args.count)))
    if args.what == "write":
        write(args, x)
    elif not read(args, x):
        sys.exit(1)


if __name__ == "__main__":
    main()
