"""Pictures become one file and come back equal, through the API."""

import io
import time

import numpy as np
import pytest
from conftest import run
from PIL import Image
from serving import as_form, npy, png
from tiny_studio import client, loaded, models, running  # noqa: F401

GENERATOR = np.random.default_rng(1)
PICTURES = {
    "a.png": GENERATOR.integers(256, size=(8, 8, 3)),
    "b.png": GENERATOR.integers(256, size=(5, 11, 3)),
    "c.png": GENERATOR.integers(256, size=(8, 8, 1)),
}


def compressed(client, **uploads):
    status, done = client.send("colour", "compress", **uploads)
    assert status == 200, done
    return done, client.get(done["file"])


def test_pictures_of_any_size_come_back_equal(client, models, tmp_path):
    done, data = compressed(client, picture=[png(x, name) for name, x in PICTURES.items()])
    assert done["bytes"] == len(data)
    assert done["bits_per_dim"] == pytest.approx(
        8 * len(data) / sum(x.size for x in PICTURES.values())
    )
    sizes = {row["format"]: row["bytes"] for row in done["sizes"]}
    assert sizes["this model"] == len(data) and sizes["PNG"] > 3 * 57
    status, back = client.send("colour", "decompress", file=("x.axl", data))
    assert status == 200 and back["array"] is None
    for told, (name, x) in zip(back["pictures"], PICTURES.items(), strict=True):
        assert told["name"] == name and (told["height"], told["width"]) == x.shape[:2]
        assert np.array_equal(np.load(io.BytesIO(client.get(told["npy"]))), x)
        shown = np.asarray(Image.open(io.BytesIO(client.get(told["png"]))))
        assert np.array_equal(np.atleast_3d(shown), x)
    (tmp_path / "x.axl").write_bytes(data)  # the command line reads the same file
    run("decompress", tmp_path / "x.axl", "--model", models / "colour", "--out", tmp_path / "out")
    for name, x in PICTURES.items():
        assert np.array_equal(np.atleast_3d(np.asarray(Image.open(tmp_path / "out" / name))), x)


def test_examples_that_are_no_pictures_come_back_equal(client):
    x = GENERATOR.integers(256, size=(3, 4, 4, 1))
    status, done = client.send("clip", "compress", picture=npy(x))
    assert status == 200 and [row["format"] for row in done["sizes"]] == ["this model"]
    status, back = client.send("clip", "decompress", file=("x.axl", client.get(done["file"])))
    assert status == 200
    assert np.array_equal(np.load(io.BytesIO(client.get(back["array"])))[0], x)
    y = GENERATOR.integers(5, size=(4, 4, 1))
    status, done = client.send("labels", "compress", picture=npy(y), label=1)
    _, back = client.send("labels", "decompress", file=("x.axl", client.get(done["file"])))
    assert np.array_equal(np.load(io.BytesIO(client.get(back["array"])))[0], y)


def test_a_file_that_is_damaged_or_another_models_is_refused(client):
    _, data = compressed(client, picture=png(PICTURES["a.png"]))
    for wrong in (
        data[:-3],
        data[: len(data) // 2] + b"x" + data[len(data) // 2 + 1 :],
        b"",
        b"AXL",
    ):
        status, answer = client.send("colour", "decompress", file=("x.axl", wrong))
        assert status == 400 and answer["error"]["kind"] == "bad_upload", answer
    status, answer = client.send("clip", "decompress", file=("x.axl", data))
    assert (
        status == 400
        and "decompress with the model that compressed it" in answer["error"]["message"]
    )


def test_names_that_are_equal_or_paths_become_plain_and_differ(client):
    x = PICTURES["a.png"]
    names = ["../../a.png", "/etc/a.png", "C:\\a.png", "..", "a\x00b.png"]
    done, data = compressed(client, picture=[png(x, name) for name in names])
    _, back = client.send("colour", "decompress", file=("x.axl", data))
    told = [picture["name"] for picture in back["pictures"]]
    assert told[:3] == ["a.png", "a-2.png", "a-3.png"] and len(set(told)) == 5
    assert all("/" not in name and ".." not in name for name in told)
    assert [picture["name"] for picture in done["pictures"]] == told


@pytest.mark.parametrize("what", ["compress", "decompress"])
def test_closing_the_connection_cancels(client, what):
    """All tiles are coded together; nobody is to wait until they are."""
    side = 160 if what == "compress" else 80
    x = GENERATOR.integers(256, size=(side, side, 3))
    form = as_form({"picture": png(x, "x.png")})
    if what == "decompress":
        _, done = client.send("slow", "compress", picture=png(x, "x.png"))
        form = as_form({"file": ("x.axl", client.get(done["file"]))})
    with client.events("slow", what, *form) as events:
        job = next(data["job"] for name, data in events if name == "started")
    while client.get("/api/models/slow")["queue"]["running"]:
        time.sleep(0.01)
    assert client.state(job) == "cancelled"


def test_progress_is_told(client):
    x = GENERATOR.integers(256, size=(20, 20, 3))
    with client.events("slow", "compress", *as_form({"picture": png(x, "x.png")})) as events:
        names = [name for name, _ in events]
    assert names[-1] == "done" and "started" in names


def test_a_bomb_of_a_file_is_refused_before_it_is_decoded(client, loaded):
    from axial.codec.codec import Codec
    from axial.codec.container import Entry, Group

    codec, file = Codec(loaded("colour")), io.BytesIO()
    contents = codec.contents()
    codec.write(file, contents, [])
    contents.entries.append(Entry(name="x.png", grid=(100_000, 100_000)))
    contents.groups.append(Group(1, 1, 0))
    bomb = file.getvalue()[:5] + b"x" + contents.to_bytes()
    status, answer = client.send("colour", "decompress", file=("x.axl", bomb))
    assert status in (400, 413), answer


def test_more_pixels_than_are_coded_here_are_refused(client):
    status, answer = client.send("colour", "compress", picture=png(np.zeros((1025, 1024, 3))))
    assert status == 413 and "use `axial compress`" in answer["error"]["message"]
