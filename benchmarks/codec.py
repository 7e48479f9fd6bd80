"""The codec: its size against the bits it codes and other formats, and its speed against scoring.

    python benchmarks/codec.py size DATA.npy [--count 500] [--model cifar10] [--device cuda]
    python benchmarks/codec.py photos FOLDER [--count 24] [--model cifar10] [--device cuda]
    python benchmarks/codec.py speed [--tiles 16] [--batch 64 256 1024] [--device cuda]
    python benchmarks/codec.py edges PHOTOS.npy [--count 24] [--model cifar10] [--device cuda]

`size` compresses examples of a packed array and compares the file with the bits of `axial.bits`;
`photos` compresses pictures of any size. Both restore what they wrote, and stop where it differs.
`speed` times encoding against scoring and decoding against drawing, all in float64 and in one run.
`edges` scores random places of packed pictures, in float32, and tells what elements near the upper
and left edges of a tile need more than others, because what lies beyond is not seen.
"""

import argparse
import io
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import axial
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.data.batches import TrainingBatches
from axial.data.classical import codec_bytes
from axial.data.crops import Crops
from axial.data.packed import Array


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def restore(codec: Codec, pictures: list[Array], verify: int | None) -> tuple[int, float, float]:
    """Bytes of a file, and the seconds of writing it and of reading `verify` pictures of it."""
    file, device = io.BytesIO(), next(codec.model.parameters()).device
    items = [
        (Entry(name=f"{i}", grid=x.shape[:-1], one_plane=x.shape[-1] < 3), [Example(x)])
        for i, x in enumerate(pictures)
    ]
    writing = timed(lambda: codec.write(file, codec.contents(), items), device)
    wanted = range(len(pictures) if verify is None else min(verify, len(pictures)))
    back: list[Array] = []
    reading = timed(
        lambda: back.extend(e.x for _, e in codec.read(file, read_contents(file), wanted)), device
    )
    for before, after in zip(pictures, back, strict=False):
        if not np.array_equal(before, after):
            raise SystemExit("a picture came back changed")
    return len(file.getvalue()), writing, reading


def size(args: argparse.Namespace, codec: Codec) -> None:
    """Examples of a packed array, as one array entry."""
    packed = axial.open_packed(args.data)
    x = packed.rows(range(min(args.count or len(packed), len(packed))))
    model, device = codec.model, next(codec.model.parameters()).device
    file = io.BytesIO()
    entry = Entry(name="x.npy", grid=x.shape[1:-1], count=len(x), array=True)
    writing = timed(
        lambda: codec.write(file, codec.contents(), [(entry, [Example(one) for one in x])]), device
    )
    bits = float(axial.bits(model, torch.from_numpy(x.astype(np.int64))).sum())
    found = len(file.getvalue())
    print(f"{packed.description.title}, {len(x):,} examples, {codec.name}, groups of {codec.lanes}")
    print(f"  bits of the model  {bits / x.size:.5f} bits/dim ({bits / 8:,.1f} bytes)")
    over = 100 * (8 * found / bits - 1)
    print(
        f"  .axl               {8 * found / x.size:.5f} bits/dim ({found:,} bytes, +{over:.3f} %)"
    )
    for name, count in codec_bytes(list(x)).items():
        print(f"  {name:<18} {8 * count / x.size:.5f} bits/dim, a file each")
    print(f"  encoded in {writing:.1f} s")
    back: list[Array] = []
    reading = timed(
        lambda: back.extend(e.x for _, e in codec.read(file, read_contents(file))), device
    )
    equal = np.array_equal(np.stack(back), x)
    print(f"  decoded in {reading:.1f} s: {'equal' if equal else 'CHANGED'}")
    if not equal:
        raise SystemExit(1)


def photos(args: argparse.Namespace, codec: Codec) -> None:
    """Pictures of a folder, one file each."""
    paths = sorted(Path(args.data).glob("*.png"))[: args.count]
    total: dict[str, int] = {}
    elements = 0
    for path in paths:
        with Image.open(path) as image:
            x = np.atleast_3d(np.asarray(image))
        found, writing, _ = restore(codec, [x], args.verify)
        rows = {".axl": found, **codec_bytes([x.squeeze(-1) if x.shape[-1] == 1 else x])}
        for name, count in rows.items():
            total[name] = total.get(name, 0) + count
        elements += x.size
        told = ", ".join(f"{name} {8 * n / x.size:.4f}" for name, n in rows.items())
        print(f"{path.name}: {told} bits/dim, encoded in {writing:.1f} s", flush=True)
    told = ", ".join(f"{name} {8 * n / elements:.4f}" for name, n in total.items())
    print(f"{len(paths)} pictures: {told} bits/dim")


def speed(args: argparse.Namespace, codec: Codec) -> None:
    """Encoding beside scoring, decoding beside drawing."""
    device = next(codec.model.parameters()).device
    for tiles in args.batch or [args.tiles]:
        rounds = [one_round(codec, tiles) for _ in range(args.repeat)]
        score, write, draw, read = (min(times) for times in zip(*rounds, strict=True))
        print(
            f"{tiles} tiles in groups of {codec.lanes}: encoding {write / score:.2f} times the "
            f"time of scoring, decoding {read / draw:.2f} times that of drawing"
        )
        if device.type == "cuda":
            print(f"  {tiles / write:,.0f} tiles/s encoded, {tiles / read:,.0f} tiles/s decoded")


def one_round(codec: Codec, tiles: int) -> tuple[float, float, float, float]:
    """Seconds of scoring, encoding, drawing and decoding some tiles."""
    model, device, file = codec.model, next(codec.model.parameters()).device, io.BytesIO()
    x = axial.draw(model, min(tiles, 4), seed=0)
    x = x.repeat(-(-tiles // len(x)), *(1,) * (x.ndim - 1))[:tiles]
    entry = Entry(name="x", grid=x.shape[1:-1], count=tiles, array=True)
    items = [(entry, [Example(one) for one in x.cpu().numpy()])]
    scoring = timed(lambda: axial.bits(model, x), device)
    encoding = timed(lambda: codec.write(file, codec.contents(), items), device)
    contents = read_contents(file)
    drawing = timed(lambda: axial.draw(model, tiles, seed=1, batch=tiles), device)
    decoding = timed(lambda: list(codec.read(file, contents, batch=tiles)), device)
    return scoring, encoding, drawing, decoding


def edges(args: argparse.Namespace, codec: Codec) -> None:
    """Bits by the distance from the edges of a tile, and what they cost tiles of several sizes.

    The same pixels are scored four times: far from the upper and the left edge of a tile (half a
    tile, at least), at the upper one, at the left one, and in the corner. So what they hold does
    not matter.
    """
    device, (height, width) = torch.device(args.device), codec.config.axes
    near = (height // 2, width // 2)
    steps = (height - near[0], width - near[1])
    model, packed = axial.load(args.model, device=device), axial.open_packed(args.data)
    crops = Crops(packed, (height + steps[0], width + steps[1]))
    count = min(args.count or 24, len(crops))
    bits = np.empty((count, 2, 2, *near))
    for place, x in zip(bits, TrainingBatches(crops, count, seed=args.seed).at(0).x, strict=True):
        places = list(itertools.product((0, 1), (0, 1)))
        corners = [(i * steps[0], j * steps[1]) for i, j in places]
        tiles = torch.stack([x[t : t + height, s : s + width] for t, s in corners])
        found = axial.element_bits(model, tiles.long().to(device)).mean(-1).cpu().numpy()
        for (i, j), tile, (top, left) in zip(places, found, corners, strict=True):
            place[i, j] = tile[steps[0] - top :, steps[1] - left :][: near[0], : near[1]]
    about = f"{count} places, {4 * count} tiles of {height} x {width}, {args.model}"
    print(f"{packed.description.title}: {about}")
    core, left, top, corner = bits.reshape(count, 4, *near).mean((0, 2, 3))
    print(f"  far from both edges {core:.4f} bits/dim, near the upper {top:.4f}, ", end="")
    print(f"near the left {left:.4f}, in the corner {corner:.4f}")
    rows = (bits[:, 1, 0] - bits[:, 0, 0]).mean((0, 2))
    columns = (bits[:, 0, 1] - bits[:, 0, 0]).mean((0, 1))
    for name, lines in (("row", rows), ("column", columns)):
        first = ", ".join(f"{line:+.4f}" for line in lines[:4])
        rest = f"the other {len(lines) - 4} {lines[4:].mean():+.4f}"
        print(f"  {name}s from the edge: {first}, {rest}")
    for side in (32, 64, 128):
        each = edge_cost(bits, side)
        error = each.std(ddof=1) / math.sqrt(count)
        print(
            f"  tiles of {side} x {side}: {each.mean():.4f} +- {error:.4f} bits/dim for their edges"
        )


def edge_cost(bits: Array, side: int) -> Array:
    """What square tiles of a side need more, per element, for not seeing beyond their edges.

    `bits` (n, 2, 2, r, c) are those of the same pixels far from both edges, [:, 0, 0], near the
    upper, [:, 1, 0], near the left, [:, 0, 1], and near both. A tile has one corner, and the larger
    it is the more of its two edges.
    """
    more = bits - bits[:, :1, :1]
    tall, wide = bits.shape[3:]
    corner = more[:, 1, 1].sum((1, 2))
    upper = more[:, 1, 0].mean(2).sum(1) * (side - wide)
    left = more[:, 0, 1].mean(1).sum(1) * (side - tall)
    return np.asarray((corner + upper + left) / side**2)


def main() -> None:
    """Run one of the four."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["size", "photos", "speed", "edges"])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int)
    parser.add_argument("--lanes", type=int, help="tiles of a group; default: by the model")
    parser.add_argument("--tiles", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the crops")
    parser.add_argument("--verify", type=int, help="how many pictures to restore; default: all")
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    codec = Codec(axial.load(args.model, device=device), name=args.model, lanes=args.lanes)
    {"size": size, "photos": photos, "speed": speed, "edges": edges}[args.what](args, codec)


if __name__ == "__main__":
    main()
