"""Odd and damaged pictures and arrays: read exactly, or refused in one line that says why."""

import gzip
import io
import os
import struct
import subprocess
import sys
import time
import zipfile
from functools import partial

import av
import formats
import numpy as np
import pytest
from PIL import Image

from axial import DataError
from axial.data.sources.arrays import NpyStream
from axial.data.sources.options import ReadOptions
from axial.data.sources.recognise import open_source

packed, refused = (partial(one, workers=1) for one in (formats.packed, formats.refused))


def saved(path, image, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **how)
    return path


def wide(mode="RGB", seed=0):
    """A picture of 10 x 6."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 65536, (6, 10)).astype(np.uint16))
    return Image.fromarray(rng.integers(0, 256, (6, 10, 3), np.uint8)).convert(mode)


def test_a_single_picture_is_cut_into_patches(tmp_path):
    (x,) = formats.pictures(1, 16)
    (tmp_path / "a.png").write_bytes(formats.png(x))
    found = packed(tmp_path / "a.png", tmp_path, size=8, patches=True)
    corners = [x[i : i + 8, j : j + 8] for i in (0, 8) for j in (0, 8)]
    assert np.array_equal(found.array, np.stack(corners))


def test_a_single_picture_is_named_in_the_form_a_folder_names_its_own(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(1))
    options = ReadOptions()
    (mine,) = open_source(folder / "00000.png", options).records
    (theirs,) = open_source(folder, options).records
    assert mine.data == theirs.data and type(mine.data) is str


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "I;16"])
@pytest.mark.parametrize("end", ["png", "tif"])
def test_pictures_are_turned_before_they_are_converted(tmp_path, mode, end):
    turn = Image.Exif()
    turn[0x0112] = 6
    plain = packed(saved(tmp_path / f"a.{end}", wide(mode)), tmp_path, convert="rgb").array
    path = saved(tmp_path / f"b.{end}", wide(mode), exif=turn)
    assert np.array_equal(packed(path, tmp_path, convert="rgb").array, np.rot90(plain, 3, (1, 2)))


def test_an_opaque_picture_is_turned_as_one_without_alpha_is(tmp_path):
    turn = Image.Exif()
    turn[0x0112] = 8
    path = saved(tmp_path / "a.png", wide("RGBA"), exif=turn)
    assert np.array_equal(packed(path, tmp_path).array[0], np.rot90(np.asarray(wide())))


def test_a_tiff_is_judged_by_its_samples_not_by_its_sizes(tmp_path):
    for size in (8, 16, 40):  # with 16 a number Pillow notes has a 16 in it
        (x,) = formats.pictures(1, size)
        path = saved(tmp_path / "a.tif", Image.fromarray(x), compression="tiff_lzw")
        assert np.array_equal(packed(path, tmp_path).array[0], x)
    x = np.zeros((160, 160, 3), np.uint8)
    for compression in (None, "tiff_lzw", "tiff_adobe_deflate"):
        path = saved(tmp_path / "a.tif", Image.fromarray(x), compression=compression)
        assert np.array_equal(packed(path, tmp_path).array[0], x)


def sgi(path, width, *, packed_rows=False):
    """An SGI picture of 2 x 2 with samples of one or two bytes."""
    head = struct.pack(">HBBHHHHII", 474, packed_rows, width, 3, 2, 2, 3, 0, 255)
    path.write_bytes(head.ljust(512, b"\0") + bytes(range(12 * width)))
    return path


@pytest.mark.parametrize("kind", ["P6 2 2 65535", "P6 2 2 100", "P5 2 2 100", "P5 2 2 1000"])
def test_pixmaps_that_count_to_another_number_are_refused_unless_converted(tmp_path, kind):
    path = tmp_path / "a.ppm"
    path.write_bytes(kind.encode() + b"\n" + bytes(24))
    assert "--convert rgb or grey" in refused(path, tmp_path)
    assert packed(path, tmp_path, convert="grey").array.shape == (1, 2, 2, 1)


def test_pixmaps_in_digits_are_read_only_if_they_count_to_255(tmp_path):
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P2 2 2 255\n0 50 99 255\n")
    assert packed(path, tmp_path).array.ravel().tolist() == [0, 50, 99, 255]
    path.write_bytes(b"P2 2 2 100\n0 50 99 100\n")
    assert "a.pgm: counts to 100, not 255" in refused(path, tmp_path)
    path.write_bytes(b"P1 2 2\n0 1 1 0\n")
    assert packed(path, tmp_path).array.ravel().tolist() == [255, 0, 0, 255]


def test_sgi_pictures_of_two_bytes_a_sample_are_refused(tmp_path):
    assert "has more than 8 bits a channel" in refused(sgi(tmp_path / "a.sgi", 2), tmp_path)
    path = sgi(tmp_path / "b.sgi", 2, packed_rows=True)
    assert "has more than 8 bits a channel" in refused(path, tmp_path)
    assert packed(sgi(tmp_path / "c.sgi", 1), tmp_path).array.shape == (1, 2, 2, 3)


def test_pictures_of_fractions_are_refused_even_with_convert(tmp_path):
    path = saved(tmp_path / "a.tif", Image.fromarray(np.full((4, 4), 0.5, np.float32)))
    for options in ({}, {"convert": "rgb"}, {"convert": "grey"}):
        assert "a.tif: holds fractions" in refused(path, tmp_path, **options)


def test_hidden_folders_and_files_are_not_read_and_make_no_class(tmp_path):
    names = [".thumbs/a.png", "cat/a.png", "cat/.b.png", "dog/.c/a.png", "dog/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(5), names)
    found = packed(folder, tmp_path)
    assert found.description.labels.names == ("cat", "dog")
    assert np.array_equal(found.array, formats.pictures(5)[[1, 4]])
    path = formats.tar(tmp_path / "a.tar", {n: (folder / n).read_bytes() for n in names})
    assert np.array_equal(packed(path, tmp_path).array, found.array)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2))
    os.mkfifo(folder / "a.png")
    found = packed(folder, tmp_path)
    assert len(found) == 2 and "1 other files ignored" in found.description.notes
    assert "a.png: is a pipe or a device" in refused(folder / "a.png", tmp_path)


def test_a_link_to_nothing_is_noticed(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2))
    (folder / "z.png").symlink_to(tmp_path / "nowhere.png")
    assert "z.png: cannot be read (No such file" in refused(folder, tmp_path)
    assert packed(folder, tmp_path, skip_bad=True).description.skipped == 1


def test_labels_have_the_same_numbers_in_every_split(tmp_path):
    names = ["train/cat/a.png", "train/dog/a.png", "train/owl/a.png"]
    names += ["test/cat/a.png", "test/owl/a.png", "valid/owl/a.png", "valid/yak/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(7), names)
    for split, labels in {"train": [0, 1, 2], "test": [0, 2], "valid": [2, 3]}.items():
        found = packed(folder, tmp_path, split=split)
        assert list(found.labels) == labels
        assert found.description.labels.names == ("cat", "dog", "owl", "yak")


def test_a_split_with_one_folder_has_labels_only_if_another_has_several(tmp_path):
    names = ["train/some/a.png", "test/others/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2), names)
    assert packed(folder, tmp_path).labels is None
    formats.picture_folder(folder, formats.pictures(1), ["test/third/a.png"])
    assert list(packed(folder, tmp_path).labels) == [1]


def npy_file(path, shape, data=b"", dtype="|u1", header=None, version=1):
    """A .npy that claims any shape."""
    told = {"descr": dtype, "fortran_order": False, "shape": shape}
    header = repr(told).encode() if header is None else header
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + header + data)
    return path


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,4",
        b"  {'descr': '|u1'\n x",
        b"{'descr': '|u1', 1: False, 'shape': (3,4)}",
        b"-" * 9000 + b"1",
        b"[" * 190 + b"]" * 190,
        b"{'descr': '|S0', 'fortran_order': False, 'shape': (3, 4)}",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (True, 2, 2)}",
    ],
    ids=lambda header: header[:20].decode(),
)
def test_a_damaged_header_of_an_array_is_one_line(tmp_path, header):
    for version in (1, 2):
        path = npy_file(tmp_path / "a.npy", None, b"1234" * 3, header=header, version=version)
        assert "a.npy: " in refused(path, tmp_path)


def test_a_header_that_claims_to_be_endless_is_one_line(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xffabc")
    assert "a.npy: is no array" in refused(tmp_path / "a.npy", tmp_path)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x09\x00\x10\x00abc")
    assert "a.npy: is no array" in refused(tmp_path / "a.npy", tmp_path)


@pytest.mark.parametrize(
    "shape",
    [(1, -1), (5, -1), (-1, -1, 5), (0, 4), (3, 0), (3, 2**62, 4), (3, 2**40, 4), (10**15, 10**6)],
    ids=str,
)
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_impossible_shapes_are_refused_before_anything_is_read(tmp_path, shape, form):
    path = npy_file(tmp_path / "x.npy", shape, b"12345" * 5)
    if form == "npz":
        path = formats.zipped(tmp_path / "a.npz", {"x.npy": path.read_bytes()})
    message = refused(path, tmp_path)
    assert "shape" in message or "cut short at byte 25 of its" in message


def test_members_of_an_archive_that_cannot_be_opened_are_one_line(tmp_path):
    stream = io.BytesIO()
    np.save(stream, formats.pictures(3))
    for method, places, value in ((0, (6, 8), 1), (0, (8, 10), 97)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
            archive.writestr("x.npy", stream.getvalue())
        data = bytearray((tmp_path / "a.npz").read_bytes())
        data[places[0]] = value  # encrypted, then packed in a way nobody knows
        data[data.index(b"PK\x01\x02") + places[1]] = value
        (tmp_path / "a.npz").write_bytes(data)
        assert "a.npz: x: damaged (" in refused(tmp_path / "a.npz", tmp_path)


def idx_file(path, *shape, data=b""):
    path.parent.mkdir(exist_ok=True)
    head = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(head + data) if path.suffix == ".gz" else head + data)
    return path


@pytest.mark.parametrize(
    "shape", [(3, 0, 4), (0, 4, 4), (5,), (2, 2**32 - 1, 2**32 - 1), (1, 2**20, 2**18)], ids=str
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_impossible_idx_shapes_are_refused(tmp_path, shape, end):
    path = idx_file(tmp_path / f"a{end}", *shape, data=b"12345")
    message = refused(path, tmp_path)
    assert "claims the shape" in message or "too short for a single example" in message


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((0,), "holds nothing"),
        ((2**32 - 1,), "cut short at label 3 of 4294967295"),
        ((2**32 - 1, 2**32 - 1), "labels are one row"),
    ],
    ids=str,
)
def test_empty_and_huge_files_of_labels_are_refused(tmp_path, shape, says):
    idx_file(tmp_path / "a" / "train-images-idx3-ubyte", 1, 2, 2, data=b"1234")
    idx_file(tmp_path / "a" / "train-labels-idx1-ubyte", *shape, data=b"123")
    assert says in refused(tmp_path / "a", tmp_path)


@pytest.mark.parametrize("form", ["npy", "int64.npy", "npz", "idx", "idx.gz"])
def test_what_lies_before_a_cut_is_kept_when_the_bad_is_skipped(tmp_path, form):
    x = formats.pictures(100, 4, 1)[..., 0]
    path = tmp_path / f"a.{form}"
    cut = x[:99].tobytes() + b"12345"
    if form == "npz":
        member = npy_file(tmp_path / "x.npy", x.shape, cut).read_bytes()
        formats.zipped(path, {"x.npy": member})
    elif form == "int64.npy":
        npy_file(path, x.shape, x[:99].astype("<i8").tobytes() + b"12345", "<i8")
    elif form == "npy":
        npy_file(path, x.shape, cut)
    else:
        idx_file(path, *x.shape, data=cut)
    assert "cut short" in (message := refused(path, tmp_path))
    assert "example 99 of 100" in message
    found = packed(path, tmp_path, skip_bad=True)
    assert np.array_equal(found.array[..., 0], x[:99])
    assert found.description.skipped == 1


def test_a_gzipped_idx_that_was_cut_itself_gives_what_it_holds(tmp_path):
    x = formats.pictures(200, 16, 1)[..., 0]
    whole = idx_file(tmp_path / "a.gz", *x.shape, data=x.tobytes()).read_bytes()
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    assert "cut short at byte" in refused(tmp_path / "a.gz", tmp_path)
    found = packed(tmp_path / "a.gz", tmp_path, skip_bad=True)
    assert 90 < len(found) < 110 and found.description.skipped == 1
    assert np.array_equal(found.array[..., 0], x[: len(found)])


def test_more_than_a_header_tells_of_is_noticed(tmp_path):
    path = npy_file(tmp_path / "a.npy", (2, 2, 2), bytes(12))
    assert "holds 12 bytes, but its header tells of 8" in refused(path, tmp_path)
    path = idx_file(tmp_path / "a.idx", 2, 2, 2, data=bytes(12))
    assert "holds more than the 2 examples" in refused(path, tmp_path)


def test_a_wrong_checksum_of_a_gzipped_idx_is_noticed(tmp_path):
    x = formats.pictures(200, 16, 1)[..., 0]
    path = idx_file(tmp_path / "a.gz", *x.shape, data=x.tobytes())
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    assert "a.gz: damaged somewhere (CRC check failed" in refused(path, tmp_path)


def test_a_cut_trailer_of_a_gzipped_idx_is_noticed(tmp_path):
    x = formats.pictures(200, 16, 1)[..., 0]
    path = idx_file(tmp_path / "a.gz", *x.shape, data=x.tobytes())
    path.write_bytes(path.read_bytes()[:-5])
    assert "a.gz: damaged somewhere (" in refused(path, tmp_path)


def test_damaged_labels_of_a_gzipped_idx_are_noticed(tmp_path):
    x, y = formats.pictures(10, 4, 1)[..., 0], np.arange(10, dtype=np.uint8)
    idx_file(tmp_path / "a" / "train-images-idx3-ubyte.gz", *x.shape, data=x.tobytes())
    labels = idx_file(tmp_path / "a" / "train-labels-idx1-ubyte.gz", 10, data=y.tobytes())
    whole = labels.read_bytes()
    for damaged in (whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:], whole[:-5]):
        labels.write_bytes(damaged)
        message = refused(tmp_path / "a", tmp_path)
        assert "train-labels-idx1-ubyte.gz: damaged somewhere (" in message
    labels.write_bytes(whole)
    assert list(packed(tmp_path / "a", tmp_path).labels) == list(range(10))


def test_an_array_that_ends_within_a_number_is_one_line(tmp_path):
    path = npy_file(tmp_path / "a.npy", (4,), bytes(29), "<i8")
    with path.open("rb") as file, pytest.raises(DataError, match="at byte 29 of its 32"):
        NpyStream(file, "a").all()


def test_labels_of_an_idx_that_was_cut_stay_with_their_examples(tmp_path):
    x, y = formats.pictures(10, 4, 1)[..., 0], np.arange(10, dtype=np.uint8)
    data = x[:7].tobytes()
    idx_file(tmp_path / "a" / "train-images-idx3-ubyte", *x.shape, data=data)
    idx_file(tmp_path / "a" / "train-labels-idx1-ubyte", 10, data=y.tobytes())
    found = packed(tmp_path / "a", tmp_path, skip_bad=True)
    assert list(found.labels) == list(range(7))


def test_columns_of_integers_above_255_are_stored_alike(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [[[1, 2], [3, 4]], [[5, 6], [7, 300]]]
    datasets.Dataset.from_dict({"x": rows}).save_to_disk(str(tmp_path / "a"))
    found = packed(tmp_path / "a", tmp_path, values=512)
    assert found.array.dtype == np.uint16
    assert np.array_equal(found.array[..., 0], rows)
    assert "row 1: 'x' holds 300, beyond 255" in refused(tmp_path / "a", tmp_path)


def test_the_description_says_what_was_done_to_pictures(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2, 16))
    data = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    archive = formats.tar(tmp_path / "a.tar", data)
    for source in (folder, folder / "00000.png", archive):
        shrunk = packed(source, tmp_path, size=8, convert="grey").description
        assert shrunk.notes == ("converted to grey", "shrunk to 8")
        cut = packed(source, tmp_path, size=8, patches=True).description
        assert cut.notes == ("patches of 8",)
        assert packed(source, tmp_path).description.notes == ()


def several(path, **how):
    """Three pictures in one file."""
    first, *others = [Image.fromarray(x) for x in formats.pictures(3, 16)]
    path.parent.mkdir(exist_ok=True)
    first.save(path, save_all=True, append_images=others, **how)
    return path


def test_files_of_several_pictures_are_told_as_what_they_are(tmp_path):
    """--frames means nothing to any of these."""
    each = "not one picture; save each as a file of its own"
    film = f"{each}, or all as a video file (.gif, .mp4), which is read with --frames"
    for name, told in (
        ("a.tif", f"3 pages, {each}"),
        ("a.png", f"3 frames, {film}"),
        ("a.webp", f"3 frames, {film}"),
    ):
        path = several(tmp_path / "in" / name)
        assert refused(path, tmp_path).endswith(f"in/{name}: holds {told}")
        assert refused(tmp_path / "in", tmp_path).endswith(f"in/{name}: holds {told}")
        path.unlink()
    path = several(tmp_path / "in" / "a.gif", duration=100)
    assert "a.gif: is animated; cut it into clips by --frames" in refused(path.parent, tmp_path)
    assert packed(path.parent, tmp_path, frames=3).array.shape == (1, 3, 16, 16, 3)
    inside = formats.tar(tmp_path / "a.tar", {"a.gif": path.read_bytes()})
    assert refused(inside, tmp_path).endswith(f": holds 3 frames, {film}")


def test_an_interrupt_in_the_midst_of_an_archive_leaves_nothing(tmp_path):
    data = formats.png(formats.pictures(1, 64)[0])
    path = formats.tar(tmp_path / "a.tar", {f"{i:05}.png": data for i in range(20_000)})
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "axial", "data", str(path), "--out", str(out / "a.npy")]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    begun = lambda: out.exists() and any(part.stat().st_size for part in out.iterdir())  # noqa: E731
    while process.poll() is None and not begun():  # the workers are up then
        time.sleep(0.01)
    process.send_signal(2)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors == ""
    assert not out.exists()


def deep_picture(path):
    """A picture of noise with more than 8 bits a channel, which Pillow opens as if it had 8."""
    codec, pixels = {".jp2": ("jpeg2000", "rgb48le"), ".avif": ("libsvtav1", "yuv420p10le")}[
        path.suffix
    ]
    x = np.random.default_rng(0).integers(0, 1 << 16, (64, 64, 3)).astype(np.uint16)
    kind = "avif" if path.suffix == ".avif" else "image2"
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream(codec, rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 64, pixels
        container.mux(stream.encode(av.VideoFrame.from_ndarray(x, "rgb48le")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("kind", ["jp2", "avif"])
def test_deep_pictures_that_pillow_cuts_to_8_bits_are_refused_unless_converted(tmp_path, kind):
    path = deep_picture(tmp_path / f"a.{kind}")
    assert "has more than 8 bits a channel" in refused(path, tmp_path)
    assert packed(path, tmp_path, convert="rgb").array.shape == (1, 64, 64, 3)
    Image.fromarray(formats.pictures(1, 64)[0]).save(path)
    assert packed(path, tmp_path).array.shape == (1, 64, 64, 3)


def test_values_beyond_16_bits_are_not_converted(tmp_path):
    values = np.full((4, 4), 65_535, np.int32)
    Image.fromarray(values + 1).save(tmp_path / "a.tif")
    message = refused(tmp_path / "a.tif", tmp_path, convert="grey")
    assert "holds values from 65536 to 65536, beyond 16 bits" in message
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert (packed(tmp_path / "a.tif", tmp_path, convert="grey").array == 255).all()
