"""A Hugging Face Hub on loopback, as far as huggingface_hub needs one to fetch and to upload.

Repositories are commits of files in memory. `lie` replaces the answer to some requests.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from huggingface_hub import constants


def content_name(data, *, large):
    """What the Hub names a file by: SHA-256 of those it keeps apart, git's SHA-1 of others."""
    if large:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


class Hub:
    """The repositories, what was asked for, and what to lie about."""

    def __init__(self):
        self.refs, self.commits, self.large = {}, {}, {}
        self.seen = []
        self.lie = None
        self.url = ""

    def commit(self, repository, files, ref="main"):
        """Add files to a branch; the new commit."""
        before = self.commits.get(self.refs.setdefault(repository, {}).get(ref), {})
        whole = before | files
        name = hashlib.sha1(f"{repository} {ref} {sorted(whole)} {len(self.commits)}".encode())
        self.commits[name.hexdigest()] = whole
        self.refs[repository][ref] = name.hexdigest()
        return name.hexdigest()


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self, status=200, body=b"", **headers):
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            names = {key.replace("_", "-"): value for key, value in headers.items()}
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(body))} | names).items():
                if value is not None:
                    self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, code, status=404):
            self.answer(status, {"error": code}, X_Error_Code=code, X_Error_Message=code)

        def serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.seen.append((self.command, self.path))
            if hub.lie is not None and hub.lie(self):
                return None
            if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
                return self.resolve(*found.groups())
            return self.api(body)

        do_GET = do_HEAD = do_POST = do_PUT = serve  # noqa: N815

        def resolve(self, repository, revision, file):
            if repository not in hub.refs:
                return self.refuse("RepoNotFound", 401)
            commit = hub.refs[repository].get(revision.replace("%2F", "/"), revision)
            if commit not in hub.commits:
                return self.refuse("RevisionNotFound")
            if file not in hub.commits[commit]:
                return self.refuse("EntryNotFound")
            data = hub.commits[commit][file]
            name = content_name(data, large=file.endswith(".safetensors"))
            return self.answer(200, data, ETag=f'"{name}"', X_Repo_Commit=commit)

        def api(self, body):
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                known = name in hub.refs
                if not known:
                    hub.commit(name, {})
                return self.answer(409 if known else 200, {"url": f"{hub.url}/{name}"})
            if self.path == "/api/validate-yaml":
                return self.answer(200, {"errors": [], "warnings": []})
            if self.path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/large/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                return self.answer(200, {"transfer": "basic", "objects": objects})
            if self.path.startswith("/large/"):
                hub.large[self.path.split("/")[-1]] = body
                return self.answer(200)
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(\w+)/([^/?]+).*", self.path)
            if found is None:
                return self.refuse("NotFound")
            repository, what, revision = found.groups()
            return self.repository(repository, what, revision.replace("%2F", "/"), body)

        def repository(self, repository, what, revision, body):
            if what == "branch":
                hub.refs[repository].setdefault(revision, hub.refs[repository]["main"])
                return self.answer(200, {})
            if what == "preupload":
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith("s") else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for file in json.loads(body)["files"]
                ]
                return self.answer(200, {"files": files})
            if what == "commit":
                return self.committed(repository, revision, body)
            return self.refuse("NotFound")

        def committed(self, repository, revision, body):
            files = {}
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.large[value["oid"]]
            commit = hub.commit(repository, files, revision)
            url = f"{hub.url}/{repository}/commit/{commit}"
            return self.answer(200, {"commitUrl": url, "commitOid": commit, "success": True})

    return Handler


@contextmanager
def running(hub):
    """Serve a hub on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def taken_for_real(cache, monkeypatch):
    """A hub that the library takes for the real one."""
    with running(Hub()) as hub:
        # What HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_DISABLE_XET set when the library is imported.
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub
