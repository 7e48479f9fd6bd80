"""Video files: cut into clips, and refused where damaged or cut short."""

import io
import struct
import subprocess
import sys

import av
import datasets
import formats
import numpy as np
import pytest
from formats import packed, refused, video
from PIL import Image


def test_videos_are_cut_into_clips(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (2, 11, 16, 24, 3), np.uint8)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    video(tmp_path / "in" / "a.mkv", frames[0])
    video(tmp_path / "in" / "deep" / "b.mkv", frames[1])
    found = packed(tmp_path / "in", tmp_path, frames=5).array
    assert np.array_equal(found, frames[:, :10].reshape(4, 5, 16, 24, 3))
    small = packed(tmp_path / "in" / "a.mkv", tmp_path, frames=5, size=8).array
    middle = frames[0, :5, :, 4:20].reshape(5, 8, 2, 8, 2, 3).mean(axis=(2, 4))
    assert np.abs(small[0] - middle).max() <= 1
    assert "say how many frames" in refused(tmp_path / "in", tmp_path)
    assert "a.mkv: has 11 frames, fewer than a clip" in refused(
        tmp_path / "in", tmp_path, frames=12
    )


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([10, 5], "clips of 5 consecutive frames"),
        ([11, 5], "clips of 5 consecutive frames; 1 frame at the end of a video dropped"),
        ([11, 8], "clips of 5 consecutive frames; 4 frames at the ends of videos dropped"),
    ],
)
def test_frames_are_said_to_be_dropped_only_where_some_were(tmp_path, counts, told):
    (tmp_path / "in").mkdir()
    for number, count in enumerate(counts):
        video(tmp_path / "in" / f"{number}.mkv", np.zeros((count, 16, 16, 3), np.uint8))
    assert told in packed(tmp_path / "in", tmp_path, frames=5).description.notes


def test_what_makes_examples_alike_is_only_told_where_it_can(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, width in (("a.mkv", 16), ("b.mkv", 32)):
        video(folder / name, np.zeros((4, 16, width, 3), np.uint8))
    told = refused(folder, tmp_path, frames=4)
    assert "b.mkv" in told and "is 4 x 16 x 16 x 3; use --size to make all alike, or go on" in told
    assert packed(folder, tmp_path, frames=4, size=16).shape.axes == (4, 16, 16)
    grids = {"grid": [np.zeros((n, n), int).tolist() for n in (3, 4)]}
    datasets.Dataset.from_dict(grids).save_to_disk(tmp_path / "grids")
    told = refused(tmp_path / "grids", tmp_path)
    assert told.endswith(
        "is 3 x 3 x 1, and all examples of an array are alike; go on without it by --skip-bad"
    )


def test_folders_of_videos_named_after_splits_are_splits(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 16, 16, 3), np.uint8)
    folder = tmp_path / "clips.v2"
    for name, x in zip(("train/a.mkv", "test/b.mkv", "c.mkv"), frames, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        video(folder / name, x)
    for split, x in (("test", frames[1]), (None, frames[0])):
        found = packed(folder, tmp_path, frames=4, split=split)
        assert np.array_equal(found.array, x[None])
        assert found.description.title == f"clips.v2 {split or 'train'}"
        assert "1 other file ignored" in found.description.notes


@pytest.mark.parametrize(
    ("pix_fmt", "x", "says"),
    [
        ("gray16le", np.zeros((4, 16, 16), np.uint16), "has more than 8 bits a channel"),
        ("bgra", np.zeros((4, 16, 16, 4), np.uint8), "has an alpha channel and is transparent"),
    ],
)
def test_videos_that_8_bits_of_colour_do_not_hold_are_refused(tmp_path, pix_fmt, x, says):
    path = video(tmp_path / "a.mkv", x, pix_fmt=pix_fmt, form=pix_fmt)
    assert f"a.mkv: frame 0: {says}" in refused(path, tmp_path, frames=2)
    converted = packed(path, tmp_path, frames=2, convert="rgb").array
    assert (converted == (255 if pix_fmt == "bgra" else 0)).all()


def test_a_video_is_turned_the_way_its_camera_was_held(tmp_path):
    ramp = np.arange(16 * 32, dtype=np.uint16).reshape(16, 32, 1) // 2
    frames = np.repeat(ramp.astype(np.uint8), 3, axis=-1)[None].repeat(4, 0)
    path = video(tmp_path / "a.mp4", frames, "libx264rgb", "rgb24")
    upright = packed(path, tmp_path, frames=4).array.copy()
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 44  # clockwise by a quarter
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    turned = packed(path, tmp_path, frames=4).array
    assert np.array_equal(turned, np.rot90(upright, -1, axes=(2, 3)))


def test_animated_pictures_are_video(tmp_path):
    (tmp_path / "in").mkdir()
    frames = [Image.fromarray(x) for x in formats.pictures(4, 16)]
    frames[0].save(tmp_path / "in" / "a.gif", save_all=True, append_images=frames[1:], duration=100)
    message = refused(tmp_path / "in", tmp_path)
    assert "a.gif: holds 4 frames, not one picture; save each" in message
    assert message.endswith("by `axial data --frames`, in a folder without pictures")
    assert packed(tmp_path / "in", tmp_path, frames=2).array.shape == (2, 2, 16, 16, 3)
    frames[0].save(tmp_path / "in" / "a.gif")
    (tmp_path / "in" / "a.gif").rename(tmp_path / "in" / "A.GIF")
    assert packed(tmp_path / "in", tmp_path).array.shape == (1, 16, 16, 3)


def test_a_gif_that_stands_still_is_a_picture_unless_frames_are_meant(tmp_path):
    x = formats.pictures(1, 16)
    Image.fromarray(x[0] // 64 * 64).save(tmp_path / "a.gif")
    still = packed(tmp_path / "a.gif", tmp_path).array.copy()
    assert np.array_equal(still, x // 64 * 64)
    film = packed(tmp_path / "a.gif", tmp_path, frames=1).array
    assert np.array_equal(film, still[:, None])


def test_bad_videos_are_one_line(tmp_path):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    assert "sound.mp4: holds no video, only audio" in refused(
        tmp_path / "sound.mp4", tmp_path, frames=2
    )
    pieces = [formats.pictures(3, 16), formats.pictures(1, 32)]
    stream = io.BytesIO()
    for x in (x for piece in pieces for x in piece):
        Image.fromarray(x).save(stream, "JPEG")
    (tmp_path / "grows.mjpeg").write_bytes(stream.getvalue())
    assert "grows.mjpeg: frame 3 is 32 x 32, but the video began with 16 x 16" in refused(
        tmp_path / "grows.mjpeg", tmp_path, frames=2
    )
    (tmp_path / "noise.mp4").write_bytes(bytes(range(256)) * 10)
    assert "noise.mp4: begins as none of the videos that are read" in refused(
        tmp_path / "noise.mp4", tmp_path, frames=2
    )


CONTAINERS = {
    "mkv": ("ffv1", "bgr0"),
    "webm": ("libvpx", "yuv420p"),
    "flv": ("flv1", "yuv420p"),
    "avi": ("mpeg4", "yuv420p"),
    "ts": ("mpeg2video", "yuv420p"),  # libx264 does not always write the same
    "mp4": ("libx264", "yuv420p"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_video_cut_in_the_middle_is_noticed(tmp_path, kind):
    path = video(tmp_path / f"a.{kind}", formats.pictures(40, 32), *CONTAINERS[kind])
    assert len(packed(path, tmp_path, frames=1)) == 40
    data = path.read_bytes()
    for share in (0.5, 0.7):
        path.write_bytes(data[: int(len(data) * share)])
        assert f"a.{kind}: cannot be decoded at frame " in refused(path, tmp_path, frames=1)
    if kind in ("mkv", "webm", "avi"):  # which say how long they are: cut near the last picture
        cut = -5 if kind == "avi" else data.rindex(b"\x1c\x53\xbb\x6b") - 9
        path.write_bytes(data[:cut])
        assert f" of {len(data):,} bytes)" in refused(path, tmp_path, frames=1)
    path.write_bytes(data[: int(len(data) * 0.7)])
    if kind != "mp4":  # what the pictures are comes last there
        found = packed(path, tmp_path, frames=1, skip_bad=True)
        assert 10 < len(found) < 35 and found.description.skipped == 1


def test_a_video_whose_sound_goes_on_is_whole(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        picture, sound = container.add_stream("ffv1", rate=8), container.add_stream("aac", 8000)
        picture.width, picture.height, picture.pix_fmt = 16, 16, "bgr0"
        for x in formats.pictures(8, 16):
            container.mux(picture.encode(av.VideoFrame.from_ndarray(x, "rgb24")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 40_000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux([*picture.encode(), *sound.encode(frame), *sound.encode()])
    assert len(packed(tmp_path / "a.mkv", tmp_path, frames=8)) == 1


def test_damage_that_ffmpeg_paints_over_is_noticed(tmp_path):
    """FFV1 carries a checksum of each slice; FFmpeg logs that it is wrong, and goes on."""
    path = tmp_path / "a.mkv"
    options = {"slicecrc": "1", "level": "3", "slices": "4"}
    x = formats.pictures(6, 64)
    whole = bytearray(video(path, x, options=options).read_bytes())
    assert np.array_equal(packed(path, tmp_path, frames=6).array[0], x)
    for share in (0.3, 0.5, 0.9):
        damaged = whole.copy()
        damaged[int(len(whole) * share)] ^= 4
        path.write_bytes(damaged)
        told = refused(path, tmp_path, frames=6)
        assert "(slice CRC mismatch" in told or "(header damaged)" in told
    assert len(packed(path, tmp_path, frames=1, skip_bad=True)) == 5


@pytest.mark.parametrize("name", ["12:30.mkv", "http:127.0.0.1:9?x.mkv", "concat:a|b.mkv"])
def test_a_name_is_never_taken_for_a_url(tmp_path, name, monkeypatch):
    x = formats.pictures(2, 16)
    (tmp_path / "in").mkdir()
    video(tmp_path / "a.mkv", x).rename(tmp_path / "in" / name)
    monkeypatch.chdir(tmp_path / "in")
    for source in (".", name):
        assert np.array_equal(packed(source, tmp_path, frames=2).array[0], x)


@pytest.mark.parametrize(
    "script",
    [
        b"ffconcat version 1.0\nfile secret.mkv\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.mkv\n#EXT-X-ENDLIST\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    ],
    ids=["ffconcat", "playlist", "sdp"],
)
def test_scripts_of_ffmpeg_are_no_videos(tmp_path, script):
    video(tmp_path / "secret.mkv", formats.pictures(2, 16))
    for name in ("a.mp4", "a.ts"):
        (tmp_path / name).write_bytes(script)
        assert "begins as none of the videos" in refused(tmp_path / name, tmp_path, frames=2)


def packed_apart(path):
    """What is said of a video in a process of its own, and the most memory it took."""
    code = f"""if True:
        from pathlib import Path
        from axial import AxialError, ReadOptions, pack
        try:
            pack("{path}", "{path}.npy", ReadOptions(frames=1), workers=1)
        except AxialError as error:
            print(error)
        print(*[line for line in Path("/proc/self/status").open() if "VmHWM" in line])"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    message, peak, *_ = ended.stdout.splitlines()
    return message, int(peak.split()[1])


def test_a_frame_that_claims_more_pixels_than_any_screen_has_is_refused_at_once(tmp_path):
    size = struct.pack("<HH", 15_000, 15_000)
    gif = b"GIF89a" + size + b"\x80\0\0" + bytes(6) + b"!\xf9\x04" + bytes(5)
    gif += b"," + bytes(4) + size + b"\0\x02\x02\x4c\x01\0;"
    (tmp_path / "a.gif").write_bytes(gif)
    message, kilobytes = packed_apart(tmp_path / "a.gif")
    assert "a.gif: cannot be decoded at frame 0" in message
    assert kilobytes < 600_000


def test_a_video_that_tells_of_eighty_million_frames_takes_little_memory(tmp_path):
    path = video(tmp_path / "a.mp4", formats.pictures(6, 32), "mpeg4", "yuv420p")
    data, many = bytearray(path.read_bytes()), 80_000_000
    for box, numbers in {"stsz": (1, many), "stsc": (1, 1, many, 1), "stts": (1, many, 1)}.items():
        start = data.index(box.encode()) + 8
        data[start : start + 4 * len(numbers)] = struct.pack(f">{len(numbers)}I", *numbers)
    path.write_bytes(data)
    message, kilobytes = packed_apart(path)
    assert "a.mp4: cannot be decoded at frame 0" in message
    assert kilobytes < 600_000


@pytest.mark.parametrize(("kind", "codec"), [("avi", "mpeg4"), ("mkv", "ffv1"), ("mp4", "mpeg4")])
def test_a_title_in_another_encoding_is_no_damage(tmp_path, kind, codec):
    path = tmp_path / f"a.{kind}"
    pix_fmt = "bgr0" if codec == "ffv1" else "yuv420p"
    video(path, formats.pictures(2, 16), codec, pix_fmt, metadata={"title": "Zuricher Strasse"})
    data = path.read_bytes()
    assert data.count(b"Zuricher Strasse") == 1
    path.write_bytes(data.replace(b"Zuricher", b"Z\xfcricher"[:8].ljust(8, b"\xe9")))
    assert packed(path, tmp_path, frames=2).array.shape == (1, 2, 16, 16, 3)


def test_a_codec_that_nobody_knows_is_one_line(tmp_path):
    path = video(tmp_path / "a.mkv", formats.pictures(2, 16))
    path.write_bytes(path.read_bytes().replace(b"V_FFV1", b"V_NONE"))
    assert "a.mkv: is video of a codec that FFmpeg lacks" in refused(path, tmp_path, frames=2)
    path = video(tmp_path / "a.avi", formats.pictures(2, 16), "mpeg4", "yuv420p")
    path.write_bytes(path.read_bytes().replace(b"FMP4", b"ZZZZ"))
    assert "a.avi: is video of a codec that FFmpeg lacks" in refused(path, tmp_path, frames=2)
