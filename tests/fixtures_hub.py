# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: a Hub on the loopback, and a Hub cache of its own for every test.

`huggingface_hub` reads its environment once, at import, so the server starts when pytest loads this
plugin. No test of the session, nor a process that one starts, can reach any other Hub.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub

_ENVIRONMENT = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_ETAG_TIMEOUT": "2",
}
_FOREIGN = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")

if "huggingface_hub" in sys.modules:
    raise RuntimeError("huggingface_hub was imported before the environment of its tests was set")
_home = tempfile.mkdtemp(prefix="hf-home-")
_hub = LocalHub().start()
os.environ.update(_ENVIRONMENT, HF_ENDPOINT=_hub.endpoint, HF_HOME=_home)
for _name in _FOREIGN:
    os.environ.pop(_name, None)


def pytest_unconfigure() -> None:
    _hub.stop()
    shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    """Give an empty Hub, and point the client to an empty cache."""
    from huggingface_hub import constants

    _hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    yield _hub
    _hub.clear()


@pytest.fixture
def go_offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give a function after which all is as with HF_HUB_OFFLINE=1, till the test ends."""
    from huggingface_hub import constants

    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
