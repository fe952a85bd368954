# SPDX-License-Identifier: Apache-2.0
"""Folders of the checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
#: Where modules lie that tests import: for the path of processes that tests start.
HELPERS = TESTS / "helpers"
TINY_LLAMA = ROOT / "examples" / "tiny-llama"
