# SPDX-License-Identifier: Apache-2.0
"""A small Hugging Face-compatible Hub on the loopback, for the genuine `huggingface_hub` client.

Serves what reading needs: model info, tree, refs, whoami, resolve with Range, and large files by a
redirect to a second origin, as the Hub's content network; private and gated models, tokens, and
faults on demand. Models are written in the process, with `commit`. Every request is in `log`.
"""

import hashlib
import json
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".ckpt", ".onnx", ".gguf", ".model")
LARGE_BYTES = 10_000_000


class Refusal(Exception):  # noqa: N818 -- an HTTP answer, not a failure of the server
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        oid = f"oid sha256:{self.sha256}\nsize {len(self.data)}\n"
        return b"version https://git-lfs.github.com/spec/v1\n" + oid.encode()

    @property
    def oid(self) -> str:
        stored = self.pointer if self.large else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def lfs(self) -> dict[str, Any]:
        size = {"size": len(self.data), "pointerSize": len(self.pointer)}
        return {"lfs": {"sha256": self.sha256, "oid": self.sha256, **size}} if self.large else {}


@dataclass
class Model:
    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def resolve(self, revision: str) -> str:
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit


@dataclass
class Fault:
    """The next `times` matching requests are answered with `status`, or with other `data`."""

    method: str
    path: str
    status: int | None = None
    data: bytes | None = None
    times: int = 1


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    status: int
    token: str | None


class LocalHub:
    """`hub = LocalHub().start()`, then HF_ENDPOINT=hub.endpoint."""

    def __init__(self, users: Mapping[str, str] | None = None) -> None:
        self.users = dict(users or {"hf_alice": "alice", "hf_bob": "bob"})  # name by token
        self.models: dict[str, Model] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.lock = threading.RLock()
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self.content = f"http://localhost:{port}"  # another origin: no token may arrive there

    def start(self) -> "LocalHub":
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def clear(self) -> None:
        self.models.clear()
        self.faults.clear()
        self.log.clear()

    def commit(
        self,
        model_id: str,
        files: Mapping[str, bytes | None],
        *,
        branch: str = "main",
        small: tuple[str, ...] = (),
    ) -> str:
        """Add files to a branch, or remove those that are None; give the commit.

        A file named in `small` is kept as git keeps a text, whatever its name.
        """
        with self.lock:
            model = self.models.setdefault(model_id, Model(model_id))
            tree = dict(model.commits.get(model.branches.get(branch, ""), {}))
            for path, data in files.items():
                tree.pop(path, None)
                if data is not None:
                    large = path.endswith(LARGE) or len(data) >= LARGE_BYTES
                    tree[path] = Blob(data, large and path not in small)
            named = json.dumps([len(model.commits), sorted((p, b.oid) for p, b in tree.items())])
            commit = hashlib.sha1(named.encode()).hexdigest()
            model.commits[commit] = tree
            model.branches[branch] = commit
        return commit

    def fault(self, method: str, path: str, **answer: Any) -> None:
        self.faults.append(Fault(method, path, **answer))

    def requests(self, part: str, method: str = "GET") -> list[Request]:
        return [r for r in self.log if r.method == method and part in r.path]

    def find(self, model_id: str, user: str | None) -> Model:
        model = self.models.get(model_id)
        if model is None or (model.private and model.id.split("/")[0] != user):
            status = 404 if user else 401
            raise Refusal(status, "Repository not found", "RepoNotFound")
        return model

    def blob(self, sha256: str) -> bytes:
        for model in self.models.values():
            for tree in model.commits.values():
                for blob in tree.values():
                    if blob.large and blob.sha256 == sha256:
                        return blob.data
        raise Refusal(403, "AccessDenied")


ROUTES: list[tuple[str, re.Pattern[str], Callable[..., None]]] = []


def route(methods: str, pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    pattern = pattern.replace("{model}", r"(?P<model_id>[\w.\-]+/[\w.\-]+)")
    pattern = pattern.replace("{revision}", r"(?P<revision>[^/]+)")

    def add(function: Callable[..., None]) -> Callable[..., None]:
        ROUTES.extend((method, re.compile(pattern), function) for method in methods.split())
        return function

    return add


class Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body leave together: no wait for a delayed acknowledgement
    disable_nagle_algorithm = True
    user: str | None = None
    fault: Fault | None = None

    def log_message(self, *_: Any) -> None:
        """Print nothing; `hub.log` has every request."""

    def serve(self) -> None:
        self.url = urlsplit(self.path)
        self.query = parse_qs(self.url.query)
        self.fault = self.take_fault()
        try:
            self.dispatch()
        except Refusal as refusal:
            code = {"X-Error-Code": refusal.code} if refusal.code else {}
            headers = {"X-Error-Message": refusal.message, **code}
            self.reply(refusal.status, {"error": refusal.message}, headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            traceback.print_exc()  # a fault of this server: show it
            self.reply(500, {"error": repr(error)})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve  # noqa: N815 -- http.server's names

    def dispatch(self) -> None:
        if self.fault and self.fault.status:
            raise Refusal(self.fault.status, "injected fault")
        self.user = self.authenticate()
        for method, pattern, function in ROUTES:
            if method == self.command and (match := pattern.fullmatch(self.url.path)):
                function(self, **{k: unquote(v) for k, v in match.groupdict("").items()})
                return
        raise Refusal(404, f"no route: {self.command} {self.url.path}")

    def take_fault(self) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                matches = fault.method == self.command and re.search(fault.path, self.path)
                if fault.times > 0 and matches:
                    fault.times -= 1
                    return fault
        return None

    @property
    def token(self) -> str | None:
        header = self.headers.get("Authorization", "")
        return header.removeprefix("Bearer ") if header.startswith("Bearer ") else None

    def authenticate(self) -> str | None:
        if self.token is not None and self.token not in self.hub.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.users.get(self.token or "")

    def reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        length = {"Content-Length": str(len(data)), "Content-Type": "application/json"}
        for key, value in {**length, **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.hub.log.append(Request(self.command, self.path, status, self.token))
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_content(self, data: bytes, headers: Mapping[str, str]) -> None:
        if self.fault and self.fault.data is not None:
            data = self.fault.data
        start, stop, status, place = 0, len(data), 200, {}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(match[1]), min(int(match[2] or len(data)) + 1, len(data))
            if start >= len(data):
                raise Refusal(416, "range beyond the file")
            status, place = 206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        kind = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        self.reply(status, data[start:stop], {**headers, **kind, **place})

    @route("GET", "/api/whoami-v2")
    def whoami(self) -> None:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        access = {"accessToken": {"displayName": "test", "role": "write"}}
        self.reply(200, {"type": "user", "name": self.user, "orgs": [], "auth": access})

    @route("GET", "/api/models/{model}(?:/revision/{revision})?")
    def info(self, model_id: str, revision: str) -> None:
        model = self.hub.find(model_id, self.user)
        commit = model.resolve(revision or "main")
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in model.commits[commit]]
        if "blobs" in self.query:
            for sibling in siblings:
                blob = model.commits[commit][sibling["rfilename"]]
                sibling.update(size=len(blob.data), blobId=blob.oid, **blob.lfs)
        state = {"private": model.private, "gated": "manual" if model.gated else False}
        names = {"_id": "0" * 24, "id": model.id, "modelId": model.id, "tags": []}
        self.reply(200, {**names, **state, "sha": commit, "siblings": siblings})

    @route("GET", "/api/models/{model}/tree/{revision}")
    def tree(self, model_id: str, revision: str) -> None:
        model = self.hub.find(model_id, self.user)
        files = model.commits[model.resolve(revision)].items()
        entry = {"type": "file"}
        self.reply(
            200,
            [{**entry, "path": p, "oid": b.oid, "size": len(b.data), **b.lfs} for p, b in files],
        )

    @route("GET", "/api/models/{model}/refs")
    def refs(self, model_id: str) -> None:
        branches = self.hub.find(model_id, self.user).branches.items()
        named = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in branches]
        self.reply(200, {"branches": named, "tags": [], "converts": []})

    @route("GET HEAD", "/{model}/resolve/{revision}/(?P<path>.+)")
    def resolve(self, model_id: str, revision: str, path: str) -> None:
        model = self.hub.find(model_id, self.user)
        commit = model.resolve(revision)
        if model.gated and model.id.split("/")[0] != self.user:
            raise Refusal(403 if self.user else 401, f"Access to {model.id} is gated", "GatedRepo")
        headers = {"X-Repo-Commit": commit}
        blob = model.commits[commit].get(path)
        if blob is None:
            headers |= {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            self.reply(404, {"error": "Entry not found"}, headers)
        elif blob.large:
            headers |= {"ETag": f'"{blob.oid}"', "X-Linked-ETag": f'"{blob.sha256}"'}
            headers |= {"X-Linked-Size": str(len(blob.data))}
            headers |= {"Location": f"{self.hub.content}/_content/{blob.sha256}"}
            self.reply(302, b"", headers)
        else:
            self.send_content(blob.data, {**headers, "ETag": f'"{blob.oid}"'})

    @route("GET HEAD", "/_content/(?P<sha256>[0-9a-f]{64})")
    def content(self, sha256: str) -> None:
        self.send_content(self.hub.blob(sha256), {"ETag": f'"{sha256}"'})
