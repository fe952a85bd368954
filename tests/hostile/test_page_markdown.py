# SPDX-License-Identifier: Apache-2.0
"""Texts that a page takes long to render: Node runs each rule of its Markdown, without elements of a browser."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from checkout import ROOT

SIZE = 32_000
MILLISECONDS = 500  # 60 were measured
#: Texts by the rule that reads them to their end.
TEXTS: Mapping[str, str] = {
    **{f"{mark!r} alone": mark * (SIZE // len(mark)) for mark in (
        "|", "\\|", "|\n", "|-\n", "> ", "> > > > > > > > >a\n", "- ", "- a\n\n", "*", "**a", "`", "`a", "$a", "$$\n",
        "$$a\n", "\\(", "\\[\n", "[", "http://", "```\n", "```a\n~~~\n", "\n", "# ", "-", " ", "a ",
    )},
    "a row of bars": "|a|\n|-|\n" + "|" * SIZE,
    "a row of spaces": "|a|\n|-|\n|" + " " * SIZE + "a",
    "columns without end": "a|b\n" + "- " * (SIZE // 2),
    "a rule with another end": "- " * (SIZE // 2) + "x",
    "formulas with another end": "\\[\n" * (SIZE // 3) + "\\] x",
    "blank lines of an item": "- a\n" + "   \n" * (SIZE // 4) + "x",
    "nested items": "\n".join(f"{' ' * depth}- a" for depth in range(240)),
}  # fmt: skip
RUN = """
import { readFileSync } from "node:fs";
import { markdown } from "./markdown.js";
const seconds = {};
for (const [name, text] of Object.entries(JSON.parse(readFileSync("texts.json")))) {
  const begun = performance.now();
  markdown(text);
  seconds[name] = performance.now() - begun;
}
console.log(JSON.stringify(seconds));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_no_text_takes_long(tmp_path: Path) -> None:
    shutil.copy(ROOT / "qeff_zoo" / "serving" / "static" / "markdown.js", tmp_path)
    modules = {
        "package.json": '{"type": "module"}',
        "elements.js": "export const element = (...parts) => parts;",
        "code.js": "export const codeBlock = (text) => text; export const formula = codeBlock;",
        "texts.json": json.dumps(TEXTS),
        "run.js": RUN,
    }
    for name, text in modules.items():
        (tmp_path / name).write_text(text)
    ended = subprocess.run(
        ["node", "run.js"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300
    )
    times: dict[str, float] = json.loads(ended.stdout)
    assert times.keys() == TEXTS.keys()
    assert not {name: time for name, time in times.items() if time > MILLISECONDS}
