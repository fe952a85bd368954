# SPDX-License-Identifier: Apache-2.0
"""Seeds of random numbers: a module, a fixture and a test each draw the same ones in any order of tests.

Loaded as a plugin. A test that sets a seed itself keeps that one.
"""

import random
import sys
import zlib
from typing import Any

import pytest


def seed(name: str) -> None:
    """Seed Python, and NumPy and torch if they are imported, by a name."""
    number = zlib.crc32(name.encode())
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(number)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Seed what a module draws when it is imported."""
    if isinstance(collector, pytest.Module):
        seed(collector.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    """Seed a fixture, of whatever scope, by its name and parameter: not by the first test that needs it."""
    place = getattr(request, "param_index", 0)
    seed(f"{fixturedef.baseid}::{fixturedef.argname}[{place}]")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Seed a test by its name."""
    seed(item.nodeid)
