# SPDX-License-Identifier: Apache-2.0
"""Publishing a package in a test, and what a remote then has."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local_hub import LocalHub

from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import decode
from qeff_zoo.hub.publish import publish
from qeff_zoo.hub.publish.plan import plan_publication
from qeff_zoo.package import Package

SOURCE, REPO = "org/tiny", "acme/zoo"
#: Makes a package; each `ctx_len` is another one of the same weights.
Make = Callable[..., Package]


def go(package: Package, where: str = REPO, **options: Any) -> str:
    return publish(plan_publication(package, where, **options))


def writes(hub: LocalHub) -> list[str]:
    return [
        f"{request.method} {request.path}"
        for request in hub.log
        if request.method in ("POST", "PUT", "DELETE")
    ]


def uploaded(hub: LocalHub) -> int:
    """Count the bytes of large files that were sent, in vain too."""
    return sum(request.received for request in hub.log if request.method == "PUT")


def titles(hub: LocalHub, repo: str = REPO) -> list[str]:
    return [commit.title for commit in hub.models[repo].history()]


def folder_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_whole(files: Mapping[str, bytes], *packages: Package) -> Index:
    """Check that a remote lists these packages, that all of each is there, and that the card shows them."""
    index = assert_listed(files, *packages)
    if packages:
        card = files["README.md"].decode()
        assert all(entry.path in card for entry in index.entries)
    return index


def assert_listed(files: Mapping[str, bytes], *packages: Package) -> Index:
    """Check that a remote lists these packages, and that every file of each is what its manifest says."""
    index = decode(files[INDEX_NAME]) if INDEX_NAME in files else Index()
    listed = {entry.path: entry for entry in index.entries}
    assert {path[-16:] for path in listed} == {p.build_key[4:20] for p in packages}
    for path, entry in listed.items():
        content = files[f"{path}/manifest.json"]
        assert hashlib.sha256(content).hexdigest() == entry.manifest
        for file in json.loads(content)["files"]:
            found = files[f"{path}/{file['path']}"]
            assert f"sha256:{hashlib.sha256(found).hexdigest()}" == file["digest"]
    return index
