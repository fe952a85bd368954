# SPDX-License-Identifier: Apache-2.0
"""docs/features.md: the features of QEfficient's guide, and their state here, from docs/features.json."""

import json
from pathlib import Path

from documentation.tables import table

DOCS = Path(__file__).parents[2] / "docs"


def features() -> str:
    """Return the page."""
    data = json.loads((DOCS / "features.json").read_bytes())
    rows = []
    for feature in data["features"]:
        linked = {"../examples": feature.get("example"), ".": feature.get("guide")}
        links = [f"[{name}]({folder}/{name})" for folder, name in linked.items() if name]
        links += [f"[{path}](../{path})" for path in feature.get("files", ())]
        code = [
            "<br>".join(f"`{text}`" for text in feature.get(kind, ()))
            for kind in ("python", "commands")
        ]
        rows.append(
            [
                feature["feature"],
                feature["state"],
                *code,
                "<br>".join(links),
                feature.get("note", ""),
            ]
        )
    headers = ["feature", "state", "in Python", "as a command", "example, guide", "notes"]
    states = "\n".join(f"- **{name}**: {text}." for name, text in data["states"].items())
    return (
        "<!-- written by scripts/update_readme from features.json -->\n# QEfficient's features\n\n"
        "The features of QEfficient's guide, and their state here. Names without a module are in "
        "`qeff_zoo.qefficient`; "
        f"[from-qefficient.md](from-qefficient.md) shows how to port code.\n\n{states}\n\n{table(headers, rows)}\n"
    )
