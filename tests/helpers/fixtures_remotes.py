# SPDX-License-Identifier: Apache-2.0
"""What several tests of remotes and others use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_hub import LocalHub
from static_server import served

from qeff_zoo.hub.remotes import (
    Remote,
    open_remote,
)


@dataclass
class Place:
    """Somewhere to put files, and the remote that reads them."""

    remote: Remote
    put: Callable[[Mapping[str, bytes]], object]


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(params=["hub", "web", "plain web", "folder"])
def place(
    request: pytest.FixtureRequest, hub: LocalHub, home: Path, tmp_path: Path
) -> Iterator[Place]:
    """Give an empty place of each kind; one web server knows etags and ranges, the other nothing."""
    folder = tmp_path / "remote"
    folder.mkdir()
    if request.param == "plain web":
        with served(folder) as (url, _):
            yield Place(open_remote(url), lambda files: write(folder, files))
        return
    hub.commit("acme/zoo", {".gitattributes": b""})
    urls = {
        "hub": "hf://acme/zoo",
        "web": f"{hub.endpoint}/acme/zoo/resolve/main",
        "folder": folder.as_uri(),
    }
    put = (lambda files: write(folder, files)) if request.param == "folder" else None
    yield Place(
        open_remote(urls[request.param]), put or (lambda files: hub.commit("acme/zoo", files))
    )


@pytest.fixture
def no_sockets() -> Iterator[list[str]]:
    """Give a list of the sockets that this process opened in vain; see `sys.addaudithook`, which is for good."""
    _WATCH.clear()
    _WATCH.append("on")
    yield _WATCH
    _WATCH.clear()


_WATCH: list[str] = []


def urls(remotes: list[Remote]) -> list[str]:
    return [remote.url for remote in remotes]
