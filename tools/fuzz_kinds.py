"""The kinds of files that fuzz.py damages: here our own, and TensorFlow's checkpoints.

A kind is one function that writes a valid file into a folder, with whatever must lie beside it, and
returns the file to damage; and one that reads that file to data that can be compared.
"""

import hashlib
import io
import json
import sys
import zlib
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import formats as formats  # type: ignore[import-not-found]
import tensor_bundle  # type: ignore[import-not-found]

from axial import AxialTransformer, ModelConfig, fingerprint, load, open_packed, pack, save
from axial.checkpoints.model_folder import class_names
from axial.checkpoints.run_folder import Run, write_run
from axial.checkpoints.run_summary import RunSummary
from axial.checkpoints.tensor_bundle import find_bundle, read_index, read_tensor
from axial.checkpoints.trained_on import trained_on
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents
from axial.data.sources.options import ReadOptions
from axial.evaluation.scoring import _Partial
from axial.training.config import TrainConfig

Write = Callable[[Path], Path]
Read = Callable[[Path, Path], Any]
"""From the file, and an empty folder for what reading may write."""
Damage = Callable[[bytes], bytes]
Inside = Callable[[bytes, Damage], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    write: Write
    read: Read
    checksum: bool = False
    """Whether the format has one that covers what is read: other data is then a failure."""
    inside: Inside | None = None
    """Damages what is within the checksums, and makes these right again."""


KINDS: dict[str, Kind] = {}


def kind(name: str, read: Read, **how: Any) -> Callable[[Write], Write]:
    """Add what writes a valid file to the kinds."""

    def add(write: Write) -> Write:
        KINDS[name] = Kind(write, read, **how)
        return write

    return add


PICTURES = formats.pictures(3)
LABELS = np.array([0, 2, 1])


# Packed arrays


def packed(path: Path, scratch: Path) -> Any:
    """All that an evaluation takes from a packed array."""
    found = open_packed(path.with_name("x.npy"))
    found.check()
    beside = [None if one is None else one.tolist() for one in (found.labels, found.sizes)]
    return found.array.tobytes(), beside, repr(found.description)


@kind("packed", packed, checksum=True)
def _write_packed(folder: Path) -> Path:
    np.savez(folder / "raw.npz", x=PICTURES, labels=LABELS)
    with chdir(folder):
        pack("raw.npz", "x.npy", workers=1)
    return folder / "x.npy"


def _in_json(data: bytes, damage: Damage) -> bytes:
    """Of a JSON file that carries the checksum of all else it says."""
    said = json.loads(data)
    del said["checksum"]
    text = damage(json.dumps(said, indent=2).encode())
    try:
        said = json.loads(text)
        mark = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return json.dumps(said | {"checksum": mark}).encode()
    except (ValueError, TypeError, RecursionError):
        return text


@kind("description", packed, checksum=True, inside=_in_json)
def _(folder: Path) -> Path:
    return _write_packed(folder).with_name("x.json")


@kind("labels", packed, checksum=True)
def _(folder: Path) -> Path:
    return _write_packed(folder).with_name("x.labels.npy")


def pictures(path: Path, scratch: Path) -> Any:
    """The same of pictures of different sizes, and each of them."""
    found = open_packed(path.with_name("x.npy"))
    each = [(x.shape, x.tobytes()) for x in map(found.example, range(len(found)))]
    return packed(path, scratch), each


@kind("any-size", pictures, checksum=True)
def _write_pictures(folder: Path) -> Path:
    for i, (height, width) in enumerate([(3, 8), (7, 2), (8, 8)]):
        (folder / f"{i}.png").write_bytes(formats.png(PICTURES[i][:height, :width]))
    with chdir(folder):
        pack(".", "x.npy", ReadOptions(any_size=True), workers=1)
    return folder / "x.npy"


@kind("any-size-json", pictures, checksum=True, inside=_in_json)
def _(folder: Path) -> Path:
    return _write_pictures(folder).with_name("x.json")


@kind("sizes", pictures, checksum=True)
def _(folder: Path) -> Path:
    return _write_pictures(folder).with_name("x.sizes.npy")


# Models and runs

MODEL = ModelConfig(
    axes=(2, 3), channels=2, values=4, width=8, heads=2, encoder_layers=2, decoder_layers=(2, 1)
)


def _tiny_model() -> AxialTransformer:
    torch.manual_seed(0)
    return AxialTransformer(MODEL)


def model(path: Path, scratch: Path) -> Any:
    """A model by its weights and configuration."""
    return fingerprint(load(path.parent))


@kind("weights", model, checksum=True)
def _write_model(folder: Path) -> Path:
    save(_tiny_model(), folder)
    return folder / "model.safetensors"


@kind("config", model, checksum=True)
def _(folder: Path) -> Path:
    return _write_model(folder).with_name("config.json")


def run(path: Path, scratch: Path) -> Any:
    """All that is taken from a run: by resuming it, by an evaluation, by drawing from it."""
    folder = next(parent for parent in path.parents if (parent / "checkpoints").is_dir())
    found = Run(folder)
    newest = found.newest()
    assert newest is not None
    state, tensors = newest
    held = {name: hashlib.sha256(t.numpy().tobytes()).digest() for name, t in tensors.items()}
    words = str(RunSummary.of(found)).replace(str(folder), "")
    told = found.about, words, found.log(), class_names(folder), trained_on(folder)
    return *told, state, held, fingerprint(load(folder)), fingerprint(load(folder, weights="raw"))


@kind("run", run, checksum=True, inside=_in_json)
def _write_run_folder(folder: Path) -> Path:
    data = {"title": "toy", "source": "toy.npy", "reading": {}, "file": "toy.npy", "examples": 12}
    data |= {"sha256": "0" * 64, "labels": "1" * 64, "stack_frames": False, "names": ["a", "b"]}
    training = TrainConfig(steps=10, batch=2, learning_rate=0.1)
    about = {"preset": "small", "family": "axial", "model": MODEL.to_json(), "init": None}
    about |= {
        "training": training.to_json(),
        "data": data,
        "versions": {"axial": "0", "torch": "2"},
    }
    write_run(folder, about)
    weights = _tiny_model().state_dict()
    tensors = {
        f"{kind}/{name}": t.clone() for kind in ("weights", "ema") for name, t in weights.items()
    }
    Run(folder).save(4, tensors, {"seconds": 1.5, "best": None}, keep=1)
    lines = [f'{{"step": {step}, "loss": {step / 8}, "seconds": {step}.5}}\n' for step in range(9)]
    (folder / "log.jsonl").write_text("".join(lines))
    return folder / "run.json"


@kind("checkpoint", run, checksum=True)
def _(folder: Path) -> Path:
    return _write_run_folder(folder).parent / "checkpoints/step-00000004/training.safetensors"


@kind("state", run, checksum=True)
def _(folder: Path) -> Path:
    return _write_run_folder(folder).parent / "checkpoints/step-00000004/state.json"


@kind("log", run)
def _(folder: Path) -> Path:
    return _write_run_folder(folder).with_name("log.jsonl")


PARTIAL = {"model": "0" * 64, "data": "1" * 64, "labels": "none", "precision": "float32"}


def partial_evaluation(path: Path, scratch: Path) -> Any:
    """What is done of an evaluation."""
    return _Partial(path, PARTIAL).read((9, 5)).numpy().tobytes()


@kind("partial", partial_evaluation, checksum=True)
def _(folder: Path) -> Path:
    _Partial(folder / "partial", PARTIAL).write(torch.arange(20.0).double().view(4, 5))
    return folder / "partial"


def compressed(path: Path, scratch: Path) -> Any:
    """Every example of an .axl file, with its name and label."""
    torch.set_num_threads(1)
    with path.open("rb") as file:
        codec = Codec(_tiny_model())
        return [
            (entry.name, x.shape, x.tobytes(), label)
            for entry, (x, label) in codec.read(file, read_contents(file))
        ]


def _in_contents(data: bytes, damage: Damage) -> bytes:
    """Of a file whose checksums are made right again: groups, or what is said of them."""
    contents = read_contents(io.BytesIO(data))
    lengths = [group.length for group in contents.groups]
    end = 5 + sum(lengths)
    groups = damage(data[5:end])
    lengths[-1] += len(groups) - sum(lengths)
    if lengths[-1] < 0:
        return data[:5] + groups + data[end:]
    parts, place = [], 0
    for group, length in zip(contents.groups, lengths, strict=True):
        checksum = zlib.crc32(groups[place : place + length])
        parts.append(group._replace(length=length, checksum=checksum))
        place += length
    written = replace(contents, groups=parts).to_bytes()[:-8]
    plain = zlib.decompress(written[1:]) if written[0] else written[1:]
    said = b"\0" + damage(plain)
    tail = len(said).to_bytes(4, "little") + zlib.crc32(said).to_bytes(4, "little")
    return data[:5] + groups + said + tail


@kind("axl", compressed, checksum=True, inside=_in_contents)
def _(folder: Path) -> Path:
    codec = Codec(_tiny_model(), name="tiny", lanes=3, overlap=1)
    random = np.random.default_rng(0)
    entries = [
        (Entry(name=f"{i}.png", grid=(2 + i, 4)), [Example(random.integers(4, size=(2 + i, 4, 2)))])
        for i in range(3)
    ]
    palettes = iter([None, *np.arange(-8, 8, dtype=np.int8).reshape(2, 2, 4)])
    with (
        patch("axial.codec.codec.choose_palette", lambda *_, **__: next(palettes)),
        (folder / "x.axl").open("wb") as file,
    ):
        codec.write(file, codec.contents(), entries)
    return folder / "x.axl"


# TensorFlow


def bundle(path: Path, scratch: Path) -> Any:
    """Every variable of a checkpoint."""
    prefix = find_bundle(path.parent)
    index = read_index(prefix.with_name(f"{prefix.name}.index"))
    arrays = {name: read_tensor(prefix, name, entry) for name, entry in index.items()}
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


VARIABLES = {
    f"model/{name}": np.arange(count, dtype=dtype).reshape(shape)
    for name, count, dtype, shape in (
        ("embedding", 12, np.float32, (3, 4)),
        ("dense/kernel", 64, np.float32, (4, 2, 8)),
        ("step", 1, np.int64, ()),
        ("average", 10, np.float64, (10,)),
    )
}


@kind("tensorflow-index", bundle, checksum=True)
def _write_bundle(folder: Path) -> Path:
    tensor_bundle.write_bundle(folder / "model.ckpt", VARIABLES, compression=1)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt"\n')
    return folder / "model.ckpt.index"


@kind("tensorflow-data", bundle, checksum=True)
def _(folder: Path) -> Path:
    return _write_bundle(folder).with_name("model.ckpt.data-00000-of-00001")


@kind("tensorflow-name", bundle)
def _(folder: Path) -> Path:
    return _write_bundle(folder).with_name("checkpoint")
