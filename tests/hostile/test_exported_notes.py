# SPDX-License-Identifier: Apache-2.0
"""Notes beside exported graphs that somebody else wrote: none is believed that does not fit the graph."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from qeff_zoo.qefficient import exported

GRAPH = b"a graph"
NOTE = {
    "schema": "qeff-exported/1",
    "key": "qz1-0123456789abcdef0123",
    "graph": "model.onnx",
    "digest": f"sha256:{hashlib.sha256(GRAPH).hexdigest()}",
    "model": "org/name",
    "revision": None,
    "task": "text-generation",
    "continuous_batching": False,
}


def noted(folder: Path, text: str) -> exported.Note | None:
    (folder / "model.onnx").write_bytes(GRAPH)
    (folder / exported.NOTE).write_text(text)
    return exported.find(folder)


def test_a_true_note_is_believed(tmp_path: Path) -> None:
    assert noted(tmp_path, json.dumps(NOTE)) == exported.Note(**NOTE)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "sha256:" + "0" * 64}, {"digest": None}, {"schema": "qeff-exported/2"},
        {"model": ["/etc"]}, {"model": None}, {"revision": 7}, {"task": {}}, {"more": 1},
        {"graph": 1}, {"graph": "absent.onnx"}, {"graph": ""}, {"graph": ".."},
    ],
)  # fmt: skip
def test_a_note_that_does_not_fit_is_none(change: dict[str, Any], tmp_path: Path) -> None:
    assert noted(tmp_path, json.dumps({**NOTE, **change})) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": NaN}', "[" * 100_000, "{}"])
def test_what_is_no_note_is_none(text: str, tmp_path: Path) -> None:
    assert noted(tmp_path, text) is None


def test_a_graph_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.onnx").write_bytes(GRAPH)
    (tmp_path / "folder").mkdir()
    assert noted(tmp_path / "folder", json.dumps({**NOTE, "graph": "../elsewhere.onnx"})) is None
