# SPDX-License-Identifier: Apache-2.0
"""A small Hugging Face-compatible Hub on the loopback, for the genuine `huggingface_hub` client.

Reading: model info, tree, paths-info, refs, commits, whoami, resolve with Range and ETag, and large
files by a redirect to a second origin, as the Hub's content network. Writing, in `hub_writing`:
repositories, settings, commits with their parent, pull requests, LFS in one piece and in parts.
Private and gated models, tokens, and faults on demand. Every request is in `log`.
"""

import hashlib
import json
import re
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

#: Suffixes that a new repository's .gitattributes gives to LFS, and `LocalHub.commit` does.
LARGE = (
    "7z|arrow|bin|bz2|ckpt|gguf|gz|h5|model|msgpack|npy|npz|onnx|parquet|pb|pickle|pkl|pt|pth|safetensors|tar|tflite|"
    "tgz|wasm|xz|zip|zst"
)
LARGE_BYTES = 10_000_000
_BLOCK = 1 << 20


class Refusal(Exception):  # noqa: N818 -- an HTTP answer, not a failure of the server
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    data: bytes
    large: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        oid = f"oid sha256:{self.sha256}\nsize {len(self.data)}\n"
        return b"version https://git-lfs.github.com/spec/v1\n" + oid.encode()

    @cached_property
    def oid(self) -> str:
        stored = self.pointer if self.large else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def lfs(self) -> dict[str, Any]:
        size = {"size": len(self.data), "pointerSize": len(self.pointer)}
        return {"lfs": {"sha256": self.sha256, "oid": self.sha256, **size}} if self.large else {}


Tree = Mapping[str, Blob]


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    tree: Tree


@dataclass
class Model:
    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, str] = field(default_factory=dict)  # number -> head of the pull request

    def resolve(self, revision: str) -> str:
        commit = self.branches.get(revision, revision)
        if pull := re.fullmatch(r"refs/pr/(\d+)", revision):
            commit = self.pulls.get(int(pull[1]), "")
        if commit not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def tree(self, revision: str = "main") -> Tree:
        return self.commits[self.resolve(revision)].tree

    def add(self, parent: str | None, title: str, tree: Tree) -> Commit:
        oid = secrets.token_hex(20)
        self.commits[oid] = Commit(oid, parent, title, tree)
        return self.commits[oid]

    def history(self, revision: str = "main") -> Iterator[Commit]:
        oid: str | None = self.resolve(revision)
        while oid:
            yield self.commits[oid]
            oid = self.commits[oid].parent


@dataclass
class Fault:
    """What happens to the next `times` requests that match, after `skip` that may pass.

    Args:
        method: Of the request, or several: "GET|HEAD".
        path: A regular expression to search for in its path and query.
        status: Answered instead of what was asked for.
        headers: Of that answer.
        served: The request is served first, and then answered with `status`, or not at all.
        data: Sent in place of a file's content.
        whole: A file is sent from its beginning, as by a server that does not know Range.
        cut: The connection ends after so many bytes of the answer's body.
        read: The connection ends after so many bytes of the request's body.
        call: Called when it happens.
    """

    method: str
    path: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    served: bool = False
    data: bytes | None = None
    whole: bool = False
    cut: int | None = None
    read: int | None = None
    call: Callable[[], object] | None = None
    times: int = 1
    skip: int = 0


@dataclass(frozen=True)
class Request:
    """A request and its answer.

    Args:
        method: GET, HEAD, …
        path: With the query.
        status: Of the answer; 0 if there was none.
        token: Of the Authorization header.
        received: Bytes of the request's body.
        sent: Bytes of the answer's body.
        range: The Range header.
    """

    method: str
    path: str
    status: int
    token: str | None
    received: int
    sent: int
    range: str | None


class LocalHub:
    """`hub = LocalHub().start()`, then HF_ENDPOINT=hub.endpoint.

    Args:
        users: Name by token.
        orgs: User by organization.
    """

    def __init__(
        self, users: Mapping[str, str] | None = None, orgs: Mapping[str, str] | None = None
    ) -> None:
        self.users = dict(users or {"hf_alice": "alice", "hf_bob": "bob"})
        self.orgs = dict(orgs or {"acme": "alice"})
        self.models: dict[str, Model] = {}
        self.large: dict[str, bytes] = {}  # content by SHA-256
        self.parts: dict[tuple[str, int], bytes] = {}
        self.part_bytes = 16 << 20  # uploads beyond are in parts
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.lock = threading.RLock()
        handler = type("BoundHandler", (Handler,), {"hub": self})
        server = type("Server", (ThreadingHTTPServer,), {"request_queue_size": 128})
        self._server = server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self.content = f"http://localhost:{port}"  # another origin: no token may arrive there

    def start(self) -> "LocalHub":
        import hub_writing  # noqa: F401 -- adds its routes

        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def clear(self) -> None:
        for known in (self.models, self.large, self.parts, self.faults, self.log):
            known.clear()  # type: ignore[attr-defined]

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
            parent = model.branches.get(branch)
            tree = dict(model.tree(parent) if parent else {})
            for path, data in files.items():
                tree.pop(path, None)
                if data is not None:
                    large = is_large(path, len(data)) and path not in small
                    tree[path] = self.keep(data, large)
            commit = model.add(parent, "committed by the test", tree).oid
            model.branches[branch] = commit
        return commit

    def keep(self, data: bytes, large: bool) -> Blob:
        """Make a file, of which the content is found by its digest if it is a large one."""
        blob = Blob(data, large)
        if large:
            self.large[blob.sha256] = data
        return blob

    def fault(self, method: str, path: str, **what: Any) -> None:
        """Make requests fail; see `Fault`."""
        self.faults.append(Fault(method, path, **what))

    def requests(self, part: str, method: str = "GET") -> list[Request]:
        return [r for r in self.log if r.method == method and part in r.path]

    def files(self, model_id: str, revision: str = "main") -> dict[str, bytes]:
        """Give every file of a revision, but .gitattributes."""
        tree = self.models[model_id].tree(revision)
        return {path: blob.data for path, blob in tree.items() if path != ".gitattributes"}

    def owns(self, model_id: str, user: str | None) -> bool:
        owner = model_id.split("/")[0]
        return user is not None and user in (owner, self.orgs.get(owner))

    def find(self, model_id: str, user: str | None, *, write: bool = False) -> Model:
        model = self.models.get(model_id)
        mine = self.owns(model_id, user)
        if model is None or (model.private and not mine):
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and not mine:
            raise Refusal(403 if user else 401, "You don't have the required permissions")
        return model


def is_large(path: str, size: int, sample: bytes = b"") -> bool:
    """Return whether a file is kept by LFS; `sample` is how it begins."""
    named = re.search(rf"\.({LARGE})$", path) is not None
    return named or size >= LARGE_BYTES or b"\0" in sample


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
    content_read: bytes | None = None

    def log_message(self, *_: Any) -> None:
        """Print nothing; `hub.log` has every request."""

    def serve(self) -> None:
        self.url = urlsplit(self.path)
        self.query = parse_qs(self.url.query, keep_blank_values=True)
        self.received, self.content_read = 0, None
        self.fault = self.take_fault()
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            traceback.print_exc()  # a fault of this server: show it
            self.reply(500, {"error": repr(error)})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = serve  # noqa: N815 -- http.server's names

    def answer(self) -> None:
        try:
            self.dispatch()
        except Refusal as refusal:
            self.body()  # what is left of it would be taken for the next request
            code = {"X-Error-Code": refusal.code} if refusal.code else {}
            headers = {"X-Error-Message": refusal.message, **code}
            if self.fault:
                headers |= self.fault.headers
            self.reply(refusal.status, {"error": refusal.message}, headers)

    def dispatch(self) -> None:
        if self.fault and self.fault.read is not None:
            self.received = len(self.rfile.read(min(self.fault.read, self.length)))
            self.strike()
            self.hang_up()
            return
        if self.fault and not self.fault.served:
            self.strike()
        if self.fault and self.fault.status and not self.fault.served:
            raise Refusal(self.fault.status, "injected fault")
        self.user = self.authenticate()
        for method, pattern, function in ROUTES:
            if method == self.command and (match := pattern.fullmatch(self.url.path)):
                function(self, **{k: unquote(v) for k, v in match.groupdict("").items()})
                return
        raise Refusal(404, f"no route: {self.command} {self.url.path}")

    def strike(self) -> None:
        if self.fault and self.fault.call:
            self.fault.call()

    def take_fault(self) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                matches = re.fullmatch(fault.method, self.command) and re.search(
                    fault.path, self.path
                )
                if matches and fault.skip > 0:
                    fault.skip -= 1
                elif matches and fault.times > 0:
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

    @property
    def length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def body(self) -> bytes:
        """Read the request's body; the second time, give it again."""
        if self.content_read is None:
            self.content_read = self.rfile.read(self.length)
            self.received = len(self.content_read)
            if self.received < self.length:
                self.hang_up()  # the client has left
                raise ConnectionResetError
        return self.content_read

    def json(self) -> Any:
        return json.loads(self.body() or b"{}")

    def note(self, status: int, sent: int) -> None:
        output = (self.command, self.path, status, self.token)
        self.hub.log.append(Request(*output, self.received, sent, self.headers.get("Range")))

    def hang_up(self) -> None:
        self.note(0, 0)
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        if self.fault and self.fault.served:
            self.strike()
            if self.fault.status is None:
                self.hang_up()
                return
            status, body = self.fault.status, {"error": "injected fault"}
        data = body if isinstance(body, bytes | memoryview) else json.dumps(body).encode()
        self.send_response(status)
        length = {"Content-Length": str(len(data)), "Content-Type": "application/json"}
        for key, value in {**length, **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        cut = len(data) if self.fault is None or self.fault.cut is None else self.fault.cut
        sent = 0 if self.command == "HEAD" else min(cut, len(data))
        self.note(status, sent)
        for start in range(0, sent, _BLOCK):
            self.wfile.write(data[start : min(start + _BLOCK, sent)])
        if cut < len(data):
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def send_content(self, data: bytes, headers: Mapping[str, str]) -> None:
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self.reply(304, b"", headers)
            return
        fault = self.fault or Fault("", "")
        content = memoryview(data if fault.data is None else fault.data)
        start, stop, status, place = 0, len(content), 200, {}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and not fault.whole:
            start, stop = int(wanted[1]), min(int(wanted[2] or stop) + 1, stop)
            if start >= len(content):
                raise Refusal(416, "range beyond the file")
            status, place = 206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        kind = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        self.reply(status, content[start:stop], {**headers, **kind, **place})

    @route("GET", "/api/whoami-v2")
    def whoami(self) -> None:
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        orgs = [{"name": org} for org, owner in self.hub.orgs.items() if owner == self.user]
        access = {"accessToken": {"displayName": "test", "role": "write"}}
        self.reply(200, {"type": "user", "name": self.user, "orgs": orgs, "auth": access})

    @route("GET", "/api/models/{model}(?:/revision/{revision})?")
    def info(self, model_id: str, revision: str) -> None:
        model = self.hub.find(model_id, self.user)
        commit = model.resolve(revision or "main")
        tree = model.tree(commit)
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in tree]
        if "blobs" in self.query:
            for sibling in siblings:
                blob = tree[sibling["rfilename"]]
                sibling.update(size=len(blob.data), blobId=blob.oid, **blob.lfs)
        state = {"private": model.private, "gated": "manual" if model.gated else False}
        names = {"_id": "0" * 24, "id": model.id, "modelId": model.id, "tags": []}
        self.reply(200, {**names, **state, "sha": commit, "siblings": siblings})

    def describe(self, files: Mapping[str, Blob]) -> list[dict[str, Any]]:
        entry = {"type": "file"}
        return [
            {**entry, "path": p, "oid": b.oid, "size": len(b.data), **b.lfs}
            for p, b in sorted(files.items())
        ]

    @route("GET", "/api/models/{model}/tree/{revision}(?:/(?P<folder>.+))?")
    def tree(self, model_id: str, revision: str, folder: str) -> None:
        tree = self.hub.find(model_id, self.user).tree(revision)
        inside = f"{folder}/" if folder else ""
        found = {path: blob for path, blob in tree.items() if path.startswith(inside)}
        if folder and not found:
            raise Refusal(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
        self.reply(200, self.describe(found))  # always recursive

    @route("POST", "/api/models/{model}/paths-info/{revision}")
    def paths_info(self, model_id: str, revision: str) -> None:
        tree = self.hub.find(model_id, self.user).tree(revision)
        paths = parse_qs(self.body().decode()).get("paths", [])
        self.reply(200, self.describe({path: tree[path] for path in paths if path in tree}))

    @route("GET", "/api/models/{model}/refs")
    def refs(self, model_id: str) -> None:
        branches = self.hub.find(model_id, self.user).branches.items()
        named = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in branches]
        self.reply(200, {"branches": named, "tags": [], "converts": []})

    @route("GET", "/api/models/{model}/commits/{revision}")
    def commits(self, model_id: str, revision: str) -> None:
        when = {"date": "2026-01-01T00:00:00.000Z", "message": "", "authors": []}
        history = self.hub.find(model_id, self.user).history(revision)
        self.reply(200, [{"id": commit.oid, "title": commit.title, **when} for commit in history])

    @route("GET HEAD", "/{model}/resolve/{revision}/(?P<path>.+)")
    def resolve(self, model_id: str, revision: str, path: str) -> None:
        model = self.hub.find(model_id, self.user)
        commit = model.resolve(revision)
        if model.gated and not self.hub.owns(model.id, self.user):
            raise Refusal(403 if self.user else 401, f"Access to {model.id} is gated", "GatedRepo")
        headers = {"X-Repo-Commit": commit}
        blob = model.tree(commit).get(path)
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
        if sha256 not in self.hub.large:
            raise Refusal(403, "AccessDenied")
        self.send_content(self.hub.large[sha256], {"ETag": f'"{sha256}"'})
