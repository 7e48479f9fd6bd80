import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import config, load_script, tiny_model
from einops import rearrange
from PIL import Image

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
    return load_script("experiments/video.py")


@pytest.fixture(scope="module")
def video_clips():
    return load_script("experiments/video_clips.py")


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
    train = axial.open_packed(clips / "train.npy")  # whose last clips a run holds out
    assert np.array_equal(train.rows(range(8)), moving_squares(8)[[0, 1, 4, 5, 2, 3, 6, 7]])
    held_out = axial.open_packed(clips / "test.npy")
    assert held_out.description.notes == ("clips 8-11 of 12",)
    assert np.array_equal(held_out.rows(range(4)), moving_squares(8)[8:])


def test_without_keys_the_last_clips_are_held_out(video_clips):
    found = video_clips.split_clips(2000, None)
    assert [len(index) for index in found.values()] == [1750, 50, 200]
    assert video_clips.ranges(found["test"]) == "1800-1999"


@pytest.mark.parametrize("form", ["stacked", "grid"])
def test_the_video_experiment_trains_tests_and_draws(form, video, clips, tmp_path, capsys):
    out = tmp_path / form
    how = ["--minutes", 0.02, "--width", 8, "--heads", 2, "--batch", 2, "--warm-up", 2, "--draw", 1]
    command(video, "train", clips, "--form", form, "--out", out, "--device", "cpu", *how)
    result = json.loads((out / "result.json").read_text())
    assert result["seconds"] > 0 and 0 < result["training"]["steps"] < 1 << 30
    assert result["examples"] == 4 and result["elements"] == 4 * 2 * 8 * 8 * 3
    assert np.mean(result["by_frame"]) == pytest.approx(result["bits_per_dim"])
    assert (out / "continuations.png").stat().st_size > 1000

    model = axial.load(out)
    test = axial.open_packed(clips / "test.npy", stack_frames=form == "stacked")
    again = axial.evaluate(model, test).bits_per_dim
    assert again == pytest.approx(result["bits_per_dim"], abs=1e-6)
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
    codecs = load_script("experiments/video_codecs.py")
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
    codecs = load_script("experiments/video_codecs.py")
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
    kept = 10**10 + 2 * config.parameters()
    small = bair.Step(8, 1.0, 1.0, kept + 8 * 10**9, 10**10)
    assert bair.largest(small, config, int((kept + 31.5e9) / bair.HEADROOM)) == 28


def test_bits_of_whole_pictures_are_what_their_files_take(tmp_path, monkeypatch, capsys):
    codec = load_script("benchmarks/codec.py")
    model = tiny_model(config((6, 4), channels=3, values=256), dtype=torch.float32)
    axial.save(model, tmp_path / "model")
    (tmp_path / "pictures").mkdir()
    x = {
        f"{i}.png": np.random.default_rng(i).integers(0, 256, (19, 21, 3), np.uint8) for i in (0, 1)
    }
    for name, picture in x.items():
        Image.fromarray(picture).save(tmp_path / "pictures" / name)
    words = ["codec.py", "bits", str(tmp_path / "pictures"), "--model", str(tmp_path / "model")]
    out = tmp_path / "bits.json"
    monkeypatch.setattr(sys, "argv", [*words, "--overlap", "0", "2", "--json", str(out)])
    codec.main()
    assert "2 pictures, " in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["fingerprint"] == axial.fingerprint(axial.load(tmp_path / "model"))
    for row in found["pictures"]:
        for overlap in (0, 2):
            data = axial.compress(
                model, torch.from_numpy(x[row["name"]].astype(np.int64)), overlap=overlap
            )
            assert row[f"overlap {overlap}"] < len(data) < row[f"overlap {overlap}"] + 90
        assert row["elements"] == 19 * 21 * 3 and row["PNG"] > 19 * 21 * 3
    found["pictures"][0]["PNG"], found["pictures"][1] = 7, found["pictures"][1] | {"name": "2.png"}
    (tmp_path / "earlier.json").write_text(json.dumps(found))
    monkeypatch.setattr(
        sys, "argv", [*words, "--others", str(tmp_path / "earlier.json"), "--json", str(out)]
    )
    codec.main()
    assert [row["PNG"] > 7 for row in json.loads(out.read_text())["pictures"]] == [False, True]


def test_the_layers_that_are_compared_compute_the_same(capsys):
    layer = load_script("benchmarks/layer.py")
    found = layer.rivals(3)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 2, 4, layer.WIDTH)))
    ours, plain = found["axial"].double(), found["plain"].double()
    for mine, theirs in zip(ours, plain, strict=True):
        order = "(n s e) ... -> (s n e) ..."
        for name in ("weight", "bias"):
            given = getattr(mine.to_qkv, name).detach()
            given = rearrange(given, order, s=3, n=layer.HEADS)
            getattr(theirs.to_qkv, name).detach().copy_(given)
        theirs.to_out.load_state_dict(mine.to_out.state_dict())
    torch.testing.assert_close(ours(x), plain(x), rtol=0, atol=1e-10)
    layer.report((4, 2), 1, "cpu", repeats=1)
    out = capsys.readouterr().out
    assert "4 x 2, batch 1, time in ms (over axial): axial" in out and "memory in MB" in out
