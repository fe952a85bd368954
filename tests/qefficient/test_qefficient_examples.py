# SPDX-License-Identifier: Apache-2.0
"""`scripts/qefficient`: how a script is rewritten, and what a row of its table is made of."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the path of the package, which is none of the installed ones."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith("qefficient_examples"):
            del sys.modules[name]


def module(name: str) -> ModuleType:
    return import_module(f"qefficient_examples.{name}")


@pytest.mark.usefixtures("scripts")
def test_a_script_gets_our_import_and_nothing_else() -> None:
    reference = (
        "import QEfficient\nimport QEfficient.base\n    from QEfficient.utils import a\nprint('QEfficient')\n"
        "generation_len = CTX_LEN - ids.max()\nx.generate(generation_len=100, n=20)\nSAMPLES = 480000\n"
    )
    assert module("rewriting").rewrite(reference) == (
        "import qeff_zoo.qefficient as QEfficient\nimport qeff_zoo.qefficient.base\n"
        "    from qeff_zoo.qefficient.utils import a\nprint('QEfficient')\n"
        "generation_len = CTX_LEN - ids.max()\nx.generate(generation_len=100, n=20)\nSAMPLES = 480000\n"
    )


@pytest.mark.usefixtures("scripts")
def test_what_a_script_lacks_is_no_failure(tmp_path: Path) -> None:
    """transformers refuses processors of videos without torchvision, and qwen_vl_utils imports it."""
    row = module("__main__")._row
    for printed in (
        "ModuleNotFoundError: No module named 'qwen_vl_utils'",
        "ValueError: Qwen/Qwen3.5-0.8B requires `torchvision` to be installed. Please install it.",
        "ImportError: Qwen2VLVideoProcessor requires the Torchvision library but it was not found",
    ):
        found = row(1, f"Traceback\n{printed}\n", tmp_path, 9)
        assert (found["result"], found["reason"]) == ("lacks", printed)
    assert row(1, "ValueError: a torch\n", tmp_path, 9)["result"] == "fails"
    assert row(None, "", tmp_path, 9)["result"] == "too slow"


@pytest.mark.usefixtures("scripts")
def test_the_table_counts_and_names_what_does_not_run(tmp_path: Path) -> None:
    rows = [
        {"script": "a.py", "result": "runs", "reason": "", "seconds": 1},
        {
            "script": "b.py",
            "result": "refused",
            "reason": "PlanError: x | y",
            "seconds": 1,
        },
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    text = module("table").table(tmp_path / "rows.json")
    assert text.startswith("Of 2 scripts, 1 run, 1 are refused by name.\n")
    assert "`b.py`" in text
    assert r"PlanError: x \| y" in text
    assert "a.py" not in text


@pytest.mark.usefixtures("scripts")
def test_failures_of_unit_tests_are_internals_or_shown(tmp_path: Path) -> None:
    missing = "QEfficient's 'utils.hash_utils' has no counterpart in qeff_zoo.qefficient."
    (tmp_path / "test_a.xml").write_text(
        "<testsuites><testsuite><testcase name='one'/><testcase name='two'><skipped/></testcase>"
        f'<testcase name="three"><failure message="{missing}"/></testcase>'
        "<testcase name='four'><failure message='assert False'>_Missing object at</failure></testcase>"
        "<testcase name='five'><failure message='ValueError: 1 | 2'/></testcase></testsuite></testsuites>"
    )
    results = module("unit_tests")
    row = results.row_of("utils/test_a.py", tmp_path / "test_a.xml")
    assert (row["passed"], row["skipped"]) == (1, 1)
    assert row["internals"] == {"hash_utils": 1, "objects of its modules": 1}
    assert row["others"] == {"five": "ValueError: 1 | 2"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    text = results.table(tmp_path / "rows.json")
    cells = [cell.strip() for cell in text.splitlines()[2].split("|")]
    assert cells[1:6] == ["`utils/test_a.py`", "1", "1", "2", "1"]
    assert r"ValueError: 1 \| 2" in text
    steps = next(line for line in text.splitlines() if line.startswith("| steps within `export`"))
    assert steps.split("|")[2].strip() == "1"
