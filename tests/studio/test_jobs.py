"""Jobs wait, end when nobody wants them, and fail without taking the server with them."""

import http.client
import time
from contextlib import ExitStack

import numpy as np
import pytest
from serving import array, as_form, as_json, pictures, png, serving
from tiny_studio import MODELS, client, loaded, models, running  # noqa: F401

import axial
from axial.studio.canvas import Canvas
from axial.studio.config import Limits
from axial.studio.jobs import Job, JobStore

SLOW = {"count": 64}


def begun(events):
    """The number of a job, once it is being drawn."""
    return next(data["job"] for name, data in events if name == "lines" or name == "started")


def idle(client, name="slow"):
    """Come back when nothing is done any more; tells how long that took."""
    start = time.monotonic()
    while client.get(f"/api/models/{name}")["queue"] != {"running": 0, "waiting": 0}:
        assert time.monotonic() - start < 120
        time.sleep(0.005)
    return time.monotonic() - start


def line_seconds(client):
    """How long a line of a large batch takes."""
    with client.events("slow", "draw", *as_json(SLOW)) as events:
        done = []
        for name, data in events:
            if name == "lines":
                done.append((time.monotonic(), data["done"]))
            if len(done) == 4:
                break
    (t0, n0), (t1, n1) = done[1], done[3]
    return (t1 - t0) / (n1 - n0)


def test_closing_the_connection_cancels_within_a_line(client):
    line = line_seconds(client)
    idle(client)
    with client.events("slow", "draw", *as_json(SLOW)) as events:
        job = begun(events)
        next(events)
    took = idle(client)
    assert client.state(job) == "cancelled" and took < 20 * line + 5  # of 48 lines


def test_delete_cancels_and_says_so(client):
    with client.events("slow", "draw", *as_json(SLOW)) as events:
        job = begun(events)
        status, _, data = client.ask("DELETE", f"/api/jobs/{job}")
        assert status == 200 and data == {"job": job, "state": "cancelled"}
        assert list(events)[-1] == ("cancelled", {"job": job})
    idle(client)
    status, _, data = client.ask("GET", f"/api/jobs/{job}/0.png")
    assert status == 404 and "cancelled" in data["error"]["message"]


def test_a_plain_request_that_is_given_up_is_cancelled_too(client):
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.request("POST", "/api/models/slow/draw", *as_json(SLOW))
    until = time.monotonic() + 120
    while not client.get("/api/models/slow")["queue"]["running"]:
        assert time.monotonic() < until
    connection.close()
    idle(client)


def test_a_job_that_waits_is_told_its_place_and_can_be_cancelled(client):
    with client.events("slow", "draw", *as_json(SLOW)) as first:
        begun(first)
        settings = [{"temperature": 0.5 + 0.1 * i} for i in range(3)]  # no batch in common
        waiting = [client.events("slow", "draw", *as_json(s)) for s in settings]
        events = [stream.__enter__() for stream in waiting]
        queued = [next(each) for each in events]
        assert [data["place"] for _, data in queued] == [1, 2, 3]
        client.ask("DELETE", f"/api/jobs/{queued[0][1]['job']}")
        assert list(events[0])[-1][0] == "cancelled"
        assert next(events[1])[1]["place"] == 1 and next(events[2])[1]["place"] == 2
        for stream in waiting:
            stream.__exit__(None, None, None)
    idle(client)


def test_beyond_the_queue_requests_are_refused_for_now(models):
    limits = Limits(queue=2)
    with serving(models / "slow", limits=limits) as (_, client):
        with client.events("slow", "draw", *as_json(SLOW)) as first:
            begun(first)
            streams = [client.events("slow", "draw", *as_json({})) for _ in range(2)]
            for stream in streams:
                next(stream.__enter__())
            status, headers, data = client.ask("POST", "/api/models/slow/draw", *as_json({}))
            assert status == 503 and int(headers["retry-after"]) > 0
            assert data["error"]["kind"] == "busy"
            status, _ = client.send("slow", "bits", picture=png(np.zeros((16, 16, 3))))
            assert status == 503
            for stream in streams:
                stream.__exit__(None, None, None)
        idle(client)
        assert client.draw("slow", count=1)[0] == 200


def test_one_of_a_batch_can_leave_and_the_others_stay(client, loaded):
    with ExitStack() as stack:
        with client.events("slow", "draw", *as_json({"count": 8})) as first:
            begun(first)
            stays = stack.enter_context(
                client.events("slow", "draw", *as_json({"count": 2, "seed": 5}))
            )
            leaves = client.events("slow", "draw", *as_json({"count": 2, "seed": 6}))
            leaving = leaves.__enter__()
            next(stays), next(leaving)
        together = next(data for name, data in leaving if name == "started")
        leaves.__exit__(None, None, None)
        client.wait(together["job"], "cancelled")
        name, data = list(stays)[-1]
    assert together["batch"] == 4 and name == "done"
    assert np.array_equal(pictures(data), axial.draw(loaded("slow"), 2, seed=5).numpy())


def test_a_model_that_fails_says_so_and_the_server_lives_on(client):
    picture = png(np.zeros((4, 4, 1)))
    for status, data in (
        client.draw("broken"),
        client.send("broken", "bits", picture=picture),
        client.send("broken", "pixel", picture=picture, place="0,0"),
    ):
        assert status == 500 and data["error"]["kind"] == "failed"
        assert "not finite" in data["error"]["message"]
    with client.events("broken", "draw", *as_json({})) as events:
        name, data = list(events)[-1]
    assert name == "error" and data["error"]["status"] == 500
    assert client.draw("colour")[0] == 200


def test_memory_that_gives_out_is_an_error_of_its_job(models, monkeypatch):
    import axial.studio.drawing as drawing

    def starved(*_, **__):
        raise MemoryError

    with serving(models / "colour") as (_, client):
        with monkeypatch.context() as patch:
            patch.setattr(drawing, "stream", starved)
            status, data = client.draw("colour")
            assert status == 500 and "not enough memory" in data["error"]["message"]
        assert client.draw("colour")[0] == 200


def test_a_checkpoint_that_cannot_be_loaded_is_told_and_the_others_serve(models, tmp_path):
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty", models / "colour") as (_, client):
        found = client.get("/api/models/empty")
        assert found["state"] == "failed" and "no such checkpoint" in found["error"]
        status, data = client.draw("empty")
        assert status == 500 and "could not be loaded" in data["error"]["message"]
        assert client.draw("colour")[0] == 200


def test_old_jobs_are_forgotten_when_there_are_many(models):
    with serving(models / "labels", limits=Limits(kept_jobs=3)) as (_, client):
        jobs = [client.draw("labels", count=1)[1]["job"] for _ in range(6)]
        found = [client.ask("GET", f"/api/jobs/{job}/0.png")[0] for job in jobs]
        assert found == [404, 404, 200, 200, 200, 200]  # one more until the next job comes


def test_running_jobs_are_never_forgotten():
    store = JobStore(Limits(kept_jobs=1, kept_bytes=1))
    jobs = [Job("draw", "m", None) for _ in range(4)]
    for job in jobs:
        store.add(job)
    assert store.all() == jobs
    for job in jobs[:3]:
        job.cancel()
    store.add(last := Job("draw", "m", None))
    assert store.all() == [jobs[3], last]


def test_a_canvas_tells_each_change_once():
    """Whatever the order of changes and looks, what was told is what there is."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        x = np.full((4, 6), -1)
        canvas, told = Canvas(x.copy()), x.copy()
        rows = slice(1, 4)
        for _ in range(8):
            x = x.copy()
            some = generator.random(x.shape) < 0.3
            x[some] = generator.integers(9, size=some.sum())
            canvas.update(x)
            if generator.random() < 0.5:
                while (change := canvas.take(rows)) is not None:
                    assert (change.values >= 0).all()
                    of = slice(1 + change.first, 1 + change.first + change.count)
                    told[of, change.places] = change.values
                assert np.array_equal(told[rows], x[rows])


def test_lines_that_finish_while_nobody_reads_come_once(client):
    with client.events("colour", "draw", *as_json({"count": 1})) as events:
        next(events)
        time.sleep(0.3)
        rest = list(events)
    lines = [data for name, data in rest if name == "lines"]
    places = [array(data["places"], "uint32") for data in lines]
    assert len(np.unique(np.concatenate(places))) == 8 * 8 * 3
    assert sum(map(len, places)) == 8 * 8 * 3


def test_a_stopping_server_ends_its_jobs(models):
    with serving(models / "slow") as (studio, client):
        stream = client.events("slow", "draw", *as_json(SLOW))
        events = stream.__enter__()
        begun(events)
        studio.stop()
        assert list(events)[-1][0] in ("cancelled", "error")
        stream.__exit__(None, None, None)
        status, _, data = client.ask("POST", "/api/models/slow/draw", *as_json({}))
        assert status == 503 and data["error"]["kind"] == "stopping"


@pytest.mark.parametrize("what", ["bits", "complete"])
def test_an_upload_without_a_picture_is_refused(client, what):
    status, data = client.send("colour", what, keep=2)
    assert status == 422 and "picture" in data["error"]["message"]
    status, _, data = client.ask("POST", f"/api/models/colour/{what}", *as_form({}))
    assert status in (400, 422) and data["error"]["kind"] == "bad_request"


def test_there_is_a_model_for_each_name_of_this_page(client):
    names = {model["id"] for model in client.get("/api/models")["models"]}
    assert names == {*MODELS, "broken"}
