"""The codec: its size against the bits it codes and other formats, and its speed against scoring.

    python benchmarks/codec.py size DATA.npy [--count 500] [--model cifar10] [--device cuda]
    python benchmarks/codec.py photos FOLDER [--count 24] [--model cifar10] [--device cuda]
    python benchmarks/codec.py speed [--tiles 16] [--batch 64 256 1024] [--device cuda --profile]
    python benchmarks/codec.py bits FOLDER [--overlap 0 1 2] [--others FILE] [--device cuda]
    python benchmarks/codec.py others DATA.npy [--count 500]

`size` compresses examples of a packed array and compares the file with the bits of `axial.bits`;
`photos` compresses pictures of any size. Both restore what they wrote, and stop where it differs.
`speed` times encoding against scoring and decoding against drawing, all in float64 and in one run.
`bits` scores the tiles of pictures in float32, by how far they overlap, with their palettes and
without: what a file takes but for 0.1 %, in a fraction of the time. `--others` takes what other
formats need from an earlier result, by the names of the pictures.
"""

import argparse
import io
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_times import kernel_times, print_kernels
from PIL import Image

import axial
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.codec.groups import Part, runs, tile_of
from axial.codec.palette import Palette, choose_palette, in_nats, palette_bytes
from axial.codec.tiles import Tiling
from axial.data.classical import FORMATS, codec_bits, codec_bytes
from axial.data.packed import Array, spread
from axial.data.sources.pictures import is_picture_name
from axial.models.cost import forward_flops
from axial.models.likelihood import slices_of_logits, surprise_bits
from axial.models.protocol import Model


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def coded(codec: Codec, x: Array, *, verify: bool) -> tuple[int, str]:
    """The bytes of a picture's file, and how long it took to write, and to read if it is."""
    file, device = io.BytesIO(), next(codec.model.parameters()).device
    entry = Entry(name="x", grid=x.shape[:-1], one_plane=x.shape[-1] < 3)
    writing = timed(lambda: codec.write(file, codec.contents(), [(entry, [Example(x)])]), device)
    told = f"encoded in {writing:.1f} s"
    back: list[Array] = []
    if verify:
        contents = read_contents(file)
        reading = timed(lambda: back.extend(e.x for _, e in codec.read(file, contents)), device)
        told += f", decoded in {reading:.1f} s"
        if not np.array_equal(x, back[0]):
            raise SystemExit("a picture came back changed")
    return len(file.getvalue()), told


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
    wanted = float(axial.bits(model, torch.from_numpy(x.astype(np.int64))).sum())
    found = len(file.getvalue())
    print(f"{packed.description.title}, {len(x):,} examples, {codec.name}, groups of {codec.lanes}")
    print(f"  bits of the model  {wanted / x.size:.5f} bits/dim ({wanted / 8:,.1f} bytes)")
    over = 100 * (8 * found / wanted - 1)
    print(
        f"  .axl               {8 * found / x.size:.5f} bits/dim ({found:,} bytes, +{over:.3f} %)"
    )
    for name, count in ({} if args.alone else codec_bytes(list(x))).items():
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


def others(args: argparse.Namespace) -> None:
    """Examples of a packed array in the other formats, a file each."""
    packed = axial.open_packed(args.data)
    chosen = range(min(args.count or len(packed), len(packed)))
    print(f"{packed.description.title}, {len(chosen):,} examples")
    for name, found in codec_bits(packed, chosen).items():
        print(f"  {name:<18} {found:.5f} bits/dim, a file each")


def photos(args: argparse.Namespace, codec: Codec) -> None:
    """Pictures of a folder, one file each."""
    paths = sorted(Path(args.data).glob("*.png"))[: args.count]
    total: dict[str, int] = {}
    elements = 0
    for i, path in enumerate(paths):
        with Image.open(path) as image:
            x = np.atleast_3d(np.asarray(image))
        found, spent = coded(codec, x, verify=args.verify is None or i < args.verify)
        rows = {".axl": found}
        if not args.alone:
            rows |= codec_bytes([x.squeeze(-1) if x.shape[-1] == 1 else x])
        for name, count in rows.items():
            total[name] = total.get(name, 0) + count
        elements += x.size
        told = ", ".join(f"{name} {8 * n / x.size:.4f}" for name, n in rows.items())
        print(f"{path.name}: {told} bits/dim, {spent}", flush=True)
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
        peak = product_rate(device)
        shares = [tiles * forward_flops(codec.config) / spent / peak for spent in (score, draw)]
        print(
            f"  scoring runs at {shares[0]:.0%}, drawing at {shares[1]:.0%} of the rate of a large "
            f"float64 product, {peak / 1e12:.2f} TFLOP/s"
        )
        if device.type == "cuda":
            print(f"  {tiles / write:,.0f} tiles/s encoded, {tiles / read:,.0f} tiles/s decoded")
    if args.profile:
        profile(codec, tiles)


def product_rate(device: torch.device) -> float:
    """Operations a second of a large float64 product."""
    side = 8192 if device.type == "cuda" else 1024
    x = torch.randn(side, side, dtype=torch.float64, device=device)
    return 2 * side**3 / min(timed(lambda: torch.mm(x, x), device) for _ in range(4))


def profile(codec: Codec, tiles: int) -> None:
    """The kernels that scoring some tiles takes, and those of drawing the last channel."""
    model, shape = codec.model, (tiles, *codec.config.axes, codec.config.channels)
    device = next(model.parameters()).device
    x = torch.randint(codec.config.values, shape, device=device)
    given = x.clone()
    given[..., -1] = -1
    runs: dict[str, Callable[[], object]] = {
        "scoring": lambda: axial.bits(model, x),
        "drawing the last channel": lambda: axial.draw(model, tiles, given=given, batch=tiles),
    }
    for what, run in runs.items():
        run()
        spent, kernels = timed(run, device), kernel_times(run)
        busy = sum(kernel.seconds for kernel in kernels)
        print(f"  {what} takes {spent:.2f} s, of which kernels run {busy:.2f} s:")
        print_kernels(kernels, spent, most=20)


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


def bits(args: argparse.Namespace, codec: Codec) -> None:
    """Bits of whole pictures by how far tiles overlap, beside what other formats take."""
    model = axial.load(args.model, device=args.device)
    paths = sorted(path for path in Path(args.data).iterdir() if is_picture_name(path.name))
    chosen = [paths[i] for i in spread(len(paths), min(args.count or len(paths), len(paths)))]
    tilings = {}
    for overlap in args.overlap or [codec.overlap]:
        own = Codec(model, overlap=overlap)
        tiling = Tiling(axes=own.config.axes, overlap=own.overlap, span=own.span)
        tilings[f"overlap {overlap}"] = tiling
    known, rows = {}, []
    if args.others:
        known = {row["name"]: row for row in json.loads(args.others.read_text())["pictures"]}
    for path in chosen:
        with Image.open(path) as image:
            x = np.asarray(image.convert("RGB"))
        palette = choose_palette(model, x)
        needed: dict[str, float] = {}
        for name, tiling in tilings.items():
            with_palette, without = picture_bits(model, tiling, x, palette)
            needed |= {name: with_palette / 8, f"without palette, {name}": without / 8}
        found = known.get(path.name) or codec_bytes([x])
        others = {name: found[name] for name in FORMATS if name in found}
        rows.append({"name": path.name, "elements": x.size, **needed, **others})
        print(in_words(path.name, rows[-1:]), flush=True)
        if args.json:
            told = {"fingerprint": axial.fingerprint(model), "pictures": rows}
            args.json.write_text(json.dumps(told, indent=1) + "\n")
    print(in_words(f"{len(rows)} pictures, {args.model}", rows))


def in_words(title: str, rows: list[dict[str, Any]]) -> str:
    """Bits/dim of some pictures together, by every way."""
    elements = sum(row["elements"] for row in rows)
    ways = [name for name in rows[0] if name not in ("name", "elements")]
    told = [f"{name} {8 * sum(row[name] for row in rows) / elements:.4f}" for name in ways]
    return f"{title}: {', '.join(told)} bits/dim"


def picture_bits(
    model: Model, tiling: Tiling, x: Array, palette: Palette | None = None
) -> tuple[float, float]:
    """The bits of a picture (*grid, c) that a file would hold, but for what it has beside them.

    With its palette, which is counted, and without it.
    """
    device, grid = next(model.parameters()).device, x.shape[:-1]
    tiling, found = tiling.fit(grid), np.zeros(2)
    table = np.zeros((x.shape[-1], model.config.values), np.int8) if palette is None else palette
    bias = in_nats(torch.from_numpy(table)).to(device)
    places = torch.arange(math.prod(tiling.axes) * x.shape[-1]).view(*tiling.axes, -1)
    for i in range(tiling.regions(grid)):
        region = tiling.region(grid, i)
        part = Part(region, x[region.box])
        slots = [slot for run in runs(model.config, [part], 1) for slot in run]
        flat = [s.plan.fill(tile_of(part, s.tile, tiling.axes).reshape(-1)) for s in slots]
        tiles = torch.from_numpy(np.stack(flat)).view(-1, *tiling.axes, x.shape[-1])
        coded = torch.from_numpy(np.stack([s.plan.coded for s in slots]))
        model.check(tiles)
        for rows, number, inputs, logits in slices_of_logits(model, tiles.to(device)):
            own = model.slice_of(places.expand(len(rows), *places.shape), number.cpu()).flatten(1)
            wanted = coded[rows.cpu().unsqueeze(1), own].to(device)
            value = model.slice_of(inputs, number.to(device)).flatten(1)[wanted]
            expected = logits.flatten(1, -2)[wanted]
            channel = (own.to(device) % x.shape[-1])[wanted]
            found += [
                float(surprise_bits(expected + bias[channel], value).sum()),
                float(surprise_bits(expected, value).sum()),
            ]
    return found[0] + (0 if palette is None else 8 * palette_bytes(palette)), found[1]


def main() -> None:
    """Run one of the five."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["size", "photos", "speed", "bits", "others"])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int)
    parser.add_argument("--lanes", type=int, help="tiles of a group; default: by the model")
    parser.add_argument("--tiles", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="with `speed`, on a GPU: kernels")
    parser.add_argument("--overlap", type=int, nargs="+", help="of tiles; default: the codec's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what `bits` found, as bytes")
    parser.add_argument("--alone", action="store_true", help="without the other formats")
    parser.add_argument(
        "--others", type=Path, metavar="FILE", help="what `--json` kept: other formats' bytes"
    )
    parser.add_argument("--verify", type=int, help="how many pictures to restore; default: all")
    args = parser.parse_args()
    if args.what == "others":
        others(args)
        return
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    overlap = args.overlap[0] if args.overlap else None
    model = axial.load(args.model, device=device)
    codec = Codec(model, name=args.model, lanes=args.lanes, overlap=overlap)
    {"size": size, "photos": photos, "speed": speed, "bits": bits}[args.what](args, codec)


if __name__ == "__main__":
    main()
