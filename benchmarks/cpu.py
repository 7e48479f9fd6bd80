"""What a shipped model costs on a CPU: alone, beside busy processes, and from a cold start.

    python benchmarks/cpu.py [rates] [beside] [start]

"rates": operations a second of scoring and drawing, and of a large float32 product, in one run:
torch's own product, and that of our dense layers, which take oneDNN's where it is faster.
"beside": how many times as long scoring, drawing and training take beside one and two processes
that keep a core busy each; torch's threads wait by spinning, which is the default, or asleep, as
in every command of `axial`. "start": a command, from a new process to the picture on disk.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MODEL = "cifar10"
BUSY = "while True: pass"
WAITING = {"spinning": None, "asleep": "PASSIVE"}


def fastest(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some runs, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found[1:])


def report_rates() -> None:
    """Scoring at batch 8, drawing at 8 and 16, as shares of both products' rates."""
    import torch

    import axial
    from axial.models.cost import forward_flops
    from axial.models.dense import dense

    model = axial.load(MODEL)
    name = f"{platform.machine()} CPU"
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {MODEL}")
    side, layer = 2048, torch.nn.Linear(2048, 2048, bias=False)
    x = torch.randn(side, side)
    with torch.no_grad():
        products = {
            "torch.mm": fastest(lambda: torch.mm(x, layer.weight), 8),
            "a dense layer": fastest(lambda: dense(layer, x), 8),
        }
    peaks = {what: 2 * side**3 / spent for what, spent in products.items()}
    for what, peak in peaks.items():
        print(f"{what}, {side} x {side} x {side}: {peak / 1e9:.0f} GFLOP/s", flush=True)
    pictures = torch.randint(256, (8, 32, 32, 3))
    spent = {"scoring, batch 8": (8, fastest(lambda: axial.bits(model, pictures), 2))}
    for batch in (8, 16):
        run = lambda batch=batch: axial.draw(model, batch, batch=batch)  # noqa: E731
        spent[f"drawing, batch {batch}"] = (batch, fastest(run, 1))
    for what, (batch, took) in spent.items():
        rate = batch * forward_flops(model.config) / took
        shares = ", ".join(f"{rate / peak:.0%} of {of}" for of, peak in peaks.items())
        print(f"{what}: {took:.2f} s, {rate / 1e9:.0f} GFLOP/s, {shares}", flush=True)


def work() -> None:
    """Print the seconds of scoring, of drawing some lines, and of training steps."""
    import torch

    import axial
    from axial.models.likelihood import bits

    model = axial.load(MODEL)
    pictures = torch.randint(256, (2, 32, 32, 3), generator=torch.Generator().manual_seed(0))
    given = pictures.repeat(4, 1, 1, 1)
    given[:, 20:, :, 2] = -1

    def train() -> None:
        loss = model.channel_logits(pictures, torch.zeros(2, dtype=torch.long)).logsumexp(-1).sum()
        torch.autograd.grad(loss, list(model.parameters()))

    runs: dict[str, Callable[[], object]] = {
        "scoring": lambda: bits(model, pictures),
        "drawing": lambda: axial.draw(model, 8, given=given, batch=8),
        "training": train,
    }
    print(*(f"{fastest(run, 1):.3f}" for run in runs.values()))


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that each keep a core busy."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def report_beside() -> None:
    """The three kinds of work alone, and beside one and two busy processes."""
    print("seconds of scoring, drawing, training (over alone)")
    for waiting, policy in WAITING.items():
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        if policy is not None:
            environment["OMP_WAIT_POLICY"] = policy
        alone: list[float] = []
        for count in (0, 1, 2):
            with busy_processes(count):
                done = subprocess.run(
                    [sys.executable, __file__, "work"],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
            spent = [float(word) for word in done.stdout.split()]
            alone = alone or spent
            cells = [f"{s:.2f} ({s / a:.2f})" for s, a in zip(spent, alone, strict=True)]
            print(f"  {waiting}, beside {count}: " + ", ".join(cells), flush=True)


def report_start() -> None:
    """Seconds of commands, each in a new process."""
    for words in (["--help"], ["sample", MODEL, "--count", "16"]):

        def run(words: list[str] = words) -> None:
            with tempfile.TemporaryDirectory() as folder:
                out = ["--out", str(Path(folder) / "sheet.png")] if len(words) > 1 else []
                command = [sys.executable, "-m", "axial", *words, *out]
                subprocess.run(command, check=True, capture_output=True)

        print(f"axial {' '.join(words)}: {fastest(run, 1):.2f} s", flush=True)


PARTS = {"rates": report_rates, "beside": report_beside, "start": report_start, "work": work}


def main() -> None:
    """Print the parts that were asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help="default: rates, beside and start")
    args = parser.parse_args()
    if wrong := set(args.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(wrong)}")
    for part in args.parts or list(PARTS)[:3]:
        PARTS[part]()


if __name__ == "__main__":
    main()
