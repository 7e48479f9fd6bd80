import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import load_script

import axial


@pytest.fixture(scope="module")
def attention_cost():
    return load_script("benchmarks/attention_cost.py")


def test_the_attention_benchmark_measures_time_and_memory(attention_cost, capfd):
    setting = replace(attention_cost.CPU, positions=1 << 11)
    sides = (16, 32)
    found = {
        kind: [attention_cost.measure(setting, (side, side), kind, repeats=1) for side in sides]
        for kind in attention_cost.KINDS
    }

    def growth(kind, measure):
        small, large = (row[measure] for row in found[kind])
        return large / small

    for rows in found.values():
        assert all(row.keys() == attention_cost.MEASURES.keys() for row in rows)
        assert all(value > 0 for row in rows for value in row.values())
    # Four times the positions: the plain backend keeps N ** 2 weights, or N * side.
    assert growth("full", "attention, bytes, plain") == pytest.approx(16, rel=0.15)
    assert 4 <= growth("axial", "attention, bytes, plain") < 8
    assert growth("axial", "attention, bytes, fused") == pytest.approx(4, rel=0.15)


def test_exponents_are_the_slopes_of_powers(attention_cost):
    sizes = [256, 1024, 4096]
    assert attention_cost.exponent(sizes, [3.0 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert attention_cost.exponent(sizes, [7.0] * 3) == pytest.approx(0.0)


def test_the_attention_benchmark_reports_and_draws(attention_cost, tmp_path, capsys):
    results = {
        axes: {
            kind: {
                side: dict.fromkeys(attention_cost.MEASURES, float(side**axes) ** power)
                for side in sides
            }
            for kind, power in (("axial", 1 + 1 / axes), ("full", 2.0))
        }
        for axes, sides in attention_cost.SIDES.items()
    }
    attention_cost.report(results)
    out = capsys.readouterr().out
    assert "1.50  2.00  0.50 (paper: 0.50)" in out and "1.33  2.00  0.67 (paper: 0.67)" in out
    attention_cost.draw_picture(results, tmp_path / "picture.png", "title")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def video():
    return load_script("benchmarks/video.py")


@pytest.fixture(scope="module")
def video_clips():
    return load_script("benchmarks/video_clips.py")


KEYS = [f"{task}|{n}|cam{c}" for task in "abc" for n in range(2) for c in range(2)]


def moving_squares(side):
    """Twelve clips in which a bright square moves to the right."""
    x = np.zeros((12, 3, side, side, 3), np.uint8)
    for number, clip in enumerate(x):
        for time, frame in enumerate(clip):
            frame[number % 6 :, time : time + 4] = 200 + number
    return x


@pytest.fixture(scope="module")
def clips(video_clips, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    np.savez(folder / "clips.npz", clips=moving_squares(8), keys=KEYS)
    command(video_clips, folder / "clips.npz", "--out", folder / "data")
    return folder / "data"


def command(script, *words):
    """Run a script as its command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script", *map(str, words)])
        script.main()


def test_a_task_and_an_episode_of_each_other_are_held_out_with_all_cameras(video_clips, clips):
    found = video_clips.split_clips(12, KEYS)
    assert {name: index.tolist() for name, index in found.items()} == {
        "train": [0, 1, 4, 5],
        "validation": [2, 3, 6, 7],
        "test": [8, 9, 10, 11],
    }
    held_out = axial.open_packed(clips / "test.npy")
    assert held_out.description.notes == ("clips 8-11 of 12",)
    assert np.array_equal(held_out.rows(range(4)), moving_squares(8)[8:])


def test_without_keys_the_last_clips_are_held_out(video_clips):
    found = video_clips.split_clips(2000, None)
    assert [len(index) for index in found.values()] == [1750, 50, 200]
    assert video_clips.ranges(found["test"]) == "1800-1999"


@pytest.mark.parametrize("form", ["stacked", "grid"])
def test_the_video_benchmark_trains_on_time_tests_draws_and_keeps_the_weights(
    form, video, clips, tmp_path, capsys
):
    out = tmp_path / form
    how = ["--seconds", 2, "--width", 8, "--heads", 2, "--batch", 2, "--warm-up", 2, "--draw", 1]
    command(video, "train", clips, "--form", form, "--out", out, "--device", "cpu", *how)
    result = json.loads((out / "result.json").read_text())
    assert 1 < result["seconds"] < 10
    assert result["training"]["steps"] > 2
    assert result["examples"] == 4 and result["elements"] == 4 * 2 * 8 * 8 * 3
    assert np.mean(result["by_frame"]) == pytest.approx(result["bits_per_dim"])
    assert (out / "continuations.png").stat().st_size > 1000

    command(video, "join", out, "--out", tmp_path / "model")
    model = axial.load(tmp_path / "model")
    test = axial.open_packed(clips / "test.npy", stack_frames=form == "stacked")
    again = axial.evaluate(model, test).bits_per_dim
    assert again == pytest.approx(result["bits_per_dim"], abs=0.02)
    command(video, "table", out)
    assert f"{result['bits_per_dim']:.4f} bits/dim" in capsys.readouterr().out
    command(video, "where", out, "--data", clips, "--limit", 4)
    told = capsys.readouterr().out
    assert float(told.split("clips: ")[1].split()[0]) == pytest.approx(again, abs=1e-4)
    moves, stays = (float(told.split(f" {word}")[0].split()[-1]) for word in ("where", "elsewhere"))
    share = float(told.split("(")[1].split("%")[0]) / 100
    assert share * moves + (1 - share) * stays == pytest.approx(again, abs=5e-3)


def test_codecs_give_back_every_clip_and_pay_nothing_for_given_frames():
    pytest.importorskip("av")
    codecs = load_script("benchmarks/video_codecs.py")
    x = moving_squares(16)[:4]
    for clip in (x[0], x[0, ..., :1]):
        sizes = [codec.sizes(clip) for codec in codecs.codecs(grey=clip.shape[-1] == 1)]
        assert all(len(each) == 3 and min(each) > 0 for each in sizes)
    found, later = codecs.measure(x, given=1), codecs.measure(x, given=2)
    assert found.keys() >= {"FFV1", "x264", "PNG", "WebP"}
    for name in ("FFV1", "x264"):  # what is given holds the key frame and the headers
        assert found[name]["bits_per_dim"] < found[name]["all_frames"]
        assert later[name]["bits_per_dim"] != found[name]["bits_per_dim"]


def test_a_codec_that_loses_something_is_refused():
    pytest.importorskip("av")
    codecs = load_script("benchmarks/video_codecs.py")
    noise = np.random.default_rng(0).integers(256, size=(4, 16, 16, 3), dtype=np.uint8)
    with pytest.raises(SystemExit, match="does not give back"):
        codecs.video_sizes(noise, encoder="libx264rgb", layout="rgb24", how={"qp": "20"})


def test_the_benchmark_of_the_papers_video_size_runs_at_a_tiny_one(capsys):
    bair = load_script("benchmarks/bair.py")
    how = ["--device", "cpu", "--width", 32, "--side", 2, "--batch", 1, "--draw-batches", 1]
    command(bair, *how)
    out = capsys.readouterr().out
    assert "48 channels take" in out and "15 frames in ~" in out


def test_the_largest_batch_follows_from_a_small_one():
    bair = load_script("benchmarks/bair.py")
    config = bair.bair().model
    kept = 10**10 + 2 * bair.parameters(config)
    small = bair.Step(8, 1.0, 1.0, kept + 8 * 10**9, 10**10)
    assert bair.largest(small, config, int((kept + 31.5e9) / bair.HEADROOM)) == 28


def test_clips_are_turned_and_moved_alike_in_both_forms(video):
    clips = np.random.default_rng(0).integers(256, size=(40, 3, 6, 6, 2), dtype=np.uint8)
    for how in ({"turn": True, "shift": 0}, {"turn": False, "shift": 2}):
        grid, stacked = clips.copy(), np.moveaxis(clips, 1, 3).reshape(40, 6, 6, 6)
        for x in (grid, stacked):
            video.vary(x, np.random.default_rng(5), **how)
        assert (stacked == np.moveaxis(grid, 1, 3).reshape(40, 6, 6, 6)).all()
        places = np.broadcast_to(np.arange(36, dtype=np.uint8).reshape(6, 6, 1), (40, 6, 6, 1))
        places = places.copy()
        video.vary(places, np.random.default_rng(5), **how)
        moved = clips.reshape(40, 3, 36, 2)[np.arange(40)[:, None], :, places.reshape(40, 36)]
        assert (np.moveaxis(moved, 1, 2).reshape(grid.shape) == grid).all()  # whole places move
        seen = {tuple(place.flatten()) for place in places}
        assert len(seen) == 8 if how["turn"] else 8 < len(seen) <= 25
        for place in places[..., 0].astype(int):
            if how["turn"]:  # neighbours stay neighbours
                assert set(np.abs(np.diff(place, axis=0)).ravel()) in ({1}, {6})
            else:  # each row and column is a run with its ends repeated
                rows, columns = np.divmod(place, 6)
                assert (rows == rows[:, :1]).all() and (columns == columns[:1]).all()
                assert {*np.diff(rows[:, 0]), *np.diff(columns[0])} <= {0, 1}
