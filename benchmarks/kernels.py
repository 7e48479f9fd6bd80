"""Which tiles and variants make the inner step fast on this GPU: what kernels.py chooses by.

    python benchmarks/kernels.py [--width 1536] [--heads 16] [--layers 8] [--batch 256]

Everything is timed as it runs in a drawing: inside a CUDA graph, in bf16, over as many layers as
the model has, so that their weights do not stay in the GPU's cache.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from axial import AxialTransformer, ModelConfig
from axial.models.attention import KVCache
from axial.sampling import dense_triton, overlap_triton
from axial.sampling import inner_step_triton as kernels
from axial.sampling.dense_triton import Tile
from axial.sampling.folded import Folded
from axial.sampling.levels import InnerLevel
from axial.sampling.levels_triton import TritonInnerLevel

TILES = {
    1: [],
    16: [Tile(16, 16, 256), Tile(16, 32, 256), Tile(16, 32, 128)],
    32: [Tile(32, 32, 256), Tile(32, 32, 128)],
    64: [
        Tile(64, 16, 128, fetching=True),
        Tile(64, 16, 128),
        Tile(64, 32, 128),
        Tile(64, 32, 64, 4, 6),
        Tile(32, 32, 128),
    ],
    128: [Tile(128, 16, 128, fetching=True), Tile(64, 32, 128), Tile(64, 64, 128)],
    256: [
        Tile(32, 32, 128),
        Tile(32, 64, 128),
        Tile(64, 32, 128),
        Tile(64, 64, 64),
        Tile(64, 64, 128),
        Tile(128, 32, 128),
    ],
    1024: [
        Tile(64, 64, 64),
        Tile(64, 64, 128),
        Tile(128, 64, 64),
        Tile(128, 64, 64, 8),
        Tile(128, 128, 64, 8),
        Tile(64, 128, 64),
    ],
}
"""Worth trying, by batch size."""
COLUMNS = [(2, 4, 2048), (4, 4, 2048), (8, 4, 2048), (8, 4, 512), (4, 8, 2048), (4, 2, 2048)]
"""Columns, warps and depth of a program, where there are few rows."""
REACHES = [(1, 8), (1, 16), (1, 32), (2, 16), (4, 16), (8, 16)]
"""Heads that a program takes, and steps of a cache that are attended to at a time."""


def microseconds(run: Callable[[], object], *, repeats: int = 20) -> float:
    """The fastest replay of what `run` records."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1000)
    return min(found)


def probe_dense(width: int, layers: int, batch: int) -> None:
    """What the two kinds of dense layers take, beside cuBLAS and torch; and by which tiles.

    Ours notes the moments of what it adds to; the tiles beside it do not.
    """
    x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    rows = dense_triton.Rows(x, None)
    moments = torch.randn(batch, 5, 2, device="cuda").square()
    normed, plain = ([_layer(n, width) for _ in range(layers)] for n in (3 * width, width))
    out = x.new_empty(batch, 3 * width)

    def probe(
        name: str, weights: list[Folded], ways: dict[str, Callable[[Folded], object]]
    ) -> None:
        def spent(way: Callable[[Folded], object]) -> float:
            return microseconds(lambda: [way(layer) for layer in weights]) / layers

        print(f"  {name}: " + ", ".join(f"{way} {spent(run):.2f} us" for way, run in ways.items()))

    def variant(**how: Any) -> Callable[[Folded], object]:
        return lambda layer: dense_triton.product(x, layer, out, **how)

    probe(
        f"norm, {width} -> {3 * width}",
        normed,
        {
            "torch": lambda layer: _plain_dense(x, layer),
            "ours, a norm apart": lambda layer: dense_triton.normed_dense(rows, layer),
            **{
                f"{cut.rows}x{cut.columns}x{cut.depth}": variant(moments=moments, cut=cut)
                for cut in TILES[batch]
            },
        },
    )
    out = torch.empty_like(x)
    probe(
        f"{width} -> {width}, added",
        plain,
        {
            "torch": lambda layer: x + torch.addmm(layer.bias, x, layer.weight),
            "ours": lambda layer: dense_triton.added_dense(rows, x, layer),
            **{
                f"{cut.rows}x{cut.columns}x{cut.depth}": variant(added=x, cut=cut)
                for cut in TILES[batch]
            },
        },
    )
    if batch <= dense_triton.FEW:
        for columns, warps, depth in COLUMNS:
            sums = functools.partial(dense_triton.weighted_sums, columns=columns, warps=warps)

            def few(layer: Folded) -> object:
                return sums(x, layer, out, added=x, depth=depth)  # noqa: B023

            probe(f"{columns} columns, {warps} warps, {depth} deep", plain, {"sums": few})


def _plain_dense(x: Tensor, layer: Folded) -> Tensor:
    return torch.addmm(layer.bias, F.layer_norm(x, x.shape[-1:]), layer.weight)


def _layer(outputs: int, inputs: int) -> Folded:
    weight = torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16()
    return Folded(weight.t(), weight.new_zeros(outputs), weight.sum(1, dtype=torch.float32))


def probe_attention(model: AxialTransformer, batch: int) -> None:
    """Attention of one element to those before it on its line, beside plain products."""
    config = model.config
    heads, length, layers = config.heads, config.axes[-1], config.decoder_layers[-1]
    own = torch.randn(batch, 1, 1, heads, 3, config.width // heads, device="cuda").bfloat16()
    q, k, v = own.unbind(-2)
    caches = [_cache((batch, length, 1, *q.shape[-2:])) for _ in range(layers)]

    def plain(j: int) -> None:
        for cache in caches:
            keys, values = (t[:, : j + 1, 0].transpose(1, 2) for t in (cache.keys, cache.values))
            scores = q[:, 0].transpose(1, 2) @ keys.transpose(-1, -2)
            scores.softmax(-1) @ values

    def kernel(place: Tensor, together: int, steps: int) -> None:
        for cache in caches:
            kernels.attend_next(q, k, v, cache, place, together=together, steps=steps)

    for j in (0, length // 2, length - 1):
        cells = [f"plain {microseconds(functools.partial(plain, j)) / layers:.2f} us"]
        place = torch.tensor(j, dtype=torch.int32, device="cuda")
        for together, steps in REACHES:
            spent = microseconds(functools.partial(kernel, place, together, steps)) / layers
            cells.append(f"{together} x {steps} {spent:.2f} us")
        print(f"  attention at {j}: {', '.join(cells)}")


def probe_outer(model: AxialTransformer, batch: int) -> None:
    """One step of an outer level's masked attention, by the kernel and by torch."""
    heads, length = model.config.heads, model.config.axes[-1]
    own = torch.randn(batch, 1, length, heads, 3, model.config.width // heads, device="cuda")
    q, k, v = own.bfloat16().unbind(-2)
    cache = _cache((batch, length, *q.shape[2:]))
    cells = []
    for j, (together, steps) in itertools.product((0, length - 1), REACHES):
        place = torch.tensor(j, dtype=torch.int32, device="cuda")
        how = {"together": together, "steps": steps}
        run = functools.partial(kernels.attend_next, q, k, v, cache, place, **how)
        cells.append(f"at {j} {together} x {steps} {microseconds(run):.0f} us")
    q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, cache.keys, cache.values))
    spent = microseconds(lambda: F.scaled_dot_product_attention(q, k, v))
    print(f"  outer attention to {length} rows: {', '.join(cells)}, torch {spent:.0f} us")


def _cache(shape: tuple[int, ...]) -> KVCache:
    keys, values = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    return KVCache(keys, values)


def probe_line(model: AxialTransformer, batch: int) -> None:
    """A whole line by the kernels and by plain torch, and one step compiled, per element."""
    length = model.config.axes[-1]
    values = torch.full((batch, length), -1, device="cuda")
    base = torch.randn(batch, length, model.config.width, device="cuda").bfloat16()
    noise = torch.randn(*values.shape, model.config.values, device="cuda", dtype=torch.float64)
    overlapping, cells = overlap_triton.overlapping, []
    for name in ("kernels", "not overlapping", "plain"):
        overlap_triton.overlapping = overlapping if name == "kernels" else lambda: False  # type: ignore[assignment]
        start = time.perf_counter()
        plain = name == "plain"
        line = InnerLevel(model, batch) if plain else TritonInnerLevel(model, batch, kernels)
        line.draw(values, base, 0, noise)
        torch.cuda.synchronize()
        begun = time.perf_counter() - start
        spent = min(_elapsed(lambda: line.draw(values, base, 0, noise)) for _ in range(5))  # noqa: B023
        cells.append(f"{name} {1e6 * spent / length:.1f} us (first line {begun:.2f} s)")
    overlap_triton.overlapping = overlapping
    if batch == 64 and isinstance(line, InnerLevel):
        middle = length // 2
        compiled = torch.compile(lambda x: line.decoder.step(x, middle), fullgraph=True)
        spent = microseconds(lambda: compiled(base[:, 0].contiguous()))
        cells.append(f"plain, compiled, without the choice {spent:.1f} us")
    print(f"  a line, per element: {', '.join(cells)}")


def _elapsed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Print what is fastest for each batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", choices=TILES, default=list(TILES))
    for name, default in (("width", 1536), ("heads", 16), ("layers", 8), ("length", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    config = ModelConfig(
        axes=(args.length,),
        width=args.width,
        heads=args.heads,
        encoder_layers=0,
        decoder_layers=(args.layers,),
    )
    model = AxialTransformer(config).to("cuda", torch.bfloat16).eval()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16, {args.layers} layers")
    with torch.no_grad():
        for batch in args.batch:
            print(f"\nbatch {batch}")
            probe_line(model, batch)
            probe_attention(model, batch)
            probe_outer(model, batch)
            probe_dense(args.width, args.layers, batch)


if __name__ == "__main__":
    main()
