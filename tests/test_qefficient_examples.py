# SPDX-License-Identifier: Apache-2.0
"""`scripts/qefficient`: how a script is rewritten, and what a row of its table is made of."""

import json
import random
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent


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
def test_the_stand_in_resizes_images_as_transformers_does() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    stand_in = module("stand_ins.qwen_vl_utils")
    bounds = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    draw = random.Random(0)
    for _ in range(500):
        height, width = draw.randint(20, 3000), draw.randint(20, 3000)
        expected = smart_resize(height, width, 28, **bounds)
        assert stand_in.smart_resize(height, width, 28, **bounds) == expected
    image = Image.new("RGBA", (100, 60))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    for given in (chat, [chat]):
        (found,), videos = stand_in.process_vision_info(given)
        assert (found.size, found.mode, videos) == ((112, 56), "RGB", None)
    (found,), _, more = stand_in.process_vision_info(chat, True, True, image_patch_size=16)
    assert (found.size, more) == ((96, 64), {"do_sample_frames": False})
    assert stand_in.process_vision_info(chat[:1]) == (None, None)
    with pytest.raises(NotImplementedError, match="no videos"):
        stand_in.process_vision_info([{"role": "user", "content": [{"video": "a.mp4"}]}])


@pytest.mark.usefixtures("scripts")
def test_the_table_counts_and_names_what_does_not_run(tmp_path: Path) -> None:
    rows = [
        {"script": "a.py", "result": "runs", "reason": "", "seconds": 1, "changes": []},
        {"script": "c.py", "result": "runs", "reason": "", "seconds": 1, "changes": ["12 tokens"]},
        {
            "script": "b.py",
            "result": "refused",
            "reason": "PlanError: x | y",
            "seconds": 1,
            "changes": [],
        },
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    text = module("table").table(tmp_path / "rows.json")
    beside = "1 of those that run were recorded with changes besides the import"
    assert text.startswith(f"Of 3 scripts, 2 run, 1 are refused by name; {beside}.\n")
    assert "recorded with 12 tokens" in text
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
