"""Writers of the official formats, so that readers are tested on real files; and packing them."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from axial.data.packing import pack
from axial.data.sources.options import ReadOptions
from axial.errors import DataError
from axial.system.crc32c import masked_crc32c
from axial.system.protobuf import write_field as field

LABELS = np.arange(12) % 10
END = bytes(1024)
"""Of a tar."""
MEGABYTE = gzip.compress(bytes(1 << 20))
"""Of zeros; any number of them, one after another, is a file that gzip unpacks."""


def pictures(count, size=8, channels=3, seed=0):
    """Random pictures (count, size, size, channels)."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, size, size, channels), np.uint8)


def png(x):
    """The PNG file of a picture (h, w, c)."""
    stream = io.BytesIO()
    Image.fromarray(x[..., 0] if x.shape[-1] == 1 else x).save(stream, "PNG")
    return stream.getvalue()


def png_header(width, height, depth=8, rows=bytes(100)):
    """A PNG in colour that claims any size, whatever its rows hold."""
    out = b"\x89PNG\r\n\x1a\n"
    size = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    for body in (b"IHDR" + size, b"IDAT" + zlib.compress(rows), b"IEND"):
        out += struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return out


def png_16(height=8, width=8):
    """A PNG of colour with 16 bits a channel, which Pillow opens as if it had 8."""
    rng = np.random.default_rng(0)
    rows = b"".join(b"\0" + rng.bytes(6 * width) for _ in range(height))
    return png_header(width, height, depth=16, rows=rows)


def picture_folder(folder, x, names=None):
    """Pictures as PNG files, numbered or under given names."""
    for i, picture in enumerate(x):
        path = folder / (names[i] if names else f"{i:05}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture))
    return folder


def planes(x):
    """Pictures as rows of red, green and blue planes."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


def tar(path, files):
    """A tar of {name: bytes} in that order; packed as its name says."""
    with tarfile.open(path, f"w:{path.suffix[1:].removeprefix('tar')}") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def tar_header(name, size, kind=b"0"):
    """The header block of a tar entry; a size of bytes is written as it is."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def tar_entry(name, data=None, kind=b"0"):
    """An entry of a tar, by default a picture."""
    data = png(pictures(1)[0]) if data is None else data
    return tar_header(name, len(data), kind) + data + bytes(-len(data) % 512)


def cifar_python(x, y, name):
    """A batch of CIFAR-10 as Python 2 pickled it: keys are bytes."""
    batch = {b"batch_label": name.encode(), b"labels": [int(label) for label in y]}
    return pickle.dumps(batch | {b"data": planes(x), b"filenames": [b"a.png"] * len(x)}, 2)


def cifar_binary(x, y, name=""):
    """A batch of CIFAR-10 as bytes: label, then planes, again and again."""
    return np.concatenate([y[:, None].astype(np.uint8), planes(x)], axis=1).tobytes()


def cifar_files(x, y, form):
    """The six official files, the pictures shared out evenly; the test batch gets the last part."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    parts = zip(names, np.array_split(x, 6), np.array_split(y, 6), strict=True)
    if form == "python":
        return {name: cifar_python(*part, name) for name, *part in parts}
    return {f"{name}.bin": cifar_binary(*part) for name, *part in parts}


def imagenet_npz(x, y, *, compressed=False):
    """A batch of Chrabaszcz et al.: planes, labels from 1, and the mean picture."""
    stream = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(stream, data=planes(x), labels=y + 1, mean=planes(x).mean(axis=0))
    return stream.getvalue()


def imagenet_pickle(x, y):
    """The same batch as a Python 3 pickle."""
    return pickle.dumps({"data": planes(x), "labels": [int(v) + 1 for v in y], "mean": x.mean(0)})


def zipped(path, files):
    """A zip of {name: bytes}."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def npz(path, method=zipfile.ZIP_STORED, **arrays):
    """An .npz whose members are packed in a way of our choice."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, x in arrays.items():
            stream = io.BytesIO()
            np.save(stream, x)
            archive.writestr(f"{name}.npy", stream.getvalue())
    return path


def idx(path, x=None, *shape, data=None):
    """An IDX file of bytes, gzipped if its name says so; or one that claims a shape."""
    if x is not None and not isinstance(x, int):
        shape, data = x.shape, x.tobytes()
    elif x is not None:
        shape = (x, *shape)
    path.parent.mkdir(exist_ok=True)
    data = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def bair_example(clips):
    """A tf.train.Example in BAIR's schema from {camera: (t, 64, 64, 3)}."""
    entries = b""
    for camera, frames in clips.items():
        for t, frame in enumerate(frames):
            value = field(1, field(1, frame.tobytes()))
            key = f"{t}/image_{camera}/encoded".encode()
            entries += field(1, field(1, key) + field(2, value))
            position = field(2, field(1, struct.pack("<3f", 0, 1, 2)))
            entries += field(1, field(1, f"{t}/endeffector_pos".encode()) + field(2, position))
    return field(1, entries)


def tfrecord(payloads):
    """A TFRecord file: lengths and data, each with its checksum."""
    out = b""
    for data in payloads:
        length = struct.pack("<Q", len(data))
        out += length + struct.pack("<I", masked_crc32c(length))
        out += data + struct.pack("<I", masked_crc32c(data))
    return out


def video(
    path, frames, codec="ffv1", pix_fmt="bgr0", rate=8, form="rgb24", options=None, metadata=()
):
    import av  # not everywhere that tests for a GPU run

    # Without numbers drawn at random: the same file each time.
    with av.open(str(path), "w", options={"fflags": "bitexact"}) as container:
        container.metadata.update(metadata)
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pix_fmt
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame, form)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def packed(source, tmp_path, *, workers=1, **options):
    """The array a source gives, read back from the file it was packed into."""
    out = tmp_path / "out" / "packed.npy"
    return pack(source, out, ReadOptions(**options), workers=workers, overwrite=True).packed


def refused(source, tmp_path, *, workers=1, **options):
    """The one line with which a source is refused; nothing may be left behind."""
    out = tmp_path / "refused"
    with pytest.raises(DataError) as caught:
        pack(source, out / "packed.npy", ReadOptions(**options), workers=workers)
    assert str(caught.value).isprintable()
    assert not out.exists()
    return caught.value.as_written
