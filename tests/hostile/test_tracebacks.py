# SPDX-License-Identifier: Apache-2.0
"""What somebody else made wrong is said in a sentence that names it, never by a traceback."""

import copy
from typing import Any

import pytest
from package_builder import SOURCE, SPEC, draft

from qeff_zoo.package.manifest import problems, unsafe_path

# --- manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sources": "org/tiny"}, "$.spec.sources 'org/tiny' is not of type 'object'"),
        ({"sources": {"model": "org/tiny"}}, "$.spec.sources.model 'org/tiny' is not of type"),
        ({"sources": {"model": {**SOURCE, "model_id": 1}}}, "$.spec.sources.model.model_id 1 is"),
        ({"toolchain": "torch 2.13.0"}, "$.spec.toolchain 'torch 2.13.0' is not of type 'object'"),
        ({"toolchain": {"torch": {}}}, "$.spec.toolchain.torch {} is not of type 'string'"),
        ({"shape": {"ctx_len": "4096"}}, "$.spec.shape.ctx_len '4096' is not of type"),
        ({"target": "ort"}, "$.spec.target 'ort' is not of type 'object'"),
        ({"task": {"name": "x" * 241}}, "$.spec.task.name 'xxx"),
    ],
)
def test_a_spec_of_another_form_is_refused(change: dict[str, Any], problem: str) -> None:
    spec = {**copy.deepcopy(SPEC), **change}
    found = problems(draft(spec=spec))
    assert [text for text in found if text.startswith(problem)], found


@pytest.mark.parametrize(
    ("path", "longest"), [("a" * 256, 256), ("qpc/" + "ł" * 128, 256), ("ツ" * 86 + "/a", 258)]
)
def test_a_name_longer_than_any_file_system_takes_is_refused(path: str, longest: int) -> None:
    assert unsafe_path(path) == f"has a part of {longest} bytes, more than 255"
    assert unsafe_path("/".join(["ł" * 127, "a" * 255])) is None
