"""The kinds of files that fuzz.py damages: how a valid one is written, and what is read from it.

A kind is one function that writes a valid file into a folder, with whatever must lie beside it, and
returns the file to damage; and one that reads that file to data that can be compared.
"""

import hashlib
import io
import sys
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import formats  # type: ignore[import-not-found]
import tensor_bundle  # type: ignore[import-not-found]

from axial import AxialTransformer, ModelConfig, fingerprint, load, open_packed, pack, save
from axial.checkpoints.run_folder import Run, write_run
from axial.checkpoints.tensor_bundle import find_bundle, read_index, read_tensor
from axial.checkpoints.trained_on import class_names, trained_on
from axial.data.sources.options import ReadOptions
from axial.evaluation.scoring import _Partial
from axial.training.config import TrainConfig

Read = Callable[[Path, Path], Any]
"""From the file, and an empty folder for what reading may write."""


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    write: Callable[[Path], Path]
    read: Read
    checksum: bool
    """Whether the format has one that covers what is read: other data is then a failure."""


KINDS: dict[str, Kind] = {}


def kind(
    name: str, read: Read, *, checksum: bool = False
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Add what writes a valid file to the kinds."""

    def add(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        KINDS[name] = Kind(write, read, checksum)
        return write

    return add


PICTURES = formats.pictures(3)
LABELS = np.array([0, 2, 1])


def source(path: Path, scratch: Path, **options: Any) -> Any:
    """What a source is packed as: elements, labels, names of classes, split."""
    packed = pack(path, scratch / "packed.npy", ReadOptions(**options), workers=1).packed
    about = packed.description
    labels = None if packed.labels is None else (packed.labels.tolist(), about.labels)
    return str(packed.array.dtype), packed.array.shape, packed.array.tobytes(), labels, about.split


def folder_source(path: Path, scratch: Path, **options: Any) -> Any:
    """What the folder that holds a file is packed as."""
    return source(path.parent, scratch, **options)


# Packed arrays


def packed(path: Path, scratch: Path) -> Any:
    """All that an evaluation takes from a packed array."""
    found = open_packed(path.with_name("x.npy"))
    found.check()
    labels = None if found.labels is None else found.labels.tolist()
    return found.array.tobytes(), labels, repr(found.description)


@kind("packed", packed, checksum=True)
def _write_packed(folder: Path) -> Path:
    np.savez(folder / "raw.npz", x=PICTURES, labels=LABELS)
    with chdir(folder):
        pack("raw.npz", "x.npy", workers=1)
    return folder / "x.npy"


@kind("description", packed, checksum=True)
def _(folder: Path) -> Path:
    return _write_packed(folder).with_name("x.json")


@kind("labels", packed, checksum=True)
def _(folder: Path) -> Path:
    return _write_packed(folder).with_name("x.labels.npy")


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
    words = str(found).replace(str(folder), "")
    told = found.about, words, found.log(), class_names(folder), trained_on(folder)
    return *told, state, held, fingerprint(load(folder)), fingerprint(load(folder, weights="raw"))


@kind("run", run)
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


@kind("tfrecord", partial(source, frames=2), checksum=True)
def _(folder: Path) -> Path:
    clips = [{"main": formats.pictures(2, 64, seed=seed)} for seed in range(2)]
    path = folder / "traj_0_to_1.tfrecords"
    path.write_bytes(formats.tfrecord(map(formats.bair_example, clips)))
    return path


# Archives and arrays


def _write_tar(name: str, folder: Path) -> Path:
    return formats.tar(folder / name, {f"{i}.png": formats.png(x) for i, x in enumerate(PICTURES)})


for ending in (".tar", ".tar.gz", ".tar.bz2", ".tar.xz"):
    # The names in a tar, and which files there are, have a checksum; what is in them has not.
    kind(ending[1:], source, checksum=ending != ".tar")(partial(_write_tar, f"pictures{ending}"))


@kind("tar-cifar", source)
def _(folder: Path) -> Path:
    batches = formats.cifar_files(formats.pictures(6, 32), np.arange(6), "binary")
    return formats.tar(folder / "cifar.tar", batches)


@kind("npy", partial(source, channels_last=True))
def _(folder: Path) -> Path:
    np.save(folder / "x.npy", PICTURES)
    return folder / "x.npy"


def _write_npz(folder: Path, *, compressed: bool) -> Path:
    write = np.savez_compressed if compressed else np.savez
    write(folder / "x.npz", x=PICTURES, labels=LABELS)
    return folder / "x.npz"


kind("npz", source, checksum=True)(partial(_write_npz, compressed=False))
kind("npz-compressed", source, checksum=True)(partial(_write_npz, compressed=True))


@kind("zip", source, checksum=True)
def _(folder: Path) -> Path:
    batch = formats.imagenet_npz(formats.pictures(3, 16), LABELS)
    return formats.zipped(folder / "Imagenet16_train_npz.zip", {"train_data_batch_1.npz": batch})


@kind("pickle-imagenet", source)
def _(folder: Path) -> Path:
    path = folder / "train_data_batch_1"
    path.write_bytes(formats.imagenet_pickle(formats.pictures(3, 16), LABELS))
    return path


@kind("pickle-cifar", source)
def _(folder: Path) -> Path:
    path = folder / "data_batch_1"
    path.write_bytes(formats.cifar_python(formats.pictures(3, 32), LABELS, "training batch 1"))
    return path


@kind("cifar", source)
def _(folder: Path) -> Path:
    path = folder / "data_batch_1.bin"
    path.write_bytes(formats.cifar_binary(formats.pictures(3, 32), LABELS))
    return path


def _write_idx(name: str, folder: Path) -> Path:
    formats.idx(folder / name.replace("images-idx3", "labels-idx1"), LABELS.astype(np.uint8))
    return formats.idx(folder / name, PICTURES[..., 0])


kind("idx", folder_source)(partial(_write_idx, "train-images-idx3-ubyte"))
kind("idx.gz", folder_source, checksum=True)(partial(_write_idx, "train-images-idx3-ubyte.gz"))


# Pictures and video


def _write_picture(ending: str, folder: Path) -> Path:
    path = folder / f"a.{ending}"
    Image.fromarray(formats.pictures(1, 24)[0]).save(path)
    return path


for ending in ("png", "jpg", "gif", "bmp", "webp", "tiff", "ppm", "tga"):
    kind(ending, source, checksum=ending == "png")(partial(_write_picture, ending))


def _write_video(ending: str, codec: str, pix_fmt: str, folder: Path) -> Path:
    path = folder / f"a.{ending}"
    formats.video(path, formats.pictures(4, 32), codec, pix_fmt)
    return path


for ending, codec, pix_fmt in (
    ("mkv", "ffv1", "bgr0"),
    ("mp4", "libx264", "yuv420p"),
    ("avi", "mjpeg", "yuvj420p"),
    ("webm", "libvpx-vp9", "yuv420p"),
):
    write = partial(_write_video, ending, codec, pix_fmt)
    kind(ending, partial(source, frames=2))(write)


@kind("gif-video", partial(source, frames=2))
def _(folder: Path) -> Path:
    frames = [Image.fromarray(x) for x in formats.pictures(4, 16)]
    frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:], duration=100)
    return folder / "a.gif"


# Hugging Face


def _hub_rows() -> Any:
    import datasets

    datasets.disable_progress_bars()
    rows = {"picture": [{"bytes": formats.png(x), "path": None} for x in PICTURES]}
    names = datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"picture": datasets.Image(), "label": names})
    return datasets.Dataset.from_dict(rows | {"label": LABELS.tolist()}, features=features)


@kind("parquet", folder_source)
def _write_parquet(folder: Path) -> Path:
    stream = io.BytesIO()
    _hub_rows().to_parquet(stream)
    (folder / "train.parquet").write_bytes(stream.getvalue())
    return folder / "train.parquet"


@kind("hub-readme", folder_source)
def _(folder: Path) -> Path:
    _write_parquet(folder)
    text = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
    text += "    path: train.parquet\nlicense: mit\n---\n# A data set\n"
    (folder / "README.md").write_text(text)
    return folder / "README.md"


@kind("arrow", folder_source)
def _write_arrow(folder: Path) -> Path:
    _hub_rows().save_to_disk(folder)
    return folder / "data-00000-of-00001.arrow"


@kind("arrow-state", folder_source)
def _(folder: Path) -> Path:
    return _write_arrow(folder).with_name("state.json")


@kind("arrow-info", folder_source)
def _(folder: Path) -> Path:
    return _write_arrow(folder).with_name("dataset_info.json")
