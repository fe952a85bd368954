# SPDX-License-Identifier: Apache-2.0
"""What several tests of qaic runtime and others use."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from checkout import TESTS

FAKE = TESTS / "fake_qaicrt"


PROMPTS = [[5], [1, 2, 3], [7] * 8, [*range(12)], [3, 1] * 13, [0, 0], [12] * 17]


LENGTH = 9


SIZES: dict[str, dict[str, Any]] = {
    "one row": {"batch_size": 1},
    "rows": {"batch_size": 3},
    "slots": {"full_batch_size": 3},
    "token by token": {"batch_size": 2, "prefill_seq_len": 1},
    "slots token by token": {"full_batch_size": 2, "prefill_seq_len": 1},
    "contexts": {
        "full_batch_size": 3,
        "comp_ctx_lengths_prefill": (16, 64),
        "comp_ctx_lengths_decode": (8, 24, 64),
    },
}


@pytest.fixture(autouse=True)
def rt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the stand-in, new, in place of the SDK."""
    monkeypatch.setattr(sys, "path", [str(FAKE), *sys.path])
    for name in ("qaicrt", "QAicApi_pb2"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import qaicrt

    yield qaicrt
    for name in ("qaicrt", "QAicApi_pb2"):
        sys.modules.pop(name, None)
