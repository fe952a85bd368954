# SPDX-License-Identifier: Apache-2.0
"""Publishing where large files go through Xet, as they do to the Hub unless HF_HUB_DISABLE_XET is set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import HELPERS
from fixtures_builds import TIMEOUT
from publications import Make

pytest.importorskip("hf_xet")
pytest.importorskip("huggingface_hub", minversion="1.20", reason="asks the Hub whether to use Xet")

#: In a process of its own, as huggingface_hub reads its environment once.
_PUBLISH = """
import os, sys
from pathlib import Path
from hub_xet import XetHub

chunks, *folders = map(Path, sys.argv[1:])
chunks.mkdir()
hub = XetHub(chunks).start()
os.environ["HF_ENDPOINT"] = hub.endpoint
from publications import REPO, SOURCE, assert_whole, go, titles, uploaded, writes
from qeff_zoo.hub.remotes import open_remote
from qeff_zoo.package import Package

hub.commit(SOURCE, {"config.json": b"{}"})
packages = [Package.open(folder) for folder in folders]
for package in packages:
    go(package)
index = assert_whole(hub.files(REPO), *packages)
assert len(titles(hub)) == 1 + len(packages)
assert hub.requests("/xet-write-token/")
assert uploaded(hub) == 0

hub.log.clear()
for package in packages:
    go(package)
assert writes(hub) == []

snapshot = open_remote("hf://" + REPO).snapshot()
for entry in index.entries:
    content = snapshot.read(entry.path + "/model.onnx.data", limit=1 << 20)
    assert content == (packages[0].path / "model.onnx.data").read_bytes()
"""


def test_publishing_through_xet(make_package: Make, tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "HF_HUB_DISABLE_XET"}
    path = [str(HELPERS), environment.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _PUBLISH, tmp_path / "chunks", *(make_package(n).path for n in (1024, 2048))],
        env={**environment, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
