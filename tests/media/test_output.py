"""Drawn files when several processes have to do with one name."""

import threading

import numpy as np

from axial.media.output import Output
from axial.shape import DataShape
from axial.system.files import pending, scratch_folder

SHAPE = DataShape(axes=(2, 2))


def test_what_was_drawn_waits_for_another_that_only_looks(tmp_path):
    path, x = tmp_path / "x.npy", np.ones((1, 2, 2, 1))
    output = Output(path, SHAPE)
    with scratch_folder(path):
        writing = threading.Thread(target=output.write, args=(x, {}))
        writing.start()
        writing.join(0.3)
        assert writing.is_alive() and not path.exists()
    writing.join()
    assert np.array_equal(np.load(path), x)


def test_every_rank_may_find_what_a_killed_one_left(tmp_path):
    path = tmp_path / "x.npy"
    Output(path, SHAPE).write(np.ones((1, 2, 2, 1)), {})
    left = pending(tmp_path / "x.npy.json")
    left.write_text("{}")
    with scratch_folder(path):  # another rank, at the same
        Output(path, SHAPE, overwrite=True)
    Output(path, SHAPE, overwrite=True)
    assert not left.exists()
