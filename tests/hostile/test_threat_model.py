# SPDX-License-Identifier: Apache-2.0
"""Every claim of the threat model in docs/hub.md names a test that exists."""

import ast
import re

from checkout import ROOT

_ROW = re.compile(r"\|[^|]*\| (?P<claim>[^|]+) \| (?P<test>[^|]*) \|")
_TEST = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<name>test_\w+)`")


def claims() -> dict[str, str]:
    """Return the test of each claim of the threat model."""
    text = (ROOT / "docs/hub.md").read_text()
    table = text.partition("| | claim | test |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [_ROW.fullmatch(line) for line in table.splitlines()]
    assert rows
    assert all(rows), table
    return {row["claim"]: row["test"] for row in rows if row}


def test_every_claim_names_a_test_that_exists() -> None:
    without = []
    for claim, named in claims().items():
        test = _TEST.fullmatch(named)
        path = ROOT / test["file"] if test else ROOT
        there = path.is_file() and {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        if not (test and there and test["name"] in there):
            without.append(f"{claim}: {named}")
    assert without == []
    assert len(claims()) > 25
