"""`axial compress` and `axial decompress`: pictures, folders and arrays there and back."""

import io
import json

import formats
import numpy as np
import pytest
from conftest import config, full_disk, refused, run, saved
from PIL import Image

import axial
from axial import open_packed, pack
from axial.codec.codec import Codec, Example
from axial.codec.container import Entry, read_contents

MODELS = {
    "colour": config((4, 4), channels=3, values=256),
    "grey": config((4, 4), channels=1, values=256),
    "labels": config((4, 4), channels=3, values=256, classes=10),
    "clip": config((2, 4, 4), channels=3, values=256),
    "stacked": config((4, 4), channels=6, values=256, frames=2),
    "deep": config((4, 4), channels=1, values=1000),
    "few": config((4, 4), channels=3, values=9),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return saved(MODELS, tmp_path_factory.mktemp("models"))


@pytest.fixture
def folder(tmp_path):
    """Pictures of several sizes and kinds, in a folder with another inside."""
    random = np.random.default_rng(0)
    (tmp_path / "in" / "more").mkdir(parents=True)
    for name, shape in {"a.png": (5, 6, 3), "g.png": (7, 3), "more/b.webp": (4, 4, 3)}.items():
        x = random.integers(256, size=shape).astype(np.uint8)
        Image.fromarray(x).save(
            tmp_path / "in" / name, **({"lossless": True} if "w" in name else {})
        )
    Image.fromarray(random.integers(256, size=(5, 5, 3)).astype(np.uint8)).save(
        tmp_path / "in" / "photo.jpg"
    )
    (tmp_path / "in" / "notes.txt").write_text("no picture")
    return tmp_path


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image)


def test_progress_tells_how_many_tiles_there_are(models, folder, capsys, monkeypatch):
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    run("compress", models / "colour", folder / "in", "--overlap", "0", "--out", folder / "x.axl")
    tiles = 2 * 2 + 2 * 1 + 1 + 2 * 2
    assert f"tiles coded: {tiles} of {tiles}" in capsys.readouterr().err
    run("decompress", folder / "x.axl", "--out", folder / "back")
    assert f"tiles decoded: {tiles} of {tiles}" in capsys.readouterr().err


def test_of_some_entries_the_tiles_of_their_groups_are_counted(models, folder, capsys, monkeypatch):
    run("compress", models / "colour", folder / "in", "--overlap", "0", "--out", folder / "x.axl")
    monkeypatch.setattr("axial.system.progress.LINE_SECONDS", 0.0)
    run("decompress", folder / "x.axl", "--only", "a.png", "--out", folder / "a.png")
    assert "tiles decoded: 11\n" in capsys.readouterr().err  # all are in one group


def test_grey_pictures_of_any_size_take_one_plane_of_a_colour_model(models, folder):
    (folder / "grey").mkdir()
    x = np.random.default_rng(0).integers(256, size=(2, 5, 7), dtype=np.uint8)
    for i, one in enumerate((x[0], x[1, :, :6])):
        Image.fromarray(one).save(folder / "grey" / f"{i}.png")
    pack(folder / "grey", folder / "g.npy", axial.ReadOptions(any_size=True))
    run("compress", models / "colour", folder / "g.npy", "--out", folder / "g.axl")
    with (folder / "g.axl").open("rb") as file:
        assert all(entry.one_plane for entry in read_contents(file).entries)
    run("decompress", folder / "g.axl", "--out", folder / "back")
    assert np.array_equal(pixels(folder / "back" / "g" / "000000.png"), x[0])


def test_a_picture_that_changes_while_it_is_compressed_is_refused(models, folder, monkeypatch):
    decode = axial.codec.inputs._Inputs._read
    seen = []

    def growing(self, path):
        x = decode(self, path)
        seen.append(path)
        return np.pad(x, ((0, 1), (0, 0), (0, 0))) if seen.count(path) > 1 else x

    monkeypatch.setattr("axial.codec.inputs._Inputs._read", growing)
    out = folder / "x.axl"
    said = refused("compress", models / "colour", folder / "in" / "a.png", "--out", out)
    assert "a.png: changed while it was compressed" in said and not out.exists()


def test_a_folder_comes_back_with_its_names_sizes_and_pixels(models, folder, capsys):
    run("compress", models / "colour", folder / "in", "--out", folder / "x.axl", "--verify")
    said = capsys.readouterr()
    size = (folder / "x.axl").stat().st_size
    elements = 5 * 6 * 3 + 7 * 3 + 4 * 4 * 3 + 5 * 5 * 3
    assert f"4 pictures, {size:,} bytes, {8 * size / elements:.4f} bits/dim" in said.out
    assert "metadata" in said.err
    run("decompress", folder / "x.axl", "--out", folder / "back")
    names = {"a.png": "a.png", "g.png": "g.png", "more/b.webp": "more/b.webp"}
    names |= {"photo.jpg": "photo.jpg.png"}
    found = {str(p.relative_to(folder / "back")) for p in (folder / "back").rglob("*.*")}
    assert found == set(names.values())
    for name, restored in names.items():
        before, after = pixels(folder / "in" / name), pixels(folder / "back" / restored)
        assert before.shape == after.shape and np.array_equal(before, after)


def test_one_picture_is_taken_out_alone_into_a_file(models, folder):
    run("compress", models / "colour", folder / "in", "--out", folder / "x.axl")
    run("decompress", folder / "x.axl", "--out", folder / "one.png", "--only", "g.png")
    assert np.array_equal(pixels(folder / "one.png"), pixels(folder / "in" / "g.png"))
    assert "has no entry 'z'" in refused(
        "decompress", folder / "x.axl", "--out", folder / "y", "--only", "z"
    )


def test_info_tells_what_a_file_holds_without_its_model(models, folder, capsys):
    run("compress", models / "colour", folder / "in", "--out", folder / "x.axl")
    capsys.readouterr()
    run("info", folder / "x.axl")
    said = capsys.readouterr().out
    assert "4 pictures" in said and "g.png: 7 x 3 grey" in said and "colour, id " in said
    run("info", models / "colour")
    mark = said.split("id ")[1][:32]
    assert mark in capsys.readouterr().out


def test_a_packed_array_comes_back_as_one_with_its_labels_and_description(
    models, pictures, tmp_path
):
    packed = open_packed(pictures / "test.npy")
    for name in ("colour", "labels"):
        run("compress", models / name, pictures / "test.npy", "--out", tmp_path / f"{name}.axl")
        run("decompress", tmp_path / f"{name}.axl", "--out", tmp_path / f"{name}.npy")
        back = open_packed(tmp_path / f"{name}.npy")
        back.check()
        assert np.array_equal(back.array, packed.array)
        assert np.array_equal(back.labels, packed.labels)
        assert back.description == packed.description


def test_video_comes_back_by_a_model_of_clips_and_one_of_stacked_frames(models, tmp_path):
    clips = np.random.default_rng(0).integers(256, size=(3, 2, 4, 4, 3)).astype(np.uint8)
    np.save(tmp_path / "raw.npy", clips)
    pack(tmp_path / "raw.npy", tmp_path / "clips.npy", workers=1)
    for name in ("clip", "stacked"):
        run("compress", models / name, tmp_path / "clips.npy", "--out", tmp_path / f"{name}.axl")
        run("decompress", tmp_path / f"{name}.axl", "--out", tmp_path / name)
        assert np.array_equal(open_packed(tmp_path / name / "clips.npy").array, clips)


def test_longer_volumes_are_cut_along_every_axis(models, tmp_path):
    x = np.random.default_rng(0).integers(256, size=(1, 3, 5, 6, 3)).astype(np.uint8)
    np.save(tmp_path / "raw.npy", x)
    pack(tmp_path / "raw.npy", tmp_path / "v.npy", workers=1)
    run("compress", models / "clip", tmp_path / "v.npy", "--out", tmp_path / "v.axl")
    run("decompress", tmp_path / "v.axl", "--out", tmp_path / "back.npy")
    assert np.array_equal(open_packed(tmp_path / "back.npy").array, x)


def test_a_file_needs_its_model_and_says_which(models, folder):
    run("compress", models / "colour", folder / "in" / "a.png", "--out", folder / "x.axl")
    line = refused("decompress", folder / "x.axl", "--out", folder / "y", "--model", models / "few")
    assert "was written with model" in line and "colour" in line
    (models / "colour").rename(models / "moved")
    try:
        line = refused("decompress", folder / "x.axl", "--out", folder / "y")
        assert "which is not here; give --model" in line
        run("decompress", folder / "x.axl", "--out", folder / "y", "--model", models / "moved")
    finally:
        (models / "moved").rename(models / "colour")
    assert np.array_equal(pixels(folder / "y" / "a.png"), pixels(folder / "in" / "a.png"))


def write(path, mode, colour):
    Image.new(mode, (5, 4), colour).save(path)


@pytest.mark.parametrize(
    "name, mode, colour, words",
    [
        ("alpha.png", "RGBA", (1, 2, 3, 4), "transparent in places"),
        ("deep.png", "I;16", 4000, "more than 8 bits"),
        ("press.tif", "CMYK", (1, 2, 3, 4), "is CMYK"),
    ],
)
def test_pictures_that_are_not_8_bit_rgb_or_grey_are_refused(
    models, tmp_path, name, mode, colour, words
):
    write(tmp_path / name, mode, colour)
    line = refused("compress", models / "colour", tmp_path / name, "--out", tmp_path / "x.axl")
    assert words in line and "--convert" in line
    assert not (tmp_path / "x.axl").exists()
    run("compress", models / "colour", tmp_path / name, "--convert", "rgb", "--out",
        tmp_path / "x.axl")  # fmt: skip


def test_animation_is_refused(models, tmp_path):
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue", "green")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "y.webp", save_all=True, append_images=frames[1:], lossless=True)
    for name, told in (
        ("x.gif", "x.gif: is video, which this model does not take; save its frames as pictures"),
        ("y.webp", "y.webp: holds 3 frames, not one picture; save each as a file of its own"),
    ):
        line = refused("compress", models / "colour", tmp_path / name, "--out", tmp_path / "x.axl")
        assert line.endswith(told)
    out = tmp_path.with_suffix(".axl")
    line = refused("compress", models / "colour", tmp_path, "--out", out)
    each = "holds 3 frames, not one picture, save each as a file of its own"
    assert line.endswith(
        f"2 inputs cannot be compressed: {tmp_path}/x.gif: {each} (also {tmp_path}/y.webp)"
    )
    assert {p.name for p in tmp_path.iterdir()} == {"x.gif", "y.webp"} and not out.exists()


def test_all_that_is_wrong_with_the_inputs_is_said_at_once(models, folder, tmp_path):
    """Before anything is coded: five bad files need no five attempts."""
    for i in range(12):
        write(folder / "in" / f"alpha{i:02}.png", "RGBA", (1, 2, 3, 4))
    (folder / "in" / "cut.png").write_bytes((folder / "in" / "a.png").read_bytes()[:60])
    write(folder / "in" / "deep.png", "I;16", 4000)
    alone = [folder / "nothing.png", folder / "also nothing.png"]
    line = refused("compress", models / "colour", folder / "in", *alone, "--out", folder / "x.axl")
    others = ", ".join(f"{folder}/in/alpha{i:02}.png" for i in range(1, 8))
    alpha = (
        f"axial: 16 inputs cannot be compressed: {folder}/in/alpha00.png: has an alpha channel and "
        f"is transparent in places, --convert rgb or grey puts it on white (also {others} and 4 "
        f"more); {folder}/nothing.png: no such file or folder, check the path (also {folder}/also "
        f"nothing.png); {folder}/in/cut.png: damaged or cut short near byte "
    )
    assert line.startswith(alpha)
    assert f"; {folder}/in/deep.png: has more than 8 bits a channel, --convert" in line
    assert "--skip-bad" not in line and "tiles coded" not in line
    assert not (folder / "x.axl").exists()


def test_a_label_that_is_missing_is_said_once_for_a_folder(models, folder):
    line = refused("compress", models / "labels", folder / "in", "--out", folder / "x.axl")
    told = "in: has no label, and the model is conditioned on one; give --label"
    assert line == f"axial: {folder}/{told}"


def test_an_option_that_the_command_lacks_is_not_advised(models, tmp_path):
    image = io.BytesIO()
    Image.new("RGBA", (5, 4), (1, 2, 3, 4)).save(image, "PNG")
    formats.tar(tmp_path / "a.tar", {"a.png": image.getvalue()})
    line = refused("compress", models / "colour", tmp_path / "a.tar", "--out", tmp_path / "x.axl")
    assert "a.png" in line and line.endswith("--convert rgb or grey puts it on white")


def test_what_does_not_fit_is_refused_in_one_line(models, folder, pictures):
    def said(*args):
        line = refused("compress", *args, "--out", folder / "x.axl")
        assert not (folder / "x.axl").exists()
        return line

    picture = folder / "in" / "a.png"
    assert "--convert grey" in said(models / "grey", picture)
    assert "9 values" in said(models / "few", picture)
    assert "--label" in said(models / "labels", picture)
    assert "10" in said(models / "labels", picture, "--label", 10)
    assert "unconditional" in said(models / "colour", picture, "--label", 1)
    assert "no such" in said(models / "colour", folder / "nothing.png")
    assert "two entries" in said(models / "colour", picture, picture)
    assert "no such checkpoint" in said(folder / "nowhere", picture)
    line = refused("compress", models / "colour", picture, "--out", folder / "x.zip")
    assert "call it" in line
    (folder / "x.axl").write_text("mine")
    line = refused("compress", models / "colour", picture, "--out", folder / "x.axl")
    assert "--overwrite" in line and (folder / "x.axl").read_text() == "mine"
    run("compress", models / "colour", picture, "--out", folder / "x.axl", "--overwrite")
    for out, words in [
        ("y.npy", "cannot hold"),
        ("in", "empty folder"),
        ("n/o", "is no folder"),
    ]:
        assert words in refused("decompress", folder / "x.axl", "--out", folder / out)


def test_nothing_is_left_where_a_picture_is_damaged_or_the_disk_is_full(models, folder):
    before = sorted(folder.rglob("*"))
    with full_disk(100):
        refused("compress", models / "colour", folder / "in", "--out", folder / "x.axl")
    (folder / "in" / "more" / "b.webp").write_bytes(b"RIFF")
    refused("compress", models / "colour", folder / "in", "--out", folder / "x.axl")
    assert sorted(folder.rglob("*")) == before


def test_a_file_that_is_damaged_restores_nothing(models, folder):
    run("compress", models / "colour", folder / "in", "--out", folder / "x.axl")
    data = bytearray((folder / "x.axl").read_bytes())
    data[30] ^= 1
    (folder / "x.axl").write_bytes(data)
    for command in (("info",), ("decompress", "--out", folder / "back")):
        line = refused(command[0], folder / "x.axl", *command[1:])
        assert "is damaged" in line
    assert not (folder / "back").exists()


def hostile(path, model, *entries, classes=0, value=5):
    """A file that `axial compress` would not write, within right checksums."""
    codec = Codec(axial.load(model), name=str(model))
    x = np.full((*codec.config.axes, codec.config.channels), value)
    with path.open("wb") as file:
        found = [(entry, [Example(x, 3 if classes else None)]) for entry in entries]
        codec.write(file, codec.contents(classes=classes), found)
    line = refused("decompress", path, "--out", path.parent / "back")
    assert not (path.parent / "back").exists()
    return line


FACTS = {"source": "s", "version": None, "split": None, "values": 256, "skipped": 0}
FACTS |= {"notes": [], "command": "c"}


@pytest.mark.parametrize(
    "about",
    [
        "[",
        "[]",
        "[" * 100_000,
        *(
            json.dumps(FACTS | change)
            for change in (
                {"notes": 3}, {"notes": "abc"}, {"values": 1}, {"values": 256.0}, {"values": 257},
                {"values": 5}, {"skipped": "x"}, {"source": [1]}, {"stacked": 7}, {"stacked": "x"},
                {"stacked": -1}, {"stacked": True}, {"names": 3}, {"names": ["a"]},
                {"names": [1] * 10},
            )
        ),
    ],
    ids=lambda about: about[-40:],
)  # fmt: skip
def test_an_array_that_is_described_in_other_words_is_refused(models, tmp_path, about):
    entry = Entry(name="x.npy", grid=(4, 4), array=True, about=about)
    line = hostile(tmp_path / "x.axl", models / "colour", entry, classes=10)
    assert "words that are not ours" in line


def test_what_cannot_be_restored_under_its_name_is_refused(models, tmp_path):
    def said(*names, model="colour", array=False, value=5):
        entries = [Entry(name=name, grid=(4, 4), array=array) for name in names]
        return hostile(tmp_path / "x.axl", models / model, *entries, value=value)

    assert "two entries are called 'a.jpg.png'" in said("a.jpg", "a.jpg.png")
    assert "no picture" in said("a.png", model="stacked")
    assert "no picture" in said("a.png", model="deep", value=300)
    assert "has no name" in said("")
    assert "is no .npy" in said("a.png", array=True)
    assert "is no .npy" in said("a.labels.npy", array=True)


def test_labels_are_there_for_all_inputs_or_for_none(models, folder, pictures):
    """Whichever comes first."""
    inputs = [folder / "in" / "a.png", pictures / "test.npy"]
    for both in (inputs, inputs[::-1]):
        line = refused("compress", models / "colour", *both, "--out", folder / "x.axl")
        assert "a.png: has no label" in line and "one by one" in line
    inputs.append(folder / "in" / "photo.jpg")  # as much at fault as the other
    line = refused("compress", models / "colour", *inputs[::-1], "--out", folder / "x.axl")
    said = f"photo.jpg: has no label, and {inputs[1]} has; compress them one by one"
    assert line == f"axial: {folder / 'in'}/{said}"


def test_a_grey_array_without_labels_needs_one_for_a_model_of_colours_and_classes(models, tmp_path):
    np.save(tmp_path / "raw.npy", np.zeros((3, 4, 4, 1), np.uint8))
    pack(tmp_path / "raw.npy", tmp_path / "grey.npy", workers=1)
    grey = tmp_path / "grey.npy"
    line = refused("compress", models / "labels", grey, "--out", tmp_path / "x.axl")
    assert "grey.npy: has no labels, and the model is conditioned on them; give --label" in line
    run("compress", models / "labels", grey, "--label", 3, "--out", tmp_path / "3.axl")
    run("compress", models / "colour", grey, "--out", tmp_path / "x.axl")
    for name in "3x":
        run("decompress", tmp_path / f"{name}.axl", "--out", tmp_path / f"{name}.npy")
        assert np.array_equal(open_packed(tmp_path / f"{name}.npy").array, open_packed(grey).array)


def test_what_python_writes_the_command_reads(models, tmp_path):
    model = axial.load(models / "colour")
    x = axial.draw(model, 3)
    (tmp_path / "x.axl").write_bytes(axial.compress(model, x))
    run("decompress", tmp_path / "x.axl", "--out", tmp_path / "x.npy", "--model", models / "colour")
    assert np.array_equal(open_packed(tmp_path / "x.npy").array, x.numpy())
