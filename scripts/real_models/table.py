# SPDX-License-Identifier: Apache-2.0
"""The table of real models in the README, from their records."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from real_models.models import MODELS, STORED

FOLDER = Path(__file__).parents[2] / "validated_models"
_HEADERS = ("model", "measured", "transformers", *STORED, "llama.cpp")


def table(folder: Path = FOLDER) -> str:
    """Return the table in Markdown, with a row for each model that has a record.

    Args:
        folder: Folder of all records.
    """
    rows: list[list[str]] = []
    for model in MODELS:
        path = folder / "local" / f"{model.name}.json"
        found = json.loads(path.read_bytes())["records"] if path.is_file() else []
        if measured := {one["weights"]: one for one in found if "measured" in one}:
            rows.append([model.title, *_row(measured)])
    return tabulate(rows, _HEADERS, tablefmt="github", disable_numparse=True)


def _row(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    figures = {storage: value["measured"] for storage, value in records.items()}
    first = next(iter(figures.values()))
    cells = {storage: _cell(figure) for storage, figure in figures.items()}
    for storage, record in records.items():
        if record["verdict"] != "validated":
            cells[storage] += " (refused)"
    peers = [_cell(figure["llama.cpp"]) for figure in figures.values() if "llama.cpp" in figure]
    return [*_subject(first), *(cells.get(storage, "") for storage in STORED), *(peers or [""])]


def _subject(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was measured, and the figure of transformers."""
    if "perplexity" in one:
        return f"perplexity of {one['targets']} tokens; mean KL", f"{one['reference']:.2f}"
    if "pairs" in one:
        return (
            f"cosine distance of {2 * one['pairs']} embeddings; largest error of {one['pairs']} cosines",
            "",
        )
    return f"words wrong of {one['words']}; words unlike transformers'", str(one["reference"])


def _cell(one: Mapping[str, Any]) -> str:
    if "perplexity" in one:
        return f"{one['perplexity']:.2f}; {one['mean_kl']:.1e}"
    if "pairs" in one:
        return f"{one['mean_distance']:.1e}; {one['max_cosine_error']:.1e}"
    return f"{one['wrong']}; {one['unlike_reference']}"
