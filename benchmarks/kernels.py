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
import torch.nn.functional as F
from torch import Tensor

from axial import AxialTransformer, ModelConfig, kernels
from axial.folded import Folded, FoldedBlock, Memory
from axial.kernels import Reach, Tile
from axial.layers import Blocks
from axial.lines import Line, Operations

TILES = {
    1: [],
    16: [Tile(16, 16, 256), Tile(16, 32, 256), Tile(16, 32, 128)],
    64: [Tile(64, 16, 128), Tile(64, 32, 128), Tile(64, 32, 64, 4, 6), Tile(32, 32, 128)],
    256: [Tile(64, 32, 128), Tile(64, 64, 64), Tile(64, 64, 128), Tile(128, 32, 128)],
}
"""Worth trying, by batch size."""
COLUMNS = [(2, 4, 2048), (4, 4, 2048), (8, 4, 2048), (8, 4, 512), (4, 8, 2048), (4, 2, 2048)]
"""Columns, warps and depth of a program, where there are few rows."""
REACHES = [Reach(8, 1), Reach(16, 1), Reach(32, 1), Reach(16, 2), Reach(32, 2), Reach(32, 4)]
"""For attention to a cache."""


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
    """What `dense` takes for each of its uses, beside cuBLAS and torch; and variants of it."""
    x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    for outputs, options in (
        (3 * width, {"normed": True, "added": None}),
        (width, {"normed": False, "added": torch.randn_like(x)}),
    ):
        weights = [_layer(outputs, width) for _ in range(layers)]
        out = x.new_empty(batch, outputs)

        def per_layer(dense: Callable[..., Tensor], **more: object) -> float:
            def run() -> None:
                for layer in weights:  # noqa: B023
                    dense(x, layer, **more)

            return microseconds(run) / layers

        plain = per_layer(_plain_dense, **options)
        usual = per_layer(kernels.dense, **options)
        print(f"  dense {width} -> {outputs}: cuBLAS and torch {plain:.2f} us, ours {usual:.2f} us")
        common = {"out": out, "activated": False, "added": options["added"]}
        for columns, warps, depth in COLUMNS if batch <= kernels.FEW else []:
            more = {"normed": options["normed"], "columns": columns, "warps": warps}
            spent = per_layer(kernels.weighted_sums, **common, **more, depth=depth)
            print(f"    {spent:.2f} us {columns} columns, {warps} warps, {depth} deep")
        for cut in TILES[batch]:
            print(f"    {per_layer(kernels.product, **common, cut=cut):.2f} us {cut}")


def _plain_dense(x: Tensor, layer: Folded, *, normed: bool, added: Tensor | None) -> Tensor:
    x = F.layer_norm(x, x.shape[-1:]) if normed else x
    out = torch.addmm(layer.bias, x, layer.weight)
    return out if added is None else out + added


def _layer(outputs: int, inputs: int) -> Folded:
    weight = torch.randn(outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16()
    return Folded(weight.t(), weight.new_zeros(outputs), weight.sum(1, dtype=torch.float32))


def probe_attention(model: AxialTransformer, batch: int) -> None:
    """The kernel beside plain products, for elements along the line."""
    assert isinstance(model.inner_decoder, Blocks)
    blocks = [FoldedBlock(block) for block in model.inner_decoder]
    length = model.config.axes[-1]
    memories = [Memory(block, batch, length) for block in blocks]
    for memory in memories:
        memory.rows.normal_()

    def plain(memory: Memory, j: int) -> None:
        _, mask, q, k, v = memory.until(j)
        torch.bmm(torch.baddbmm(mask, q, k).softmax(-1), v, out=memory.seen_rle)

    def kernel(memory: Memory, j: int, cut: Reach) -> None:
        rows = memory.rows.view(length, batch, 1, memory.heads, 3, -1).transpose(0, 1)
        (q, k, v), (_, keys, values) = rows[:, j : j + 1].unbind(-2), rows.unbind(-2)
        kernels.attend(q, k, v, keys, values, j, cut=cut)

    variants: dict[str, Callable[[Memory, int], None]] = {"plain": plain}
    for cut in REACHES:
        variants[f"{cut.steps}x{cut.warps}"] = functools.partial(kernel, cut=cut)
    for j in (0, length // 2, length - 1):
        cells = []
        for name, attend in variants.items():
            run = functools.partial(_for_each, attend, memories, j)
            cells.append(f"{name} {microseconds(run) / len(memories):.2f} us")
        print(f"  attention at {j}: {', '.join(cells)}")


def probe_outer(model: AxialTransformer, batch: int) -> None:
    """One step of an outer level's masked attention, by the kernel and by torch."""
    heads, length = model.config.heads, model.config.axes[-1]
    shape = (batch, length, length, heads, model.config.width // heads)
    own = torch.randn(batch, 1, *shape[2:-1], 3, shape[-1], device="cuda").bfloat16()
    q, k, v = own.unbind(-2)
    keys, values = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    last = torch.tensor(length - 1, dtype=torch.int32, device="cuda")
    cells = []
    for cut in REACHES:
        spent = microseconds(lambda: kernels.attend(q, k, v, keys, values, last, cut=cut))  # noqa: B023
        cells.append(f"{cut.steps}x{cut.warps} {spent:.0f} us")
    q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, keys, values))
    spent = microseconds(lambda: F.scaled_dot_product_attention(q, k, v))
    print(f"  outer attention to {length} rows: {', '.join(cells)}, torch {spent:.0f} us")


def _for_each(attend: Callable[[Memory, int], None], memories: list[Memory], j: int) -> None:
    for memory in memories:
        attend(memory, j)


def probe_line(model: AxialTransformer, batch: int) -> None:
    """A whole line by the kernels and by plain torch, and one step compiled, per element."""
    shape = (batch, model.config.axes[-1])
    values = torch.full(shape, -1, device="cuda")
    base = torch.randn(*shape, model.config.width, device="cuda").bfloat16()
    noise = torch.randn(*shape, model.config.values, device="cuda", dtype=torch.float64)
    cells = []
    overlapping = kernels.overlapping
    for name, operations in (("kernels", None), ("not overlapping", None), ("plain", Operations())):
        kernels.overlapping = (lambda: False) if name == "not overlapping" else overlapping  # type: ignore[assignment]
        line = Line(model, batch, operations)
        spent = microseconds(lambda: line.choose_along(values, base, noise), repeats=5)  # noqa: B023
        cells.append(f"{name} {spent / line.length:.1f} us")
    kernels.overlapping = overlapping
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
            probe_attention(model, batch)
            probe_outer(model, batch)
            probe_dense(args.width, args.layers, batch)


if __name__ == "__main__":
    main()
