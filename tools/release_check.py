"""Try a release as a newcomer would: build it, install it in an empty environment, use it.

    python tools/release_check.py --out build/release

The sdist is built, the wheel from the sdist. Versions are those of constraints.txt: torch alone,
unbounded, would fetch gigabytes. Each command is printed with its seconds; the first that fails
ends it.
"""

import argparse
import email
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import axial

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import numpy as np, torch, axial
x = axial.AxialAttention(8, heads=2, axis=0, causal=True)(torch.randn(1, 4, 4, 8))
assert x.shape == (1, 4, 4, 8)
rng = np.random.default_rng(0)
np.save("x.npy", rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8))
"""
TRIES = [
    "axial --help",
    "axial sample cifar10 --count 2 --out s.png",
    "axial info cifar10",
    "axial data x.npy --channels-last --out packed.npy",
    "axial train small --data packed.npy --steps 2 --out run",
    "axial evaluate run --data packed.npy",
    "axial compress run packed.npy --out x.axl --verify",
    "axial decompress x.axl --out back.npy",
]
REFUSED = {
    "axial sample cifar10 --out t.png --device mps": "use cpu, cuda or cuda:N",
    "axial info hub:user/name": "pip install axial-transformers[hf]",
    "axial data clip.mp4 --out clip.npy": "clip.mp4",
    "axial studio": 'pip install "axial-transformers[studio]"',
}


def attempt(command: list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder; no setting of Python, such as its path, goes with it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)


def run(command: list[str], place: Path) -> str:
    """Run a command, print it with its seconds, and end with its output if it fails."""
    start = time.perf_counter()
    done = attempt(command, place)
    words = " ".join([Path(command[0]).name, *command[1:]]).split("\n")[0][:90]
    print(f"{time.perf_counter() - start:7.1f} s  {words}", flush=True)
    if done.returncode:
        raise SystemExit(f"status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(out: Path) -> tuple[Path, Path]:
    """The sdist and the wheel made of it."""
    shutil.rmtree(out, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """What must be inside, and what must not; one version everywhere."""
    stem = f"axial_transformers-{axial.__version__}"
    assert sdist.name == f"{stem}.tar.gz" and wheel.name.startswith(f"{stem}-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        about = email.message_from_bytes(archive.read(f"{stem}.dist-info/METADATA"))
    model = "axial/checkpoints/shipped/cifar10"
    wanted = {"axial/py.typed", f"{model}/model.safetensors", f"{model}/config.json"}
    assert wanted <= inside, wanted - inside
    strangers = [n for n in inside if not n.startswith(("axial/", f"{stem}.dist-info/"))]
    assert not strangers, strangers
    assert about["Version"] == axial.__version__ and about["Requires-Python"] == ">=3.11"
    assert {"all", "hf", "video"} <= set(about.get_all("Provides-Extra", []))
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{stem}/") for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", f"src/{model}/model.safetensors"} <= names
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(inside)} files")


def install(wheel: Path, place: Path) -> Path:
    """A new environment with the wheel; its folder of programs."""
    run([sys.executable, "-m", "venv", str(place)], wheel.parent)
    pip = [str(place / "bin/python"), "-m", "pip"]
    fixed = ["--quiet", "--constraint", str(ROOT / "constraints.txt")]
    run([*pip, "install", *fixed, wheel.name], wheel.parent)
    run([*pip, "check"], wheel.parent)
    run([*pip, "install", *fixed, "--dry-run", f"./{wheel.name}[all]"], wheel.parent)
    return place / "bin"


def use(programs: Path, place: Path) -> None:
    """What a newcomer does first, in an empty folder, and what is refused in one line."""
    place.mkdir()
    python, command = str(programs / "python"), str(programs / "axial")
    found = run([python, "-c", "import axial; print(axial.__file__)"], place)
    assert found.startswith(str(programs.parent)), found
    assert run([command, "--version"], place).split() == ["axial", axial.__version__]
    run([python, "-c", SCRIPT], place)
    for line in TRIES:
        run([command, *line.split()[1:]], place)
    for line, said in REFUSED.items():
        done = attempt([command, *line.split()[1:]], place)
        told = done.stderr.strip().splitlines()
        assert done.returncode == 1 and len(told) == 1 and said in told[0], done.stderr
        print(f"           {told[0][:110]}")


def main() -> None:
    """Build, install, use."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "build/release", help="where to build")
    out = parser.parse_args().out.resolve()
    sdist, wheel = build(out)
    check_contents(sdist, wheel)
    use(install(wheel, out / "venv"), out / "tried")
    print(f"ready: {sdist} and {wheel}")


if __name__ == "__main__":
    main()
