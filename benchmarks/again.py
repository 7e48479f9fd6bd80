"""All figures that need a GPU, measured again, in the time there is.

    python benchmarks/again.py list
    python benchmarks/again.py run --data FOLDER --out OUT [--minutes 9] [--only tests-1 paths]
    python benchmarks/again.py show --out OUT

FOLDER holds CIFAR-10 as `axial data` packs it, train.npy and test.npy, and the folders photos and
kodak. Each command has a name; what it says goes to OUT/NAME.txt, below the command, the hardware,
the versions and the commit; a last line says how it ended. `run` can be stopped and called again:
what ended is not run again unless `--only` names it. Nothing is begun that is not likely to end
within `--minutes`, but for what goes on where it was stopped. Each runs alone: what is timed must
have the GPU for itself.
"""

import argparse
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENDED = "# ended with status "
_PATIENCE = 20
"""Seconds that a command has to save what it has, when time is over."""
_SHARES = 6
"""Processes that share the tests."""


@dataclass(frozen=True)
class Measurement:
    """A command, and what is known of it."""

    command: str
    """With {data} and {out}, the folders of `run`; its first word is a script or -m."""
    minutes: float
    """What it took on an H200, or is likely to take."""
    resumable: bool = False
    """Whether it goes on where it was stopped."""
    timed: bool = True
    """Whether its figures are of time, so that nothing may run beside it."""


def _tests(share: int) -> Measurement:
    command = "-m pytest -m 'gpu or kernel' -q -o addopts= -p no:cacheprovider --durations 8 "
    return Measurement(f"{command} --share {share}/{_SHARES} {{gpu_tests}}", 4, timed=False)


def _training(preset: str, options: str = "", minutes: float = 2) -> Measurement:
    return Measurement(f"benchmarks/training.py --preset {preset}{options}", minutes)


def _rival(row: str, seeds: int = 1) -> Measurement:
    command = f"experiments/rivals.py run {row} --data {{data}} --out {{out}}/rivals --minutes 4"
    command += f" --trial-minutes 1 --seeds {seeds}"
    return Measurement(command, 3 * 1.6 + 4.6 * seeds, resumable=True)


def _recipe(row: str, options: str = "") -> Measurement:
    command = f"experiments/recipes.py run {row} --data {{data}} --out {{out}}/recipes --minutes 20"
    return Measurement(command + options, 22, resumable=True)


MEASUREMENTS = {
    **{f"tests-{i}": _tests(i) for i in range(1, _SHARES + 1)},
    "paths": Measurement(
        "benchmarks/paths.py --data {data}/train.npy --out {out}/paths.json --jobs 4",
        7,
        resumable=True,
        timed=False,
    ),
    "codec-across": Measurement(  # to be read on another machine
        "benchmarks/codec_across.py write {data}/test.npy --device cuda --out {out}/files",
        2,
        timed=False,
    ),
    "codec": Measurement(
        "benchmarks/codec.py size {data}/test.npy --count 10000 --alone --device cuda", 3
    ),
    "codec-kodak": Measurement(
        "benchmarks/codec.py photos {data}/kodak --alone --verify 3 --device cuda", 2
    ),
    "codec-kodak-photos": Measurement(
        "benchmarks/codec.py photos {data}/kodak --model photos --alone --verify 3 --device cuda",
        2,
    ),
    "training-cifar10": _training("cifar10"),
    "training-cifar10-bare": _training("cifar10", " --bare --profile"),
    "training-base": _training("base", " --batch 256", 1.2),
    "training-imagenet32": _training("imagenet32-released", " --batch 64", 2.6),
    "training-imagenet64": _training("imagenet64-released", " --batch 16", 3),
    "training-dropout": _training("cifar10", " --dropout 0.1"),
    "training-strided": _training("strided-cifar10-15m"),
    "sampling-large": Measurement("benchmarks/sampling.py --device cuda --large", 2),
    "sampling": Measurement("benchmarks/sampling.py --device cuda --out {out}", 2),
    "codec-speed": Measurement(
        "benchmarks/codec.py speed --device cuda --batch 64 256 1024 --repeat 2 --profile", 5
    ),
    "layer": Measurement("benchmarks/layer.py --device cuda", 1),
    "lines": Measurement("benchmarks/lines.py", 0.5),
    "lstm": Measurement("benchmarks/lstm.py", 3),
    "dropout": Measurement("benchmarks/dropout.py --data {data}/train.npy", 5),
    "table1": Measurement("experiments/table1.py --device cuda --out {out}/table1.md", 8),
    "cifar10": _recipe("combined", " --test"),
    "rivals-axial": _rival("axial", seeds=3),
    "rivals-strided": _rival("strided"),
    "rivals-pixelcnn++": _rival("pixelcnn++"),
    "rivals-gated-pixelcnn": _rival("gated-pixelcnn"),
    "rivals-local-2d": _rival("local-2d"),
    "rivals-local-1d": _rival("local-1d"),
    "rivals-blocks": _rival("blocks"),
    "rivals-full": _rival("full"),
    "recipes-rotate": _recipe("rotate"),
    "recipes-decay": _recipe("decay-10x"),
    "recipes-depth": _recipe("stochastic-depth-0.1"),
    "recipes-dropout": _recipe("dropout-0.05"),
    "recipes-augment": _recipe("augment-all"),
    "photos": Measurement(
        "experiments/photos.py run {data}/photos --out {out}/photos --rows crop-32-init "
        "--results {out}/photos/results --test {data}/kodak",
        32,
        resumable=True,
    ),
}
"""In the order in which they are worth having."""


def gpu_tests() -> list[str]:
    """The files of tests that need a GPU: the others import what a GPU machine may not have."""
    marks = ("mark.gpu", "mark.kernel")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = ((path, path.read_text()) for path in files)
    return [str(path.relative_to(ROOT)) for path, text in texts if any(m in text for m in marks)]


def words(measurement: Measurement, data: Path, out: Path) -> list[str]:
    """The command as words, but for Python itself."""
    found: list[str] = []
    for word in shlex.split(measurement.command):
        found += gpu_tests() if word == "{gpu_tests}" else [word.format(data=data, out=out)]
    return found


def heading(command: Sequence[str]) -> str:
    """What is run, on what, with which versions."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    began = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return (
        f"$ python {' '.join(command)}\n"
        f"# {device}, {versions}, commit {commit.stdout.strip() or 'unknown'}, {began} UTC\n"
    )


def ended(log: Path) -> str | None:
    """How a command ended, by what it left; None if it did not run to its end."""
    last = log.read_text().rstrip().rpartition("\n")[2] if log.exists() else ""
    return last.removeprefix("# ") if last.startswith(ENDED) else None


def sharing(jobs: int) -> dict[str, str]:
    """The settings of a command that runs beside others: its part of the cores, and no spinning.

    Without them each has as many threads as there are cores, and waits for them in a loop.
    """
    part = f"{max(1, (os.cpu_count() or 1) // jobs)}"
    threads = {"OMP_NUM_THREADS": part, "OMP_WAIT_POLICY": "PASSIVE"}
    return threads | {"TORCHINDUCTOR_COMPILE_THREADS": part}


def carry_out(
    command: Sequence[str],
    log: Path,
    seconds: float,
    over: threading.Event,
    settings: dict[str, str],
) -> int | None:
    """Run a command for so long; its status, None if time was over before it ended."""
    begun = time.monotonic()
    with log.open("a") as file:
        file.write(heading(command))
        file.flush()
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"} | settings,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,  # what it starts is stopped with it
        )
        status = None
        try:
            while status is None and time.monotonic() < begun + seconds and not over.is_set():
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.2)
        finally:
            stop(process)
        spent = time.monotonic() - begun
        how = "# stopped" if status is None else f"{ENDED}{status}"
        file.write(f"\n{how} after {spent:.0f} s\n")
    return status


def python_path() -> str:
    """Where Python looks first: in this package, then where the caller says."""
    added = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT / "src"), *([added] if added else [])])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; it has some time to save what it has."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def chosen(names: Sequence[str] | None, out: Path) -> Iterator[tuple[str, Measurement]]:
    """What is to be run: what is named, or all that has not ended."""
    for name in names or MEASUREMENTS:
        if names is not None or not ended(out / f"{name}.txt"):
            yield name, MEASUREMENTS[name]


def fits(measurement: Measurement, left: float) -> bool:
    """Whether to begin with it, so many minutes before the end."""
    return left >= measurement.minutes or (measurement.resumable and left > 1)


def run(args: argparse.Namespace) -> int:
    """Run what there is time for; 1 if a command failed."""
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    over, failed = threading.Event(), []

    def do(name: str, measurement: Measurement) -> None:
        log = args.out / f"{name}.txt"
        if not fits(measurement, (end - time.monotonic()) / 60):
            print(f"{name}: passed over, would take {measurement.minutes:g} minutes", flush=True)
            return
        if args.only and ended(log):
            log.unlink()
        command = words(measurement, args.data.resolve(), args.out.resolve())
        print(f"{name}: python {' '.join(command)[:200]}", flush=True)
        settings = {} if measurement.timed else sharing(args.jobs)
        status = carry_out(command, log, end - time.monotonic(), over, settings)
        print(f"{name}: " + ("stopped" if status is None else f"status {status}"), flush=True)
        if status:
            failed.append(name)

    tasks = list(chosen(args.only, args.out))
    with ThreadPoolExecutor(args.jobs) as pool:
        try:
            for done in [pool.submit(do, *each) for each in tasks if not each[1].timed]:
                done.result()
            for each in tasks:
                if each[1].timed:
                    do(*each)
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)
    if failed:
        print(f"failed: {', '.join(sorted(failed))}")
    return 1 if failed else 0


def show(args: argparse.Namespace) -> int:
    """How each stands, with its last lines."""
    for name in MEASUREMENTS:
        log = args.out / f"{name}.txt"
        begun = "begun, not ended" if log.exists() else "not run"
        print(f"{name}: {ended(log) or begun}")
        if log.exists():
            lines = [line for line in log.read_text().splitlines() if line.strip()]
            print("\n".join(f"    {line[:160]}" for line in lines[-args.lines - 1 : -1]))
    return 0


def list_all() -> int:
    """Every command, with its minutes."""
    for name, measurement in MEASUREMENTS.items():
        goes_on = ", goes on where it was stopped" if measurement.resumable else ""
        beside = "" if measurement.timed else ", beside others"
        print(f"{name}: about {measurement.minutes:g} minutes{goes_on}{beside}")
        print(f"    python {measurement.command}")
    return 0


def main() -> None:
    """List, run or show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("list", help="print every command")
    running = parts.add_parser("run", help="run what has not ended yet")
    running.add_argument("--data", type=Path, required=True, help="holds the data sets")
    running.add_argument("--minutes", type=float, default=math.inf, help="default: no limit")
    running.add_argument("--jobs", type=int, default=8, help="of what is not timed; default: 8")
    running.add_argument("--only", nargs="+", choices=MEASUREMENTS, help="these, though they ended")
    showing = parts.add_parser("show", help="how each ended")
    showing.add_argument("--lines", type=int, default=3, help="last lines of each")
    for each in (running, showing):
        each.add_argument("--out", type=Path, required=True, help="holds a log for each command")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if args.part == "list":
        sys.exit(list_all())
    sys.exit(run(args) if args.part == "run" else show(args))


if __name__ == "__main__":
    main()
