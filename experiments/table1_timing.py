"""The part of table1.py that takes a GPU: time, memory, kernels and drawing of each family.

A layer is timed forward and backward, in bfloat16 on a GPU, over a growing picture, with torch's
plain attention, which keeps the weights of all pairs, and with its fused one. A training step is
the trainer's own. "Core" uses torch operations alone, none of them compiled, with torch's own
choice of attention; "best" is what training uses: compiled, as a CUDA graph, with our kernels.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rival_rows import ROWS, config_of
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import axial
from axial.data.batches import Batch
from axial.evaluation.result import write_json
from axial.models.blocks_config import BlocksConfig
from axial.models.config import ModelConfig
from axial.models.cost import training_flops
from axial.models.families import new_model
from axial.models.family_config import FamilyConfig
from axial.models.local_config import LocalConfig
from axial.models.pixelcnn_config import GatedPixelCnnConfig, PixelCnnPpConfig
from axial.models.sequence_config import FullConfig, StridedConfig
from axial.models.sequence_transformer import SequenceAttention
from axial.presets import PRESETS
from axial.system.ranks import Ranks, ranks
from axial.training.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from attention_cost import exponent as exponent  # table1.py takes it from here
from attention_cost import peak_bytes, seconds

MOST_BYTES = 40e9
"""Plain attention whose weights would take more than this is left out."""


@dataclass(frozen=True)
class Setting:
    """At what sizes to measure."""

    device: str
    sides: tuple[int, ...] = (8, 16, 32, 64, 128)
    positions: int = 1 << 17
    """Elements in all while a layer is timed: the batch shrinks as the picture grows."""
    side: int = 32
    batch: int = 64
    """Pictures of a training step."""
    pictures: int = 64
    """Pictures to draw."""
    steps: int = 20
    changes: tuple[tuple[str, Any], ...] = ()
    """Sizes of the model in place of the preset's."""

    def config(self, name: str, side: int) -> FamilyConfig:
        """The model of a row for pictures of a side."""
        config = config_of(ROWS[name].equal, side)
        own: dict[str, Any] = {
            key: value
            for key, value in self.changes
            if type(getattr(config, key, None)) is type(value)
        }
        return replace(config, **own)

    @property
    def dtype(self) -> torch.dtype:
        """Of a layer."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32


TOY = Setting(
    "cpu",
    (4, 8),
    1 << 8,
    8,
    2,
    1,
    1,
    (("width", 24), ("heads", 2), ("head_width", 8), ("block", 8)),
)


def layers_of(config: FamilyConfig) -> tuple[list[nn.Module], Callable[[int], tuple[Tensor, ...]]]:
    """One layer of each kind, and what they take: features of so many examples."""
    rows, columns = config.axes
    grid = (config.width, rows, columns)
    if isinstance(config, ModelConfig):
        model: Any = new_model(replace(config, encoder_layers=2, decoder_layers=(2, 1)))
        plane = (rows, columns, config.width)
        return list(model.outer_decoders[0]), lambda count: (
            torch.randn(len(config.slices) * count, *plane),
        )
    if isinstance(config, BlocksConfig):
        kinds = len(config.block_shapes or ())
        model = new_model(replace(config, layers=kinds, encoder_layers=1))
        part = (*config.slice_axes, config.width)
        return list(model.layers), lambda count: (torch.randn(config.slice_count * count, *part),)
    if isinstance(config, GatedPixelCnnConfig):
        model = new_model(replace(config, layers=2))
        return [model.layers[1]], lambda count: tuple(torch.randn(2, count, *grid))
    if isinstance(config, PixelCnnPpConfig):
        model = new_model(replace(config, layers=1))
        return [model.layers[0]], lambda count: tuple(torch.randn(2, count, *grid))
    assert isinstance(config, FullConfig | LocalConfig)
    # Of the Strided Sparse Transformer the first two of its cycle: one strided, one local.
    model = new_model(replace(config, layers=2 if isinstance(config, StridedConfig) else 1))
    return list(model.layers), lambda count: (torch.randn(count, config.length, config.width),)


def layer_step(
    config: FamilyConfig, setting: Setting, count: int
) -> tuple[Callable[[], None], int]:
    """Forward and backward of one layer of each kind, and how many there are."""
    device = torch.device(setting.device)
    layers, inputs = layers_of(config)
    layers = [layer.to(device, setting.dtype) for layer in layers]
    given = [x.to(device, setting.dtype).requires_grad_() for x in inputs(count)]
    more: list[Any] = []
    if isinstance(config, LocalConfig):
        model: Any = new_model(replace(config, layers=1))
        more = [model.around(device), config.query]

    def step() -> None:
        for layer in layers:
            out = layer(*given, *more)
            outs = [out] if isinstance(out, Tensor) else list(out)
            torch.autograd.backward(outs, [torch.ones_like(one) for one in outs])
            layer.zero_grad()
        for x in given:
            x.grad = None

    return step, len(layers)


def layer_costs(name: str, setting: Setting, side: int, kernel: str) -> tuple[float, float]:
    """Seconds and bytes of a layer for one picture; not a number where it would not fit."""
    config = setting.config(name, side)
    count = max(1, setting.positions // (3 * side**2))
    if kernel == "plain" and type(config) is FullConfig:
        weights = 4 * count * config.heads * config.length**2
        if weights > MOST_BYTES:
            return math.nan, math.nan
    try:
        with plain_attention() if kernel == "plain" else nullcontext():
            step, kinds = layer_step(config, setting, count)
            each = seconds(step, setting.device, repeats=3) / (kinds * count)
            step, kinds = layer_step(config, setting, 1)
            return each, peak_bytes(step, setting.device) / kinds
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return math.nan, math.nan


def growth(name: str, setting: Setting) -> dict[str, float]:
    """Fitted exponents of a layer's time and memory over the number of elements."""
    found = {}
    # Convolutions have no attention: torch has one way to compute them.
    plain = hasattr(setting.config(name, setting.sides[0]), "heads")
    for kernel in ("plain", "fused") if plain else ("fused",):
        costs = [layer_costs(name, setting, side, kernel) for side in setting.sides]
        sizes = [3 * side**2 for side in setting.sides]
        for what, values in zip(("time", "memory"), zip(*costs, strict=True), strict=True):
            kept = [(n, v) for n, v in zip(sizes, values, strict=True) if np.isfinite(v) and v > 0]
            slope = exponent(*map(list, zip(*kept, strict=True))) if len(kept) > 1 else math.nan
            if math.isfinite(slope):
                found[f"{what}, {kernel}"] = slope
    return found


@contextmanager
def plain_attention() -> Iterator[None]:
    """Torch's attention that keeps the weights of all pairs."""
    with sdpa_kernel(SDPBackend.MATH), core_operations():
        yield


@contextmanager
def core_operations() -> Iterator[None]:
    """Without our Triton kernels."""
    with mock.patch("axial.models.attention.is_supported", lambda *args: False):
        yield


def step_seconds(config: FamilyConfig, setting: Setting, team: Ranks, *, core: bool) -> float:
    """Seconds of a step of training on random pictures, by the recipe of `cifar10`."""
    training = replace(PRESETS["cifar10"]().training, batch=setting.batch)
    if core:
        training = replace(training, compile=False, cuda_graph=False)
    shape = (setting.batch, *config.axes, config.channels)
    x = torch.randint(config.values, shape, generator=torch.Generator().manual_seed(0))
    each = np.arange(setting.batch)
    batch = Batch(x=x.to(torch.uint8), label=None, index=each, epoch=0 * each)
    torch.compiler.reset()  # or what other families compiled counts against a limit
    trainer = Trainer(new_model(config), training, team)

    def step() -> None:
        trainer.step(training.warmup, batch)

    for _ in range(min(20, setting.steps)):
        step()
    return seconds(step, setting.device, repeats=setting.steps)


def draw_seconds(config: FamilyConfig, setting: Setting) -> float:
    """Seconds to draw pictures with new weights, after a first time that does not count."""
    model = new_model(config).to(setting.device, setting.dtype).eval()
    spent = 0.0
    for seed in range(2):
        begun = time.perf_counter()
        axial.draw(model, setting.pictures, seed=seed).cpu()
        spent = time.perf_counter() - begun
    return spent


def local_kernels(config: Any, setting: Setting) -> dict[str, float]:
    """Seconds of the strided family's local half: two blocks and a mask, or FlexAttention."""
    attention = SequenceAttention(config, config.cycle.index("local"))
    head, narrow = config.width // config.heads, config.query_width // config.heads
    shape = (setting.batch, config.heads, config.length)
    how: dict[str, Any] = {"device": setting.device, "dtype": setting.dtype, "requires_grad": True}
    # FlexAttention takes heads of 16 features and more; half of the width is theirs.
    q, k = (torch.randn(*shape, narrow, **how) for _ in range(2))
    v = torch.randn(*shape, head, **how)
    flex = window_attention(config.length, config.stride, setting.device)

    def timed(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> float:
        def step() -> None:
            out = attend(q, k, v)
            torch.autograd.backward(out, torch.ones_like(out))
            q.grad = k.grad = v.grad = None

        return seconds(step, setting.device, repeats=setting.steps)

    return {"two blocks": timed(attention._local), "FlexAttention": timed(flex)}


def window_attention(
    length: int, stride: int, device: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention to the last `stride` positions by FlexAttention; compiled on a GPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < stride)

    mask = create_block_mask(near, None, None, length, length, device=device)
    attend: Any = torch.compile(flex_attention) if device == "cuda" else flex_attention
    return lambda q, k, v: attend(q, k, v, block_mask=mask)


def measured(name: str, setting: Setting, team: Ranks) -> dict[str, float]:
    """All that is timed of a row."""
    torch.manual_seed(0)
    config = setting.config(name, setting.side)
    found = growth(name, setting)
    with core_operations():
        found["core"] = step_seconds(config, setting, team, core=True)
    found["best"] = step_seconds(config, setting, team, core=False)
    found["TFLOP/s"] = training_flops(config) * setting.batch / found["best"] / 1e12
    found["draw"] = draw_seconds(config, setting)
    if isinstance(config, StridedConfig) and setting.device == "cuda":
        found |= {f"local, {kind}": each for kind, each in local_kernels(config, setting).items()}
    return found


def timings(names: Sequence[str], device: str, *, toy: bool, out: Path | None) -> str:
    """All that is timed, as text; a picture beside `out`, and the figures in JSON.

    A row that the JSON has already, from this device, is not timed again.
    """
    setting = replace(TOY, device=device) if toy else Setting(device)
    here = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    kept = out.with_name(f"{out.stem}_timing.json") if out else None
    found: dict[str, dict[str, float]] = {}
    if kept and kept.exists():
        before = json.loads(kept.read_text())
        if before["device"] != here:
            raise SystemExit(f"{kept}: is of {before['device']}, not of {here}; remove it")
        found = before["rows"]
    with ranks(device) as team:
        for name in names:
            if name not in found:
                found[name] = measured(name, setting, team)
                print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
                if kept:
                    write_json(kept, {"device": here, "torch": torch.__version__, "rows": found})
    if out is not None:
        _draw({name: found[name] for name in names}, out, setting)
    return text_of({name: found[name] for name in names}, setting, out)


def text_of(found: dict[str, dict[str, float]], setting: Setting, out: Path | None) -> str:
    """The table of what was timed."""
    slopes = [f"{what}, {k}" for what in ("time", "memory") for k in ("plain", "fused")]
    head = ["model", *slopes, "step, core", "step, best", "core / best", "TFLOP/s", "images/s"]
    lines = [[*head, f"to draw {setting.pictures}"], ["---"] * (1 + len(head))]
    for name, row in found.items():
        shown = [f"{row[what]:.2f}" if row.get(what) is not None else "-" for what in slopes]
        core, best = row["core"], row["best"]
        shown += [f"{1e3 * core:.2f} ms", f"{1e3 * best:.2f} ms", f"{core / best:.2f}"]
        shown += [f"{row['TFLOP/s']:.1f}", f"{setting.batch / best:,.0f}", f"{row['draw']:.2f} s"]
        lines.append([ROWS[name].model, *shown])
    parts = [
        f"Exponents of a layer's time and memory over the elements of pictures of "
        f"{setting.sides[0]} to {setting.sides[-1]} pixels; a training step on {setting.batch} "
        f"pictures of {setting.side} x {setting.side}, of which the Axial Transformer scores one "
        f"channel each, and the Block Transformer one slice; drawing:",
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
    ]
    local = {k: v for row in found.values() for k, v in row.items() if k.startswith("local")}
    if local:
        listed = "; ".join(f"{kind} {1e3 * value:.2f} ms" for kind, value in local.items())
        parts.append(f"Strided Sparse Transformer, attention forward and backward: {listed}.")
    if out is not None:
        parts.append(f"![Steps and drawing]({out.stem}_timing.png)")
    return "\n\n".join(parts)


def _draw(found: dict[str, dict[str, float]], out: Path, setting: Setting) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    steps, drawing = figure.subplots(1, 2)
    names = [ROWS[name].model for name in found]
    place = np.arange(len(names))
    for shift, what in ((-0.2, "core"), (0.2, "best")):
        values = [1e3 * each[what] for each in found.values()]
        steps.barh(place + shift, values, 0.38, label=f"{what} operations")
    drawing.barh(place, [each["draw"] for each in found.values()], 0.6)
    for panel in (steps, drawing):
        panel.set_yticks(place, names)
        panel.invert_yaxis()
        panel.grid(alpha=0.3, axis="x")
    drawing.set_yticklabels([])
    steps.set(xlabel="ms", title=f"A training step on {setting.batch} pictures")
    steps.legend(fontsize=8)
    drawing.set(xlabel="seconds", title=f"Drawing {setting.pictures} pictures")
    figure.savefig(out.with_name(f"{out.stem}_timing.png"), dpi=110)
