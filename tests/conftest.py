# SPDX-License-Identifier: Apache-2.0
"""Loaded before any test module: the plugin sets the environment that huggingface_hub reads when it is imported."""

import os
from pathlib import Path

import pytest
import selection

pytest_plugins = ["fixtures_hub", "fixtures_builds"]
ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed",
        nargs="?",
        const="HEAD",
        metavar="REF",
        help="of recipes, test those that differ from this revision (HEAD), and what derives from them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the recipes that a change does not touch, if asked to."""
    ref = config.getoption("--changed")
    if ref is None:
        return
    sources = {file.stem: file.read_text() for file in (ROOT / "recipes").glob("[!_]*.py")}
    try:
        touched = selection.affected(selection.changed_since(ref, ROOT), sources)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if touched is None:
        return
    kept, left = [], []
    for item in items:
        call = getattr(item, "callspec", None)
        parameters = call.params.values() if call else ()
        needed = selection.is_needed(item.path.stem, parameters, touched, ROOT)
        (kept if needed else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Name the folder where `parity` keeps traced graphs for all processes of a session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    (folder / "graphs").mkdir(exist_ok=True)
    os.environ["QEFF_ZOO_TEST_CACHE"] = str(folder / "graphs")
