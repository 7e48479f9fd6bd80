"""A real studio on a loopback port, and a client that speaks HTTP to it."""

import base64
import http.client
import io
import json
import threading
import time
from contextlib import contextmanager

import numpy as np
from PIL import Image

from axial.studio.app import Studio
from axial.studio.config import StudioConfig
from axial.studio.server import Server, address, bound


class Client:
    """One connection for each request, as browsers that reload would have."""

    def __init__(self, port, host="127.0.0.1", headers=None):
        self.port, self.host, self.headers = port, host, headers or {}

    def open(self, method, path, body=None, headers=None, *, timeout=30):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        connection.request(method, path, body=body, headers=self.headers | (headers or {}))
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None, **how):
        """Status, headers and body of an answer; JSON is decoded."""
        connection, response = self.open(method, path, body, headers, **how)
        data = response.read()
        connection.close()
        if response.headers.get("content-type", "").startswith("application/json"):
            data = json.loads(data)
        return response.status, response.headers, data

    def get(self, path):
        status, _, data = self.ask("GET", path)
        assert status == 200, (status, data)
        return data

    def draw(self, model, **asked):
        status, _, data = self.ask("POST", f"/api/models/{model}/draw", *as_json(asked))
        return status, data

    def send(self, model, what, **fields):
        """A form to one of the calls that take uploads."""
        status, _, data = self.ask("POST", f"/api/models/{model}/{what}", *as_form(fields))
        return status, data

    @contextmanager
    def events(self, model, what, body, headers):
        """The events of a job as they come; leaving closes the connection."""
        accept = headers | {"Accept": "text/event-stream"}
        connection, response = self.open("POST", f"/api/models/{model}/{what}", body, accept)
        assert response.status == 200, response.read()
        try:
            yield parse(response)
        finally:
            response.close()  # both: either keeps the socket open
            connection.close()

    def state(self, job):
        return self.get(f"/api/jobs/{job}")["state"]

    def wait(self, job, *states, seconds=120):
        """Come back when a job is in one of these states."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < until, state
            time.sleep(0.01)


def parse(response):
    """Server-sent events as (name, data)."""
    name = None
    for line in response:
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def as_json(asked):
    return json.dumps(asked), {"Content-Type": "application/json"}


def as_form(fields):
    """multipart/form-data; files are (name, bytes), or lists of them."""
    mark, out = "5f0c-mark", io.BytesIO()
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            filename, data = one if isinstance(one, tuple) else (None, str(one).encode())
            more = f'; filename="{filename}"' if filename is not None else ""
            out.write(
                f'--{mark}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n'.encode()
            )
            out.write(b"\r\n" + data + b"\r\n")
    out.write(f"--{mark}--\r\n".encode())
    return out.getvalue(), {"Content-Type": f"multipart/form-data; boundary={mark}"}


def png(x, name="picture.png"):
    """Pixels (h, w, c) as an upload."""
    out = io.BytesIO()
    x = np.asarray(x, np.uint8)
    Image.fromarray(x if x.shape[-1] == 3 else x[..., 0]).save(out, "PNG")
    return name, out.getvalue()


def npy(x, name="example.npy"):
    out = io.BytesIO()
    np.save(out, x)
    return name, out.getvalue()


def array(text, dtype, shape=(-1,)):
    """What travelled as base64."""
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype).newbyteorder("<")).reshape(shape)


def pictures(done):
    """The pictures of a drawing that is done."""
    return array(done["values"], done["dtype"], done["shape"])


@contextmanager
def serving(*models, ready=True, **settings):
    """A studio of some models in threads of this process; yields it and a client."""
    settings = {"host": "127.0.0.1", "port": 0, "device": "cpu"} | settings
    config = StudioConfig(models=tuple(map(str, models)), **settings)
    with bound(config) as listening:
        studio = Studio(config)
        server = Server(studio, address(config, listening), browser=False)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        client = Client(listening.getsockname()[1])
        if config.token:
            client.headers["Authorization"] = f"Bearer {config.token}"
        try:
            while not server.started:
                time.sleep(0.01)
            while ready and any(
                m["state"] == "loading" for m in client.get("/api/models")["models"]
            ):
                time.sleep(0.02)
            yield studio, client
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()
            for worker in studio.workers.values():
                worker.join(10)
