# SPDX-License-Identifier: Apache-2.0
"""Published text models whose configs found a fault once: sizes and layers shrink, flags and ratios stay.

config.json has the fields of the published file; transformers makes the weights.
"""

import json
from pathlib import Path
from typing import Any

import parity
import pytest
from checkout import TESTS

from qeff_zoo import pipeline
from qeff_zoo.plan.request import Request
from qeff_zoo.store import Store

PUBLISHED: dict[str, dict[str, Any]] = json.loads((TESTS / "published_text.json").read_bytes())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_form_builds_and_agrees(name: str, tmp_path: Path) -> None:
    config, folder = PUBLISHED[name], tmp_path / "checkpoint"
    parity.hugging_face(config, "text-generation").save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    built = pipeline.build(
        str(folder),
        Request(weights="fp32", ctx_len=64, prefill_seq_len=16),
        level="tiny",
        store=Store(tmp_path / "store"),
    )
    assert built.package.validated == "tiny"
