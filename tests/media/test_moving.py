"""Moving pictures: what is written is what players open, whatever its name."""

import numpy as np
import pytest

from axial.data.sources.video import pyav
from axial.media.moving import write_moving


@pytest.mark.parametrize("name", ["a.mp4", "12:30.mp4", "concat:b.mp4"])
def test_no_name_of_a_video_is_taken_for_a_url(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = type(tmp_path)(name)
    write_moving(path, np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), np.uint8))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with path.open("rb") as file, pyav().open(file) as video:
        assert len(list(video.decode())) == 3
