"""Video and volumes through every command, with frames as channels and as an axis."""

import json
import re
import subprocess
import sys

import av
import formats
import numpy as np
import pytest
import torch
from conftest import config, launch, refused, run, saved, tiny_model
from formats import video
from packed_arrays import write
from PIL import Image

import axial.data.sources.bair
from axial import bits, complete, load, open_packed, save

KEPT = np.array((255, 120, 0))
TINY = ["--width", "8", "--heads", "2", "--batch", "2", "--device", "cpu"]
FORMS = {
    "stacked": ["--stack-frames", "--given-channels", "3", "--decoder-layers", "2", "1"],
    "grid": ["--given-steps", "1", "--decoder-layers", "3", "2", "1"],
}


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Two trajectories of four frames to train on, one to test on; of 16 x 16 pixels, for speed."""
    monkeypatch.setattr(axial.data.sources.bair, "_SIDE", 16)
    monkeypatch.setattr(axial.data.sources.bair, "_FRAME", 16 * 16 * 3)
    folder = tmp_path / "softmotion30_44k"
    clips = np.random.default_rng(0).integers(0, 256, (3, 4, 16, 16, 3), np.uint8)
    for split, part in (("train", clips[:2]), ("test", clips[2:])):
        (folder / split).mkdir(parents=True)
        examples = [formats.bair_example({"main": clip}) for clip in part]
        (folder / split / "traj_0_to_1.tfrecords").write_bytes(formats.tfrecord(examples))
    return folder, clips


@pytest.mark.parametrize("form", FORMS)
def test_bair_records_are_packed_trained_on_scored_and_continued(records, tmp_path, form, capsys):
    folder, clips = records
    run("data", folder, "--frames", 2, "--out", tmp_path / "train.npy", "--workers", 1)
    how = [*FORMS[form], *TINY, "--steps", 2]
    run("train", "small", "--data", tmp_path / "train.npy", "--out", tmp_path / "run", *how)
    capsys.readouterr()
    run("evaluate", tmp_path / "run", "--data", folder, "--frames", 2)
    unit, kind = ("frame", "clip") if form == "stacked" else ("step", "example")
    line = rf"\d\.\d{{4}} bits/dim, 1 {unit} given 1 \(1 {kind}, BAIR robot pushing test\)\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    out = tmp_path / "longer.npy"
    request = ["--split", "test", "--keep", 3, "--frames", 4, "--count", 1]
    run("complete", tmp_path / "run", folder, *request, "--out", out, "--device", "cpu")
    found = np.load(out)[0]
    if form == "stacked":
        found = np.moveaxis(found.reshape(16, 16, 4, 3), 2, 0)
    assert found.shape == (4, 16, 16, 3) and np.array_equal(found[:3], clips[2, :3])
    assert len(np.unique(found[3])) > 200  # hardly trained: nearly every value occurs
    assert 0.9 < (found[3] != clips[2, 3]).mean() < 1


def test_the_preset_of_the_paper_scores_15_frames_given_1(tmp_path, capsys):
    clips = np.random.default_rng(0).integers(0, 256, (3, 16, 4, 4, 3), np.uint8)
    packed = open_packed(write(tmp_path / "clips.npy", clips))
    sizes = ["--encoder-layers", 2, "--decoder-layers", 2, 1, *TINY, "--steps", 2]
    run("train", "bair", "--data", packed.path, "--out", tmp_path / "run", *sizes)
    capsys.readouterr()
    run("evaluate", tmp_path / "run", "--data", packed.path)
    line = r"8\.0000 bits/dim, 15 frames given 1, \+- \d\.\d{4} \(3 clips, toy train\)\n"
    assert re.fullmatch(line, capsys.readouterr().out)
    short = open_packed(write(tmp_path / "short.npy", clips[:, :10]))
    message = refused("train", "bair", "--data", short.path, "--out", tmp_path / "no", *sizes)
    assert "stacks 16 frames as channels, but the data has 10 frames" in message
    message = refused("evaluate", tmp_path / "run", "--data", short.path)
    assert "toy train: has clips of 10 frames, but the model takes 16" in message
    assert not (tmp_path / "no").exists()


def test_colour_frames_are_not_taken_for_as_many_channels_of_grey_ones(tmp_path):
    save(tiny_model(config((4, 4), channels=6, frames=6, values=256)), tmp_path / "grey")
    colour = write(tmp_path / "colour.npy", np.zeros((2, 2, 4, 4, 3), np.uint8))
    message = refused("evaluate", tmp_path / "grey", "--data", colour, "--device", "cpu")
    assert "has examples of 2 x 4 x 4, 3 channels" in message


STACKED = config((4, 4), channels=4, frames=4, given_channels=1, values=256)
MODELS = {
    "stacked": STACKED,
    "grid": config((4, 4, 4), given_steps=1, values=256),
    "colour": config((3, 4, 4), channels=3, given_steps=1, values=256),
    "picture": config((4, 4), channels=3, values=256),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return saved(MODELS, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Grey clips of five frames, one more than the models' window."""
    x = np.random.default_rng(1).integers(0, 256, (3, 5, 4, 4, 1), np.uint8)
    return open_packed(write(tmp_path_factory.mktemp("clips") / "grey.npy", x))


def continued(checkpoint, source, out, *how):
    run("complete", checkpoint, source, "--out", out, *how, "--device", "cpu", "--overwrite")
    return np.load(out) if out.suffix == ".npy" else out


@pytest.mark.parametrize("form", ["stacked", "grid"])
def test_the_first_window_is_that_of_a_shorter_request_and_what_is_kept_stays(
    form, checkpoints, clips, tmp_path
):
    at = (lambda x, t: x[..., t]) if form == "stacked" else (lambda x, t: x[:, t, ..., 0])
    how = ["--keep", 2, "--examples", 2, "--count", 2, "--seed", 3]
    place = checkpoints / form, clips.path
    plain = continued(*place, tmp_path / "a.npy", *how)
    long = continued(*place, tmp_path / "b.npy", *how, "--frames", 9, "--overlap", 3)
    short = continued(*place, tmp_path / "c.npy", *how, "--frames", 3)
    shape = (4, 4, 4, 9) if form == "stacked" else (4, 9, 4, 4, 1)
    assert long.shape == shape
    for t in range(4):
        assert np.array_equal(at(long, t), at(plain, t))
    for t in range(3):
        assert np.array_equal(at(short, t), at(plain, t))
    for t in range(2):
        assert np.array_equal(at(long, t), clips.array[:2, t, ..., 0].repeat(2, 0))
    assert len({at(long, t).tobytes() for t in range(9)}) == 9
    for keep in (4, 5):  # as long as the window, and longer
        how = ["--keep", keep, "--frames", 6, "--overlap", 2]
        more = continued(*place, tmp_path / "d.npy", *how)
        for t in range(keep):
            assert np.array_equal(at(more, t), clips.array[:, t, ..., 0].repeat(4, 0))
    about = json.loads((tmp_path / "b.npy.json").read_text())
    assert about["frames"] == 9 and about["overlap"] == 3


def test_two_ranks_draw_and_continue_as_one_does(checkpoints, clips, tmp_path):
    """With three batches, so that one rank has more than the other."""
    draw = ["sample", checkpoints / "picture", "--count", 5, "--device", "cpu", "--batch", 2]
    go_on = ["complete", checkpoints / "stacked", clips.path, "--frames", 6, "--batch", 1]
    go_on += ["--examples", 3, "--count", 1, "--device", "cpu", "--keep", 1]
    commands = {}
    for ranks in ("one", "two"):
        (tmp_path / ranks).mkdir()
        requests = {"a.npy": draw, "b.npy": go_on}
        commands[ranks] = [
            [*map(str, request), "--out", str(tmp_path / ranks / name)]
            for name, request in requests.items()
        ]
    for command in commands["one"]:
        run(*command)
    program = f"from axial.cli.main import main\nfor command in {commands['two']}: main(command)\n"
    done = launch(tmp_path, program)
    assert done.returncode == 0, done.stderr
    for name in ("a.npy", "a.npy.json", "b.npy", "b.npy.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_sheet_has_a_clip_a_row_the_original_first_and_what_was_kept_framed(
    checkpoints, clips, tmp_path
):
    how = ["--keep", 2, "--frames", 6, "--examples", 2, "--count", 2]
    x = continued(checkpoints / "stacked", clips.path, tmp_path / "a.npy", *how)
    pixels = np.asarray(
        Image.open(continued(*[checkpoints / "stacked", clips.path], tmp_path / "a.png", *how))
    )
    assert pixels.shape == (6 * 68 + 4 + 16, 6 * 68 + 4, 3)
    for row, t in np.ndindex(6, 6):
        example, number = divmod(row, 3)
        top, left = 4 + row * 68 + 16 * example, 4 + t * 68
        tile = pixels[top : top + 64 : 16, left : left + 64 : 16, 0]
        if number == 0 and t == 5:  # the original is shorter
            assert (pixels[top : top + 64, left : left + 64] == 255).all()
        elif number == 0:
            assert np.array_equal(tile, clips.array[example, t, ..., 0])
        else:
            assert np.array_equal(tile, x[2 * example + number - 1, ..., t])
        assert (pixels[top + 65, left] == (KEPT if t < 2 else 255)).all()


@pytest.mark.parametrize("form", ["stacked", "grid"])
def test_a_moving_picture_marks_the_frames_that_were_kept(form, checkpoints, clips, tmp_path):
    how = ["--keep", 2, "--frames", 6, "--examples", 2, "--count", 2]
    continued(checkpoints / form, clips.path, tmp_path / "a.gif", *how)
    continued(checkpoints / form, clips.path, tmp_path / "a.mp4", *how)
    with Image.open(tmp_path / "a.gif") as moving:
        shown = []
        for t in range(moving.n_frames):
            moving.seek(t)
            shown.append(np.asarray(moving.convert("RGB")).astype(int))
    with av.open(str(tmp_path / "a.mp4")) as container:
        filmed = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == len(filmed) == 6
    for t, picture in enumerate(shown):
        assert picture.shape == (2 * 68 + 4, 3 * 68 + 4, 3)
        assert np.abs(picture[2, 20] - (KEPT if t < 2 else 255)).max() < 20
        if t < 5:
            wanted = clips.array[0, t, ..., 0].astype(int)
            assert np.abs(picture[12 : 12 + 64 : 16, 12 : 12 + 64 : 16, 0] - wanted).max() < 40
        assert np.abs(filmed[t][2, 20].astype(int) - (KEPT if t < 2 else 255)).max() < 60


def test_a_clip_needs_only_the_frames_that_are_kept(checkpoints, clips, tmp_path):
    whole = continued(checkpoints / "stacked", clips.path, tmp_path / "a.npy", "--keep", 1)
    first = write(tmp_path / "first.npy", clips.array[:, :1])
    alone = continued(checkpoints / "stacked", first, tmp_path / "b.npy", "--keep", 1)
    assert np.array_equal(alone, whole)
    message = refused(
        "complete", checkpoints / "stacked", first, "--out", tmp_path / "c.npy", "--keep", 2
    )
    assert "has clips of 1 frames, fewer than the 2 to keep; use a smaller --keep" in message


def test_a_video_file_is_read_as_far_as_it_goes(checkpoints, tmp_path):
    """Four times: more frames than wanted, a window, fewer, and fewer than are to be kept."""
    frames = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    for length in (5, 3, 2):
        path = video(tmp_path / f"{length}.mkv", frames[:length])
        how = ["--size", 4, "--keep", 2, "--frames", 4, "--examples", 1, "--count", 1]
        x = continued(checkpoints / "colour", path, tmp_path / f"{length}.npy", *how)
        small = frames[:2].reshape(2, 4, 4, 4, 4, 3).mean(axis=(2, 4))
        assert x.shape == (1, 4, 4, 4, 3) and np.abs(x[0, :2] - small).max() <= 1
        continued(checkpoints / "colour", path, tmp_path / f"{length}.png", *how)
        sheet = np.asarray(Image.open(tmp_path / f"{length}.png"))
        blank = [(sheet[4:68, 4 + 68 * t : 68 + 68 * t] == 255).all() for t in range(4)]
        assert blank == [t >= min(length, 4) for t in range(4)]
    video(tmp_path / "1.mkv", frames[:1])
    out = ["--out", tmp_path / "1.npy", "--size", 4, "--keep", 2]
    message = refused("complete", checkpoints / "colour", tmp_path / "1.mkv", *out)
    assert "1.mkv: has 1 frames, fewer than a clip of 2" in message


def test_only_the_clips_that_are_continued_are_decoded(checkpoints, tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8)
    (tmp_path / "in").mkdir()
    video(tmp_path / "in" / "a.mkv", frames)
    (tmp_path / "in" / "b.mkv").write_bytes(b"no video")
    how = ["--size", 4, "--keep", 2, "--count", 1]
    out = [tmp_path / "in", tmp_path / "a.npy", *how]
    x = continued(checkpoints / "colour", *out, "--examples", 2)
    small = frames.reshape(6, 4, 4, 4, 4, 3).mean(axis=(2, 4))
    for clip in range(2):
        assert np.abs(x[clip, :2] - small[3 * clip : 3 * clip + 2]).max() <= 1
    wrong = ["complete", checkpoints / "colour", tmp_path / "in", "--out", tmp_path / "b.npy", *how]
    assert "b.mkv: begins as none of the videos" in refused(*wrong, "--examples", 4)


def test_colour_frames_along_an_axis_are_said_to_be_forced_once(checkpoints, tmp_path, capsys):
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 4, 3), np.uint8)
    source = write(tmp_path / "x.npy", x)
    for how, said in (
        ([], 0),
        (["--frames", 6], 0),  # each further window keeps the one frame the model is given
        (["--frames", 6, "--overlap", 2], 1),
        (["--frames", 6, "--overlap", 2, "--particles", 2], 0),
        (["--keep", 2], 1),
    ):
        out = tmp_path / "a.npy"
        request = ["--count", 1, "--out", out, "--overwrite", "--keep", 1, *how, "--device", "cpu"]
        run("complete", checkpoints / "colour", source, *request)
        assert " ".join(capsys.readouterr().err.split()).count("not the exact") == said


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("stacked", ["--keep", 5], "keep is 5: use whole numbers below 5"),
        ("stacked", ["--keep", 6, "--frames", 9], "clips of 5 frames, fewer than the 6 to keep"),
        ("stacked", ["--keep", 2, "--frames", 2], "frames is 2, and all of them are kept"),
        ("stacked", ["--keep", 5, "--frames", 5], "frames is 5, and all of them are kept"),
        ("stacked", ["--frames", 0], "frames is 0"),
        ("stacked", ["--keep", 1, "--frames", 2 * 10**9], "not enough memory for this"),
        ("stacked", ["--keep", 4, "--frames", 9, "--keep-channels", 1], "is for one window"),
        ("stacked", ["--frames", 9, "--overlap", 0], "overlap is 0"),
        ("stacked", ["--frames", 9, "--overlap", 4], "overlap is 4: a window of 4 frames can keep"),
        ("grid", ["--overlap", 7], "overlap is 7: a window of 4 frames can keep 1 to 3"),
        ("picture", ["--keep", 1, "--frames", 9], "this model has no frames"),
        ("picture", ["--keep", 1], "has examples of 5 x 4 x 4, 1 channel, 256 values, but the"),
    ],
)
def test_what_cannot_be_continued_is_one_line_and_leaves_nothing(
    name, how, message, checkpoints, clips, tmp_path
):
    out = ["--out", tmp_path / "a.gif" if name != "picture" else tmp_path / "a.png"]
    assert message in refused("complete", checkpoints / name, clips.path, *how, *out)
    assert list(tmp_path.iterdir()) == []


def test_sound_and_frames_of_changing_size_are_one_line_and_leave_nothing(checkpoints, tmp_path):
    (tmp_path / "in").mkdir()
    with av.open(str(tmp_path / "in" / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    stream = formats.io.BytesIO()
    for size in (16, 16, 16, 32):
        Image.fromarray(formats.pictures(1, size)[0]).save(stream, "JPEG")
    (tmp_path / "in" / "grows.mjpeg").write_bytes(stream.getvalue())
    for i, size in enumerate((8, 8, 6)):
        formats.picture_folder(tmp_path / "in" / "frames", formats.pictures(1, size), [f"{i}.png"])
    for name, message, how in (
        ("sound.mp4", "sound.mp4: holds no video, only audio", ["--frames", 2]),
        ("grows.mjpeg", "frame 3 is 32 x 32, but the video began with 16 x 16", ["--frames", 2]),
        ("frames", "2.png: is 6 x 6 x 3, but", []),
    ):
        source, out = tmp_path / "in" / name, ["--out", tmp_path / "a.npy"]
        assert message in refused("data", source, *how, *out)
        assert message in refused("train", "small", "--data", source, *how, "--out", tmp_path / "r")
        assert message in refused("complete", checkpoints / "colour", source, "--keep", 1, *out)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_volumes_go_through_every_command(tmp_path, capsys):
    z = np.indices((3, 4, 5)).sum(0)
    x = (z[None] + np.arange(12)[:, None, None, None]) % 4
    x = np.stack([(x + channel) % 4 for channel in range(2)], -1)
    np.save(tmp_path / "raw.npy", x)
    learned(tmp_path, x, capsys, "--channels-last")


def test_an_array_of_four_axes_goes_through_every_command(tmp_path, capsys):
    z = np.indices((2, 3, 4, 5)).sum(0)
    x = (z[None] + np.arange(12)[:, None, None, None, None]) % 4
    np.save(tmp_path / "raw.npy", x)
    learned(tmp_path, x[..., None], capsys, "--channels-none")


def learned(folder, x, capsys, how):
    """Pack, train, score, draw and complete an array of 4 values; look at what comes out."""
    run("data", folder / "raw.npy", how, "--out", folder / "x.npy", "--preview", folder / "x.png")
    packed = open_packed(folder / "x.npy")
    assert np.array_equal(packed.array, x) and packed.shape.values == 4
    training = ["--steps", 40, "--batch", 6, "--validation", 2, "--learning-rate", 0.01]
    sizes = ["--width", 16, "--heads", 2, "--device", "cpu"]
    run("train", "small", "--data", packed.path, "--out", folder / "run", *training, *sizes)
    run("evaluate", folder / "run", "--data", packed.path, "--json", folder / "e.json")
    model = load(folder / "run")
    found = json.loads((folder / "e.json").read_text())
    exact = bits(model, torch.from_numpy(x.astype(np.int64))).sum()
    assert found["bits"] == pytest.approx(float(exact), rel=1e-6)
    assert found["elements"] == x.size
    assert found["bits_per_dim"] < 1.5  # 2 for one that knows nothing
    run("sample", folder / "run", "--count", 3, "--out", folder / "s.npy", "--device", "cpu")
    drawn = np.load(folder / "s.npy")
    assert drawn.shape == (3, *x.shape[1:]) and drawn.max() < 4
    request = ["--keep", 1, "--examples", 2, "--count", 2, "--device", "cpu"]
    run("complete", folder / "run", packed.path, "--out", folder / "c.npy", *request)
    kept = torch.full((4, *x.shape[1:]), -1)
    kept[:, :1] = torch.from_numpy(x[:2, :1]).repeat_interleave(2, 0)
    wanted = complete(model, kept, batch=16)
    assert np.array_equal(np.load(folder / "c.npy"), wanted.numpy())
    run("complete", folder / "run", packed.path, "--out", folder / "c.png", *request)
    pixels = np.asarray(Image.open(folder / "c.png"))
    scale = 64 // 5
    first = pixels[4 : 4 + 4 * scale : scale, 4 : 4 + 5 * scale : scale, 0]
    corner = x[0].reshape(-1, 4, 5, x.shape[-1])[0, ..., 0]
    assert np.array_equal(first, corner * 85)
    for kind in ("gif", "mp4"):
        run(
            "sample", folder / "run", "--count", 2, "--out", folder / f"s.{kind}", "--device", "cpu"
        )
    with Image.open(folder / "s.gif") as moving:
        assert moving.n_frames == x.shape[1]


def test_a_video_damaged_in_the_middle_is_one_line_and_no_hang(tmp_path):
    noise = np.random.default_rng(0)
    path = tmp_path / "damaged.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for x in noise.integers(0, 256, (40, 64, 64, 3), np.uint8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(x, format="rgb24")))
        container.mux(stream.encode())
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 4000] = noise.bytes(4000)
    path.write_bytes(data)
    command = ["data", path, "--frames", 6, "--workers", 1, "--out", tmp_path / "a.npy"]
    run = [sys.executable, "-m", "axial", *map(str, command)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "cannot be decoded at frame" in done.stderr
    assert not (tmp_path / "a.npy").exists()
