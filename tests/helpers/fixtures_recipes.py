# SPDX-License-Identifier: Apache-2.0
"""What several tests of recipes and others use."""

from typing import Any

import parity
import pytest


def grouped(names: list[str]) -> list[Any]:
    """Keep the tests of one tiny config in one process: what they share is made once."""
    return [pytest.param(name, marks=pytest.mark.together(name)) for name in names]


#: Other tiny configs differ in how queries come about and in the order of RoPE's pairs, not in what is expanded.
LATENT = grouped(["deepseek_v3-base", *(["deepseek_v32-base"] if parity.EVERY else [])])
