#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""List the longest modules and functions of qeff_zoo: a report, by which nothing fails."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 8


def functions(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and the name of every function of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{name}:{node.name}"


def main() -> None:
    """Print the longest of each kind in a line."""
    files = {path: str(path.relative_to(ROOT)) for path in (ROOT / "qeff_zoo").rglob("*.py")}
    kinds = {
        "modules": [(len(path.read_text().splitlines()), name) for path, name in files.items()],
        "functions": [found for path, name in files.items() for found in functions(path, name)],
    }
    for kind, every in kinds.items():
        longest = sorted(every, reverse=True)[:SHOWN]
        print(f"longest {kind}:", ", ".join(f"{name} {lines}" for lines, name in longest))


if __name__ == "__main__":
    main()
