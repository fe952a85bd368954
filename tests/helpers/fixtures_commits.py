# SPDX-License-Identifier: Apache-2.0
"""What several tests of commits and others use."""

from pathlib import Path
from typing import Any

import pytest
from fixtures_index import ENTRY
from local_hub import LocalHub

from qeff_zoo.hub.entries import Entry
from qeff_zoo.hub.index import Index
from qeff_zoo.hub.remotes import destination
from qeff_zoo.hub.remotes.protocol import Content

HUB = "hf://alice/zoo"


def card(index: Index) -> bytes:
    return f"---\nlicense: mit\n---\n{len(index.entries)} packages\n".encode()


def commit(url: str, *, message: str, **more: Any) -> str:
    return destination(url).commit(message=message, **more)


def publish(url: str, entry: Entry = ENTRY, **more: Any) -> str:
    """Publish a package of one file, and a card that counts the packages."""
    upload: dict[str, Content] = {
        f"{entry.path}/manifest.json": entry.path.encode(),
        "README.md": card,
    }
    return commit(
        url, upload=upload, update=lambda index: index.with_entry(entry), message="add", **more
    )


@pytest.fixture(params=["hub", "folder"])
def url(request: pytest.FixtureRequest, alice: LocalHub, home: Path, tmp_path: Path) -> str:
    """Give a remote without an index."""
    if request.param == "folder":
        return (tmp_path / "not" / "yet").as_uri()
    alice.commit("alice/zoo", {".gitattributes": b"*.gz filter=lfs"})
    return HUB
