# SPDX-License-Identifier: Apache-2.0
"""What the Hub on the loopback answers to those who write: repositories, commits, LFS uploads."""

import base64
import hashlib
import json
from typing import Any

from local_hub import LARGE, LARGE_BYTES, Blob, Handler, Model, Refusal, is_large, route

_ATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE.split("|")
)


@route("POST", "/api/repos/create")
def create(self: Handler) -> None:
    wanted = self.json()
    if self.user is None:
        raise Refusal(401, "Invalid username or password.")
    model_id = f"{wanted.get('organization') or self.user}/{wanted['name']}"
    if not self.hub.owns(model_id, self.user):
        raise Refusal(403, "You don't have the rights to create a model under this namespace")
    # `private` is what clients before 1.33 say.
    private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    model = Model(model_id, private=private)
    tree = {".gitattributes": Blob(_ATTRIBUTES.encode(), False)}
    model.branches["main"] = model.add(None, "initial commit", tree).oid
    made = self.hub.models.setdefault(model_id, model) is model
    answer = {"url": f"{self.hub.endpoint}/{model_id}", "name": model_id}
    self.reply(200 if made else 409, answer if made else {"error": "It is there already", **answer})


@route("DELETE", "/api/repos/delete")
def delete(self: Handler) -> None:
    wanted = self.json()
    model_id = f"{wanted.get('organization') or self.user}/{wanted['name']}"
    self.hub.find(model_id, self.user, write=True)
    del self.hub.models[model_id]
    self.reply(200, {})


@route("PUT", "/api/models/{model}/settings")
def settings(self: Handler, model_id: str) -> None:
    model, wanted = self.hub.find(model_id, self.user, write=True), self.json()
    if "visibility" in wanted or "private" in wanted:
        model.private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    if "gated" in wanted:
        model.gated = bool(wanted["gated"])
    self.reply(200, {})


@route("POST", "/api/validate-yaml")
def validate_yaml(self: Handler) -> None:
    import yaml

    content = self.json()["content"].split("---\n")
    try:
        card = yaml.safe_load(content[1]) if len(content) > 2 and not content[0] else None
    except yaml.YAMLError as error:
        self.reply(400, {"errors": [{"message": str(error)}], "warnings": []})
        return
    empty = [] if isinstance(card, dict) else [{"message": "empty or missing yaml metadata"}]
    self.reply(200, {"errors": [], "warnings": empty})


@route("POST", "/api/models/{model}/preupload/{revision}")
def preupload(self: Handler, model_id: str, revision: str) -> None:
    wanted = self.json()
    model = self.hub.find(model_id, self.user, write="create_pr" not in self.query)
    tree = model.tree(revision)
    self.reply(200, {"files": [_mode(file, tree.get(file["path"])) for file in wanted["files"]]})


def _mode(file: dict[str, Any], old: Blob | None) -> dict[str, Any]:
    large = is_large(file["path"], file["size"], base64.b64decode(file["sample"]))
    known = {"oid": old.sha256 if old.large else old.oid} if old else {}
    mode = "lfs" if large else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, **known}


@route("POST", "/api/models/{model}/commit/{revision}")
def commit(self: Handler, model_id: str, revision: str) -> None:
    lines = [json.loads(line) for line in self.body().splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    proposed = "create_pr" in self.query
    model = self.hub.find(model_id, self.user, write=not proposed)
    if self.user is None:
        raise Refusal(401, "Invalid username or password.")
    with self.hub.lock:
        base = model.resolve(revision)
        wanted = header.get("parentCommit")
        if wanted and wanted != base:
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(model.tree(base))
        for line in lines:
            _apply(self, tree, line["key"], line["value"])
        made = model.add(base, header.get("summary", ""), tree)
        url = f"{self.hub.endpoint}/{model_id}"
        answer = {"commitOid": made.oid, "commitUrl": f"{url}/commit/{made.oid}"}
        if proposed:
            model.pulls[len(model.pulls) + 1] = made.oid
            answer["pullRequestUrl"] = f"{url}/discussions/{len(model.pulls)}"
        elif revision in model.branches:
            model.branches[revision] = made.oid
        else:
            raise Refusal(400, f"cannot commit on {revision}")
    self.reply(200, answer)


def _apply(self: Handler, tree: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
    if key == "file":
        data = base64.b64decode(value["content"])
        if len(data) > LARGE_BYTES:
            raise Refusal(413, f"{value['path']} belongs to LFS")
        tree[value["path"]] = Blob(data, False)
    elif key == "lfsFile":
        if value["oid"] not in self.hub.large:
            raise Refusal(400, f"LFS pointer to a file that does not exist: {value['path']}")
        tree[value["path"]] = Blob(self.hub.large[value["oid"]], True)
    elif key == "deletedFile":
        if tree.pop(value["path"], None) is None:
            raise Refusal(404, f"There is no file {value['path']}", "EntryNotFound")
    elif key == "deletedFolder":
        for path in [path for path in tree if path.startswith(value["path"].rstrip("/") + "/")]:
            del tree[path]


@route("POST", r"/{model}\.git/info/lfs/objects/batch")
def lfs_batch(self: Handler, model_id: str) -> None:
    wanted = self.json()
    self.hub.find(model_id, self.user, write="ref" in wanted)  # a pull request names no ref
    parts = "multipart" in wanted["transfers"] and any(
        file["size"] > self.hub.part_bytes for file in wanted["objects"]
    )
    objects = [_upload(self, model_id, file, parts) for file in wanted["objects"]]
    answer = {"transfer": "multipart" if parts else "basic", "objects": objects}
    self.reply(200, answer, {"Content-Type": "application/vnd.git-lfs+json"})


def _upload(self: Handler, model_id: str, file: dict[str, Any], parts: bool) -> dict[str, Any]:
    known = {"oid": file["oid"], "size": file["size"]}
    if file["oid"] in self.hub.large:
        return known
    place = f"{self.hub.content}/_content/{file['oid']}"
    upload: dict[str, Any] = {"href": place}
    if parts and file["size"] > self.hub.part_bytes:
        numbers = range(1, -(-file["size"] // self.hub.part_bytes) + 1)
        header = {f"{number:05d}": f"{place}?part={number}" for number in numbers}
        header["chunk_size"] = str(self.hub.part_bytes)
        upload = {"href": f"{self.hub.endpoint}/_complete/{file['oid']}", "header": header}
    verify = {"href": f"{self.hub.endpoint}/{model_id}.git/info/lfs/objects/verify"}
    return {**known, "actions": {"upload": upload, "verify": verify}}


@route("PUT", "/_content/(?P<sha256>[0-9a-f]{64})")
def put(self: Handler, sha256: str) -> None:
    data = self.body()
    if "part" in self.query:
        self.hub.parts[sha256, int(self.query["part"][0])] = data
    else:
        _keep(self, sha256, data)
    self.reply(200, b"", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})


@route("POST", "/_complete/(?P<sha256>[0-9a-f]{64})")
def complete(self: Handler, sha256: str) -> None:
    numbers = [part["partNumber"] for part in self.json()["parts"]]
    if sha256 in self.hub.large:  # said twice, as the first answer was lost
        numbers = []
    elif missing := [number for number in numbers if (sha256, number) not in self.hub.parts]:
        raise Refusal(400, f"parts {missing} are missing")
    else:
        _keep(self, sha256, b"".join(self.hub.parts[sha256, number] for number in sorted(numbers)))
    for number in numbers:
        del self.hub.parts[sha256, number]
    self.reply(200, {"success": True})


def _keep(self: Handler, sha256: str, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Refusal(400, "the content does not match its digest")
    self.hub.large[sha256] = data


@route("POST", r"/{model}\.git/info/lfs/objects/verify")
def lfs_verify(self: Handler, model_id: str) -> None:
    file = self.json()
    if len(self.hub.large.get(file["oid"], b"")) != file["size"]:
        raise Refusal(404, "the object is missing")
    self.reply(200, {"message": "ok"})
