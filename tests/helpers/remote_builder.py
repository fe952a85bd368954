# SPDX-License-Identifier: Apache-2.0
"""Remotes with small packages, as bytes by path: to be put into a Hub of the tests, a folder or a web server."""

import copy
import random
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from package_builder import FILES, SPEC, draft

from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import INDEX_NAME, Index, Sign
from qeff_zoo.hub.index_files import decode, decode_file, file_path, files_of
from qeff_zoo.hub.index_tree import Node, Reference
from qeff_zoo.hub.trust import index_signer
from qeff_zoo.hub.urls import canonical
from qeff_zoo.package import Package, write_manifest
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME
from qeff_zoo.store.origins import Origin


def noise(size: int, seed: int = 0) -> bytes:
    """Give bytes that nothing else has."""
    return random.Random(seed).randbytes(size)


def make(
    folder: Path,
    files: Mapping[str, bytes | None] | None = None,
    *,
    ctx_len: int = 4096,
    **changes: Any,
) -> Package:
    """Make a package of `org/tiny`.

    Args:
        folder: Empty or absent.
        files: Content by path, beside or instead of the usual ones; None for none of those.
        ctx_len: What sets it apart from others.
        changes: Fields of the manifest.
    """
    for name, content in {**FILES, **(files or {})}.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    spec = copy.deepcopy(SPEC)
    spec["shape"]["ctx_len"] = ctx_len
    compiler = {"name": "onnxruntime", "version": version("onnxruntime")}  # nothing to warn of
    manifest = {**draft(), "spec": spec, **changes}
    for program in manifest["programs"]:
        program["compiled_from"] |= {"compiler": compiler}
    return write_manifest(folder, manifest, {})


def entry_of(package: Package) -> Entry:
    content = (package.path / MANIFEST_NAME).read_bytes()
    signed = (package.path / SIGNATURE_NAME).is_file()
    return Entry.of(package.manifest, content, signed=signed)


def origin_of(package: Package, url: str) -> Origin:
    entry = entry_of(package)
    return Origin(url=url, path=entry.path, manifest=entry.manifest, signed=entry.signed)


def remote(*packages: Package, index: Index | None = None) -> dict[str, bytes]:
    """Give the files of a remote that has these packages.

    Args:
        packages: As `make` makes them.
        index: One that says something else of them.
    """
    listed = Index()
    files = {}
    for package in packages:
        entry = entry_of(package)
        listed = listed.with_entry(entry)
        for path in package.path.rglob("*"):
            if path.is_file():
                files[f"{entry.path}/{path.relative_to(package.path)}"] = path.read_bytes()
    return {**files, **files_of(index or listed)}


def index_in(files: Mapping[str, bytes]) -> Index:
    """Give the index that files of a remote make up."""

    def read(prefix: str, reference: Reference) -> Node:
        return decode_file(files[file_path(prefix, reference)], prefix, reference)

    return replace(decode(files[INDEX_NAME]), read=read)


def signing(index: Index, key: Path | None, url: str) -> tuple[Index, Sign | None]:
    """Give what `encode` takes for an index of a remote: signed with a key, if there is one."""
    if key is None:
        return index, None
    return replace(index, remotes=(canonical(url),)), index_signer(key)


def write_remote(
    folder: Path, *packages: Package, serial: int | None = None, key: Path | None = None
) -> str:
    """Make a folder a remote; give its URL.

    Args:
        folder: Made if need be.
        packages: As `make` makes them.
        serial: Of the index, if not their number.
        key: That the index is signed with.
    """
    files = remote(*packages)
    index = index_in(files)
    index = index if serial is None else replace(index, serial=serial)
    files |= files_of(*signing(index, key, folder.as_uri()))
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder.as_uri()
