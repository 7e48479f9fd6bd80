"""The kinds of files that fuzz.py damages: what `axial data` reads."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_kinds import LABELS, PICTURES, Damage, formats, kind
from PIL import Image

from axial import pack
from axial.data.sources.options import ReadOptions


def source(path: Path, scratch: Path, **options: Any) -> Any:
    """What a source is packed as: elements, labels, names of classes, split."""
    packed = pack(path, scratch / "packed.npy", ReadOptions(**options), workers=1).packed
    about = packed.description
    labels = None if packed.labels is None else (packed.labels.tolist(), about.labels)
    return str(packed.array.dtype), packed.array.shape, packed.array.tobytes(), labels, about.split


def folder_source(path: Path, scratch: Path, **options: Any) -> Any:
    """What the folder that holds a file is packed as."""
    return source(path.parent, scratch, **options)


def _in_records(data: bytes, damage: Damage) -> bytes:
    """One after another: length, its checksum, the record, its checksum."""
    out, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        out.append(damage(data[at + 12 : at + 12 + size]))
        at += size + 16
    return bytes(formats.tfrecord(out))


@kind("tfrecord", partial(source, frames=2), checksum=True, inside=_in_records)
def _(folder: Path) -> Path:
    clips = [{"main": formats.pictures(2, 64, seed=seed)} for seed in range(2)]
    path = folder / "traj_0_to_1.tfrecords"
    path.write_bytes(formats.tfrecord(map(formats.bair_example, clips)))
    return path


# Archives and arrays


def _write_tar(name: str, folder: Path) -> Path:
    return formats.tar(folder / name, {f"{i}.png": formats.png(x) for i, x in enumerate(PICTURES)})


def _packed_by(library: Any, data: bytes, damage: Damage) -> bytes:
    return bytes(library.compress(damage(library.decompress(data))))


kind("tar", source)(partial(_write_tar, "pictures.tar"))
for library, ending in ((gzip, "tar.gz"), (bz2, "tar.bz2"), (lzma, "tar.xz")):
    write = partial(_write_tar, f"pictures.{ending}")
    kind(ending, source, checksum=True, inside=partial(_packed_by, library))(write)


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


def _in_zip(data: bytes, damage: Damage) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.infolist():
            new.writestr(member, damage(old.read(member)))
    return out.getvalue()


for name, compressed in (("npz", False), ("npz-compressed", True)):
    write = partial(_write_npz, compressed=compressed)
    kind(name, source, checksum=True, inside=_in_zip)(write)


@kind("zip", source, checksum=True, inside=_in_zip)
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
kind("idx.gz", folder_source, checksum=True, inside=partial(_packed_by, gzip))(
    partial(_write_idx, "train-images-idx3-ubyte.gz")
)


# Pictures and video


def _write_picture(ending: str, folder: Path) -> Path:
    path = folder / f"a.{ending}"
    Image.fromarray(formats.pictures(1, 24)[0]).save(path)
    return path


def _in_chunks(data: bytes, damage: Damage) -> bytes:
    """Of a PNG: length, name, what it holds, checksum."""
    out, at = data[:8], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = damage(data[at + 4 : at + 8 + size])
        out += max(0, len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
        at += size + 12
    return out


kind("png", source, checksum=True, inside=_in_chunks)(partial(_write_picture, "png"))
for ending in ("jpg", "gif", "bmp", "webp", "tiff", "ppm", "tga"):
    kind(ending, source)(partial(_write_picture, ending))


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
