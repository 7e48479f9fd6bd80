"""Whether data conforms to a model: what is said of data that does not."""

import formats
import numpy as np
import pytest
from packed_arrays import write
from PIL import Image

from axial.data.compatibility import conform, open_clips
from axial.data.packed import open_packed
from axial.data.sources.options import ClipOptions
from axial.errors import InputError
from axial.shape import DataShape

PICTURES = DataShape(axes=(16, 16), channels=3)


def test_pictures_smaller_than_the_models_are_not_to_be_shrunk(tmp_path):
    """They could not be read with the --size that larger ones are."""
    for side, cure in (
        (20, "pictures are read with --size 16, if that is meant"),
        (12, "pictures are never enlarged: give some of at least 16 x 16"),
    ):
        packed = open_packed(write(tmp_path / f"{side}.npy", formats.pictures(2, side)))
        with pytest.raises(InputError) as caught:
            conform(packed, PICTURES)
        assert caught.value.as_written.endswith(f"values; {cure}")


def test_pictures_of_the_models_size_are_not_too_small_for_it(tmp_path):
    """Its shorter side is shorter than its width."""
    wide = DataShape(axes=(4, 8), channels=1)
    packed = open_packed(write(tmp_path / "x.npy", formats.pictures(2, 8)[:, :4]))
    with pytest.raises(InputError) as caught:
        conform(packed, wide)
    assert caught.value.as_written.endswith(
        "pictures are read with --convert grey, if that is meant"
    )


def test_wide_pictures_are_too_small_by_their_shorter_side(tmp_path):
    packed = open_packed(write(tmp_path / "x.npy", formats.pictures(2, 20)[:, :12]))
    with pytest.raises(InputError) as caught:
        conform(packed, PICTURES)
    assert "give some of at least 16 x 16" in caught.value.as_written


def test_a_moving_gif_is_no_three_pictures_to_a_model_of_pictures(tmp_path):
    first, *others = [Image.fromarray(x) for x in formats.pictures(3, 16)]
    path = tmp_path / "anim.gif"
    first.save(path, save_all=True, append_images=others, duration=100)
    with pytest.raises(InputError) as caught:
        open_clips(path, tmp_path, ClipOptions(), [1])
    told = "is video, which this model does not take; save its frames as pictures"
    assert caught.value.as_written == f"{path}: {told}"
    assert len(open_clips(path, tmp_path, ClipOptions(), {1, 3})) == 1
    first.save(tmp_path / "still.gif")
    found = open_clips(tmp_path / "still.gif", tmp_path / "b", ClipOptions(), [1])
    assert np.array_equal(found.array.shape, (1, 16, 16, 3))
