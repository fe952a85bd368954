# SPDX-License-Identifier: Apache-2.0
"""Markdown tables without padding, so that a changed row changes one line."""

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, without the columns that are empty in every row.

    Args:
        headers: Title of each column.
        rows: Cells of each row; a `|` in a cell is escaped.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    filled = [number for number in range(len(headers)) if any(row[number] for row in cells)]
    lines = [headers, ["---"] * len(headers), *cells]
    return "\n".join("| " + " | ".join(line[number] for number in filled) + " |" for line in lines)
