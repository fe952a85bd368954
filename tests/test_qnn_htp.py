# SPDX-License-Identifier: Apache-2.0
"""Target `qnn-htp`: what its compiler gets agrees with Hugging Face; what it makes runs on its simulator."""

import parity
import pytest
from parity import CROSSED


@pytest.mark.parametrize("scenario", ["chunked", "padded_batch"])
@pytest.mark.parametrize("name", CROSSED)
def test_static_graphs_agree_with_hugging_face(name: str, scenario: str) -> None:
    parity.assert_close(parity.subject(name), "static", scenario, parity.PLAIN)
