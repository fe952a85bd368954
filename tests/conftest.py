# SPDX-License-Identifier: Apache-2.0
"""Loaded before any test module: the plugin sets the environment that huggingface_hub reads when it is imported."""

import os

import pytest

pytest_plugins = ["fixtures_hub", "fixtures_builds"]


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Name the folder where `parity` keeps traced graphs for all processes of a session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "graphs").mkdir(exist_ok=True)
    os.environ["QEFF_ZOO_TEST_CACHE"] = str(folder / "graphs")
