"""Which tiles and variants make the inner step fast on this GPU: what kernels.py chooses by.

    python benchmarks/kernels.py [--width 1536] [--heads 16] [--layers 8] [--length 32]

Everything is timed as it runs in a drawing: inside a CUDA graph, in bf16, over as many layers as
the model has, so that their weights do not stay in the GPU's cache.
"""

import argparse
import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from axial import AxialTransformer, ModelConfig, kernels, lines
from axial.kernels import Tile
from axial.layers import Folded
from axial.lines import Line, Operations

TILES = {
    1: [
        Tile(16, 16, 128, 4, 4),
        Tile(16, 16, 128, 2, 6),
        Tile(16, 16, 256, 4, 4),
        Tile(16, 16, 256, 2, 4),
        Tile(16, 16, 256, 8, 4),
        Tile(16, 16, 512, 4, 3),
        Tile(16, 32, 128, 4, 4),
        Tile(16, 32, 256, 4, 4),
        Tile(16, 32, 256, 8, 4),
        Tile(16, 64, 128, 4, 4),
    ],
    64: [
        Tile(64, 16, 128, 4, 4),
        Tile(64, 16, 256, 4, 3),
        Tile(64, 32, 128, 4, 4),
        Tile(64, 32, 128, 8, 4),
        Tile(64, 32, 256, 4, 3),
        Tile(64, 64, 64, 4, 5),
        Tile(64, 64, 128, 4, 4),
        Tile(32, 32, 128, 4, 4),
        Tile(32, 64, 128, 4, 4),
        Tile(16, 64, 128, 4, 4),
    ],
    256: [
        Tile(64, 32, 128, 4, 4),
        Tile(64, 64, 64, 4, 4),
        Tile(64, 64, 128, 4, 4),
        Tile(64, 128, 64, 4, 4),
        Tile(64, 128, 128, 4, 3),
        Tile(128, 32, 128, 4, 4),
        Tile(128, 64, 64, 4, 4),
        Tile(128, 64, 64, 8, 4),
        Tile(128, 128, 64, 8, 4),
        Tile(256, 64, 64, 8, 3),
    ],
}
"""Worth trying, by batch size."""


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
    """The best tiles for the two shapes of dense layer, beside cuBLAS with its own norm."""
    for outputs, normed in ((3 * width, True), (width, True), (width, False)):
        weights = [_layer(outputs, width) for _ in range(layers)]
        x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
        added = None if normed else torch.randn_like(x)

        def all_layers(dense: Callable[..., Tensor], **more: object) -> None:
            for layer in weights:  # noqa: B023
                dense(x, layer, normed=normed, added=added, **more)  # noqa: B023

        found = {}
        for cut in TILES[batch]:
            run = functools.partial(all_layers, kernels.dense, cut=cut)
            try:
                found[cut] = microseconds(run)
            except Exception as error:  # a tile that does not fit is no candidate
                print(f"    {cut}: {str(error).splitlines()[0][:80]}")
        chosen = kernels.tile(batch, width, outputs)
        usual = microseconds(lambda: all_layers(kernels.dense)) / layers
        plain = microseconds(lambda: all_layers(lines.dense)) / layers
        floor = 2 * outputs * width / 4.3e6
        print(
            f"  dense {width} -> {outputs}, {'normed' if normed else 'added'}: cuBLAS and torch "
            f"{plain:.2f} us, chosen {usual:.2f} us ({_short(chosen)}), bytes alone {floor:.2f} us"
        )
        for cut, time_of_all in sorted(found.items(), key=lambda item: item[1])[:6]:
            print(f"    {time_of_all / layers:.2f} us {_short(cut)}")


def _layer(outputs: int, inputs: int) -> Folded:
    weight = torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16()
    return Folded(weight, weight.new_zeros(outputs), weight.sum(1, dtype=torch.float32))


def _short(cut: Tile) -> str:
    return f"{cut.rows}x{cut.columns}x{cut.depth}, {cut.warps} warps, {cut.stages} stages"


def probe_attention(width: int, heads: int, layers: int, length: int, batch: int) -> None:
    """The kernel beside plain products, for an element in the middle and the last of a line."""
    shape = (batch, heads, length, width // heads)
    pairs = [[torch.randn(shape, device="cuda").bfloat16() for _ in "kv"] for _ in range(layers)]
    qkv = torch.randn(batch, 3 * width, device="cuda", dtype=torch.bfloat16)
    for j in (0, length // 2, length - 1):
        cells = []
        for name, attend in (("plain", lines.attend), ("kernel", kernels.attend)):

            def all_layers(attend: Callable[..., Tensor] = attend, j: int = j) -> None:
                for keys, values in pairs:
                    attend(qkv, keys, values, j)

            cells.append(f"{name} {microseconds(all_layers) / layers:.2f} us")
        print(f"  attention at {j}: {', '.join(cells)}")


def probe_line(model: AxialTransformer, batch: int) -> None:
    """A whole line by the kernels and by plain torch, and one step compiled, per element."""
    shape = (batch, model.config.axes[-1])
    values = torch.full(shape, -1, device="cuda")
    base = torch.randn(*shape, model.config.width, device="cuda").bfloat16()
    noise = torch.randn(*shape, model.config.values, device="cuda", dtype=torch.float64)
    cells = []
    for name, operations in (("kernels", None), ("plain", Operations())):
        line = Line(model, batch, operations)
        spent = microseconds(lambda: line.choose_along(values, base, 0, noise), repeats=5)  # noqa: B023
        cells.append(f"{name} {spent / line.length:.1f} us")
    if batch == 64:
        middle = line.length // 2
        compiled = torch.compile(lambda x: line.decoder.step(x, middle), fullgraph=True)
        spent = microseconds(lambda: compiled(base[:, 0].contiguous()))
        cells.append(f"plain, compiled, without the choice {spent:.1f} us")
    print(f"  a line, per element: {', '.join(cells)}")
    start = time.perf_counter()
    line = Line(model, batch)
    torch.cuda.synchronize()
    folded = time.perf_counter() - start
    line.draw(values, base, 0, noise)
    torch.cuda.synchronize()
    print(f"  folding {folded:.3f} s, recording {time.perf_counter() - start - folded:.3f} s")


def main() -> None:
    """Print what is fastest for each batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
        for batch in TILES:
            print(f"\nbatch {batch}")
            probe_line(model, batch)
            probe_attention(args.width, args.heads, args.layers, args.length, batch)
            probe_dense(args.width, args.layers, batch)


if __name__ == "__main__":
    main()
