# SPDX-License-Identifier: Apache-2.0
"""A package that lists the manifest's signature as a file of its own cannot write through it into another package."""

import hashlib
import json
from pathlib import Path

import pytest
from fixtures_pulls import pull
from remote_builder import make

from qeff_zoo.errors import RemoteError
from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import INDEX_NAME, Index
from qeff_zoo.hub.index_files import encode
from qeff_zoo.package.identity import tree_digest
from qeff_zoo.package.manifest import MANIFEST_NAME, SIGNATURE_NAME, dump
from qeff_zoo.store import Store


@pytest.mark.parametrize("name", [SIGNATURE_NAME, f"{MANIFEST_NAME}.origin", f".{MANIFEST_NAME}.0"])
def test_no_file_of_another_package_is_written_to(home: Path, tmp_path: Path, name: str) -> None:
    store = Store()
    with store.stage("build") as folder:
        victim = store.promote(folder, make(folder).build_key)
    wanted = victim.path / "tokenizer.json"

    evil = make(tmp_path / "evil", ctx_len=8192)
    manifest = json.loads((evil.path / MANIFEST_NAME).read_bytes())
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    file = {
        "path": name,
        "size": wanted.stat().st_size,
        "digest": f"sha256:{digest}",
        "role": "other",
    }
    manifest["files"].append(file)
    manifest["tree"] = tree_digest(manifest["files"])
    content = dump(manifest)
    entry = Entry.of(manifest, content, signed=True)
    there = tmp_path / "zoo" / entry.path
    there.parent.mkdir(parents=True)
    evil.path.rename(there)
    (there / MANIFEST_NAME).write_bytes(content)
    (there / SIGNATURE_NAME).write_bytes(b'{"not": "a tokenizer"}')
    (tmp_path / "zoo" / INDEX_NAME).write_bytes(encode(Index().with_entry(entry)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_ZOO_TRUST", "off")  # the signature is not read
        with pytest.raises(RemoteError, match="QZ-M016"):
            pull((tmp_path / "zoo").as_uri())
    assert victim.verify() == []
    assert [entry.key for entry in store.entries() if entry.kind == "package"] == [victim.build_key]
