"""Each call of docs/studio.md gives what it promises."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from serving import array, as_form, as_json, npy, pictures, png
from tiny_studio import client, loaded, models, running  # noqa: F401

import axial
from axial.studio.drawing import DrawTask
from axial.studio.jobs import Job


def random_picture(axes, channels, values=256, seed=3):
    return np.random.default_rng(seed).integers(values, size=(*axes, channels))


@pytest.mark.parametrize(
    ("name", "asked", "how"),
    [
        ("colour", {"count": 3, "seed": 5}, {"seed": 5}),
        ("colour", {"count": 2, "seed": 2**53 - 1, "temperature": 0.5}, {"temperature": 0.5}),
        ("colour", {"count": 2, "seed": 5, "first": 1}, {"seed": 5, "first": 1}),
        ("labels", {"count": 4, "label": 2}, {"label": torch.tensor([2])}),
        ("labels", {"count": 4, "first": 1}, {"label": torch.tensor([1, 2, 0, 1]), "first": 1}),
        ("clip", {"count": 2, "temperature": 0}, {"temperature": 0.0}),
        ("deep", {}, {}),
    ],
)
def test_what_is_drawn_is_what_draw_draws(client, loaded, name, asked, how):
    status, done = client.draw(name, **asked)
    assert status == 200
    count = asked.get("count", 4)
    expected = axial.draw(loaded(name), count, **({"seed": asked.get("seed", 0)} | how))
    assert np.array_equal(pictures(done), expected.numpy())
    if name == "labels":
        assert done["labels"] == (how["label"].expand(4)).tolist()
    scope = {"axial": axial, "torch": torch}
    again = eval(done["python"], scope)
    assert torch.equal(again, expected)


def test_a_picture_grows_line_by_line(client, loaded):
    seen, order, x = [], [], np.full((2, 16 * 16 * 3), -1)
    with client.events("slow", "draw", *as_json({"count": 2, "seed": 9})) as events:
        for name, data in events:
            order.append(name)
            if name == "lines":
                places = array(data["places"], "uint32")
                rows = slice(data["first"], data["first"] + data["count"])
                x[rows, places] = array(data["values"], "uint8", (data["count"], -1))
                seen.append((data["done"], (x >= 0).mean()))
    assert order[0] in ("queued", "started") and order[-1] == "done"
    assert sorted(seen) == seen and seen[-1] == (48, 1.0) and len(seen) >= 3
    assert {first for first, _ in seen} <= set(range(1, 49)) and data["shape"] == [2, 16, 16, 3]
    wanted = axial.draw(loaded("slow"), 2, seed=9).numpy()
    assert np.array_equal(x.reshape(2, 16, 16, 3), wanted)


def test_jobs_with_the_same_settings_are_drawn_in_one_batch(client, loaded):
    """While the worker is busy they gather; each picture is that of its own seed."""
    asked = [{"count": n, "seed": n, "first": 3 * n} for n in (1, 2, 1)]
    asked += [{"count": 1, "seed": 1, "temperature": 0.5}]
    batches, found = {}, {}
    with client.events("slow", "draw", *as_json({"count": 32})) as blocking:
        next(name for name, _ in blocking if name == "started")
        streams = [client.events("slow", "draw", *as_json(a)) for a in asked]
        events = [stream.__enter__() for stream in streams]
        assert [next(e)[1]["place"] for e in events] == [1, 2, 3, 4]
    for i, (stream, each) in enumerate(zip(streams, events, strict=True)):
        for name, data in each:
            if name == "started":
                batches[i] = data["batch"]
        found[i] = pictures(data)
        stream.__exit__(None, None, None)
    assert batches == {0: 4, 1: 4, 2: 4, 3: 1}
    model = loaded("slow")
    for i, settings in enumerate(asked):
        assert np.array_equal(found[i], axial.draw(model, settings.pop("count"), **settings))


def test_short_jobs_are_done_between_two_lines(client):
    with client.events("slow", "draw", *as_json({"count": 32})) as events:
        job = next(data["job"] for name, data in events if name == "started")
        status, _ = client.send("slow", "bits", picture=png(random_picture((16, 16), 3)))
        assert status == 200 and client.state(job) == "running"


@pytest.mark.parametrize(
    ("name", "fields", "how"),
    [
        ("colour", {"keep": 3}, "forced"),
        ("colour", {"keep_channels": 1}, "exact"),
        ("colour", {"keep": 3, "particles": 4, "count": 2}, "particles"),
        ("clip", {"keep": 2}, "exact"),
        ("stacked", {"keep": 3, "first": 2}, "exact"),
        ("labels", {"keep": 2, "label": 1}, "exact"),
        ("given", {}, "exact"),
    ],
)
def test_a_completion_is_what_complete_draws(client, loaded, name, fields, how):
    model = loaded(name)
    config = model.config
    x = random_picture(config.axes, config.channels, config.values)
    if name == "colour":
        upload = {"picture": png(x)}
    elif name == "clip":
        upload = {"picture": [png(frame) for frame in x[:2]]}
    else:
        upload = {"picture": npy(x)}
    asked = {"count": 3, "seed": 4} | upload | fields
    status, done = client.send(name, "complete", **asked)
    assert status == 200 and done["how"] == how and done["note"]
    kept = array(done["kept"], "uint8", x.shape) == 1
    original = array(done["original"], done["dtype"], x.shape)
    assert np.array_equal(original[kept], x[kept])
    given = torch.from_numpy(np.where(kept, x, -1)).expand(asked["count"], *x.shape)
    settings = {name: fields[name] for name in ("particles", "first") if name in fields}
    if "label" in fields:
        settings["label"] = torch.tensor([fields["label"]])
    expected = axial.complete(model, given, seed=4, **settings)
    assert np.array_equal(pictures(done), expected.numpy())
    again = eval(done["python"], {"axial": axial, "torch": torch, "given": given[:1]})
    assert torch.equal(again, expected)


def test_a_painted_mask_keeps_what_is_white(client, loaded):
    x = random_picture((8, 8), 3)
    mask = np.zeros((8, 8, 1), np.uint8)
    mask[2:5, 3:7] = 255
    status, done = client.send("colour", "complete", picture=png(x), mask=png(mask), count=2)
    assert status == 200 and done["how"] == "forced" and done["command"] is None
    kept = np.repeat(mask > 0, 3, -1)
    assert np.array_equal(array(done["kept"], "uint8", (8, 8, 3)), kept)
    found = pictures(done)
    assert (found[:, kept] == x[kept]).all() and (found[:, ~kept] != x[~kept]).any()
    given = torch.from_numpy(np.where(kept, x, -1)).expand(2, 8, 8, 3)
    assert np.array_equal(found, axial.complete(loaded("colour"), given).numpy())


def test_a_particle_filter_shows_its_pictures_growing(client, loaded):
    """Line after line for whoever looks after each; at the end as events for whoever is late."""
    x = random_picture((8, 8), 3)
    kept = np.zeros_like(x, bool)
    kept[:4] = True
    how = {"count": 2, "seed": 0, "temperature": 1.0, "label": None, "first": 0, "particles": 3}
    task = DrawTask(source="colour", original=x, kept=kept, **how)
    job = Job("complete", "colour", task)
    shown, filled = np.stack(2 * [np.where(kept, x, -1).reshape(-1)]), [0.5]

    def look():
        while (change := job.canvas.take(job.rows)) is not None:
            rows = slice(change.first, change.first + change.count)
            shown[rows, change.places] = change.values
        filled.append((shown >= 0).mean())
        return True

    task.run(loaded("colour"), [job], look)
    assert filled == sorted(set(filled)) and len(filled) == 1 + 3 * 4 and filled[-1] == 1
    look()  # and what the last resampling changed
    assert np.array_equal(shown.reshape(2, 8, 8, 3), np.stack(job.pictures))

    form = as_form({"picture": png(x), "keep": 4, "particles": 3, "count": 2})
    late = np.stack(2 * [np.where(kept, x, -1).reshape(-1)])
    with client.events("colour", "complete", *form) as events:
        for name, data in events:
            if name == "lines":
                rows = slice(data["first"], data["first"] + data["count"])
                late[rows, array(data["places"], "uint32")] = array(
                    data["values"], "uint8", (data["count"], -1)
                )
    assert np.array_equal(late, shown) and np.array_equal(shown.reshape(2, 8, 8, 3), pictures(data))


@pytest.mark.parametrize("name", ["colour", "labels", "given", "rows"])
def test_the_bits_are_those_of_each_element(client, loaded, name):
    model = loaded(name)
    config = model.config
    x = random_picture(config.axes, config.channels, config.values)
    fields = {"label": 2} if config.classes else {}
    status, done = client.send(name, "bits", picture=npy(x), **fields)
    assert status == 200
    label = torch.tensor([2]) if config.classes else None
    each = axial.element_bits(model, torch.from_numpy(x)[None], label)[0].numpy()
    np.testing.assert_allclose(array(done["map"], "float32", x.shape), each, rtol=1e-6)
    assert done["bits"] == pytest.approx(each.sum()) and done["elements"] == config.elements
    assert done["bits_per_dim"] == pytest.approx(each.sum() / config.elements)
    parts = [channel["bits"] for channel in done["channels"]]
    assert sum(parts) == pytest.approx(each.sum()) and done["sizes"][0]["format"] == "this model"


def test_other_formats_are_weighed_on_the_same_pixels(client):
    x = np.zeros((8, 8, 3), np.uint8) + np.arange(8, dtype=np.uint8)[:, None, None]
    _, done = client.send("colour", "bits", picture=png(x))
    sizes = {row["format"]: row["bytes"] for row in done["sizes"]}
    out = io.BytesIO()
    Image.fromarray(x).save(out, "WEBP", lossless=True, quality=100, method=4)
    assert sizes["WebP"] == len(out.getvalue()) and 60 < sizes["PNG"] < 120
    assert sizes["this model"] == -(-done["bits"] // 8)


def test_one_pixel_shows_the_distribution_and_the_true_value(client, loaded):
    model, x = loaded("colour"), random_picture((8, 8), 3)
    status, done = client.send("colour", "pixel", picture=png(x), place="5,2")
    assert status == 200 and [c["channel"] for c in done["channels"]] == [0, 1, 2]
    expected = model(torch.from_numpy(x)[None])[0, 5, 2].softmax(-1).detach()
    for channel in done["channels"]:
        found = array(channel["probabilities"], "float32")
        np.testing.assert_allclose(found, expected[channel["channel"]], atol=1e-6)
        assert channel["value"] == x[5, 2, channel["channel"]]
        assert channel["bits"] == pytest.approx(-np.log2(found[channel["value"]]), rel=1e-4)


def sight(done, channel, stage, axis):
    """The pixels that the layers of a stage look at along an axis."""
    found = set()
    for layer in done["attention"]:
        if (layer["channel"], layer["stage"], layer["axis"]) == (channel, stage, axis):
            positions = array(layer["positions"], "int32")
            weights = array(layer["weights"], "float32", (layer["heads"], -1))
            np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
            found |= {int(p) for p, w in zip(positions, weights.T, strict=True) if w.any()}
    return found


def test_the_attention_of_a_pixel_is_along_its_row_and_column(client):
    _, done = client.send("deep", "pixel", picture=npy(random_picture((5, 4), 2, 300)), place="3,1")
    at = lambda y, x: 4 * y + x  # noqa: E731
    for channel in (0, 1):
        assert sight(done, channel, "inner decoder", 1) == {-1, at(3, 0)}
        assert sight(done, channel, "outer decoder 0", 1) == {at(2, x) for x in range(4)}
        assert sight(done, channel, "outer decoder 0", 0) == {at(y, 1) for y in range(3)}
        assert sight(done, channel, "encoder", 1) == {at(3, x) for x in range(4)}
        assert sight(done, channel, "encoder", 0) == {at(y, 1) for y in range(5)}
    _, first = client.send(
        "deep", "pixel", picture=npy(random_picture((5, 4), 2, 300)), place="0,0"
    )
    assert not sight(first, 0, "outer decoder 0", 0) and sight(first, 0, "inner decoder", 1) == {-1}


def test_stacked_channels_are_told_by_their_pixels(client):
    """Rows stacked channel after channel: above the first row of green lies the last of red."""
    _, done = client.send("rows", "pixel", picture=npy(random_picture((4, 3), 3, 7)), place="0,1")
    assert sight(done, 0, "outer decoder 0", 1) == set()
    assert sight(done, 1, "outer decoder 0", 1) == {9, 10, 11}
    assert sight(done, 1, "outer decoder 0", 0) == {1, 4, 7, 10}


def test_a_model_without_some_attention_still_shows_its_pixel(client):
    _, done = client.send("lstm", "pixel", picture=npy(random_picture((4, 4), 2, 3)), place="2,2")
    assert {layer["stage"] for layer in done["attention"]} == {"encoder", "outer decoder 0"}
    _, done = client.send("given", "pixel", picture=npy(random_picture((4, 4), 2, 3)), place="2,2")
    assert [channel["channel"] for channel in done["channels"]] == [1]


def test_the_files_of_a_job_hold_its_pictures(client):
    _, done = client.draw("colour", count=3, seed=1)
    x = pictures(done)
    for i, picture in enumerate(done["pictures"]):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(client.get(picture["png"])))), x[i])
        assert np.array_equal(np.load(io.BytesIO(client.get(picture["npy"]))), x[i])
    assert np.array_equal(np.load(io.BytesIO(client.get(done["array"]))), x)
    expected = np.asarray(axial.sheet(x.astype(np.int64)))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(client.get(done["sheet"])))), expected)


@pytest.mark.parametrize(("name", "frames"), [("clip", 3), ("stacked", 4)])
def test_clips_move(client, name, frames):
    _, done = client.draw(name, count=1)
    moving = Image.open(io.BytesIO(client.get(done["pictures"][0]["gif"])))
    assert moving.n_frames == frames
    x = pictures(done)[0]
    own = x[1, ..., 0] if name == "clip" else x[..., 1]
    moving.seek(1)
    assert np.array_equal(np.asarray(moving.convert("L")), own)


def test_a_model_says_what_it_is(client, models):
    found = {model["id"]: model for model in client.get("/api/models")["models"]}
    colour, clip, stacked = found["colour"], found["clip"], found["stacked"]
    assert colour["axes"] == [8, 8] and colour["state"] == "ready" and colour["lines"] == 24
    assert colour["keep"] == {
        "unit": "rows", "length": 8, "exact": False, "particles": True, "channels_exact": True
    }  # fmt: skip
    assert found["labels"]["keep"]["exact"] and found["labels"]["classes"] == ["0", "1", "2"]
    assert clip["slices"] == 3 and clip["moving"] and clip["keep"]["unit"] == "frames"
    assert stacked["slices"] == 4 and stacked["stacked"] and stacked["slice_channels"] == 1
    assert found["deep"]["dtype"] == "uint16" and found["given"]["given_channels"] == 1
    assert colour["fingerprint"] == axial.fingerprint(axial.load(models / "colour"))
    assert client.get("/api/models/clip") == clip
    status, data = client.draw("given")
    assert status == 400 and "use complete" in data["error"]["message"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"count": 0}, "count"),
        ({"count": 65}, "count is 65: use 1 to 64"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"label": 3}, "label is 3: use 0 to 2"),
        ({"size": 3}, "size is not a setting of this call; leave it out"),
        ({"count": "many"}, "count is 'many': use a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot': use a number"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(client, asked, words):
    status, data = client.draw("labels", **asked)
    assert status in (400, 422) and data["error"]["kind"] == "bad_request"
    assert data["error"]["status"] == status and words in data["error"]["message"]


def test_a_call_that_there_is_not_is_named(client):
    found = [client.ask("GET", "/api/nothing"), client.ask("POST", "/api/models")]
    found.append(
        client.ask("POST", "/api/models/colour/draw", b"{", {"Content-Type": "application/json"})
    )
    found.append(client.ask("POST", "/api/models/colour/pixel", *as_form({"place": "1,1"})))
    said = [(status, data["error"]["message"]) for status, _, data in found]
    assert said[0] == (404, "there is no /api/nothing")
    assert said[1] == (405, "/api/models does not take POST")
    assert said[2] == (422, "the body is not JSON") and said[3] == (422, "picture is missing")


def test_a_pixel_outside_of_the_picture_is_refused_with_the_places_there_are(client):
    picture = png(random_picture((8, 8), 3))
    for place in ("3,8", "-1,0", "3", "a,b"):
        status, data = client.send("colour", "pixel", picture=picture, place=place)
        line = f"place is {place!r}: give an index for each axis, from 0 to 7, 0 to 7"
        assert (status, data["error"]["message"]) == (400, line)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keep": 9}, "keep is 9"),
        ({"keep": 8}, "everything is kept"),
        ({"keep_channels": 4}, "keep_channels is 4"),
        ({}, "nothing is kept"),
        ({"keep": 2, "particles": 65}, "particles is 65"),
        ({"keep": 2, "particles": 2, "temperature": 0}, "positive temperature"),
        ({"keep": 2, "label": 0}, "no classes"),
    ],
)
def test_a_completion_that_cannot_be_is_refused(client, fields, words):
    picture = png(random_picture((8, 8), 3))
    status, data = client.send("colour", "complete", picture=picture, **fields)
    assert status == 400 and words in data["error"]["message"], data


def test_a_mask_that_no_particle_filter_can_keep_is_refused(client):
    mask = np.zeros((8, 8, 1), np.uint8)
    mask[4:] = 255
    status, data = client.send(
        "colour", "complete", picture=png(random_picture((8, 8), 3)), mask=png(mask), particles=2
    )
    assert status == 400 and "particles need the same leading part" in data["error"]["message"]


def test_the_command_makes_the_same_pictures(client, tmp_path, monkeypatch, models):
    from conftest import run

    monkeypatch.chdir(tmp_path)
    _, done = client.draw("clip", count=2, seed=3, temperature=0.5)
    run(*done["command"].replace("samples.png", "samples.npy").split()[1:])
    assert np.array_equal(np.load("samples.npy"), pictures(done))
    picture = png(random_picture((8, 8), 3))
    (tmp_path / "picture.png").write_bytes(picture[1])
    _, done = client.send("colour", "complete", picture=picture, keep=3, count=2, seed=8)
    run(*done["command"].replace("completed.png", "completed.npy").split()[1:])
    assert np.array_equal(np.load("completed.npy"), pictures(done))


def test_the_page_and_the_list_of_calls_are_there(client):
    status, headers, _ = client.ask("GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    api = client.get("/openapi.json")
    docs = client.get("/docs").decode()
    for path in api["paths"]:
        assert path in docs
    assert "keep_channels" in docs and "temperature" in docs
