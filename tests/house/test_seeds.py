# SPDX-License-Identifier: Apache-2.0
"""Random numbers of tests are those of their names: in any order, selection and process."""

import random
import sys
from typing import Any

import numpy as np
import pytest
import seeds

_AT_IMPORT = random.random()
_NAMES = ("[0]", "[1]")


def drawn() -> list[float]:
    torch: Any = sys.modules["torch"]
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def expected(name: str) -> list[float]:
    before = random.getstate()
    seeds.seed(name)
    found = drawn()
    random.setstate(before)
    return found


@pytest.fixture(scope="module", params=_NAMES)
def weights(request: pytest.FixtureRequest) -> tuple[str, list[float]]:
    """Draw as fixtures do that make a model."""
    return request.param, drawn()


def test_a_fixture_and_a_test_draw_by_their_names(
    weights: tuple[str, list[float]], request: pytest.FixtureRequest
) -> None:
    assert drawn() == expected(request.node.nodeid)
    name, numbers = weights
    assert numbers == expected(f"{request.node.parent.nodeid}::weights{name}")


def test_a_module_draws_by_its_name(request: pytest.FixtureRequest) -> None:
    assert expected(request.node.parent.nodeid)[0] == _AT_IMPORT
