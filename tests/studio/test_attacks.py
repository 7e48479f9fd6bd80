"""What strangers may try, each answered by its status; the server answers others all the while."""

import time
from collections import Counter

import pytest
from conftest import load_script
from serving import serving
from tiny_studio import models  # noqa: F401

from axial.studio.config import Limits

LIMITS = Limits(header_seconds=1.0, body_seconds=1.0)
script = load_script("benchmarks/studio_attacks.py")
ATTACKS, TOKENS = script.attacks(), list(script.token_attacks())


def target(client, **how):
    return script.Target(
        client.port,
        "colour",
        LIMITS.header_seconds,
        LIMITS.body_seconds,
        LIMITS.upload_bytes,
        **how,
    )


@pytest.fixture(scope="module")
def guarded(models, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    with serving(models / "colour", runs=runs, limits=LIMITS) as (_, client):
        yield client


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_answered_by_its_status(guarded, attack):
    assert attack.run(target(guarded)) in attack.expected
    assert guarded.draw("colour", count=1)[0] == 200


def test_without_the_token_nothing_is_answered(models):
    with serving(models / "colour", token="secret-token") as (_, client):
        to = target(client)
        for attack in TOKENS:
            assert attack.run(to) in attack.expected, attack.name
        status, headers, _ = client.ask(
            "GET", "/?token=secret-token", headers={"Authorization": ""}
        )
        cookie = headers["set-cookie"]
        assert status == 303 and headers["location"] == "/"
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        own = {"Authorization": "", "Cookie": cookie.partition(";")[0]}
        assert client.ask("GET", "/api", headers=own)[0] == 200
        assert client.ask("GET", "/api")[0] == 200  # the client sends it as a bearer token


def test_every_answer_is_strict(guarded):
    for path in ("/", "/api", "/static/missing.js", "/docs", "/openapi.json", "/nothing"):
        _, headers, _ = guarded.ask("GET", path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert (
            headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        )
        assert "access-control-allow-origin" not in headers and "server" not in headers


def test_other_hosts_are_known_where_the_server_is_open_to_them():
    from axial.studio.guard import Guard, is_loopback

    local = Guard(None, host="127.0.0.1", token=None, limits=LIMITS)
    public = Guard(None, host="0.0.0.0", token="t", limits=LIMITS)
    assert all(
        local._is_ours(h) for h in ("localhost", "127.0.0.1:80", "[::1]:7860", "LOCALHOST:1")
    )
    assert not any(local._is_ours(h) for h in ("evil.example", "192.168.0.7", "", "a:b:c", "[::1"))
    assert public._is_ours("192.168.0.7:7860") and not public._is_ours("evil.example")
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.com")


# Starlette leaves the files of a form that is cut short to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_requests_are_answered_and_do_no_harm(guarded):
    found = Counter()
    for status, data, seconds in script.fuzzed(target(guarded), 300):
        found[status] += 1
        assert status < 500 or status == 503, (status, data)
        assert seconds < 60, data
    assert found[400] > 30 and found[200] > 10
    assert guarded.draw("colour", count=1)[0] == 200
    until = time.monotonic() + 60
    while guarded.get("/api/models/colour")["queue"] != {"running": 0, "waiting": 0}:
        assert time.monotonic() < until
