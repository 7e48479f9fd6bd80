"""How fast data is packed and fed, and how much memory that takes.

    python benchmarks/data.py [pictures] [gigabytes]

Packing is compared with a plain Pillow loop over the same tar, the loader with numpy's own
indexing of a memory-mapped array. The sparse file is larger than the memory of the machine
unless told otherwise.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.lib import format as npy
from PIL import Image

from axial.data.batches import TrainingBatches
from axial.data.description import Description, description_path
from axial.data.packed import open_packed
from axial.data.packing import pack
from axial.variants import Augment


def main() -> None:
    """Run all three and print their figures."""
    pictures = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    gigabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 1.3 * memory
    with tempfile.TemporaryDirectory() as folder:
        packing(Path(folder), pictures)
        feeding(Path(folder))
        large_file(Path(folder), gigabytes, memory)


def packing(folder: Path, count: int) -> None:
    """PNGs of 64 x 64 from one tar; seconds are of CPU, so that other work does not count."""
    path = picture_tar(folder / "train_64x64.tar", count)
    start = time.process_time()
    plain_loop(path, folder / "plain.npy", count)
    plain = count / (time.process_time() - start)
    start = time.process_time()
    pack(path, folder / "packed.npy", workers=1)
    ours = count / (time.process_time() - start)
    assert np.array_equal(np.load(folder / "plain.npy"), open_packed(folder / "packed.npy").array)
    print(f"packing     {count:,} PNGs of 64 x 64 x 3 in a tar")
    print(f"            plain Pillow loop  {plain:8,.0f} pictures/s a core")
    print(
        f"            axial data         {ours:8,.0f} pictures/s a core, {ours / plain:.2f} of it"
    )
    for workers in sorted({1, len(os.sched_getaffinity(0))}):
        arguments = [str(path), "--out", str(folder / "b.npy"), "--workers", str(workers)]
        start = time.perf_counter()
        peak, seconds = watched([sys.executable, "-m", "axial", "data", *arguments])
        rate = count / (time.perf_counter() - start)
        print(
            f"            {workers} worker(s)        {rate:8,.0f} pictures/s by the clock, "
            f"{count / seconds:,.0f} a core; all processes together held {peak:.0f} MB at most"
        )


def watched(arguments: list[str]) -> tuple[float, float]:
    """Run a command in a session of its own: most megabytes, and CPU seconds, of its processes."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(arguments, start_new_session=True, stdout=quiet, stderr=quiet)
    peak, ticks = 0.0, {}
    while process.poll() is None:
        pages = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, IndexError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == process.pid:
                    pages += int(fields[21])
                    ticks[stat] = int(fields[11]) + int(fields[12])
        peak = max(peak, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        time.sleep(0.05)
    return peak, sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def picture_tar(path: Path, count: int) -> Path:
    """A tar of smooth pictures with a little noise, which PNG packs as it does photographs."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(200):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        x = np.asarray(small.resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
        noisy = (x + rng.integers(-6, 7, x.shape)).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "PNG")
        files.append(stream.getvalue())
    with tarfile.open(path, "w") as archive:
        for i in range(count):
            info = tarfile.TarInfo(f"train_64x64/{i:07}.png")
            info.size = len(files[i % len(files)])
            archive.addfile(info, io.BytesIO(files[i % len(files)]))
    return path


def plain_loop(path: Path, out: Path, count: int) -> None:
    """What one would write without us."""
    x = npy.open_memmap(out, "w+", np.uint8, (count, 64, 64, 3))
    with tarfile.open(path) as archive:
        for i, member in enumerate(archive):
            file: Any = archive.extractfile(member)
            x[i] = np.asarray(Image.open(file).convert("RGB"))
    x.flush()


def feeding(folder: Path, batch: int = 256, steps: int = 800) -> None:
    """Batches of pictures of 32 x 32, shuffled."""
    path = folder / "small.npy"
    write_sparse(path, (50_000, 32, 32, 3), fill=True)
    packed = open_packed(path)
    print(f"feeding     batches of {batch} pictures of 32 x 32 x 3, shuffled")
    rng = np.random.default_rng(0)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        np.array(packed.array[rng.integers(0, len(packed), batch)])
    show("numpy indexing", steps * batch, wall, cpu)
    every: dict[str, dict[str, Any]] = {
        "without flips": {},
        "with flips": {"flip": True},
        "with 48 variants": {"flip": True, "augment": get_args(Augment)},
    }
    for name, how in every.items():
        stream = TrainingBatches(packed, batch, seed=0, **how).stream()
        next(stream)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            next(stream)
        show(name, steps * batch, wall, cpu)
        stream.close()


def show(name: str, count: int, wall: float, cpu: float) -> None:
    """Pictures a second since two readings of the clocks."""
    by_clock, by_core = count / (time.perf_counter() - wall), count / (time.process_time() - cpu)
    print(f"            {name:<16}{by_clock:10,.0f} pictures/s by the clock, {by_core:,.0f} a core")


def large_file(folder: Path, gigabytes: float, memory: float) -> None:
    """One epoch of a sparse file, and the memory of this process along the way."""
    shape = (int(gigabytes * 1e9) // (256 * 256 * 3), 256, 256, 3)
    write_sparse(folder / "large.npy", shape)
    batches = TrainingBatches(open_packed(folder / "large.npy"), 256, seed=0)
    steps = int(batches.steps_per_epoch)
    stream = batches.stream()
    for _ in range(5):
        next(stream)
    sizes = [resident()]
    start = time.perf_counter()
    for step in range(5, steps):
        next(stream)
        if step % 20 == 0:
            sizes.append(resident())
    seconds = time.perf_counter() - start
    stream.close()
    print(f"memory      one epoch of a sparse file of {gigabytes:.0f} GB ({memory:.0f} GB of RAM)")
    print(
        f"            {sizes[0]:.0f} MB at its start, {max(sizes):.0f} MB at most, "
        f"{sizes[-1]:.0f} MB at its end; {gigabytes / seconds:.1f} GB/s"
    )


def resident() -> float:
    """Megabytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_sparse(path: Path, shape: tuple[int, ...], *, fill: bool = False) -> None:
    """A packed array of zeros that takes no room on the disk, or of noise that does."""
    x = npy.open_memmap(path, "w+", np.uint8, shape)
    if fill:
        x[:] = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    description = Description(
        source="sparse",
        version=None,
        split=None,
        axes=shape[1:-1],
        channels=shape[-1],
        values=256,
        count=shape[0],
        dtype="uint8",
        labels=None,
        sha256="",
        skipped=0,
        notes=(),
        command="benchmarks/data.py",
    )
    description_path(path).write_text(description.to_json())


if __name__ == "__main__":
    main()
