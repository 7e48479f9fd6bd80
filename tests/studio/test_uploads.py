"""Uploads become examples of a model, exactly where they can, and are refused in one line."""

import io

import numpy as np
import pytest
from PIL import Image
from serving import npy, png

from axial.shape import DataShape
from axial.studio.config import Limits
from axial.studio.errors import RequestError
from axial.studio.uploads import Reader, Upload, plain_name

LIMITS = Limits(upload_pixels=10_000)
COLOUR = Reader(DataShape(axes=(8, 8), channels=3), LIMITS)
GREY = Reader(DataShape(axes=(8, 8), values=17), LIMITS)
CLIP = Reader(DataShape(axes=(3, 8, 8), channels=3), LIMITS)
STACKED = Reader(DataShape(axes=(8, 8), channels=6), LIMITS)
VOLUME = Reader(DataShape(axes=(4, 6), channels=5), LIMITS)
X = np.random.default_rng(0).integers(256, size=(8, 8, 3))


def upload(x, name="x.png"):
    return Upload(*png(x, name))


def saved(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return Upload(f"x.{kind.lower()}", out.getvalue())


def test_a_picture_of_the_models_size_is_taken_as_it_is():
    x, there = COLOUR.example([upload(X)])
    assert np.array_equal(x, X) and there.all()
    for kind, how in (("BMP", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        image = Image.fromarray(X.astype(np.uint8))
        assert np.array_equal(COLOUR.picture(saved(image, kind, **how)), X)


def test_a_larger_one_is_cropped_and_shrunk_as_axial_data_does():
    wide = np.random.default_rng(1).integers(256, size=(16, 20, 3))
    middle = wide[:, 2:18].reshape(8, 2, 8, 2, 3).mean((1, 3))
    assert abs(COLOUR.picture(upload(wide)) - middle).max() <= 1


def test_values_are_those_whose_shade_it_is():
    values = np.arange(64).reshape(8, 8, 1) % 17
    shades = (values * 255 / 16).round()
    assert np.array_equal(GREY.picture(upload(shades)), values)


def test_colour_becomes_grey_and_grey_colour():
    grey = X[..., :1]
    assert np.array_equal(COLOUR.picture(upload(grey)), np.repeat(grey, 3, -1))
    flat = np.full((8, 8, 3), 255)
    assert (GREY.picture(upload(flat)) == 16).all()
    transparent = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert (COLOUR.picture(saved(transparent, "PNG")) == 255).all()


def test_frames_are_the_leading_ones_of_a_clip():
    frames = np.random.default_rng(2).integers(256, size=(2, 8, 8, 3))
    x, there = CLIP.example([upload(frame) for frame in frames])
    assert np.array_equal(x[:2], frames) and there[:2].all() and not there[2].any()
    x, there = STACKED.example([upload(frame) for frame in frames])
    assert np.array_equal(x[..., 3:], frames[1]) and there.all()


def test_arrays_are_examples_of_any_kind():
    x = np.random.default_rng(3).integers(256, size=(4, 6, 5))
    for one in (x, x[None], x.astype(np.uint8), np.asfortranarray(x)):
        assert np.array_equal(VOLUME.example([Upload(*npy(one))])[0], x)


@pytest.mark.parametrize(
    ("reader", "uploads", "status", "words"),
    [
        (COLOUR, [upload(X[:7])], 400, "this model takes 8 x 8; give a larger picture"),
        (COLOUR, [upload(np.zeros((101, 100, 3)))], 413, "more than 10,000 pixels"),
        (COLOUR, [upload(X), upload(X)], 400, "2 pictures were sent"),
        (COLOUR, [Upload(*npy(X)), upload(X)], 400, "2 pictures were sent"),
        (COLOUR, [Upload(*npy(X[None].repeat(2, 0)))], 400, "has shape (2, 8, 8, 3)"),
        (COLOUR, [Upload(*npy(X - 300))], 400, "but this model takes 0 to 255"),
        (COLOUR, [Upload(*npy(X / 2))], 400, "of float64: give integers"),
        (COLOUR, [Upload("x.npy", npy(X)[1][:-1])], 400, "cut short"),
        (COLOUR, [Upload("x.npy", npy(X)[1] + b"x")], 400, "holds more than"),
        (COLOUR, [Upload("x.png", b"")], 400, "x.png"),
        (VOLUME, [upload(X)], 400, "one .npy file of integers (4, 6, 5)"),
        (CLIP, [upload(X)] * 4, 400, "4 pictures were sent"),
        (COLOUR, [], 400, "0 pictures were sent"),
    ],
)
def test_what_is_no_example_is_refused_in_one_line(reader, uploads, status, words):
    with pytest.raises(RequestError) as caught:
        reader.example(uploads)
    assert caught.value.status == status and words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_mask_is_a_picture_or_an_array():
    mask = np.zeros((8, 8, 1))
    mask[:3] = 200
    kept = COLOUR.mask(upload(mask))
    assert kept[:3].all() and not kept[3:].any() and kept.shape == (8, 8, 3)
    by_channel = np.random.default_rng(4).integers(2, size=(8, 8, 3))
    assert np.array_equal(COLOUR.mask(Upload(*npy(by_channel))), by_channel == 1)
    assert np.array_equal(CLIP.mask(upload(mask))[2], COLOUR.mask(upload(mask)))
    for wrong in (upload(mask[:7]), Upload(*npy(by_channel[:7]))):
        with pytest.raises(RequestError):
            COLOUR.mask(wrong)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a.png", "a.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\pictures\\a.png", "a.png"),
        ("", "picture-3.png"),
        (None, "picture-3.png"),
        ("..", "picture-3.png"),
        ("x" * 300, "x" * 100),
    ],
)
def test_the_name_of_an_upload_is_never_a_path(name, plain):
    assert plain_name(name, 3) == plain
