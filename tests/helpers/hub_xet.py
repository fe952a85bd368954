# SPDX-License-Identifier: Apache-2.0
"""Xet for the Hub on the loopback: the genuine hf_xet keeps its chunks in a folder.

hf_xet has a store of its own that is a folder, `local://…`; here it takes the place of the Hub's service.
"""

import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from local_hub import Handler, LocalHub, route

_HEADER, _RECORD = 48, 48
_VERIFIED, _WITH_SHA256 = 1 << 31, 1 << 30


class XetHub(LocalHub):
    """A Hub whose large files are chunks in a folder.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.chunks = folder
        self.large = Assembled(folder)


class Assembled(dict[str, bytes]):
    """Content by SHA-256; what is only there as chunks is put together when it is asked for."""

    def __init__(self, chunks: Path) -> None:
        super().__init__()
        self._chunks = chunks

    def __contains__(self, sha256: object) -> bool:
        if not super().__contains__(sha256) and (found := self._known().get(str(sha256))):
            self[str(sha256)] = _put_together(self._chunks, *found)
        return super().__contains__(sha256)

    def _known(self) -> dict[str, tuple[str, int]]:
        shards = [path.read_bytes() for path in self._chunks.rglob("shards/*.mdb")]
        return {sha256: (name, size) for shard in shards for name, sha256, size in _files(shard)}


def _files(shard: bytes) -> Iterator[tuple[str, str, int]]:
    """List the files that a shard describes: name among the chunks, SHA-256, size."""
    at = _HEADER
    while shard[at : at + 32] != b"\xff" * 32:
        name, flags, count, _ = struct.unpack_from("<32sIIQ", shard, at)
        segments = range(at + _RECORD, at + _RECORD * (1 + count), _RECORD)
        size = sum(struct.unpack_from("<32sIIII", shard, place)[2] for place in segments)
        at += _RECORD * (1 + count * (2 if flags & _VERIFIED else 1))
        if flags & _WITH_SHA256:
            yield _hex(name), _hex(shard[at : at + 32]), size
            at += _RECORD


def _hex(digest: bytes) -> str:
    return "".join(f"{part:016x}" for part in struct.unpack("<4Q", digest))


def _put_together(chunks: Path, name: str, size: int) -> bytes:
    import hf_xet

    with tempfile.TemporaryDirectory() as folder:
        copy, file = Path(folder, "chunks"), Path(folder, "file")  # the client has the store open
        shutil.copytree(chunks, copy, ignore=shutil.ignore_patterns("shard-cache", "shard-session"))
        with hf_xet.XetSession().new_file_download_group(endpoint=f"local://{copy}") as group:
            group.start_download_file(hf_xet.XetFileInfo(name, size), os.fspath(file))
        return file.read_bytes()


@route("GET", "/api/models/{model}/xet-(?P<what>read|write)-token/{revision}")
def xet_token(self: Handler, model_id: str, what: str, revision: str) -> None:
    self.hub.find(model_id, self.user, write=what == "write")
    assert isinstance(self.hub, XetHub)
    place, expires = f"local://{self.hub.chunks}", int(time.time()) + 3600
    headers = {
        "X-Xet-Access-Token": "token",
        "X-Xet-Token-Expiration": str(expires),
        "X-Xet-Cas-Url": place,
    }
    self.reply(200, {"accessToken": "token", "exp": expires, "casUrl": place}, headers)
