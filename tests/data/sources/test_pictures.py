"""Pictures in folders and tars, or alone: which are read, their splits and labels."""

import os

import formats
import numpy as np
import pytest
from formats import packed, refused
from PIL import Image

from axial.data.sources.options import ReadOptions
from axial.data.sources.recognise import open_source


def test_a_folder_of_pictures_has_labels_from_its_subfolders(tmp_path):
    x = formats.pictures(4, 6)
    names = ["cat/a.png", "cat/deep/b.png", "dog/c.png", "dog/d.bmp"]
    folder = formats.picture_folder(tmp_path / "pets", x[:3], names[:3])
    Image.fromarray(x[3]).save(folder / names[3])
    (folder / "dog" / "notes.txt").write_text("not a picture")
    found = packed(folder, tmp_path)
    assert np.array_equal(found.array, x)
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.description.labels.names == ("cat", "dog")
    assert found.description.source == "pets" and "1 other file ignored" in found.description.notes


def test_labels_have_the_same_numbers_in_every_split(tmp_path):
    names = ["train/cat/a.png", "train/dog/a.png", "train/owl/a.png"]
    names += ["test/cat/a.png", "test/owl/a.png", "valid/owl/a.png", "valid/yak/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(7), names)
    for split, labels in {"train": [0, 1, 2], "test": [0, 2], "valid": [2, 3]}.items():
        found = packed(folder, tmp_path, split=split)
        assert list(found.labels) == labels
        mine = [name.startswith(split) for name in names]
        assert np.array_equal(found.array, formats.pictures(7)[mine])
        assert found.description.labels.names == ("cat", "dog", "owl", "yak")
    assert "has no split 'banana'" in refused(folder, tmp_path, split="banana")


def test_a_split_with_one_folder_has_labels_only_if_another_has_several(tmp_path):
    names = ["train/some/a.png", "test/others/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2), names)
    assert packed(folder, tmp_path).labels is None
    formats.picture_folder(folder, formats.pictures(1), ["test/third/a.png"])
    assert list(packed(folder, tmp_path).labels) == [1]


def test_folders_named_after_splits_in_a_tar_are_splits(tmp_path):
    x = formats.pictures(4, 8)
    names = ["./train/a.png", "test/b.png", "test/deep/c.png", "beside.png"]
    files = {name: formats.png(picture) for name, picture in zip(names, x, strict=True)}
    path = formats.tar(tmp_path / "a.tar", files)
    found = packed(path, tmp_path, split="test")
    assert np.array_equal(found.array, x[1:3]) and found.description.split == "test"
    assert "1 other file ignored" in found.description.notes
    found = packed(path, tmp_path)
    assert np.array_equal(found.array, x[:1]) and found.description.split == "train"
    assert "has no split 'valid'; there are test, train" in refused(path, tmp_path, split="valid")


def test_pictures_beside_splits_and_in_linked_folders_are_told_of(tmp_path):
    x = formats.pictures(4, 8)
    names = ["in/train/a.png", "in/more/b.png", "in/c.png", "elsewhere/d.png"]
    formats.picture_folder(tmp_path, x, names)
    (tmp_path / "in" / "train" / "linked").symlink_to(tmp_path / "elsewhere")
    found = packed(tmp_path / "in", tmp_path)
    assert np.array_equal(found.array, x[:1])
    assert "3 other files ignored" in found.description.notes


def test_hidden_folders_and_files_are_not_read_and_make_no_class(tmp_path):
    names = [".thumbs/a.png", "cat/a.png", "cat/.b.png", "dog/.c/a.png", "dog/a.png"]
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(5), names)
    found = packed(folder, tmp_path)
    assert found.description.labels.names == ("cat", "dog")
    assert np.array_equal(found.array, formats.pictures(5)[[1, 4]])
    path = formats.tar(tmp_path / "a.tar", {n: (folder / n).read_bytes() for n in names})
    assert np.array_equal(packed(path, tmp_path).array, found.array)


def test_a_single_picture_is_named_in_the_form_a_folder_names_its_own(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(1))
    options = ReadOptions()
    (mine,) = open_source(folder / "00000.png", options).records
    (theirs,) = open_source(folder, options).records
    assert mine.data == theirs.data and type(mine.data) is str


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


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    assert "in: the folder is empty" in refused(tmp_path / "in", tmp_path)
    (tmp_path / "in" / "readme.txt").write_text("nothing here")
    assert "in: holds no pictures" in refused(tmp_path / "in", tmp_path)
    (tmp_path / "none.png").write_bytes(b"")
    assert "none.png: is empty" in refused(tmp_path / "none.png", tmp_path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2))
    os.mkfifo(folder / "a.png")
    found = packed(folder, tmp_path)
    assert len(found) == 2 and "1 other file ignored" in found.description.notes
    assert "a.png: is a pipe or a device" in refused(folder / "a.png", tmp_path)


@pytest.mark.parametrize("target", ["nowhere.png", "z.png"], ids=["nothing", "itself"])
def test_a_link_to_nothing_is_noticed(tmp_path, target):
    folder = formats.picture_folder(tmp_path / "a", formats.pictures(2))
    (folder / "z.png").symlink_to(target)
    assert "z.png: cannot be read (" in refused(folder, tmp_path)
    assert packed(folder, tmp_path, skip_bad=True).description.skipped == 1


def test_mixed_sizes_name_the_first_odd_one(tmp_path):
    folder = formats.picture_folder(tmp_path / "in", formats.pictures(4, 8))
    (folder / "00002.png").write_bytes(formats.png(formats.pictures(1, 9)[0]))
    message = refused(folder, tmp_path)
    assert "00002.png: is 9 x 9 x 3, but " in message and "00000.png is 8 x 8 x 3" in message
    found = packed(folder, tmp_path, skip_bad=True)
    assert len(found) == 3 and found.description.skipped == 1


def test_grey_pictures_among_colour_ones_are_refused_unless_converted(tmp_path):
    x = formats.pictures(3, 8)
    folder = formats.picture_folder(tmp_path / "in", x)
    grey = formats.pictures(1, 8, 1)[0]
    (folder / "00001.png").write_bytes(formats.png(grey))
    message = refused(folder, tmp_path)
    assert "00001.png: is grey, but " in message and "00000.png is in colour" in message
    found = packed(folder, tmp_path, convert="rgb").array
    assert np.array_equal(found[0], x[0]) and np.array_equal(found[1], grey.repeat(3, axis=-1))
    assert packed(folder, tmp_path, convert="grey").shape.channels == 1
